/* allgather_pairwise.c: over messages: everybody sends its part to everybody. */
#include "collective/msg_int.h"

extern const struct coll_alg allgather_pairwise;

static void gather_release(struct coll_task *t)
{
    msg_drop(t, (struct msg_pack *)t->state);
}

static void ask_parts(struct coll_task *t, struct msg_pack *pack)
{
    char *to = t->call.out;

    for (int i = 0; i < t->team->count; i++) {
        size_t bytes = t->call.counts[i] * task_type_bytes(t->call.dtype);

        if (i != t->team->me)
            msg_recv(t, i, 0, 0, to, bytes, &pack->x[i]);
        else if (bytes > 0 && to != t->call.in)
            red_copy(to, t->call.in, bytes);
        to += bytes;
    }
}

static enum hvd_status gather_start(struct coll_task *t, struct hvd_error *err)
{
    struct msg_pack *pack = (struct msg_pack *)t->state;
    int n = t->team->count, me = t->team->me;
    size_t bytes = t->call.counts[me] * task_type_bytes(t->call.dtype);

    *pack = (struct msg_pack){0};
    TRY(msg_take(t, 2 * n, pack, err));
    ask_parts(t, pack);
    for (int i = 1; i < n; i++)
        msg_send(t, (me + i) % n, 0, 0, t->call.in, bytes, &pack->x[n + i]);
    return HVD_OK;
}

static enum hvd_status gather_step(struct coll_task *t, struct hvd_error *err)
{
    struct msg_pack *pack = (struct msg_pack *)t->state;

    return msg_check(t, pack->x, pack->count, err);
}

const struct coll_alg allgather_pairwise = {
    .op = COLL_ALLGATHER, .name = "pairwise",
    .text = "messages: everybody sends its part to everybody",
    .state_bytes = sizeof(struct msg_pack), .can = task_can_always,
    .start = gather_start, .step = gather_step, .release = gather_release,
    .needs_us = msg_needs_us, .has_come = msg_has_come,
};
