/*
 * allreduce_pair.c: two members over messages.  Each sends the other its whole vector and
 * reduces both: as many bytes as by slices and back, one way instead of two.  Long vectors
 * travel in segments, so that one is reduced while the next ones come.
 *
 * In place, a segment is reduced when our own part of it has been sent: both have the same
 * place.
 */
#include "collective/msg_int.h"

extern const struct coll_alg allreduce_pair;

#define SEGMENT ((size_t)256 << 10)     /* over loopback shorter ones cost more than they gain:
                                         * 256 KiB in one piece 88 us, in four 115 */

struct pair {
    struct msg_pack pack;               /* 2 * s: segment s in, 2 * s + 1: out */
    char *room;                         /* the other's vector */
    size_t segment;                     /* elements */
    int segments, low;                  /* [0, low) are done */
};

static size_t pair_elements(const struct coll_task *t, const struct pair *p, int s)
{
    size_t first = (size_t)s * p->segment;

    return t->call.count - first < p->segment ? t->call.count - first : p->segment;
}

static void pair_release(struct coll_task *t)
{
    struct pair *p = (struct pair *)t->state;

    msg_drop(t, &p->pack);
    scratch_put(t->team->scratch, p->room);
    p->room = NULL;
}

static void pair_open(struct coll_task *t, struct pair *p)
{
    size_t unit = task_type_bytes(t->call.dtype);
    int other = 1 - t->team->me;

    for (int s = 0; s < p->segments; s++) {
        size_t at = (size_t)s * p->segment * unit, bytes = pair_elements(t, p, s) * unit;

        msg_recv(t, other, 0, (unsigned)s, p->room + at, bytes, &p->pack.x[2 * s]);
    }
    for (int s = 0; s < p->segments; s++) {
        size_t at = (size_t)s * p->segment * unit, bytes = pair_elements(t, p, s) * unit;

        msg_send(t, other, 0, (unsigned)s, (const char *)t->call.in + at, bytes,
                 &p->pack.x[2 * s + 1]);
    }
}

static enum hvd_status pair_start(struct coll_task *t, struct hvd_error *err)
{
    struct pair *p = (struct pair *)t->state;
    size_t least = t->call.count / ((1u << 18) - 1) + 1;
    enum hvd_status status;

    *p = (struct pair){.segment = SEGMENT / task_type_bytes(t->call.dtype)};
    p->segment = p->segment > least ? p->segment : least;
    p->segments = (int)((t->call.count + p->segment - 1) / p->segment);
    p->room = scratch_get(t->team->scratch, t->bytes);
    if (p->room == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory to receive a vector");
    status = msg_take(t, 2 * p->segments, &p->pack, err);
    if (status == HVD_OK)
        pair_open(t, p);
    else
        pair_release(t);
    return status;
}

static enum hvd_status pair_step(struct coll_task *t, struct hvd_error *err)
{
    struct pair *p = (struct pair *)t->state;
    size_t unit = task_type_bytes(t->call.dtype);

    for (; p->low < p->segments; p->low++) {
        size_t at = (size_t)p->low * p->segment;
        void *to = (char *)t->call.out + at * task_type_bytes(t->out_type);

        TRY(msg_check(t, &p->pack.x[2 * p->low], 2, err));
        t->team->src[t->team->me] = (const char *)t->call.in + at * unit;
        t->team->src[1 - t->team->me] = p->room + at * unit;
        TRY(order_reduce(t, t->team->src, &to, 1, pair_elements(t, p, p->low), false,
                         err));
    }
    return HVD_OK;
}

static bool pair_can(const struct coll_team *team)
{
    return team->count == 2;
}

const struct coll_alg allreduce_pair = {
    .op = COLL_ALLREDUCE, .name = "pair",
    .text = "messages, two members: both send all and reduce all",
    .state_bytes = sizeof(struct pair), .can = pair_can, .start = pair_start,
    .step = pair_step, .release = pair_release, .needs_us = msg_needs_us,
    .has_come = msg_has_come,
};
