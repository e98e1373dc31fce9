/*
 * broadcast_board.c: within a host.  The root offers its buffer: in its line or slot
 * (then it need not wait for anybody), in its arena, by CMA, or copied piece by piece
 * into a staging buffer that the others follow (mark.ready counts the pieces).
 *
 * 1. A reader copies as soon as the root has come.  It has finished then when the call is
 *    agreed, else when all have come (board.c, rule 3): only its output has changed, which
 *    is written again if the turn is cancelled.
 * 2. Of a turn that may still be cancelled only the line, the slot and arenas are read,
 *    which stay mapped whatever becomes of the root's buffer, and what the line says counts
 *    only if the stamp still stands afterwards.  CMA waits for all.
 * 3. The root returns when its buffer is no longer read: all have left, or all have come
 *    and mark.ready of each reader says that it has copied.
 *
 * A root with a single reader does not stand by: both claim chunks, the reader from the
 * front, the root from the end, which it writes to where the reader's line says.
 */
#include "collective/board_int.h"

#define PIECE ((size_t)128 << 10)
#define STAGE_LIMIT ((size_t)64 << 20)  /* beyond, private memory is read by CMA */
#define SPLIT_LEAST ((size_t)64 << 10)  /* below, one copy is over before two have met */
#define SPLIT_CHUNK ((size_t)32 << 10)  /* a call by CMA costs 1.3 us, a page 0.3 */

extern const struct coll_alg broadcast_board;

struct cast {
    void *staged;                       /* root: the staging buffer */
    uint32_t pieces, moved;             /* of it; copied in (root) or out (others) */
    unsigned low;                       /* split: chunks before are known to be done */
    bool done;                          /* our output is complete */
};

enum { READING, READ };                 /* mark.ready of a reader */

static bool is_root(const struct coll_task *t)
{
    return t->team->me == t->call.root;
}

/* Two mapped copies beat one by CMA, except when there is a single reader. */
static bool wants_stage(const struct coll_task *t, enum board_kind kind)
{
    return kind == BOARD_NONE ||
           (kind == BOARD_CMA && t->team->count > 2 && t->bytes <= STAGE_LIMIT);
}

static enum hvd_status offer(struct coll_task *t, struct hvd_error *err)
{
    struct cast *c = (struct cast *)t->state;
    struct board_line *line = board_line(t, t->team->me);
    enum board_kind kind;

    line->ring = 0;
    if (t->bytes <= t->team->slot_bytes)
        return direct_offer(t, t->call.in, t->bytes, 0, &c->staged, err);
    kind = direct_kind(t, t->call.in, t->bytes, &line->at.in);
    line->in_kind = (uint8_t)kind;
    if (!wants_stage(t, kind))
        return HVD_OK;
    c->staged = direct_stage(t, t->bytes, &line->at.in);
    if (c->staged == NULL && kind == BOARD_CMA)
        return HVD_OK;
    if (c->staged == NULL)
        return error_set(err, HVD_NOMEM, -1, "no shared memory for %zu bytes", t->bytes);
    line->in_kind = BOARD_MAPPED;
    line->ring = 1;
    c->pieces = (uint32_t)((t->bytes + PIECE - 1) / PIECE);
    board_set_ready(t, 0);
    return HVD_OK;
}

/* Chunks belong to part 0 (board.c, rule 6). */
static bool can_split(const struct coll_task *t)
{
    return t->team->count == 2 && t->part == 0 && t->bytes >= SPLIT_LEAST;
}

static enum hvd_status publish(struct coll_task *t, struct hvd_error *err)
{
    struct board_line *line = board_line(t, t->team->me);

    if (!board_is_free(t))
        return HVD_AGAIN;
    if (is_root(t)) {
        TRY(offer(t, err));
    } else {
        line->in_kind = line->out_kind = BOARD_NONE;
        board_set_ready(t, READING);
        if (can_split(t))
            line->out_kind =
                (uint8_t)direct_kind(t, t->call.out, t->bytes, &line->at.out);
    }
    board_publish(t);
    return HVD_OK;
}

