/* allreduce_pairwise.c: large vectors over messages: exchange.c with the way back. */
#include "collective/msg_int.h"

extern const struct coll_alg allreduce_pairwise;

static void pairwise_release(struct coll_task *t)
{
    exchange_release(t, (struct exchange *)t->state);
}

static enum hvd_status pairwise_start(struct coll_task *t, struct hvd_error *err)
{
    struct exchange *e = (struct exchange *)t->state;
    enum hvd_status status = exchange_start(t, e, NULL, t->call.count, true, err);

    if (status != HVD_OK)
        exchange_release(t, e);
    return status;
}

static enum hvd_status pairwise_step(struct coll_task *t, struct hvd_error *err)
{
    return exchange_step(t, (struct exchange *)t->state, err);
}

const struct coll_alg allreduce_pairwise = {
    .op = COLL_ALLREDUCE, .name = "pairwise",
    .text = "messages: each reduces its slice of all inputs and sends it to all",
    .state_bytes = sizeof(struct exchange), .can = task_can_always,
    .start = pairwise_start, .step = pairwise_step, .release = pairwise_release,
    .needs_us = msg_needs_us, .has_come = msg_has_come,
};
