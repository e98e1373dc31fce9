/* reducescatter_pairwise.c: over messages: exchange.c without the way back. */
#include "collective/msg_int.h"

extern const struct coll_alg reducescatter_pairwise;

static void scatter_release(struct coll_task *t)
{
    exchange_release(t, (struct exchange *)t->state);
}

static enum hvd_status scatter_start(struct coll_task *t, struct hvd_error *err)
{
    struct exchange *e = (struct exchange *)t->state;
    enum hvd_status status = exchange_start(t, e, t->call.counts, 0, false, err);

    if (status != HVD_OK)
        exchange_release(t, e);
    return status;
}

static enum hvd_status scatter_step(struct coll_task *t, struct hvd_error *err)
{
    return exchange_step(t, (struct exchange *)t->state, err);
}

const struct coll_alg reducescatter_pairwise = {
    .op = COLL_REDUCESCATTER, .name = "pairwise",
    .text = "messages: each gets its slice of all inputs and reduces it",
    .state_bytes = sizeof(struct exchange), .can = task_can_always,
    .start = scatter_start, .step = scatter_step, .release = scatter_release,
    .needs_us = msg_needs_us, .has_come = msg_has_come,
};
