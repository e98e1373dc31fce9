/*
 * allreduce_shared.c: larger vectors within a host, in one pass over all members'
 * buffers.  When all have come, members claim chunks and reduce the R inputs of a chunk
 * into the R outputs; any member that is awake can do the work of all.
 *
 * Each member chooses by itself how its buffers are reached, and says so in its line:
 * mapped (in its arena), by CMA, or through a ring of staged chunks (allreduce_staged.c).
 */
#include "collective/shared_int.h"

extern const struct coll_alg allreduce_shared;

/* Private buffers up to so many bytes are staged.  Beyond, CMA is faster with few members
 * (measured: from about 1 MiB, where the ring no longer holds everything, or 8 when half
 * of it is staged), never with 8 (PERFORMANCE 4). */
static size_t stage_limit(const struct coll_task *t)
{
    if (t->team->count > 4)
        return SIZE_MAX;
    return (size_t)(staged_is_half(t) ? 4 : 1) << 20;
}

static enum hvd_status fill_line(struct coll_task *t, struct hvd_error *err)
{
    struct board_line *line = board_line(t, t->team->me);
    enum board_kind in = direct_kind(t, t->call.in, t->bytes, &line->at.in);
    enum board_kind out = direct_kind(t, t->call.out, t->bytes, &line->at.out);
    bool mapped = in == BOARD_MAPPED && out == BOARD_MAPPED;
    bool reachable = in != BOARD_NONE && out != BOARD_NONE;

    line->in_kind = (uint8_t)in;
    line->out_kind = (uint8_t)out;
    line->ring = line->half = 0;
    if (t->bytes == 0 || mapped || (reachable && t->bytes > stage_limit(t)) ||
        staged_open(t, line) || reachable)
        return HVD_OK;
    return error_set(err, HVD_NOMEM, -1, "no shared memory to stage %zu bytes", t->bytes);
}

static enum hvd_status publish(struct coll_task *t, struct hvd_error *err)
{
    if (!board_is_free(t))
        return HVD_AGAIN;
    TRY(fill_line(t, err));
    board_publish(t);
    return HVD_OK;
}

static void shared_release(struct coll_task *t)
{
    struct shared *s = (struct shared *)t->state;

    scratch_put(t->team->scratch, s->ring);
    scratch_put(t->team->scratch, s->in);
}

static enum hvd_status take_places(struct coll_task *t, struct hvd_error *err)
{
    struct shared *s = (struct shared *)t->state;
    size_t n = (size_t)t->team->count;

    s->in = scratch_get(t->team->scratch, n * (3 * sizeof *s->in + sizeof *s->rings));
    if (s->in == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a task");
    s->out = s->in + n;
    s->now = s->out + n;
    s->rings = (uint16_t *)(s->now + n);
    return HVD_OK;
}

static enum hvd_status shared_start(struct coll_task *t, struct hvd_error *err)
{
    struct shared *s = (struct shared *)t->state;
    enum hvd_status status;

    BUG_ON(t->part != 0);               /* board.c, rule 6 */
    *s = (struct shared){0};
    s->chunk = pattern_chunk(t->call.count, task_type_bytes(t->call.dtype),
                             t->team->count, CHUNK_WORDS * CHUNK_ROUNDS);
    s->chunks = (unsigned)((t->call.count + s->chunk - 1) / s->chunk);
    TRY(board_enter(t, 0, err));
    TRY(take_places(t, err));
    status = publish(t, err);
    if (status == HVD_OK || status == HVD_AGAIN)
        return HVD_OK;
    shared_release(t);
    return status;
}

/* ---- Where everybody's buffers are ------------------------------------------------- */

static enum hvd_status find_ring(struct coll_task *t, int member, struct hvd_error *err)
{
    struct shared *s = (struct shared *)t->state;
    struct board_line *line = board_line(t, member);
    size_t bytes = line->ring * s->chunk * task_type_bytes(t->call.dtype);
    char *at = mesh_address(t->team->mesh, t->team->local_ranks[member], line->at.in,
                            bytes);

    if (at == NULL || line->ring == 0)
        return error_set(err, HVD_PROTO, t->team->ranks[member],
                         "rank %d offers a ring outside its memory",
                         t->team->ranks[member]);
    s->in[member] = s->out[member] = (struct direct_place){.kind = BOARD_RING, .at = at};
    s->rings[member] = line->ring;
    if (member < HALVES)
        s->halves[member] = line->half != 0 && t->team->count == HALVES;
    s->has_rings = true;
    return HVD_OK;
}

static enum hvd_status find_member(struct coll_task *t, int member,
                                   struct hvd_error *err)
{
    struct shared *s = (struct shared *)t->state;
    struct board_line *line = board_line(t, member);

