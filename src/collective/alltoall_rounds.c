/*
 * alltoall_rounds.c: many hosts, small parts: log2(n) rounds (Bruck) instead of n messages.  Every
 * part is filled up to the largest one that anybody sends (call.most), so that all know how much
 * travels.
 *
 *  1. At first place j holds our part for member me + j (mod n).
 *  2. Round k: the places whose number has bit k go to member me + 2^k; what comes from
 *     me - 2^k takes these places.  So what stood at place j moves j members on in all.
 *  3. At last place j holds the part of member me - j for us.
 */
#include "collective/msg_int.h"

#define PART_MOST 256                   /* bytes; above, log2(n) / 2 ways cost more than messages
                                         * (docs/design/008) */

extern const struct coll_alg alltoall_rounds;

struct rounds {
    struct msg_pack pack;               /* in and out */
    size_t part;                        /* bytes of a place */
    int count, at;                      /* rounds, and those that are done */
    bool open;
    char *places, *out, *in;
};

static struct rounds *rounds_of(const struct coll_task *t)
{
    return (struct rounds *)t->state;
}

static void rounds_release(struct coll_task *t)
{
    struct rounds *r = rounds_of(t);

    msg_drop(t, &r->pack);
    scratch_put(t->team->scratch, r->places);
    r->places = NULL;
}

/* Rule 1. */
static void fill_places(struct coll_task *t, struct rounds *r)
{
    int n = t->team->count;
    size_t unit = task_type_bytes(t->call.dtype);
    const char *from = t->call.in;

    for (int i = 0; i < n; i++) {
        size_t bytes = t->call.counts[i] * unit;

        BUG_ON(bytes > r->part);
        if (bytes > 0)
            red_copy(r->places + (size_t)((i - t->team->me + n) % n) * r->part, from, bytes);
        from += bytes;
    }
}

static enum hvd_status rounds_start(struct coll_task *t, struct hvd_error *err)
{
    struct rounds *r = rounds_of(t);
    size_t n = (size_t)t->team->count, half = n / 2 + 1;
    enum hvd_status status;

    *r = (struct rounds){.part = t->call.most * task_type_bytes(t->call.dtype),
                         .count = pattern_rounds(t->team->count)};
    r->places = scratch_get(t->team->scratch, (n + 2 * half) * r->part);
    if (r->places == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for %zu parts", n);
    r->out = r->places + n * r->part;
    r->in = r->out + half * r->part;
    status = msg_take(t, 2, &r->pack, err);
    if (status == HVD_OK)
        fill_places(t, r);
    else
        rounds_release(t);
    return status;
}

/* Copies the places of a round out of or into a row; how many they are. */
static size_t move(struct coll_task *t, struct rounds *r, char *row, bool take)
{
    size_t moved = 0;

    for (int j = 1 << r->at; j < t->team->count; j++) {
        char *place = r->places + (size_t)j * r->part, *at = row + moved * r->part;

        if ((j >> r->at & 1) == 0)
            continue;
        red_copy(take ? at : place, take ? place : at, r->part);
        moved++;
    }
    return moved;
}

static void open_round(struct coll_task *t, struct rounds *r)
{
    int n = t->team->count, me = t->team->me, step = 1 << r->at;
    size_t bytes = move(t, r, r->out, true) * r->part;

    msg_recv(t, (me - step + n) % n, 0, (unsigned)r->at, r->in, bytes, &r->pack.x[0]);
    msg_send(t, (me + step) % n, 0, (unsigned)r->at, r->out, bytes, &r->pack.x[1]);
    r->open = true;
}

/* Rule 3. */
static void take_places(struct coll_task *t, const struct rounds *r)
{
    int n = t->team->count;
    size_t unit = task_type_bytes(t->call.dtype);
    char *to = t->call.out;

    for (int i = 0; i < n; i++) {
        size_t bytes = t->call.recv_counts[i] * unit;

        if (bytes > 0)
            red_copy(to, r->places + (size_t)((t->team->me - i + n) % n) * r->part, bytes);
        to += bytes;
    }
}

static enum hvd_status rounds_step(struct coll_task *t, struct hvd_error *err)
{
    struct rounds *r = rounds_of(t);

    for (; r->at < r->count; r->at++, r->open = false) {
        if (!r->open)
            open_round(t, r);
        TRY(msg_check(t, r->pack.x, 2, err));
        move(t, r, r->in, false);
    }
    take_places(t, r);
    return HVD_OK;
}

static uint64_t rounds_limit(const struct coll_team *team)
{
    return PART_MOST * (uint64_t)team->count + 1;
}

const struct coll_alg alltoall_rounds = {
    .op = COLL_ALLTOALL, .name = "rounds",
    .text = "messages, many hosts, small: log2(n) rounds",
    .state_bytes = sizeof(struct rounds), .can = order_is_by_pairs, .limit = rounds_limit,
    .start = rounds_start, .step = rounds_step, .release = rounds_release,
    .needs_us = msg_needs_us, .has_come = msg_has_come,
};
