/*
 * reducescatter_board.c: within a host.  Each member offers its input and reduces its own
 * slice of all inputs where they are: one pass, no copy.
 */
#include "collective/board_int.h"

#define STAGE_LIMIT_FEW ((size_t)128 << 10)     /* 2 to 4 members: then CMA */
#define STAGE_LIMIT_MANY ((size_t)64 << 20)     /* CMA is slower, but takes no memory */

extern const struct coll_alg reducescatter_board;

struct scatter {
    void *staged;
    struct direct_place *places;        /* by member */
    size_t begin, total;                /* elements: of our slice, of all */
    bool reduced;                       /* our output is complete */
};

static void find_slice(const struct coll_task *t, struct scatter *s)
{
    for (int i = 0; i < t->team->count; i++) {
        if (i == t->team->me)
            s->begin = s->total;
        s->total += t->call.counts[i];
    }
}

static enum hvd_status publish(struct coll_task *t, struct hvd_error *err)
{
    struct scatter *s = (struct scatter *)t->state;
    size_t limit = t->team->count > 4 ? STAGE_LIMIT_MANY : STAGE_LIMIT_FEW;

    if (!board_is_free(t))
        return HVD_AGAIN;
    TRY(direct_offer(t, t->call.in, s->total * task_type_bytes(t->call.dtype), limit,
                     &s->staged, err));
    board_publish(t);
    return HVD_OK;
}

static void scatter_release(struct coll_task *t)
{
    struct scatter *s = (struct scatter *)t->state;

    scratch_put(t->team->scratch, s->staged);
    scratch_put(t->team->scratch, s->places);
}

static enum hvd_status scatter_start(struct coll_task *t, struct hvd_error *err)
{
    struct scatter *s = (struct scatter *)t->state;
    enum hvd_status status;
    size_t bytes;

    *s = (struct scatter){0};
    find_slice(t, s);
    bytes = s->total * task_type_bytes(t->call.dtype);
    TRY(board_enter(t, direct_slot_bytes(t, bytes), err));
    s->places = scratch_get(t->team->scratch,
                            (size_t)t->team->count * sizeof *s->places);
    if (s->places == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a task");
    status = publish(t, err);
    if (status == HVD_OK || status == HVD_AGAIN)
        return HVD_OK;
    scatter_release(t);
    return status;
}

static enum hvd_status reduce_slice(struct coll_task *t, struct hvd_error *err)
{
    struct scatter *s = (struct scatter *)t->state;
    size_t count = t->call.counts[t->team->me];
    size_t bytes = s->total * task_type_bytes(t->call.dtype);

    if (count == 0)
        return HVD_OK;
    for (int i = 0; i < t->team->count; i++)
        TRY(direct_place(t, i, false, bytes, &s->places[i], err));
    s->places[t->team->me] = (struct direct_place){.at = (char *)t->call.in};
    return direct_reduce(t, s->places, &t->call.out, 1, s->begin, count, false, err);
}

static enum hvd_status scatter_step(struct coll_task *t, struct hvd_error *err)
{
    struct scatter *s = (struct scatter *)t->state;

    if (!t->published)
        TRY(publish(t, err));
    if (!board_all_came(t))
        return HVD_AGAIN;
    if (!s->reduced) {
        TRY(reduce_slice(t, err));
        s->reduced = true;
        board_leave(t, true);
    }
    return direct_is_exposed(t) && !board_all_left(t) ? HVD_AGAIN : HVD_OK;
}

const struct coll_alg reducescatter_board = {
    .op = COLL_REDUCESCATTER, .name = "board",
    .text = "one host: each reduces its slice of all inputs where they are",
    .state_bytes = sizeof(struct scatter), .can = task_can_direct,
    .start = scatter_start, .step = scatter_step, .release = scatter_release,
    .needs_us = board_needs_us,
};
