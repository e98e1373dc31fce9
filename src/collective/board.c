/*
 * board.c: boards, the places in shared memory where the members of one host meet.
 *
 * The board area of a host is cut into TEAM_SLOTS equal parts, each into TEAM_BOARDS
 * heads and TEAM_BOARDS slot rooms, at fixed places, so that nobody has to agree on
 * anything.  Memory is taken page by page when a board is used first.  With n members:
 *
 *   head   2n lines of 128 bytes    by parity, then member; written by that member
 *          n marks of 64 bytes      written by that member
 *          512 bytes of chunk words changed by compare-and-swap
 *   slots  2n of slot_bytes         by parity, then member; written by that member
 *
 * Rules:
 *  1. A turn is known by its stamp, epoch (22 bits), turn (32), part (10): stamps of one
 *     board never come back, so what an older team or turn has left behind is harmless.
 *     Lines are compared for equality: a turn may be skipped.
 *  2. A member comes to a turn by filling its line and slot of the turn's parity and then
 *     storing the stamp (release).  Readers load the stamp (acquire).
 *  3. A turn is committed when all members have come.  Before that nobody changes an
 *     output, except that of a broadcast's reader, nor ends the operation, except in a
 *     broadcast all members have agreed on (call.agreed).
 *  4. A member ends a turn (mark.left) when it reads nothing of the others any more.  A
 *     line or slot may be written again when all members have ended the turn it was
 *     written for.  That all have come to turn t proves that all have ended every turn
 *     before t; so with two parities nobody waits, unless it runs ahead (broadcast).
 *     A turn that is cancelled before it is committed does not count: its stamps are
 *     taken back before anything is written again, and who has read of it (broadcast)
 *     throws away what it has read.
 *  5. Memory that a line points to (mapped, CMA) may be used again when all members have
 *     ended the turn, or when all chunks of it are done.
 *  6. A chunk word is epoch (22 bits), turn (32), round (8), state (2); only part 0 of a
 *     turn has chunks.  Chunk c uses word c % CHUNK_WORDS in round c / CHUNK_WORDS.
 *     Whoever moves it to CLAIMED reduces the chunk into all outputs and then stores
 *     DONE (release).  In round r > 0 it can be claimed when round r - 1 of its word is
 *     DONE.
 *  7. A claim is never held across a step: a member that sleeps has none.
 *  8. mark.ready counts pieces that a member has put into a ring or a staging buffer
 *     (release); it carries the stamp, and another stamp means the member has gone on,
 *     which it can only do when all its pieces have been used.
 */
#include "collective/board_int.h"

#include "base/thread.h"

#include <string.h>

#define PAGE 4096
#define ROUND_UP(n, unit) (((n) + (unit)-1) / (unit) * (unit))

_Static_assert(sizeof(struct board_line) == 128, "two cache lines");
_Static_assert(sizeof(struct board_mark) == 64, "one cache line");

#define SLOT_ROOM ((size_t)256 << 10)   /* per board */

static size_t head_bytes(size_t members)
{
    return members * (2 * sizeof(struct board_line) + sizeof(struct board_mark)) +
           CHUNK_WORDS * sizeof(uint64_t);
}

static size_t heads_room(void)
{
    return ROUND_UP(head_bytes(DIRECT_MAX) * TEAM_BOARDS, PAGE);
}

static size_t team_room(void)
{
    return heads_room() + SLOT_ROOM * TEAM_BOARDS;
}

size_t coll_board_bytes(void)
{
    return team_room() * TEAM_SLOTS;
}

/* Slots get smaller with the number of members, because everybody reads all of them:
 * 64 KiB in all stay within half of the smallest L2 around. */
static size_t slot_bytes(size_t members)
{
    size_t bytes = (64u << 10) / members / 64 * 64;

    return bytes > 16384 ? 16384 : bytes < 1024 ? 1024 : bytes;
}

bool board_attach(struct coll_team *team)
{
    size_t bytes = 0;
    char *area = mesh_board(team->mesh, &bytes);

    if (area == NULL || bytes < coll_board_bytes() || team->count > DIRECT_MAX)
        return false;
    team->head_bytes = head_bytes((size_t)team->count);
    team->slot_bytes = slot_bytes((size_t)team->count);
    team->heads_offset = team_room() * (size_t)team->slot;
    team->slots_offset = team->heads_offset + heads_room();
    team->heads = area + team->heads_offset;
    team->slots = area + team->slots_offset;
    return true;
}

static size_t slot_offset(const struct coll_task *t, int member)
{
    const struct coll_team *team = t->team;
    size_t index = t->parity * (size_t)team->count + (size_t)member;

    return t->call.board * SLOT_ROOM + index * team->slot_bytes;
}

void *board_slot(const struct coll_task *t, int member)
{
    return t->team->slots + slot_offset(t, member);
}

static enum hvd_status take_slot(struct coll_task *t, size_t bytes, struct hvd_error *err)
{
    struct coll_team *team = t->team;

    TRY(mesh_board_reserve(team->mesh, team->slots_offset + slot_offset(t, team->me),
                           bytes, err));
    t->board->slot_taken[t->parity] = (uint32_t)bytes;
    return HVD_OK;
}

enum hvd_status board_enter(struct coll_task *t, size_t bytes, struct hvd_error *err)
{
    struct coll_team *team = t->team;
    struct board_state *b = &team->boards[t->call.board];

