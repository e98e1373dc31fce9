/*
 * device_open.c: what the members of a set can do with GPUs, agreed on with the first batch that
 * has some: each says what it has found (struct device_hello, an allgather on the batch's own
 * board); all decide alike.  With NCCL the ids of the communicators are those of the first member.
 */
#include "engine/device.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

#define LOG_COMPONENT "engine"

/* ---- Deciding (pure) ---------------------------------------------------------------------- */

static int release_of(int version)
{
    return version / 100;               /* 23203 is 2.32.3 */
}

static bool is_nccl(const struct device_hello *h)
{
    return h->backend == HVD_GPU_NCCL && h->has_device;
}

/* Of two members; NULL: nothing is in the way of NCCL. */
static const char *conflict(const struct device_hello *a, const struct device_hello *b)
{
    if (is_nccl(a) != is_nccl(b))
        return "one has NCCL and the other has not";
    if (release_of(a->nccl_version) != release_of(b->nccl_version))
        return "their versions of NCCL differ";
    if (is_nccl(a) && memcmp(a->uuid, b->uuid, sizeof a->uuid) == 0)
        return "they use the same GPU";
    return NULL;
}

static int refuse(const struct device_hello *hellos, int count, const int *ranks,
                  struct hvd_error *why)
{
    for (int i = 0; i < count; i++)
        if (hellos[i].problem[0] != '\0') {
            error_set(why, HVD_DEVICE, ranks[i], "rank %d cannot use its GPU: %s", ranks[i],
                      hellos[i].problem);
            return HVD_GPU_NONE;
        }
    return HVD_GPU_HOST;
}

/* The first pair that differs. */
static const char *find_conflict(const struct device_hello *hellos, int count, int *a_p,
                                 int *b_p)
{
    for (*a_p = 0; *a_p < count; (*a_p)++)
        for (*b_p = *a_p + 1; *b_p < count; (*b_p)++) {
            const char *text = conflict(&hellos[*a_p], &hellos[*b_p]);

            if (text != NULL)
                return text;
        }
    return NULL;
}

/* NONE: `why` says why; HOST: `why` says what was in the way of NCCL, HVD_OK: nothing. */
int device_decide(const struct device_hello *hellos, int count, const int *ranks,
                  struct hvd_error *why)
{
    bool forced = false;
    const char *text;
    int a, b;

    *why = (struct hvd_error){.rank = -1};
    if (refuse(hellos, count, ranks, why) == HVD_GPU_NONE)
        return HVD_GPU_NONE;
    for (int i = 0; i < count; i++)
        forced |= hellos[i].forced != 0;
    text = find_conflict(hellos, count, &a, &b);
    if (text == NULL)
        return is_nccl(&hellos[0]) ? HVD_GPU_NCCL : HVD_GPU_HOST;
    error_set(why, HVD_MISMATCH, ranks[a], "ranks %d and %d cannot use NCCL together: %s "
              "(NCCL %d and %d)", ranks[a], ranks[b], text, hellos[a].nccl_version,
              hellos[b].nccl_version);
    return forced ? HVD_GPU_NONE : HVD_GPU_HOST;
}

/* ---- Saying hello -------------------------------------------------------------------------- */

/* A rank that has joined may never have used a GPU. */
static int choose_index(const struct engine *e, const struct pset *s)
{
    if (s->device_index >= 0)
        return s->device_index;
    if (s->join_entry != NULL && s->join_entry->handle->device >= 0)
        return s->join_entry->handle->device;
    return e->device_index >= 0 ? e->device_index : e->topo->local_rank;
}

static int lanes_of(const struct engine *e)
{
    int64_t lanes = e->conf->num_nccl_streams;

    return lanes < 1 ? 1 : lanes > GPU_STREAMS_MAX ? GPU_STREAMS_MAX : (int)lanes;
}

/* A rank without a GPU is in nobody's way when it has joined: its part is in host memory. */
static void note_problem(const struct pset *s, struct device_hello *mine,
                         const struct hvd_error *err)
{
    mine->has_device = 0;
    if (s->device_index >= 0)
        snprintf(mine->problem, sizeof mine->problem, "%.200s", err->text);
}

static struct device_hello *mine_of(const struct pset *s)
{
    return &s->device->hellos[s->count];
}

enum hvd_status device_open_begin(struct engine *e, struct batch *b, struct hvd_error *err)
{
    struct hvd_gpu found = {.size = sizeof found};
    struct device_set *d = calloc(1, sizeof *d);
    struct pset *s = b->set;
    struct hvd_error why;

