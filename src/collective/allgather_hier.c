/*
 * allgather_hier.c: each part crosses to another host once.  Needs the members of each
 * host to follow each other in team rank, so that the parts of a host lie together.
 *
 *   phase 0     local  allgather into the part of our host
 *   phase 1     cross  first members: allgather of the hosts' parts
 *   phase 2, 3  local  broadcast by the first member of what lies before and after
 */
#include "collective/hier_int.h"

extern const struct coll_alg allgather_hier;

struct collect {
    struct hier h;
    uint64_t *counts;                   /* by local member, then by host */
};

static uint64_t host_count(const struct coll_task *t, int host)
{
    const struct coll_team *team = t->team;
    uint64_t sum = 0;

    for (int i = team->layout.begin[host]; i < team->layout.begin[host + 1]; i++)
        sum += t->call.counts[team->layout.by_host[i]];
    return sum;
}

/* Elements before the part of our host, of it, and after it. */
static void find_parts(const struct coll_task *t, uint64_t part[3])
{
    int host = hier_host(t->team);

    part[0] = part[2] = 0;
    part[1] = host_count(t, host);
    for (int h = 0; h < t->team->layout.host_count; h++)
        if (h != host)
            part[h < host ? 0 : 2] += host_count(t, h);
}

static enum hvd_status start_local(struct coll_task *t, struct hvd_error *err)
{
    struct collect *c = (struct collect *)t->state;
    struct coll_call call = hier_call(t, COLL_ALLGATHER);
    uint64_t part[3];

    find_parts(t, part);
    for (int i = 0; i < t->team->local->count; i++)
        c->counts[i] = t->call.counts[t->team->local_teamrank[i]];
    call.counts = c->counts;
    call.out = (char *)t->call.out + part[0] * task_type_bytes(t->call.dtype);
    return task_start(t->team->local, &call, hier_part(t, 0), t->call.dtype,
                      &c->h.child, err);
}

static enum hvd_status start_cross(struct coll_task *t, struct hvd_error *err)
{
    struct collect *c = (struct collect *)t->state;
    struct coll_call call = hier_call(t, COLL_ALLGATHER);
    uint64_t *counts = c->counts + t->team->local->count, part[3];

    find_parts(t, part);
    for (int h = 0; h < t->team->layout.host_count; h++)
        counts[h] = host_count(t, h);
    call.counts = counts;
    call.in = (char *)t->call.out + part[0] * task_type_bytes(t->call.dtype);
    return task_start(t->team->cross, &call, hier_part(t, 0), t->call.dtype,
                      &c->h.child, err);
}

static enum hvd_status start_cast(struct coll_task *t, bool after, struct hvd_error *err)
{
    struct collect *c = (struct collect *)t->state;
    struct coll_call call = hier_call(t, COLL_BROADCAST);
    uint64_t part[3];

    find_parts(t, part);
    call.count = after ? part[2] : part[0];
    call.out = (char *)t->call.out +
               (after ? part[0] + part[1] : 0) * task_type_bytes(t->call.dtype);
    call.in = call.out;
    if (call.count == 0)
        return HVD_OK;
    return task_start(t->team->local, &call, hier_part(t, after ? 2 : 1), t->call.dtype,
                      &c->h.child, err);
}

static enum hvd_status start_phase(struct coll_task *t, struct hvd_error *err)
{
    switch (((struct hier *)t->state)->phase) {
    case 0:
        return start_local(t, err);
    case 1:
        return hier_place(t->team) == 0 ? start_cross(t, err) : HVD_OK;
    case 2:
        return start_cast(t, false, err);
    case 3:
        return start_cast(t, true, err);
    default:
        return HVD_OK;
    }
}

static void collect_release(struct coll_task *t)
{
    hier_drop(t);
    scratch_put(t->team->scratch, ((struct collect *)t->state)->counts);
}

static enum hvd_status collect_start(struct coll_task *t, struct hvd_error *err)
{
    struct collect *c = (struct collect *)t->state;
    size_t n = (size_t)t->team->local->count + (size_t)t->team->layout.host_count;
    enum hvd_status status;

    *c = (struct collect){.counts = scratch_get(t->team->scratch,
                                                n * sizeof *c->counts)};
    if (c->counts == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a task");
    status = start_phase(t, err);
    if (status != HVD_OK)
        collect_release(t);
    return status;
}

static enum hvd_status collect_step(struct coll_task *t, struct hvd_error *err)
{
    struct hier *h = (struct hier *)t->state;

    while (h->phase < 4) {
        TRY(hier_drive(t, err));
        h->phase++;
        TRY(start_phase(t, err));
    }
    return HVD_OK;
}

static bool collect_can(const struct coll_team *team)
{
    if (team->local == NULL || team_hier_allgather == 0)
        return false;
    for (int i = 0; i < team->count; i++)
        if (team->layout.by_host[i] != i)
            return false;
    return true;
}

const struct coll_alg allgather_hier = {
    .op = COLL_ALLGATHER, .name = "hier",
    .text = "several hosts: each part crosses to another host once",
    .state_bytes = sizeof(struct collect), .can = collect_can, .start = collect_start,
    .step = collect_step, .release = collect_release, .needs_us = hier_needs_us,
    .has_come = hier_has_come,
};
