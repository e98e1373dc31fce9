/*
 * scratch.c: blocks of memory that are kept for the next operation, because fresh pages
 * cost more than the operation (PERFORMANCE 7.10).  Sizes are powers of two, a list of
 * free blocks each; blocks above KEEP_BYTES go back at once.
 *
 * Before each block stands a header of 64 bytes.
 */
#include "collective/collective_int.h"

#include "base/fault.h"

#include <stdlib.h>

#define HEADER 64
#define CLASSES 48
#define FIRST_SHIFT 8
#define KEEP_BYTES ((size_t)64 << 20)

struct block {
    struct block *next;
    int class;
    bool shared;                        /* from the arena */
};

struct scratch {
    struct block *free[2][CLASSES];     /* private, shared */
};

struct scratch *scratch_new(void)
{
    return calloc(1, sizeof(struct scratch));
}

static void give_back(struct block *b)
{
    if (b->shared)
        arena_free(b);
    else
        free(b);
}

void scratch_free(struct scratch *s)
{
    if (s == NULL)
        return;
    for (int shared = 0; shared < 2; shared++)
        for (int i = 0; i < CLASSES; i++)
            while (s->free[shared][i] != NULL) {
                struct block *b = s->free[shared][i];

                s->free[shared][i] = b->next;
                give_back(b);
            }
    free(s);
}

static int class_of(size_t bytes)
{
    int shift = bytes <= 1 ? 0 : 64 - __builtin_clzll(bytes - 1);

    return shift <= FIRST_SHIFT ? 0 : shift - FIRST_SHIFT;
}

static void *take(struct scratch *s, size_t bytes, bool shared)
{
    int class = class_of(bytes);
    struct block *b;
    size_t room;

    if (class >= CLASSES)
        return NULL;
    b = s->free[shared][class];
    if (b != NULL) {
        s->free[shared][class] = b->next;
        return (char *)b + HEADER;
    }
    room = HEADER + ((size_t)1 << (class + FIRST_SHIFT));
    if (FAULT("coll.scratch"))
        return NULL;
    b = shared ? arena_alloc_dirty(room) : aligned_alloc(64, room);
    if (b == NULL)
        return NULL;
    *b = (struct block){NULL, class, shared};
    return (char *)b + HEADER;
}

void *scratch_get(struct scratch *s, size_t bytes)
{
    return take(s, bytes, false);
}

void *scratch_get_shared(struct scratch *s, size_t bytes)
{
    return take(s, bytes, true);
}

void scratch_put(struct scratch *s, void *block)
{
    struct block *b;

    if (block == NULL)
        return;
    b = (struct block *)((char *)block - HEADER);
    if (((size_t)1 << (b->class + FIRST_SHIFT)) > KEEP_BYTES) {
        give_back(b);
        return;
    }
    b->next = s->free[b->shared][b->class];
    s->free[b->shared][b->class] = b;
}
