/* barrier_hier.c: each host, then the first members of all hosts, then each host again. */
#include "collective/hier_int.h"

extern const struct coll_alg barrier_hier;

static enum hvd_status start_phase(struct coll_task *t, struct hvd_error *err)
{
    struct hier *h = (struct hier *)t->state;
    struct coll_call call = hier_call(t, COLL_BARRIER);

    if (h->phase == 1 && hier_place(t->team) == 0)
        return task_start(t->team->cross, &call, hier_part(t, 0), call.dtype, &h->child,
                          err);
    if (h->phase == 0 || h->phase == 2)
        return task_start(t->team->local, &call, hier_part(t, h->phase == 2), call.dtype,
                          &h->child, err);
    return HVD_OK;
}

static enum hvd_status wait_start(struct coll_task *t, struct hvd_error *err)
{
    *(struct hier *)t->state = (struct hier){0};
    return start_phase(t, err);
}

static enum hvd_status wait_step(struct coll_task *t, struct hvd_error *err)
{
    struct hier *h = (struct hier *)t->state;

    while (h->phase < 3) {
        TRY(hier_drive(t, err));
        h->phase++;
        TRY(start_phase(t, err));
    }
    return HVD_OK;
}

const struct coll_alg barrier_hier = {
    .op = COLL_BARRIER, .name = "hier", .text = "several hosts: memory within a host",
    .state_bytes = sizeof(struct hier), .can = hier_can, .start = wait_start,
    .step = wait_step, .release = hier_drop, .needs_us = hier_needs_us,
    .has_come = hier_has_come,
};
