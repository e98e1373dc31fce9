/*
 * allreduce_hier.c: teams over several hosts with several members on one.
 *
 *   phase 0  local   reduce-scatter: carrier i gets the sum of slice i of its host, in
 *                    the type of partial results
 *   phase 1  cross   carriers of slice i on all hosts: allreduce over messages, in the
 *                    order of hosts, rounded once
 *   phase 2  local   allgather: everybody gets all slices
 *
 * Carriers are the first members of each host, as many as the smallest host has, and
 * fewer for small vectors.  Long vectors go segment by segment, to bound the memory of
 * partial results.  Local parts of segment s are 2s and 2s + 1.
 */
#include "collective/hier_int.h"

#include <string.h>

#define SLICE_LEAST ((size_t)8 << 10)   /* below, another carrier costs more than it saves */
#define SEGMENT_BYTES ((size_t)32 << 20)
#define SEGMENTS_MAX (1 << (PART_BITS - 1))

extern const struct coll_alg allreduce_hier;

struct spread {
    struct hier h;
    size_t segment, begin, count;       /* elements of one; those of the current one */
    uint32_t index;                     /* of the current segment */
    uint64_t *counts;                   /* by local member: its slice */
    void *partial;                      /* carriers: sum of our host */
};

static int carriers(const struct coll_task *t, size_t count)
{
    size_t useful = count * task_type_bytes(t->call.dtype) / SLICE_LEAST;

    useful = useful > 0 ? useful : 1;
    return useful < (size_t)t->team->carriers ? (int)useful : t->team->carriers;
}

static size_t my_slice(const struct coll_task *t, size_t count, size_t *begin_p)
{
    int n = carriers(t, count), place = hier_place(t->team);

    *begin_p = 0;
    return place < n ? pattern_slice(count, n, place, begin_p) : 0;
}

static void spread_release(struct coll_task *t)
{
    struct spread *s = (struct spread *)t->state;

    hier_drop(t);
    scratch_put(t->team->scratch, s->counts);
    scratch_put(t->team->scratch, s->partial);
}

static enum hvd_status start_reduce(struct coll_task *t, struct hvd_error *err)
{
    struct spread *s = (struct spread *)t->state;
    struct coll_call call = hier_call(t, COLL_REDUCESCATTER);
    int n = carriers(t, s->count);
    size_t begin;

    for (int i = 0; i < t->team->local->count; i++)
        s->counts[i] = i < n ? pattern_slice(s->count, n, i, &begin) : 0;
    call.in = (const char *)t->call.in + s->begin * task_type_bytes(t->call.dtype);
    call.out = s->partial;
    call.counts = s->counts;
    call.prescale = t->call.prescale;
    return task_start(t->team->local, &call, hier_part(t, 2 * s->index),
                      order_partial_type(t->call.dtype), &s->h.child, err);
}

static enum hvd_status start_cross(struct coll_task *t, struct hvd_error *err)
{
    struct spread *s = (struct spread *)t->state;
    struct coll_call call = hier_call(t, COLL_ALLREDUCE);
    size_t begin, count = my_slice(t, s->count, &begin);

    if (count == 0)
        return HVD_OK;
    call.dtype = order_partial_type(t->call.dtype);
    call.in = s->partial;
    call.out = (char *)t->call.out + (s->begin + begin) * task_type_bytes(t->call.dtype);
    call.count = count;
    call.postscale = t->call.postscale;
    call.divisor = t->call.divisor;
    return task_start(t->team->cross, &call, hier_part(t, 2 * s->index), t->call.dtype,
                      &s->h.child, err);
}

/* Our slice is already at its place in the output. */
static enum hvd_status start_gather(struct coll_task *t, struct hvd_error *err)
{
    struct spread *s = (struct spread *)t->state;
    struct coll_call call = hier_call(t, COLL_ALLGATHER);
    size_t begin, unit = task_type_bytes(t->call.dtype);

    my_slice(t, s->count, &begin);
    call.out = (char *)t->call.out + s->begin * unit;
    call.in = (char *)call.out + begin * unit;
    call.counts = s->counts;
    return task_start(t->team->local, &call, hier_part(t, 2 * s->index + 1),
                      t->call.dtype, &s->h.child, err);
}

static enum hvd_status open_segment(struct coll_task *t, struct hvd_error *err)
{
    struct spread *s = (struct spread *)t->state;
    size_t left = t->call.count - s->begin;

    s->count = left < s->segment ? left : s->segment;
    s->h.phase = 0;
    return start_reduce(t, err);
}

static enum hvd_status take_memory(struct coll_task *t, struct hvd_error *err)
{
    struct spread *s = (struct spread *)t->state;
    size_t begin, first = t->call.count < s->segment ? t->call.count : s->segment;
    size_t slice = my_slice(t, first, &begin);
    size_t unit = task_type_bytes(order_partial_type(t->call.dtype));

    s->counts = scratch_get(t->team->scratch,
                            (size_t)t->team->local->count * sizeof *s->counts);
    s->partial = scratch_get(t->team->scratch, (slice + 64) * unit);
    if (s->counts == NULL || s->partial == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for partial results");
    return HVD_OK;
}

static enum hvd_status spread_start(struct coll_task *t, struct hvd_error *err)
{
    struct spread *s = (struct spread *)t->state;
    size_t unit = task_type_bytes(t->call.dtype);
    enum hvd_status status;

    *s = (struct spread){.segment = SEGMENT_BYTES / unit};
    if (t->call.count / s->segment >= SEGMENTS_MAX)
        s->segment = (t->call.count / SEGMENTS_MAX + 64) / 64 * 64;
    TRY_OUT(take_memory(t, err));
    TRY_OUT(open_segment(t, err));
    return HVD_OK;
out:
    spread_release(t);
    return status;
}

static enum hvd_status next_phase(struct coll_task *t, struct hvd_error *err)
{
    struct spread *s = (struct spread *)t->state;

    switch (++s->h.phase) {
    case 1:
        return start_cross(t, err);
    case 2:
        return start_gather(t, err);
    default:
        s->begin += s->count;
        s->index++;
        return s->begin < t->call.count ? open_segment(t, err) : HVD_OK;
    }
}

static enum hvd_status spread_step(struct coll_task *t, struct hvd_error *err)
{
    struct spread *s = (struct spread *)t->state;

    while (s->index == 0 || s->begin < t->call.count) {
        TRY(hier_drive(t, err));
        TRY(next_phase(t, err));
    }
    return HVD_OK;
}

static bool spread_can(const struct coll_team *team)
{
    return team->local != NULL && team_hier_allreduce != 0;
}

const struct coll_alg allreduce_hier = {
    .op = COLL_ALLREDUCE, .name = "hier",
    .text = "several hosts: memory within a host, each slice by its carrier between",
    .state_bytes = sizeof(struct spread), .can = spread_can, .start = spread_start,
    .step = spread_step, .release = spread_release, .needs_us = hier_needs_us,
    .has_come = hier_has_come,
};
