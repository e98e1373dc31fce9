/*
 * alltoall_board.c: within a host.  Each member offers its whole input together with a
 * table that says where the part of each member ends (bytes, u64 by member; it begins where
 * the one before ends), and copies its parts out of the others' inputs.  So a member need not
 * know from elsewhere how large they are (open sizes).
 *
 *   line   table and data, when both fit
 *   slot   table, then the data if it fits; else the line says where the data is
 */
#include "collective/board_int.h"

#include <string.h>

extern const struct coll_alg alltoall_board;

struct alltoall {
    void *staged;
    size_t total;                       /* bytes we send */
    bool copied;
};

static size_t table_bytes(const struct coll_task *t)
{
    return (size_t)t->team->count * sizeof(uint64_t);
}

static void fill_table(const struct coll_task *t, uint64_t *table)
{
    uint64_t at = 0;

    for (int i = 0; i < t->team->count; i++) {
        at += t->call.counts[i] * task_type_bytes(t->call.dtype);
        table[i] = at;
    }
}

/* Bytes of table and data when they lie together, 0 when the data lies elsewhere. */
static size_t together(const struct coll_task *t)
{
    size_t bytes = table_bytes(t) + ((const struct alltoall *)t->state)->total;

    return bytes <= t->team->slot_bytes ? bytes : 0;
}

/* Nobody else reads our own part. */
static enum hvd_status offer_far(struct coll_task *t, const uint64_t *table,
                                 struct hvd_error *err)
{
    struct alltoall *s = (struct alltoall *)t->state;
    size_t after = table[t->team->me];
    size_t before = after - t->call.counts[t->team->me] * task_type_bytes(t->call.dtype);
    const char *from = t->call.in;

    TRY(direct_offer_far(t, from, s->total, direct_stage_limit(t->team), &s->staged,
                         err));
    if (s->staged == NULL)
        return HVD_OK;
    red_copy(s->staged, from, before);
    red_copy((char *)s->staged + after, from + after, s->total - after);
    return HVD_OK;
}

static enum hvd_status offer(struct coll_task *t, struct hvd_error *err)
{
    struct alltoall *s = (struct alltoall *)t->state;
    struct board_line *line = board_line(t, t->team->me);
    size_t all = together(t);
    bool in_line = all > 0 && all <= LINE_INLINE;
    unsigned char *table = in_line ? line->bytes : board_slot(t, t->team->me);

    fill_table(t, (uint64_t *)table);
    if (all == 0)
        return offer_far(t, (const uint64_t *)table, err);
    line->in_kind = in_line ? BOARD_INLINE : BOARD_SLOT;
    if (s->total > 0)
        memcpy(table + table_bytes(t), t->call.in, s->total);
    return HVD_OK;
}

static enum hvd_status publish(struct coll_task *t, struct hvd_error *err)
{
    if (!board_is_free(t))
        return HVD_AGAIN;
    TRY(offer(t, err));
    board_publish(t);
    return HVD_OK;
}

static enum hvd_status alltoall_start(struct coll_task *t, struct hvd_error *err)
{
    struct alltoall *s = (struct alltoall *)t->state;
    size_t all;
    enum hvd_status status;

    *s = (struct alltoall){0};
    for (int i = 0; i < t->team->count; i++)
        s->total += t->call.counts[i] * task_type_bytes(t->call.dtype);
    t->all_bytes = 2 * (size_t)t->team->count * s->total;       /* about, with open sizes */
    all = together(t);
    TRY(board_enter(t, all > 0 ? all : table_bytes(t), err));
    status = publish(t, err);
    if (status == HVD_OK || status == HVD_AGAIN)
        return HVD_OK;
    scratch_put(t->team->scratch, s->staged);
    return status;
}

static const unsigned char *table_of(const struct coll_task *t, int member)
{
    struct board_line *line = board_line(t, member);

    return line->in_kind == BOARD_INLINE ? line->bytes : board_slot(t, member);
}

/* Where the part of `of` begins in the data of the member. */
static uint64_t begin_of(const struct coll_task *t, int member, int of)
{
    return of > 0 ? ((const uint64_t *)table_of(t, member))[of - 1] : 0;
}

static void read_sizes(struct coll_task *t)
{
    size_t unit = task_type_bytes(t->call.dtype);
    uint64_t *sizes = task_open_sizes(t);
    int me = t->team->me;

    for (int i = 0; i < t->team->count; i++)
        sizes[i] = i == me ? t->call.counts[me]
                           : (((const uint64_t *)table_of(t, i))[me] - begin_of(t, i, me)) /
                                 unit;
    t->sized = true;
}

static enum hvd_status copy_from(struct coll_task *t, int member, char *to, size_t bytes,
                                 struct hvd_error *err)
{
    struct board_line *line = board_line(t, member);
    const unsigned char *table = table_of(t, member);
    uint64_t at = begin_of(t, member, t->team->me);
    struct direct_place place;

    if (line->in_kind == BOARD_INLINE || line->in_kind == BOARD_SLOT) {
        if (at > t->team->slot_bytes || bytes > t->team->slot_bytes - at)
            return error_set(err, HVD_PROTO, t->team->ranks[member],
                             "rank %d sends fewer bytes than expected",
                             t->team->ranks[member]);
        memcpy(to, table + table_bytes(t) + at, bytes);
        return HVD_OK;
    }
    TRY(direct_place(t, member, false, at + bytes, &place, err));
    return direct_read(&place, at, to, bytes, err);
}

static enum hvd_status copy_own(struct coll_task *t, char *to, size_t bytes)
{
    const char *from = t->call.in;

    for (int i = 0; i < t->team->me; i++)
        from += t->call.counts[i] * task_type_bytes(t->call.dtype);
    red_copy_part(to, from, bytes, t->all_bytes);
    return HVD_OK;
}

static enum hvd_status copy_parts(struct coll_task *t, struct hvd_error *err)
{
    char *to = t->call.out;

    for (int i = 0; i < t->team->count; i++) {
        size_t bytes = t->call.recv_counts[i] * task_type_bytes(t->call.dtype);

        if (bytes > 0)
            TRY(i == t->team->me ? copy_own(t, to, bytes)
                                 : copy_from(t, i, to, bytes, err));
        to += bytes;
    }
    return HVD_OK;
}

static enum hvd_status alltoall_step(struct coll_task *t, struct hvd_error *err)
{
    struct alltoall *s = (struct alltoall *)t->state;

    if (!t->published)
        TRY(publish(t, err));
    if (!board_all_came(t))
        return HVD_AGAIN;
    if (t->call.open && !t->placed) {
        read_sizes(t);
        return HVD_AGAIN;
    }
    if (!s->copied) {
        TRY(copy_parts(t, err));
        s->copied = true;
        board_leave(t, true);
    }
    return direct_is_exposed(t) && !board_all_left(t) ? HVD_AGAIN : HVD_OK;
}

static void alltoall_release(struct coll_task *t)
{
    scratch_put(t->team->scratch, ((struct alltoall *)t->state)->staged);
}

const struct coll_alg alltoall_board = {
    .op = COLL_ALLTOALL, .name = "board",
    .text = "one host: each copies its parts from the others' memory",
    .state_bytes = sizeof(struct alltoall), .can = task_can_direct, .opens = true,
    .start = alltoall_start, .step = alltoall_step, .release = alltoall_release,
    .needs_us = board_needs_us,
};
