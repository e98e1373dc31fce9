/* broadcast_tree.c: over messages along a binomial tree. */
#include "collective/msg_int.h"

extern const struct coll_alg broadcast_tree;

struct tree {
    struct msg_pack pack;               /* 0: from the parent; then the children */
    bool passed;                        /* sent on to the children */
};

static void tree_release(struct coll_task *t)
{
    msg_drop(t, &((struct tree *)t->state)->pack);
}

static enum hvd_status tree_start(struct coll_task *t, struct hvd_error *err)
{
    struct tree *tree = (struct tree *)t->state;
    int n = t->team->count;
    int parent = pattern_tree_parent(n, t->call.root, t->team->me);

    *tree = (struct tree){0};
    TRY(msg_take(t, pattern_rounds(n) + 1, &tree->pack, err));
    if (parent >= 0)
        msg_recv(t, parent, 0, 0, t->call.out, t->bytes, &tree->pack.x[0]);
    else if (t->call.out != t->call.in && t->bytes > 0)
        red_copy(t->call.out, t->call.in, t->bytes);
    return HVD_OK;
}

static enum hvd_status tree_step(struct coll_task *t, struct hvd_error *err)
{
    struct tree *tree = (struct tree *)t->state;
    int n = t->team->count, child;

    if (!tree->passed) {
        TRY(msg_check(t, &tree->pack.x[0], 1, err));
        for (int i = 0;
             (child = pattern_tree_child(n, t->call.root, t->team->me, i)) >= 0; i++)
            msg_send(t, child, 0, 0, t->call.out, t->bytes, &tree->pack.x[1 + i]);
        tree->passed = true;
    }
    return msg_check(t, tree->pack.x, tree->pack.count, err);
}

const struct coll_alg broadcast_tree = {
    .op = COLL_BROADCAST, .name = "tree", .text = "messages, small: binomial tree",
    .state_bytes = sizeof(struct tree), .can = task_can_always, .start = tree_start,
    .step = tree_step, .release = tree_release, .needs_us = msg_needs_us,
    .has_come = msg_has_come,
};
