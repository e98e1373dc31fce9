/*
 * shm_touch.c: maps the pages of local ranks' arenas before they are worked on.  A page
 * that is stored to first costs a fault of its own in every process (around 1 us; loads
 * bring in their neighbours, too), which made the first dozens of reductions into fresh
 * outputs several times slower than the later ones.
 *
 * 1. Pages are mapped in pieces of STEP, as work comes to them: who does a part of a long
 *    vector does not pay for the rest.
 * 2. A bit per block says that it was mapped once.  Memory that was given back and taken
 *    again is found by faults, as if nothing had been done.
 * 3. A block is what an arena hands out at least, so all its pages are there: nothing is
 *    taken that was not reserved.
 */
#include "transport_int.h"

#include <stdlib.h>
#include <sys/mman.h>

#define BLOCK ((size_t)64 << 10)        /* as arena.c */
#define STEP ((size_t)4 << 20)

#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23          /* Linux 5.14; older kernels refuse it */
#endif

static uint64_t *map_of(struct host_share *h, int local_rank)
{
    if (h->touched == NULL)
        h->touched = calloc((size_t)h->count, sizeof *h->touched);
    if (h->touched != NULL && h->touched[local_rank] == NULL)
        h->touched[local_rank] =
            calloc(h->arena_bytes[local_rank] / BLOCK / 64 + 1, sizeof(uint64_t));
    return h->touched != NULL ? h->touched[local_rank] : NULL;
}

static bool is_set(const uint64_t *map, size_t block)
{
    return map[block / 64] >> block % 64 & 1;
}

/* Blocks [from, to): runs of those that were not mapped yet. */
static void populate(char *base, uint64_t *map, size_t from, size_t to)
{
    while (from < to) {
        size_t run = 0;

        while (from + run < to && !is_set(map, from + run)) {
            map[(from + run) / 64] |= UINT64_C(1) << (from + run) % 64;
            run++;
        }
        if (run > 0)
            madvise(base + from * BLOCK, run * BLOCK, MADV_POPULATE_WRITE);
        from += run > 0 ? run : 1;
    }
}

void mesh_touch(struct mesh *m, int local_rank, const void *buffer, size_t bytes,
                size_t at, size_t n)
{
    struct host_share *h = &m->host;
    char *base = h->arenas != NULL ? h->arenas[local_rank] : NULL;
    size_t offset = (size_t)((uintptr_t)buffer - (uintptr_t)base);
    size_t end = at + n > bytes ? bytes : (at + n + STEP - 1) / STEP * STEP;
    uint64_t *map;

    if (base == NULL || offset >= h->arena_bytes[local_rank] ||
        bytes > h->arena_bytes[local_rank] - offset || n == 0)
        return;
    map = map_of(h, local_rank);
    if (map == NULL || (is_set(map, (offset + at) / BLOCK) &&
                        is_set(map, (offset + at + n - 1) / BLOCK)))
        return;
    end = end < bytes ? end : bytes;
    populate(base, map, (offset + at / STEP * STEP) / BLOCK,
             (offset + end + BLOCK - 1) / BLOCK);
}

void touch_release(struct host_share *h)
{
    for (int i = 0; h->touched != NULL && i < h->count; i++)
        free(h->touched[i]);
    free(h->touched);
    h->touched = NULL;
}
