/* allgather_bruck.c: small parts over messages, in log2 n rounds; of many hosts, all. */
#include "collective/bruck_int.h"

extern const struct coll_alg allgather_bruck, allgather_rounds;

static void gather_release(struct coll_task *t)
{
    bruck_release(t, (struct bruck *)t->state);
}

static enum hvd_status gather_start(struct coll_task *t, struct hvd_error *err)
{
    struct bruck *b = (struct bruck *)t->state;
    size_t n = (size_t)t->team->count, unit = task_type_bytes(t->call.dtype);
    size_t *bytes = scratch_get(t->team->scratch, n * sizeof *bytes);
    enum hvd_status status;

    if (bytes == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a task");
    for (size_t i = 0; i < n; i++)
        bytes[i] = t->call.counts[i] * unit;
    status = bruck_start(t, b, bytes, t->call.in, err);
    scratch_put(t->team->scratch, bytes);
    if (status != HVD_OK)
        bruck_release(t, b);
    return status;
}

static enum hvd_status gather_step(struct coll_task *t, struct hvd_error *err)
{
    struct bruck *b = (struct bruck *)t->state;
    char *to = t->call.out;

    TRY(bruck_step(t, b, err));
    for (int i = 0; i < t->team->count; i++) {
        size_t bytes = t->call.counts[i] * task_type_bytes(t->call.dtype);

        if (bytes > 0)
            red_copy(to, bruck_block(t, b, i), bytes);
        to += bytes;
    }
    return HVD_OK;
}

const struct coll_alg allgather_bruck = {
    .op = COLL_ALLGATHER, .name = "bruck",
    .text = "messages, small: log2(n) rounds", .state_bytes = sizeof(struct bruck),
    .can = task_can_always, .start = gather_start, .step = gather_step,
    .release = gather_release, .needs_us = msg_needs_us, .has_come = msg_has_come,
};

/* One copy more than pairwise, but few messages and few peers. */
const struct coll_alg allgather_rounds = {
    .op = COLL_ALLGATHER, .name = "rounds",
    .text = "messages, many hosts: log2(n) rounds", .state_bytes = sizeof(struct bruck),
    .can = order_is_tree, .start = gather_start, .step = gather_step,
    .release = gather_release, .needs_us = msg_needs_us, .has_come = msg_has_come,
};
