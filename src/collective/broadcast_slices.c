/*
 * broadcast_slices.c: large buffers over messages.  The root gives each other member one
 * slice, and each sends its slice on to the rest, piece by piece as it comes: the root
 * sends the buffer once, whatever the number of members.
 *
 * Slices are those of the other members in order after the root: slice k belongs to
 * member (root + 1 + k) mod n.  Pieces [k * PIECES, ...) are the transfers of slice k.
 */
#include "collective/msg_int.h"

#define PIECES 8                        /* of a slice */

extern const struct coll_alg broadcast_slices;

struct slices {
    struct msg_pack in, out;
    int passed;                         /* pieces of our slice that were sent on */
};

static int slice_of(const struct coll_task *t, int member)
{
    int n = t->team->count;

    return (member - t->call.root - 1 + n) % n;
}

static size_t piece(const struct coll_task *t, int slice, int index, size_t *at_p)
{
    size_t begin, length = pattern_slice(t->bytes, t->team->count - 1, slice, &begin);
    size_t bytes = pattern_slice(length, PIECES, index, at_p);

    *at_p += begin;
    return bytes;
}

static void slices_release(struct coll_task *t)
{
    struct slices *s = (struct slices *)t->state;

    msg_drop(t, &s->in);
    msg_drop(t, &s->out);
}

static void root_send(struct coll_task *t, struct slices *s)
{
    for (int p = 0; p < PIECES; p++)
        for (int k = 0; k < t->team->count - 1; k++) {
            int to = (t->call.root + 1 + k) % t->team->count;
            size_t at, bytes = piece(t, k, p, &at);

            msg_send(t, to, 0, (unsigned)p, (const char *)t->call.in + at, bytes,
                     &s->out.x[k * PIECES + p]);
        }
    if (t->call.out != t->call.in && t->bytes > 0)
        red_copy(t->call.out, t->call.in, t->bytes);
}

static void ask_pieces(struct coll_task *t, struct slices *s)
{
    for (int k = 0; k < t->team->count - 1; k++) {
        int owner = (t->call.root + 1 + k) % t->team->count;
        bool mine = owner == t->team->me;

        for (int p = 0; p < PIECES; p++) {
            size_t at, bytes = piece(t, k, p, &at);

            msg_recv(t, mine ? t->call.root : owner, mine ? 0 : 1, (unsigned)p,
                     (char *)t->call.out + at, bytes, &s->in.x[k * PIECES + p]);
        }
    }
}

static enum hvd_status slices_start(struct coll_task *t, struct hvd_error *err)
{
    struct slices *s = (struct slices *)t->state;
    int count = (t->team->count - 1) * PIECES;
    enum hvd_status status;

    *s = (struct slices){0};
    TRY_OUT(msg_take(t, count, &s->in, err));
    TRY_OUT(msg_take(t, count, &s->out, err));
    if (t->team->me == t->call.root)
        root_send(t, s);
    else
        ask_pieces(t, s);
    return HVD_OK;
out:
    slices_release(t);
    return status;
}

static void pass_piece(struct coll_task *t, struct slices *s)
{
    int mine = slice_of(t, t->team->me), n = t->team->count;
    size_t at, bytes = piece(t, mine, s->passed, &at);

    for (int i = 1; i < n; i++) {
        int k = (mine + i) % (n - 1), to = (t->call.root + 1 + k) % n;

        if (k != mine)
            msg_send(t, to, 1, (unsigned)s->passed, (char *)t->call.out + at, bytes,
                     &s->out.x[k * PIECES + s->passed]);
    }
    s->passed++;
}

static enum hvd_status slices_step(struct coll_task *t, struct hvd_error *err)
{
    struct slices *s = (struct slices *)t->state;

    while (t->team->me != t->call.root && s->passed < PIECES) {
        int first = slice_of(t, t->team->me) * PIECES;

        TRY(msg_check(t, &s->in.x[first + s->passed], 1, err));
        pass_piece(t, s);
    }
    TRY(msg_check(t, s->in.x, s->in.count, err));
    return msg_check(t, s->out.x, s->out.count, err);
}

const struct coll_alg broadcast_slices = {
    .op = COLL_BROADCAST, .name = "slices",
    .text = "messages, large: a slice to each, which sends it on to the rest",
    .state_bytes = sizeof(struct slices), .can = task_can_always, .start = slices_start,
    .step = slices_step, .release = slices_release, .needs_us = msg_needs_us,
    .has_come = msg_has_come,
};
