/*
 * allgather_board.c: within a host.  Each member offers its part and copies the parts of
 * the others into its own output.  Who has offered its own memory (not a slot) waits
 * until the others have read it.
 */
#include "collective/board_int.h"

extern const struct coll_alg allgather_board;

struct gather {
    void *staged;
    bool copied;                        /* our output is complete */
};

static enum hvd_status publish(struct coll_task *t, struct hvd_error *err)
{
    struct gather *g = (struct gather *)t->state;
    size_t bytes = t->call.counts[t->team->me] * task_type_bytes(t->call.dtype);

    if (!board_is_free(t))
        return HVD_AGAIN;
    TRY(direct_offer(t, t->call.in, bytes, direct_stage_limit(t->team), &g->staged,
                     err));
    board_publish(t);
    return HVD_OK;
}

static enum hvd_status gather_start(struct coll_task *t, struct hvd_error *err)
{
    struct gather *g = (struct gather *)t->state;
    size_t bytes = t->call.counts[t->team->me] * task_type_bytes(t->call.dtype);
    enum hvd_status status;

    *g = (struct gather){0};
    t->all_bytes = ((size_t)t->team->count + 1) * task_size(t->team, &t->call);
    TRY(board_enter(t, direct_slot_bytes(t, bytes), err));
    status = publish(t, err);
    if (status != HVD_OK && status != HVD_AGAIN) {
        scratch_put(t->team->scratch, g->staged);
        return status;
    }
    return HVD_OK;
}

static enum hvd_status copy_parts(struct coll_task *t, struct hvd_error *err)
{
    size_t unit = task_type_bytes(t->call.dtype);
    char *to = t->call.out;

    for (int i = 0; i < t->team->count; i++) {
        size_t bytes = t->call.counts[i] * unit;
        struct direct_place place;

        if (i == t->team->me) {
            if (to != t->call.in && bytes > 0)
                red_copy_part(to, t->call.in, bytes, t->all_bytes);
        } else if (bytes > 0) {
            TRY(direct_place(t, i, false, bytes, &place, err));
            TRY(direct_read(&place, 0, to, bytes, err));
        }
        to += bytes;
    }
    return HVD_OK;
}

static enum hvd_status gather_step(struct coll_task *t, struct hvd_error *err)
{
    struct gather *g = (struct gather *)t->state;

    if (!t->published)
        TRY(publish(t, err));
    if (!board_all_came(t))
        return HVD_AGAIN;
    if (!g->copied) {
        TRY(copy_parts(t, err));
        g->copied = true;
        board_leave(t, true);
    }
    return direct_is_exposed(t) && !board_all_left(t) ? HVD_AGAIN : HVD_OK;
}

static void gather_release(struct coll_task *t)
{
    scratch_put(t->team->scratch, ((struct gather *)t->state)->staged);
}

const struct coll_alg allgather_board = {
    .op = COLL_ALLGATHER, .name = "board",
    .text = "one host: each copies the others' parts from their memory",
    .state_bytes = sizeof(struct gather), .can = task_can_direct, .start = gather_start,
    .step = gather_step, .release = gather_release, .needs_us = board_needs_us,
};