static enum hvd_status cast_start(struct coll_task *t, struct hvd_error *err)
{
    struct cast *c = (struct cast *)t->state;
    enum hvd_status status;

    *c = (struct cast){0};
    t->all_bytes = (size_t)t->team->count * t->bytes;
    TRY(board_enter(t, is_root(t) ? direct_slot_bytes(t, t->bytes) : 0, err));
    status = publish(t, err);
    if (status == HVD_OK || status == HVD_AGAIN)
        return HVD_OK;
    scratch_put(t->team->scratch, c->staged);
    return status;
}

static size_t piece_bytes(const struct coll_task *t, uint32_t piece)
{
    size_t left = t->bytes - piece * PIECE;

    return left < PIECE ? left : PIECE;
}

static void put_pieces(struct coll_task *t)
{
    struct cast *c = (struct cast *)t->state;

    for (; c->moved < c->pieces; c->moved++) {
        size_t at = c->moved * PIECE;

        red_copy_part((char *)c->staged + at, (const char *)t->call.in + at,
                      piece_bytes(t, c->moved), t->all_bytes);
        board_set_ready(t, c->moved + 1);
        if (c->moved % 8 == 0 || c->moved + 1 == c->pieces)
            mesh_notify(t->team->mesh, -1);
    }
}

/* ---- Two members ------------------------------------------------------------------- */

static bool is_split(const struct coll_task *t)
{
    return can_split(t) && board_line(t, t->call.root)->ring == 0;
}

static size_t split_chunk(const struct coll_task *t)
{
    size_t pages = (t->bytes + CHUNK_WORDS * 4096 - 1) / (CHUNK_WORDS * 4096);

    return pages * 4096 > SPLIT_CHUNK ? pages * 4096 : SPLIT_CHUNK;
}

static enum hvd_status move_chunk(struct coll_task *t, const struct direct_place *place,
                                  unsigned chunk, struct hvd_error *err)
{
    size_t size = split_chunk(t), at = chunk * size;
    size_t n = t->bytes - at < size ? t->bytes - at : size;

    if (!is_root(t))
        return direct_read(place, at, (char *)t->call.out + at, n, err);
    if (place->at != NULL)
        mesh_touch(t->team->mesh, t->team->local_ranks[!t->team->me], place->at,
                   t->bytes, at, n);
    return direct_write(place, at, (const char *)t->call.in + at, n, err);
}

/* HVD_OK: all chunks are done.  Both members have come. */
static enum hvd_status split_step(struct coll_task *t, struct hvd_error *err)
{
    struct cast *c = (struct cast *)t->state;
    unsigned chunks = (unsigned)((t->bytes + split_chunk(t) - 1) / split_chunk(t));
    struct direct_place place;
    bool any = false;

    TRY(direct_place(t, !t->team->me, is_root(t), t->bytes, &place, err));
    for (unsigned i = 0; place.kind != BOARD_NONE && i < chunks; i++) {
        unsigned chunk = is_root(t) ? chunks - 1 - i : i;

        if (!chunk_claim(t, chunk))
            continue;
        TRY(move_chunk(t, &place, chunk, err));
        chunk_set_done(t, chunk);
        any = true;
    }
    if (any)
        mesh_notify(t->team->mesh, -1);
    c->low = chunk_await(t, chunk_pass_done(t, c->low, chunks), chunks);
    return c->low == chunks ? HVD_OK : HVD_AGAIN;
}

/* ---- Root and readers -------------------------------------------------------------- */

/* Rule 3; all have come. */
static bool is_read(const struct coll_task *t)
{
    for (int i = 0; i < t->team->count; i++)
        if (i != t->team->me && board_ready(t, i) == READING)
            return false;
    return true;
}

static enum hvd_status root_step(struct coll_task *t, struct hvd_error *err)
{
    struct cast *c = (struct cast *)t->state;

