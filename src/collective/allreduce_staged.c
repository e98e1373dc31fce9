/*
 * allreduce_staged.c: the staging of allreduce_shared.c, for buffers that others cannot
 * reach, or not as fast.  A member copies its input chunk by chunk into a ring in its
 * arena, where it is reduced in place as any mapped buffer, and the result out of it.
 *
 *  1. Chunk c lies at place c % ring_chunks.
 *  2. mark.ready counts the chunks put in; chunk c is reduced when all rings have it.
 *  3. Chunk c + ring_chunks is put in after chunk c is done and copied out.
 *  4. Of two members one that is waited for reduces every other chunk itself, and reads
 *     and writes its own part of these where it is: only the other half goes through the
 *     ring.  Others cannot reduce these chunks, so it is not done when nobody waits here,
 *     nor with more members: the saving is smaller, and one may have no CPU.
 * So with small rings the data stays in the caches, however long the vector.
 */
#include "collective/shared_int.h"

#define RING_BYTES ((size_t)1 << 20)    /* R rings and the private buffers in L3 */

static char *staged_place(const struct coll_task *t, unsigned chunk)
{
    const struct shared *s = (const struct shared *)t->state;
    size_t bytes = s->chunk * task_type_bytes(t->call.dtype);

    return s->ring + chunk % s->ring_chunks * bytes;
}

static void put_chunk(struct coll_task *t)
{
    struct shared *s = (struct shared *)t->state;
    size_t unit = task_type_bytes(t->call.dtype);

    if (!shared_is_own(t, s->put))
        red_copy(staged_place(t, s->put),
                 (const char *)t->call.in + s->put * s->chunk * unit,
                 shared_elements(t, s->put) * unit);
    s->put++;
}

static void take_chunk(struct coll_task *t)
{
    struct shared *s = (struct shared *)t->state;
    size_t unit = task_type_bytes(t->call.dtype);

    if (!shared_is_own(t, s->taken))
        red_copy((char *)t->call.out + s->taken * s->chunk * unit,
                 staged_place(t, s->taken), shared_elements(t, s->taken) * unit);
    s->taken++;
}

bool staged_is_half(const struct coll_task *t)
{
    return t->call.waited && t->team->count == HALVES;
}

bool staged_open(struct coll_task *t, struct board_line *line)
{
    struct shared *s = (struct shared *)t->state;
    size_t bytes = s->chunk * task_type_bytes(t->call.dtype);
    size_t chunks = RING_BYTES / bytes < 2 ? 2 : RING_BYTES / bytes;
    uint64_t at;

    s->ring_chunks = (unsigned)(chunks < s->chunks ? chunks : s->chunks);
    s->ring = direct_stage(t, s->ring_chunks * bytes, &at);
    if (s->ring == NULL)
        return false;
    line->at.in = line->at.out = at;
    line->in_kind = line->out_kind = BOARD_RING;
    line->ring = (uint16_t)s->ring_chunks;
    line->half = s->half = staged_is_half(t);
    while (s->put < s->ring_chunks)
        put_chunk(t);
    board_set_ready(t, s->put);
    return true;
}

bool staged_move(struct coll_task *t)
{
    struct shared *s = (struct shared *)t->state;
    bool moved = false;

    while (s->taken < s->put && chunk_is_done(t, s->taken)) {
        take_chunk(t);
        if (s->put < s->chunks) {
            put_chunk(t);
            board_set_ready(t, s->put);
        }
        moved = true;
    }
    return moved;
}

bool staged_has(const struct coll_task *t, unsigned chunk)
{
    const struct shared *s = (const struct shared *)t->state;

    for (int i = 0; s->has_rings && i < t->team->count; i++)
        if (s->rings[i] > 0 && board_ready(t, i) <= chunk)
            return false;
    return true;
}
