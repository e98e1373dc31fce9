/*
 * broadcast_pipe.c: large buffers to many hosts, over messages: along a binary tree, segment
 * by segment, so that all links of the tree are busy at once.  Nobody sends more than twice.
 */
#include "collective/msg_int.h"

extern const struct coll_alg broadcast_pipe;

#define SEGMENT ((size_t)128 << 10)     /* long against the cost of a message, short against the
                                         * buffers that this is for */
#define SEGMENTS_MAX 4096

struct pipe {
    struct msg_pack pack;               /* by segment: in, out, out */
    size_t segment;                     /* bytes */
    int segments, passed;
};

/* Counted from the root, member v has the children 2v + 1 and 2v + 2. */
static int pipe_child(const struct coll_task *t, int i)
{
    int n = t->team->count, v = (t->team->me - t->call.root + n) % n;
    int child = 2 * v + 1 + i;

    return child < n ? (child + t->call.root) % n : -1;
}

static int pipe_parent(const struct coll_task *t)
{
    int n = t->team->count, v = (t->team->me - t->call.root + n) % n;

    return v > 0 ? ((v - 1) / 2 + t->call.root) % n : -1;
}

static size_t segment_bytes(const struct coll_task *t, const struct pipe *p, int s)
{
    size_t at = (size_t)s * p->segment;

    return t->bytes - at < p->segment ? t->bytes - at : p->segment;
}

static void pipe_release(struct coll_task *t)
{
    msg_drop(t, &((struct pipe *)t->state)->pack);
}

static enum hvd_status pipe_start(struct coll_task *t, struct hvd_error *err)
{
    struct pipe *p = (struct pipe *)t->state;
    int parent = pipe_parent(t);

    *p = (struct pipe){.segment = SEGMENT};
    if (t->bytes / SEGMENT >= SEGMENTS_MAX)
        p->segment = (t->bytes / SEGMENTS_MAX + 4096) / 4096 * 4096;
    p->segments = (int)((t->bytes + p->segment - 1) / p->segment);
    TRY(msg_take(t, 3 * p->segments, &p->pack, err));
    for (int s = 0; parent >= 0 && s < p->segments; s++)
        msg_recv(t, parent, 0, (unsigned)s, (char *)t->call.out + (size_t)s * p->segment,
                 segment_bytes(t, p, s), &p->pack.x[3 * s]);
    if (parent < 0 && t->call.out != t->call.in && t->bytes > 0)
        red_copy(t->call.out, t->call.in, t->bytes);
    return HVD_OK;
}

static enum hvd_status pipe_step(struct coll_task *t, struct hvd_error *err)
{
    struct pipe *p = (struct pipe *)t->state;

    for (; p->passed < p->segments; p->passed++) {
        int s = p->passed;

        TRY(msg_check(t, &p->pack.x[3 * s], 1, err));
        for (int i = 0; i < 2; i++)
            if (pipe_child(t, i) >= 0)
                msg_send(t, pipe_child(t, i), 0, (unsigned)s,
                         (char *)t->call.out + (size_t)s * p->segment, segment_bytes(t, p, s),
                         &p->pack.x[3 * s + 1 + i]);
    }
    return msg_check(t, p->pack.x, p->pack.count, err);
}

const struct coll_alg broadcast_pipe = {
    .op = COLL_BROADCAST, .name = "pipe",
    .text = "messages, many hosts, large: a binary tree, segment by segment",
    .state_bytes = sizeof(struct pipe), .can = order_is_tree, .start = pipe_start,
    .step = pipe_step, .release = pipe_release, .needs_us = msg_needs_us,
    .has_come = msg_has_come,
};
