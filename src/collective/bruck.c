/*
 * bruck.c: gathers the blocks of all members in ceil(log2 n) rounds (pattern_bruck).  The
 * blocks lie in `room` in the order me, me + 1, ... (mod n), whatever their sizes; what
 * is sent in a round is a prefix of it and never changes, so rounds need not wait for
 * their sends.
 */
#include "collective/bruck_int.h"

enum hvd_status bruck_start(struct coll_task *t, struct bruck *b, const size_t *bytes,
                            const void *mine, struct hvd_error *err)
{
    int n = t->team->count;
    size_t at = 0;

    *b = (struct bruck){.rounds = pattern_rounds(n)};
    b->at = scratch_get(t->team->scratch, (size_t)(n + 1) * sizeof *b->at);
    if (b->at == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a task");
    for (int i = 0; i < n; i++) {
        b->at[i] = at;
        at += bytes[(t->team->me + i) % n];
    }
    b->at[n] = at;
    b->room = scratch_get(t->team->scratch, at);
    if (b->room == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory to gather %zu bytes", at);
    if (b->at[1] > 0)
        red_copy(b->room, mine, b->at[1]);
    return msg_take(t, 2 * b->rounds + 1, &b->pack, err);
}

void bruck_release(struct coll_task *t, struct bruck *b)
{
    msg_drop(t, &b->pack);
    scratch_put(t->team->scratch, b->room);
    scratch_put(t->team->scratch, b->at);
    *b = (struct bruck){0};
}

static void open_round(struct coll_task *t, struct bruck *b)
{
    int to, from, blocks, held = 1 << b->round;

    pattern_bruck(t->team->count, t->team->me, b->round, &to, &from, &blocks);
    msg_recv(t, from, 0, (unsigned)b->round, b->room + b->at[held],
             b->at[held + blocks] - b->at[held], &b->pack.x[2 * b->round]);
    msg_send(t, to, 0, (unsigned)b->round, b->room, b->at[blocks],
             &b->pack.x[2 * b->round + 1]);
    b->open = true;
}

enum hvd_status bruck_step(struct coll_task *t, struct bruck *b, struct hvd_error *err)
{
    while (b->round < b->rounds) {
        if (!b->open)
            open_round(t, b);
        TRY(msg_check(t, &b->pack.x[2 * b->round], 1, err));
        b->round++;
        b->open = false;
    }
    return msg_check(t, b->pack.x, b->pack.count, err);
}

char *bruck_block(const struct coll_task *t, const struct bruck *b, int member)
{
    int n = t->team->count;

    return b->room + b->at[(member - t->team->me + n) % n];
}
