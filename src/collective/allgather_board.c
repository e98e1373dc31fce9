/*
 * allgather_board.c: within a host.  Each member offers its part and copies the parts of
 * the others into its own output.  Who has offered its own memory (not a slot) waits
 * until the others have read it.  The line says how large the part is, so that the members
 * need not know it from elsewhere (open sizes).
 */
#include "collective/board_int.h"

extern const struct coll_alg allgather_board;

struct gather {
    void *staged;
    bool copied;                        /* our output is complete */
};

static void set_size(struct board_line *line, size_t bytes)
{
    if (line->in_kind == BOARD_INLINE)
        line->inline_bytes = (uint16_t)bytes;
    else
        line->at.bytes = bytes;
}

static size_t size_of(const struct board_line *line)
{
    if (line->in_kind == BOARD_NONE)
        return 0;
    return line->in_kind == BOARD_INLINE ? line->inline_bytes : line->at.bytes;
}

static enum hvd_status publish(struct coll_task *t, struct hvd_error *err)
{
    struct gather *g = (struct gather *)t->state;
    size_t bytes = t->call.counts[t->team->me] * task_type_bytes(t->call.dtype);

    if (!board_is_free(t))
        return HVD_AGAIN;
    TRY(direct_offer(t, t->call.in, bytes, direct_stage_limit(t->team), &g->staged,
                     err));
    set_size(board_line(t, t->team->me), bytes);
    board_publish(t);
    return HVD_OK;
}

static enum hvd_status gather_start(struct coll_task *t, struct hvd_error *err)
{
    struct gather *g = (struct gather *)t->state;
    size_t bytes = t->call.counts[t->team->me] * task_type_bytes(t->call.dtype);
    enum hvd_status status;

    *g = (struct gather){0};
    if (!t->call.open)
        t->all_bytes = ((size_t)t->team->count + 1) * task_size(t->team, &t->call);
    TRY(board_enter(t, direct_slot_bytes(t, bytes), err));
    status = publish(t, err);
    if (status != HVD_OK && status != HVD_AGAIN) {
        scratch_put(t->team->scratch, g->staged);
        return status;
    }
    return HVD_OK;
}

static void read_sizes(struct coll_task *t)
{
    size_t unit = task_type_bytes(t->call.dtype), total = 0;
    uint64_t *sizes = task_open_sizes(t);

    for (int i = 0; i < t->team->count; i++) {
        sizes[i] = size_of(board_line(t, i)) / unit;
        total += sizes[i] * unit;
    }
    t->all_bytes = ((size_t)t->team->count + 1) * total;
    t->sized = true;
}

static enum hvd_status copy_parts(struct coll_task *t, struct hvd_error *err)
{
    const uint64_t *counts = t->call.open ? t->call.recv_counts : t->call.counts;
    size_t unit = task_type_bytes(t->call.dtype);
    char *to = t->call.out;

    for (int i = 0; i < t->team->count; i++) {
        size_t bytes = counts[i] * unit;
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
    if (t->call.open && !t->placed) {
        read_sizes(t);
        return HVD_AGAIN;
    }
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
    .state_bytes = sizeof(struct gather), .can = task_can_direct, .opens = true,
    .start = gather_start, .step = gather_step, .release = gather_release,
    .needs_us = board_needs_us,
};