    t->stamp = (uint64_t)team->epoch << 42 |
               (uint64_t)t->call.turn << PART_BITS | t->part;
    t->parity = (t->call.turn + t->part) & 1;
    t->board = b;
    if (!b->head_taken) {
        TRY(mesh_board_reserve(team->mesh,
                               team->heads_offset + t->call.board * team->head_bytes,
                               team->head_bytes, err));
        b->head_taken = true;
    }
    if (bytes > b->slot_taken[t->parity])
        TRY(take_slot(t, bytes, err));
    return HVD_OK;
}

static bool has_ended(const struct coll_task *t, int member, uint64_t stamp)
{
    uint64_t left = atomic_load_explicit(&board_mark(t, member)->left,
                                         memory_order_acquire);

    return left >> 42 == stamp >> 42 && left >= stamp;
}

static bool all_ended(const struct coll_task *t, uint64_t stamp)
{
    for (int i = 0; i < t->team->count; i++)
        if (i != t->team->me && !has_ended(t, i, stamp))
            return false;
    return true;
}

bool board_is_free(struct coll_task *t)
{
    struct board_state *b = t->board;
    uint64_t last = b->last[t->parity];

    return last < b->settled || last == 0 || all_ended(t, last);
}

void board_publish(struct coll_task *t)
{
    struct board_line *line = board_line(t, t->team->me);

    atomic_store_explicit(&line->stamp, t->stamp, memory_order_release);
    t->board->last[t->parity] = t->stamp;
    t->published = true;
    mesh_notify(t->team->mesh, -1);
}

void board_withdraw(struct coll_task *t)
{
    atomic_store_explicit(&board_line(t, t->team->me)->stamp, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    t->board->last[t->parity] = 0;
}

bool board_has_come(const struct coll_task *t, int member)
{
    return atomic_load_explicit(&board_line(t, member)->stamp, memory_order_acquire) ==
           t->stamp;
}

bool board_all_came(struct coll_task *t)
{
    int i = t->seen, n = t->team->count;

    if (t->committed)
        return true;
    while (i < n && board_has_come(t, i))
        i++;
    t->seen = i;
    if (i < n)
        return false;
    t->committed = true;
    t->board->settled = t->stamp;
    return true;
}

void board_leave(struct coll_task *t, bool notify)
{
    if (t->left)
        return;
    t->left = true;
    atomic_store_explicit(&board_mark(t, t->team->me)->left, t->stamp,
                          memory_order_release);
    if (notify)
        mesh_notify(t->team->mesh, -1);
}

bool board_all_left(struct coll_task *t)
{
    return all_ended(t, t->stamp);
}

bool board_needs_us(const struct coll_task *t)
{
    return !t->published || (!t->left && coll_is_committed(t));
}

void board_set_ready(struct coll_task *t, uint32_t pieces)
{
    atomic_store_explicit(&board_mark(t, t->team->me)->ready, t->stamp << 32 | pieces,
                          memory_order_release);
}

uint32_t board_ready(const struct coll_task *t, int member)
{
    uint64_t ready = atomic_load_explicit(&board_mark(t, member)->ready,
                                          memory_order_acquire);

    return ready >> 32 == (uint32_t)t->stamp ? (uint32_t)ready : UINT32_MAX;
}

/* ---- Chunks ------------------------------------------------------------------------ */

static uint64_t chunk_value(const struct coll_task *t, unsigned round,
                            enum chunk_state state)
{
    return t->stamp | (uint64_t)round << 2 | state;
}

bool chunk_claim(struct coll_task *t, unsigned chunk)
{
    _Atomic uint64_t *word = board_word(t, chunk);
    unsigned round = chunk / CHUNK_WORDS;
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);

    if (round == 0 ? seen >> PART_BITS == t->stamp >> PART_BITS
                   : seen != chunk_value(t, round - 1, CHUNK_DONE))
        return false;
    return atomic_compare_exchange_strong_explicit(
        word, &seen, chunk_value(t, round, CHUNK_CLAIMED), memory_order_acquire,
        memory_order_relaxed);
}

void chunk_set_done(struct coll_task *t, unsigned chunk)
{
    atomic_store_explicit(board_word(t, chunk),
                          chunk_value(t, chunk / CHUNK_WORDS, CHUNK_DONE),
                          memory_order_release);
}

bool chunk_is_done(const struct coll_task *t, unsigned chunk)
{
    uint64_t seen = atomic_load_explicit(board_word(t, chunk), memory_order_acquire);

    return seen >> PART_BITS == t->stamp >> PART_BITS &&
           seen >= chunk_value(t, chunk / CHUNK_WORDS, CHUNK_DONE);
}

unsigned chunk_pass_done(const struct coll_task *t, unsigned low, unsigned chunks)
{
    while (low < chunks && chunk_is_done(t, low))
        low++;
    return low;
}

/* About 30 us, the time of a large chunk.  Who yields instead, with more ranks than CPUs,
 * comes back only after the ranks of its CPU have had their turn of other things. */
#define CHUNK_SPINS 1000

/* What is claimed is being worked on (rule 7). */
unsigned chunk_await(const struct coll_task *t, unsigned low, unsigned chunks)
{
    for (int i = 0; i < CHUNK_SPINS && low < chunks; i++) {
        thread_pause();
        low = chunk_pass_done(t, low, chunks);
    }
    return low;
}
