/*
 * allreduce_halving.c: many hosts, one member on each: log2(n) rounds, in the order of order.c.
 *
 *   fold     where n is no power of two, 2r members make pairs: the odd one gives its vector to
 *            the even one and waits for the result.  p = 2^k stay, numbered by their leaf.
 *   round i  leaf v and leaf v ^ 2^i add up what they have: two neighbouring blocks of leaves
 *   back     to those that were folded
 *
 * doubling  small: partners exchange all of it, so after k rounds everybody has the result.
 * halving   partners exchange halves of what they have left and keep the other one, so after k
 *           rounds everybody has a p-th of the result; k rounds backwards gather it.
 *
 * In place: a part of the output is written after its input is gone.  Halving sends a part
 * away or keeps it, and what comes back for a part that was sent was made of it.
 */
#include "collective/msg_int.h"

extern const struct coll_alg allreduce_doubling, allreduce_halving;

enum { FOLD, ROUND, BACKWARDS, RESULT };        /* stages of msg_send */

struct halving {
    struct msg_pack pack;               /* 0 fold, 1 result; then in and out of each round */
    int rounds, leaf;                   /* leaf -1: we are folded */
    int pair;                           /* the other one of our pair, -1: none */
    bool whole;                         /* doubling */
    int at;                             /* rounds done, forwards and backwards */
    bool folded, open, returned;
    const char *mine;                   /* what we have: the input, or sums */
    char *sums, *room;                  /* ours, and what comes; doubling: one each a round */
};

static struct halving *halving_of(const struct coll_task *t)
{
    return (struct halving *)t->state;
}

static size_t partial_unit(const struct coll_task *t)
{
    return task_type_bytes(order_partial_type(t->call.dtype));
}

/* The elements that leaf v has after `rounds` of them: the lower half where its bit is 0. */
static size_t range_of(const struct coll_task *t, int v, int rounds, size_t *begin_p)
{
    size_t begin = 0, end = t->call.count;

    for (int i = 0; i < rounds && !halving_of(t)->whole; i++) {
        size_t half = ((end - begin) / 2 + 63) / 64 * 64;
        size_t middle = begin + half < end ? begin + half : end;

        if (v >> i & 1)
            begin = middle;
        else
            end = middle;
    }
    *begin_p = begin;
    return end - begin;
}

static int member_of(const struct coll_task *t, int leaf)
{
    int folded = t->team->count - pattern_power(t->team->count);

    return leaf < folded ? 2 * leaf : leaf + folded;
}

/* a and b, in this order; raw: inputs.  last: the result. */
static void combine(struct coll_task *t, const void *a, const void *b, size_t count, void *to,
                    bool raw, bool last)
{
    const struct coll_call *c = &t->call;
    enum hvd_dtype partial = order_partial_type(c->dtype);
    const void *src[2] = {a, b};

    if (count > 0)
        red_run(&(struct red_job){.src = src, .nsrc = b != NULL ? 2 : 1, .dst = &to, .ndst = 1,
                                  .count = count, .src_type = raw ? c->dtype : partial,
                                  .dst_type = last ? t->out_type : partial, .op = c->reduce,
                                  .prescale = raw ? c->prescale : 1.0,
                                  .postscale = last ? c->postscale : 1.0,
                                  .divisor = last ? c->divisor : 0});
}

/* ---- Life ------------------------------------------------------------------------------ */

static void halving_release(struct coll_task *t)
{
    struct halving *h = halving_of(t);

    msg_drop(t, &h->pack);
    scratch_put(t->team->scratch, h->sums);
    scratch_put(t->team->scratch, h->room);
    h->sums = h->room = NULL;
}

static void find_place(const struct coll_task *t, struct halving *h)
{
    int power = pattern_power(t->team->count), folded = t->team->count - power;
    int me = t->team->me;

    h->rounds = pattern_rounds(power);
    h->pair = me < 2 * folded ? me ^ 1 : -1;
    h->leaf = me >= 2 * folded ? me - folded : me % 2 == 0 ? me / 2 : -1;
}

static void open_fold(struct coll_task *t, struct halving *h)
{
    if (h->leaf < 0) {
        msg_send(t, h->pair, FOLD, 0, t->call.in, t->bytes, &h->pack.x[0]);
        msg_recv(t, h->pair, RESULT, 0, t->call.out,
                 t->call.count * task_type_bytes(t->out_type), &h->pack.x[1]);
    } else if (h->pair >= 0) {
        msg_recv(t, h->pair, FOLD, 0, h->room, t->bytes, &h->pack.x[0]);
    }
}

static enum hvd_status start(struct coll_task *t, bool whole, struct hvd_error *err)
{
    struct halving *h = halving_of(t);
    size_t bytes = (t->call.count * partial_unit(t) + 63) / 64 * 64, rooms;
    enum hvd_status status;

    *h = (struct halving){.whole = whole};
    find_place(t, h);
    rooms = whole ? (size_t)h->rounds + 1 : 1;
    if (h->leaf >= 0) {
        h->sums = scratch_get(t->team->scratch, rooms * bytes + 64);
        h->room = scratch_get(t->team->scratch, rooms * bytes + 64);
        if (h->sums == NULL || h->room == NULL)
            TRY_OUT(error_set(err, HVD_NOMEM, -1, "no memory for partial sums"));
    }
    TRY_OUT(msg_take(t, 2 + 4 * h->rounds, &h->pack, err));
    open_fold(t, h);
    return HVD_OK;
out:
    halving_release(t);
    return status;
}