    put_pieces(t);
    if (!t->call.agreed && !board_all_came(t))
        return HVD_AGAIN;
    if (!c->done && t->call.out != t->call.in && t->bytes > 0)
        red_copy_part(t->call.out, t->call.in, t->bytes, t->all_bytes);
    c->done = true;
    if (is_split(t))
        return board_all_came(t) ? split_step(t, err) : HVD_AGAIN;
    board_leave(t, false);
    if (!direct_is_exposed(t))
        return HVD_OK;
    return (t->call.agreed ? board_all_left(t) : is_read(t)) ? HVD_OK : HVD_AGAIN;
}

static enum hvd_status read_pieces(struct coll_task *t, const struct direct_place *place,
                                   struct hvd_error *err)
{
    struct cast *c = (struct cast *)t->state;
    uint32_t pieces = (uint32_t)((t->bytes + PIECE - 1) / PIECE);

    for (; c->moved < pieces; c->moved++) {
        size_t at = c->moved * PIECE;

        if (board_ready(t, t->call.root) <= c->moved)
            return HVD_AGAIN;
        TRY(direct_read(place, at, (char *)t->call.out + at, piece_bytes(t, c->moved),
                        err));
    }
    return HVD_OK;
}

/* Rule 2: HVD_AGAIN if it is too early. */
static enum hvd_status find_root(struct coll_task *t, struct direct_place *place_p,
                                 uint16_t *ring_p, struct hvd_error *err)
{
    const struct board_line *line = board_line(t, t->call.root);
    enum hvd_status status;

    *ring_p = line->ring;
    status = direct_place(t, t->call.root, false, t->bytes, place_p, err);
    if (t->call.agreed || board_all_came(t))
        return status;
    atomic_thread_fence(memory_order_acquire);
    return board_has_come(t, t->call.root) && place_p->kind != BOARD_CMA ? status
                                                                         : HVD_AGAIN;
}

static enum hvd_status read_root(struct coll_task *t, struct hvd_error *err)
{
    struct cast *c = (struct cast *)t->state;
    struct direct_place place;
    uint16_t ring;

    TRY(find_root(t, &place, &ring, err));
    if (place.kind == BOARD_MAPPED && ring > 0)
        TRY(read_pieces(t, &place, err));
    else if (t->bytes > 0)
        TRY(direct_read(&place, 0, t->call.out, t->bytes, err));
    c->done = true;
    board_set_ready(t, READ);
    return HVD_OK;
}

static enum hvd_status reader_step(struct coll_task *t, struct hvd_error *err)
{
    struct cast *c = (struct cast *)t->state;

    if (!board_has_come(t, t->call.root))
        return HVD_AGAIN;
    if (!c->done)
        TRY(is_split(t) ? split_step(t, err) : read_root(t, err));
    if (!t->call.agreed && !board_all_came(t))
        return HVD_AGAIN;
    board_leave(t, true);
    return HVD_OK;
}

static enum hvd_status cast_step(struct coll_task *t, struct hvd_error *err)
{
    if (!t->published)
        TRY(publish(t, err));
    return is_root(t) ? root_step(t, err) : reader_step(t, err);
}

static void cast_release(struct coll_task *t)
{
    scratch_put(t->team->scratch, ((struct cast *)t->state)->staged);
}

static bool cast_needs_us(const struct coll_task *t)
{
    const struct cast *c = (const struct cast *)t->state;

    if (is_root(t))
        return !t->published || c->moved < c->pieces;
    return !t->published || (!t->left && board_has_come(t, t->call.root) &&
                             (t->call.agreed || coll_is_committed(t)));
}

const struct coll_alg broadcast_board = {
    .op = COLL_BROADCAST, .name = "board",
    .text = "one host: the others copy from the root's memory",
    .state_bytes = sizeof(struct cast), .can = task_can_direct, .start = cast_start,
    .step = cast_step, .release = cast_release, .needs_us = cast_needs_us,
};