    s->rings[member] = 0;
    if (line->in_kind == BOARD_RING)
        return find_ring(t, member, err);
    if (member == t->team->me) {
        s->in[member] = (struct direct_place){.at = (char *)t->call.in};
        s->out[member] = (struct direct_place){.at = t->call.out};
        return HVD_OK;
    }
    TRY(direct_place(t, member, false, t->bytes, &s->in[member], err));
    TRY(direct_place(t, member, true, t->bytes, &s->out[member], err));
    s->has_private = s->has_private || s->out[member].at == NULL;
    return HVD_OK;
}

/* Stores past the caches pay when everything is out of place and too large for them. */
static bool wants_stream(const struct coll_task *t)
{
    for (int i = 0; i < t->team->count; i++) {
        struct board_line *line = board_line(t, i);

        if (line->at.in == line->at.out || line->in_kind != BOARD_MAPPED ||
            line->out_kind != BOARD_MAPPED)
            return false;
    }
    return 2 * (size_t)t->team->count * t->bytes > t->team->cache_bytes;
}

static enum hvd_status find_places(struct coll_task *t, struct hvd_error *err)
{
    struct shared *s = (struct shared *)t->state;

    for (int i = 0; s->chunks > 0 && i < t->team->count; i++)
        TRY(find_member(t, i, err));
    s->stream = wants_stream(t);
    s->found = true;
    return HVD_OK;
}

/* ---- Chunks ------------------------------------------------------------------------ */

/* Where the chunk begins in a member's buffer, in bytes. */
static size_t chunk_offset(const struct coll_task *t, int member, unsigned chunk)
{
    const struct shared *s = (const struct shared *)t->state;
    unsigned ring = s->rings[member];

    return (ring > 0 ? chunk % ring : chunk) * s->chunk * task_type_bytes(t->call.dtype);
}

/* Our own output among the destinations; it is always within reach. */
static void *my_chunk(const struct coll_task *t, unsigned chunk)
{
    const struct shared *s = (const struct shared *)t->state;
    int me = t->team->me;

    if (shared_is_own(t, chunk))
        return (char *)t->call.out + chunk * s->chunk * task_type_bytes(t->call.dtype);
    return s->out[me].at + chunk_offset(t, me, chunk);
}

static const char *my_input(const struct coll_task *t, unsigned chunk)
{
    const struct shared *s = (const struct shared *)t->state;
    int me = t->team->me;

    if (shared_is_own(t, chunk))
        return (const char *)t->call.in +
               chunk * s->chunk * task_type_bytes(t->call.dtype);
    return s->in[me].at + chunk_offset(t, me, chunk);
}

static int find_chunk(struct coll_task *t, unsigned chunk)
{
    struct shared *s = (struct shared *)t->state;
    int ndst = 0;

    for (int i = 0; i < t->team->count; i++) {
        size_t at = chunk_offset(t, i, chunk);

        s->now[i] = s->in[i];
        if (i == t->team->me)
            s->now[i].at = (char *)my_input(t, chunk);
        else if (s->now[i].at != NULL)
            s->now[i].at += at;
        else
            s->now[i].remote += at;
        if (i == t->team->me)
            t->team->dst[ndst++] = my_chunk(t, chunk);
        else if (s->out[i].at != NULL)
            t->team->dst[ndst++] = s->out[i].at + at;
    }
    return ndst;
}

static enum hvd_status write_private(struct coll_task *t, unsigned chunk, size_t skip,
                                     size_t bytes, struct hvd_error *err)
{
    struct shared *s = (struct shared *)t->state;
    const char *result = (char *)my_chunk(t, chunk) + skip;

    for (int i = 0; i < t->team->count; i++)
        if (s->out[i].at == NULL)
            TRY(direct_write(&s->out[i], chunk_offset(t, i, chunk) + skip, result,
                             bytes, err));
    return HVD_OK;
}

/* Block by block, so that what is written to private memory is still in L2. */
static enum hvd_status reduce_blocks(struct coll_task *t, unsigned chunk, int ndst,
                                     struct hvd_error *err)
{
    struct shared *s = (struct shared *)t->state;
    size_t unit = task_type_bytes(t->call.dtype), block = direct_block(t);
    size_t count = shared_elements(t, chunk);

