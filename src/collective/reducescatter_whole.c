/*
 * reducescatter_whole.c: many hosts: an allreduce of the whole vector, of which each member keeps
 * its part.  An allreduce between hosts takes log2(hosts) rounds, and the vector leaves a host
 * twice, however many members it has; pairwise every member sends to every other, and a host
 * sends the vector of each of its members.
 */
#include "collective/hier_int.h"

#define PART_MOST ((uint64_t)4 << 10)   /* one member a host: when two vectors on the wire cost
                                         * more than n messages (docs/design/008) */

extern const struct coll_alg reducescatter_whole;

struct whole {
    struct hier h;
    char *sum;
};

static void whole_release(struct coll_task *t)
{
    struct whole *w = (struct whole *)t->state;

    hier_drop(t);
    scratch_put(t->team->scratch, w->sum);
}

static size_t sum_counts(const struct coll_task *t, int members)
{
    size_t sum = 0;

    for (int i = 0; i < members; i++)
        sum += t->call.counts[i];
    return sum;
}

static enum hvd_status whole_start(struct coll_task *t, struct hvd_error *err)
{
    struct whole *w = (struct whole *)t->state;
    struct coll_call call = t->call;
    enum hvd_status status;

    *w = (struct whole){0};
    call.op = COLL_ALLREDUCE;
    call.count = sum_counts(t, t->team->count);
    call.counts = NULL;
    w->sum = scratch_get(t->team->scratch, call.count * task_type_bytes(t->out_type));
    if (w->sum == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a vector of %zu elements",
                         call.count);
    call.out = w->sum;
    status = task_start(t->team, &call, t->part, t->out_type, &w->h.child, err);
    if (status != HVD_OK)
        whole_release(t);
    return status;
}

static enum hvd_status whole_step(struct coll_task *t, struct hvd_error *err)
{
    struct whole *w = (struct whole *)t->state;
    size_t unit = task_type_bytes(t->out_type), mine = t->call.counts[t->team->me] * unit;

    TRY(hier_drive(t, err));
    if (mine > 0)
        red_copy(t->call.out, w->sum + sum_counts(t, t->team->me) * unit, mine);
    return HVD_OK;
}

static bool whole_has_come(const struct coll_task *t, int member)
{
    const struct whole *w = (const struct whole *)t->state;

    return w->h.child != NULL && coll_has_come(w->h.child, member);
}

static uint64_t whole_limit(const struct coll_team *team)
{
    return order_is_tree(team) ? PART_MOST * (uint64_t)team->count : UINT64_MAX;
}

const struct coll_alg reducescatter_whole = {
    .op = COLL_REDUCESCATTER, .name = "whole",
    .text = "many hosts: an allreduce, of which each keeps its part",
    .state_bytes = sizeof(struct whole), .can = order_is_by_pairs, .limit = whole_limit,
    .start = whole_start, .step = whole_step, .release = whole_release,
    .needs_us = hier_needs_us, .has_come = whole_has_come,
};
