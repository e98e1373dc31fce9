/*
 * barrier_rounds.c: over messages, in log2 n rounds: in round k a member tells the one
 * 2^k further on, and hears from the one 2^k before, that 2^k members have come.
 */
#include "collective/msg_int.h"

extern const struct coll_alg barrier_rounds;

struct rounds {
    struct msg_pack pack;
    int round, rounds;
    bool open;
    char token_in, token_out;
};

static void rounds_release(struct coll_task *t)
{
    msg_drop(t, &((struct rounds *)t->state)->pack);
}

static enum hvd_status rounds_start(struct coll_task *t, struct hvd_error *err)
{
    struct rounds *r = (struct rounds *)t->state;

    *r = (struct rounds){.rounds = pattern_rounds(t->team->count)};
    return msg_take(t, 2 * r->rounds + 1, &r->pack, err);
}

static enum hvd_status rounds_step(struct coll_task *t, struct hvd_error *err)
{
    struct rounds *r = (struct rounds *)t->state;
    int n = t->team->count, me = t->team->me;

    while (r->round < r->rounds) {
        int far = 1 << r->round;
        struct mesh_xfer *x = &r->pack.x[2 * r->round];

        if (!r->open) {
            msg_recv(t, (me - far + n) % n, 0, (unsigned)r->round, &r->token_in, 1, x);
            msg_send(t, (me + far) % n, 0, (unsigned)r->round, &r->token_out, 1, x + 1);
            r->open = true;
        }
        TRY(msg_check(t, x, 1, err));
        r->round++;
        r->open = false;
    }
    return msg_check(t, r->pack.x, r->pack.count, err);
}

const struct coll_alg barrier_rounds = {
    .op = COLL_BARRIER, .name = "rounds", .text = "messages: log2(n) rounds",
    .state_bytes = sizeof(struct rounds), .can = task_can_always, .start = rounds_start,
    .step = rounds_step, .release = rounds_release, .needs_us = msg_needs_us,
    .has_come = msg_has_come,
};
