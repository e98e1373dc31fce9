/*
 * allreduce_gather.c: small vectors over messages.  Everybody gathers all inputs in
 * log2 n rounds and reduces them itself in the one order.
 */
#include "collective/bruck_int.h"

#define GATHER_MOST (32u << 10)         /* of all vectors: a round has half of them, less than the
                                         * latency of a network; then doubling is as good */

extern const struct coll_alg allreduce_gather;

static void gather_release(struct coll_task *t)
{
    bruck_release(t, (struct bruck *)t->state);
}

static enum hvd_status gather_start(struct coll_task *t, struct hvd_error *err)
{
    struct bruck *b = (struct bruck *)t->state;
    size_t n = (size_t)t->team->count;
    size_t *bytes = scratch_get(t->team->scratch, n * sizeof *bytes);
    enum hvd_status status;

    if (bytes == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a task");
    for (size_t i = 0; i < n; i++)
        bytes[i] = t->bytes;
    status = bruck_start(t, b, bytes, t->call.in, err);
    scratch_put(t->team->scratch, bytes);
    if (status == HVD_OK)
        status = bruck_step(t, b, err);
    if (status == HVD_OK || status == HVD_AGAIN)
        return HVD_OK;
    bruck_release(t, b);
    return status;
}

static enum hvd_status gather_step(struct coll_task *t, struct hvd_error *err)
{
    struct bruck *b = (struct bruck *)t->state;

    TRY(bruck_step(t, b, err));
    for (int i = 0; i < t->team->count; i++)
        t->team->src[i] = bruck_block(t, b, i);
    return order_reduce(t, t->team->src, &t->call.out, 1, t->call.count, false, err);
}

/* Everybody gets the vectors of all: of many, small ones only. */
static uint64_t gather_limit(const struct coll_team *team)
{
    return order_is_tree(team) ? GATHER_MOST / (uint64_t)team->count : UINT64_MAX;
}

const struct coll_alg allreduce_gather = {
    .op = COLL_ALLREDUCE, .name = "gather",
    .text = "messages, small: all inputs to all in log2(n) rounds, each reduces all",
    .state_bytes = sizeof(struct bruck), .can = task_can_always, .limit = gather_limit,
    .start = gather_start,
    .step = gather_step, .release = gather_release, .needs_us = msg_needs_us,
    .has_come = msg_has_come,
};
