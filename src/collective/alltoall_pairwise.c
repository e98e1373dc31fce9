/* alltoall_pairwise.c: over messages: a part to and from each member. */
#include "collective/msg_int.h"

extern const struct coll_alg alltoall_pairwise;

static void pairwise_release(struct coll_task *t)
{
    msg_drop(t, (struct msg_pack *)t->state);
}

static void copy_own(struct coll_task *t, size_t unit)
{
    size_t from = 0, to = 0, bytes = t->call.counts[t->team->me] * unit;

    for (int i = 0; i < t->team->me; i++) {
        from += t->call.counts[i] * unit;
        to += t->call.recv_counts[i] * unit;
    }
    if (bytes > 0)
        red_copy((char *)t->call.out + to, (const char *)t->call.in + from, bytes);
}

static enum hvd_status pairwise_start(struct coll_task *t, struct hvd_error *err)
{
    struct msg_pack *pack = (struct msg_pack *)t->state;
    int n = t->team->count, me = t->team->me;
    size_t unit = task_type_bytes(t->call.dtype);
    const char *from = t->call.in;
    char *to = t->call.out;

    *pack = (struct msg_pack){0};
    TRY(msg_take(t, 2 * n, pack, err));
    for (int i = 0; i < n; i++) {
        if (i != me)
            msg_recv(t, i, 0, 0, to, t->call.recv_counts[i] * unit, &pack->x[i]);
        to += t->call.recv_counts[i] * unit;
    }
    for (int i = 0; i < n; i++) {
        if (i != me)
            msg_send(t, i, 0, 0, from, t->call.counts[i] * unit, &pack->x[n + i]);
        from += t->call.counts[i] * unit;
    }
    copy_own(t, unit);
    return HVD_OK;
}

static enum hvd_status pairwise_step(struct coll_task *t, struct hvd_error *err)
{
    struct msg_pack *pack = (struct msg_pack *)t->state;

    return msg_check(t, pack->x, pack->count, err);
}

const struct coll_alg alltoall_pairwise = {
    .op = COLL_ALLTOALL, .name = "pairwise",
    .text = "messages: a part to and from each member",
    .state_bytes = sizeof(struct msg_pack), .can = task_can_always, .start = pairwise_start,
    .step = pairwise_step, .release = pairwise_release, .needs_us = msg_needs_us,
    .has_come = msg_has_come,
};