    s->device = d;
    if (d != NULL)
        d->hellos = calloc((size_t)s->count + 1, sizeof *d->hellos);    /* and ours */
    if (d == NULL || d->hellos == NULL)
        return error_set(err, HVD_NOMEM, e->topo->rank, "rank %d: no memory for GPUs",
                         e->topo->rank);
    gpu_find(&found);
    d->index = choose_index(e, s);
    *mine_of(s) = (struct device_hello){
        .backend = (uint8_t)found.backend, .forced = gpu_is_forced(), .has_device = 1,
        .lanes = (uint8_t)lanes_of(e), .nccl_version = found.nccl_version};
    b->device->work = (struct gpu_work){
        .kind = GPU_HELLO,
        .id_count = s->self == 0 && found.backend == HVD_GPU_NCCL ? lanes_of(e) : 0};
    if (device_start(e, b, &why) != HVD_OK)
        note_problem(s, mine_of(s), &why);
    return HVD_OK;
}

static enum hvd_status exchange(struct batch *b, struct hvd_error *err)
{
    struct pset *s = b->set;
    struct coll_call call = {.op = COLL_ALLGATHER, .dtype = HVD_U8, .board = b->board,
                             .turn = ++s->turns[b->board], .in = mine_of(s),
                             .out = s->device->hellos, .counts = s->counts, .prescale = 1,
                             .postscale = 1, .divisor = 1, .agreed = true};

    for (int m = 0; m < s->count; m++)
        s->counts[m] = sizeof *s->device->hellos;
    call.count = s->counts[0];
    return coll_start(s->team, &call, &b->task, err);
}

static enum hvd_status ask_step(struct engine *e, struct batch *b, struct hvd_error *err)
{
    struct pset *s = b->set;
    struct device_hello *mine = mine_of(s);
    const struct gpu_work *w = &b->device->work;
    struct hvd_error why;

    if (b->device->under_way) {
        enum hvd_status status = device_await(e, b, &why);

        if (status == HVD_AGAIN)
            return status;
        if (status != HVD_OK)
            note_problem(s, mine, &why);
        memcpy(mine->uuid, w->uuid, sizeof mine->uuid);
        memcpy(mine->ids, w->ids, sizeof mine->ids);
    }
    if (!mine->has_device)
        s->device->index = -1;
    s->device->state = DEVICE_AGREEING;
    return exchange(b, err);
}

/* ---- Agreeing ------------------------------------------------------------------------------ */

static enum hvd_status connect(struct engine *e, struct batch *b, struct hvd_error *err)
{
    struct device_set *d = b->set->device;

    d->lanes = d->hellos[0].lanes;
    d->comm = gpu_comm_new(d->index, b->set->self, b->set->count, d->lanes,
                           (const uint8_t (*)[GPU_ID_BYTES])d->hellos[0].ids);
    if (d->comm == NULL)
        return error_set(err, HVD_NOMEM, e->topo->rank, "rank %d: no memory for NCCL",
                         e->topo->rank);
    b->device->work = (struct gpu_work){.kind = GPU_CONNECT, .comm = d->comm};
    d->state = DEVICE_CONNECTING;
    trace_batch(e, b, "INIT_NCCL");
    return device_start(e, b, err);
}

static enum hvd_status agree_step(struct engine *e, struct batch *b, struct hvd_error *err)
{
    struct device_set *d = b->set->device;
    enum hvd_status status = coll_step(b->task, err);
    struct hvd_error why;

    if (status == HVD_AGAIN)
        return status;
    coll_finish(b->task);
    b->task = NULL;
    TRY(status);
    d->backend = device_decide(d->hellos, b->set->count, b->set->ranks, &why);
    d->state = DEVICE_READY;
    if (d->backend == HVD_GPU_NCCL)
        return connect(e, b, err);
    if (d->backend == HVD_GPU_NONE)
        d->refusal = why;
    else if (why.status != HVD_OK && b->set->self == 0)
        log_warn("GPU tensors of process set %d go through host memory: %s", b->set->id,
                 why.text);
    return HVD_OK;
}

enum hvd_status device_open_step(struct engine *e, struct batch *b, struct hvd_error *err)
{
    struct device_set *d = b->set->device;

    if (d->state == DEVICE_ASKING)
        TRY(ask_step(e, b, err));
    if (d->state == DEVICE_AGREEING)
        TRY(agree_step(e, b, err));
    if (d->state == DEVICE_CONNECTING) {
        TRY(device_await(e, b, err));
        d->state = DEVICE_READY;
    }
    return HVD_OK;
}