static enum hvd_status doubling_start(struct coll_task *t, struct hvd_error *err)
{
    return start(t, true, err);
}

static enum hvd_status halving_start(struct coll_task *t, struct hvd_error *err)
{
    return start(t, false, err);
}

/* ---- Rounds ---------------------------------------------------------------------------- */

/* Our leaf: one input or two, as a partial sum. */
static enum hvd_status fold(struct coll_task *t, struct halving *h, struct hvd_error *err)
{
    bool plain = h->pair < 0 && t->call.prescale == 1.0 &&
                 order_partial_type(t->call.dtype) == t->call.dtype;

    TRY(msg_check(t, &h->pack.x[0], 1, err));
    h->mine = h->sums;
    if (plain)
        h->mine = t->call.in;
    else
        combine(t, t->call.in, h->pair >= 0 ? h->room : NULL, t->call.count, h->sums, true,
                false);
    h->folded = true;
    return HVD_OK;
}

/* Doubling keeps what it sends: one place a round. */
static char *place(const struct coll_task *t, const struct halving *h, char *at, int round)
{
    size_t bytes = (t->call.count * partial_unit(t) + 63) / 64 * 64;

    return h->whole ? at + (size_t)(round + 1) * bytes : at;
}

static struct mesh_xfer *xfers(const struct halving *h, int round)
{
    return &h->pack.x[2 + 2 * round];
}

static enum hvd_status step_forwards(struct coll_task *t, struct halving *h,
                                     struct hvd_error *err)
{
    int i = h->at, other = h->leaf ^ 1 << i;
    size_t unit = partial_unit(t), keep, give;
    size_t kept = range_of(t, h->leaf, i + 1, &keep), given = range_of(t, other, i + 1, &give);
    char *room = place(t, h, h->room, i), *to = place(t, h, h->sums, i) + keep * unit;
    bool last = i + 1 == h->rounds;
    const char *a = h->mine + keep * unit, *b = room;

    if (!h->open) {
        msg_recv(t, member_of(t, other), ROUND, (unsigned)i, room, kept * unit, xfers(h, i));
        msg_send(t, member_of(t, other), ROUND, (unsigned)i, h->mine + give * unit,
                 given * unit, xfers(h, i) + 1);
        h->open = true;
    }
    /* What is sent whole may lie where the result goes. */
    TRY(msg_check(t, h->whole && last ? h->pack.x : xfers(h, i),
                  h->whole && last ? 2 + 2 * h->rounds : 1, err));
    if (last)
        to = (char *)t->call.out + keep * task_type_bytes(t->out_type);
    combine(t, h->leaf >> i & 1 ? b : a, h->leaf >> i & 1 ? a : b, kept, to, false, last);
    h->mine = place(t, h, h->sums, i);
    return HVD_OK;
}

static enum hvd_status step_backwards(struct coll_task *t, struct halving *h,
                                      struct hvd_error *err)
{
    int i = 2 * h->rounds - 1 - h->at, other = h->leaf ^ 1 << i;
    size_t unit = task_type_bytes(t->out_type), have, want;
    size_t mine = range_of(t, h->leaf, i + 1, &have), theirs = range_of(t, other, i + 1, &want);
    char *out = t->call.out;

    if (!h->open) {
        msg_recv(t, member_of(t, other), BACKWARDS, (unsigned)i, out + want * unit,
                 theirs * unit, xfers(h, h->at));
        msg_send(t, member_of(t, other), BACKWARDS, (unsigned)i, out + have * unit,
                 mine * unit, xfers(h, h->at) + 1);
        h->open = true;
    }
    return msg_check(t, xfers(h, h->at), 1, err);
}

static enum hvd_status halving_step(struct coll_task *t, struct hvd_error *err)
{
    struct halving *h = halving_of(t);
    int all = h->whole ? h->rounds : 2 * h->rounds;

    if (h->leaf < 0)
        return msg_check(t, h->pack.x, 2, err);
    if (!h->folded)
        TRY(fold(t, h, err));
    for (; h->at < all; h->at++, h->open = false)
        TRY(h->at < h->rounds ? step_forwards(t, h, err) : step_backwards(t, h, err));
    if (h->pair >= 0 && !h->returned) {
        msg_send(t, h->pair, RESULT, 0, t->call.out,
                 t->call.count * task_type_bytes(t->out_type), &h->pack.x[1]);
        h->returned = true;
    }
    return msg_check(t, h->pack.x, h->pack.count, err);
}

const struct coll_alg allreduce_doubling = {
    .op = COLL_ALLREDUCE, .name = "doubling",
    .text = "messages, many hosts, small: partners exchange sums in log2(n) rounds",
    .state_bytes = sizeof(struct halving), .can = order_is_tree, .start = doubling_start,
    .step = halving_step, .release = halving_release, .needs_us = msg_needs_us,
    .has_come = msg_has_come,
};

const struct coll_alg allreduce_halving = {
    .op = COLL_ALLREDUCE, .name = "halving",
    .text = "messages, many hosts: halves of halves in log2(n) rounds, and back",
    .state_bytes = sizeof(struct halving), .can = order_is_tree, .start = halving_start,
    .step = halving_step, .release = halving_release, .needs_us = msg_needs_us,
    .has_come = msg_has_come,
};
