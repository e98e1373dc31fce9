/*
 * broadcast_hier.c: one message per host.
 *
 *   phase 0  local, root's host    from the root to all
 *   phase 1  cross, first members  from the root's host to the others
 *   phase 2  local, other hosts    from the first member to all
 */
#include "collective/hier_int.h"

extern const struct coll_alg broadcast_hier;

static enum hvd_status start_local(struct coll_task *t, int root, struct hvd_error *err)
{
    struct hier *h = (struct hier *)t->state;
    struct coll_call call = hier_call(t, COLL_BROADCAST);

    call.root = root;
    if (t->team->local->me != root)
        call.in = call.out;
    else if (h->phase == 2)
        call.in = call.out;
    return task_start(t->team->local, &call, hier_part(t, 0), t->call.dtype,
                      &h->child, err);
}

static enum hvd_status start_cross(struct coll_task *t, int host, struct hvd_error *err)
{
    struct hier *h = (struct hier *)t->state;
    struct coll_call call = hier_call(t, COLL_BROADCAST);

    call.root = host;
    call.in = call.out;
    return task_start(t->team->cross, &call, hier_part(t, 0), t->call.dtype,
                      &h->child, err);
}

static int place_of(const struct coll_team *team, int member)
{
    int i = 0;

    while (team->local_teamrank[i] != member)
        i++;
    return i;
}

static enum hvd_status start_phase(struct coll_task *t, struct hvd_error *err)
{
    struct hier *h = (struct hier *)t->state;
    int host = t->team->layout.host_of[t->call.root];
    bool at_root = host == hier_host(t->team);

    if (h->phase == 0 && at_root)
        return start_local(t, place_of(t->team, t->call.root), err);
    if (h->phase == 1 && hier_place(t->team) == 0)
        return start_cross(t, host, err);
    if (h->phase == 2 && !at_root)
        return start_local(t, 0, err);
    return HVD_OK;
}

static enum hvd_status cast_start(struct coll_task *t, struct hvd_error *err)
{
    *(struct hier *)t->state = (struct hier){0};
    return start_phase(t, err);
}

static enum hvd_status cast_step(struct coll_task *t, struct hvd_error *err)
{
    struct hier *h = (struct hier *)t->state;

    while (h->phase < 3) {
        TRY(hier_drive(t, err));
        h->phase++;
        TRY(start_phase(t, err));
    }
    return HVD_OK;
}

const struct coll_alg broadcast_hier = {
    .op = COLL_BROADCAST, .name = "hier",
    .text = "several hosts: one message to each, then memory",
    .state_bytes = sizeof(struct hier), .can = hier_can, .start = cast_start,
    .step = cast_step, .release = hier_drop, .needs_us = hier_needs_us,
    .has_come = hier_has_come,
};