    for (size_t done = 0; done < count; done += block) {
        size_t n = count - done < block ? count - done : block;

        TRY(direct_reduce(t, s->now, t->team->dst, ndst, done, n, false, err));
        TRY(write_private(t, chunk, done * unit, n * unit, err));
        for (int i = 0; i < ndst; i++)
            t->team->dst[i] = (char *)t->team->dst[i] + n * unit;
    }
    return HVD_OK;
}

/* Rings are touched when they are filled. */
static void touch_outputs(struct coll_task *t, unsigned chunk)
{
    struct shared *s = (struct shared *)t->state;
    size_t bytes = shared_elements(t, chunk) * task_type_bytes(t->call.dtype);

    for (int i = 0; i < t->team->count; i++)
        if (s->rings[i] == 0 && s->out[i].at != NULL)
            mesh_touch(t->team->mesh, t->team->local_ranks[i], s->out[i].at, t->bytes,
                       chunk_offset(t, i, chunk), bytes);
}

static enum hvd_status reduce_chunk(struct coll_task *t, unsigned chunk,
                                    struct hvd_error *err)
{
    struct shared *s = (struct shared *)t->state;
    int ndst = find_chunk(t, chunk);

    touch_outputs(t, chunk);

    if (s->has_private)
        TRY(reduce_blocks(t, chunk, ndst, err));
    else
        TRY(direct_reduce(t, s->now, t->team->dst, ndst, 0, shared_elements(t, chunk),
                          s->stream, err));
    chunk_set_done(t, chunk);
    return HVD_OK;
}

/* Few chunks: each member begins with its share, and then takes what others have left. */
static enum hvd_status claim_few(struct coll_task *t, bool *did_p, struct hvd_error *err)
{
    struct shared *s = (struct shared *)t->state;
    unsigned chunk = (unsigned)t->team->me * s->chunks / (unsigned)t->team->count;

    for (unsigned i = 0; i < s->chunks; i++) {
        if (chunk_claim(t, chunk)) {
            TRY(reduce_chunk(t, chunk, err));
            *did_p = true;
        }
        chunk = chunk + 1 < s->chunks ? chunk + 1 : 0;
    }
    return HVD_OK;
}

/* Many chunks, or chunks that come piece by piece: in order. */
static enum hvd_status claim_in_order(struct coll_task *t, bool *did_p,
                                      struct hvd_error *err)
{
    struct shared *s = (struct shared *)t->state;

    for (unsigned c = s->low; c < s->chunks && c < s->low + CHUNK_WORDS; c++) {
        if (c == s->low && chunk_is_done(t, c)) {
            s->low++;
            continue;
        }
        if (s->halves[c % HALVES] && !shared_is_own(t, c))
            continue;
        if (!staged_has(t, c))
            return HVD_OK;
        if (chunk_claim(t, c)) {
            TRY(reduce_chunk(t, c, err));
            *did_p = true;
        }
    }
    return HVD_OK;
}

static enum hvd_status work(struct coll_task *t, struct hvd_error *err)
{
    struct shared *s = (struct shared *)t->state;
    bool few = !s->has_rings && s->chunks <= CHUNK_WORDS, moved, any = false;

    do {
        moved = false;
        TRY(few ? claim_few(t, &moved, err) : claim_in_order(t, &moved, err));
        if (s->ring != NULL && staged_move(t))
            moved = true;
        s->low = chunk_pass_done(t, s->low, s->chunks);
        any = any || moved;
    } while (moved && s->low < s->chunks);
    if (few)
        s->low = chunk_await(t, s->low, s->chunks);
    if (any)
        mesh_notify(t->team->mesh, -1);
    return HVD_OK;
}

static enum hvd_status shared_step(struct coll_task *t, struct hvd_error *err)
{
    struct shared *s = (struct shared *)t->state;

    if (!t->published)
        TRY(publish(t, err));
    if (!board_all_came(t))
        return HVD_AGAIN;
    if (!s->found)
        TRY(find_places(t, err));
    if (s->low < s->chunks)
        TRY(work(t, err));
    if (s->low < s->chunks)
        return HVD_AGAIN;
    if (s->ring != NULL)
        staged_move(t);
    return HVD_OK;
}

static bool shared_needs_us(const struct coll_task *t)
{
    const struct shared *s = (const struct shared *)t->state;

    return !t->published || (s->ring != NULL && s->put < s->chunks) ||
           (s->half && s->low < s->chunks);
}

const struct coll_alg allreduce_shared = {
    .op = COLL_ALLREDUCE, .name = "shared",
    .text = "one host: members claim chunks and reduce all buffers where they are",
    .state_bytes = sizeof(struct shared), .can = task_can_direct, .start = shared_start,
    .step = shared_step, .release = shared_release, .needs_us = shared_needs_us,
};
