/* mem.c: see mem.h. */
#include "base/mem.h"

#include "base/fault.h"

#include <stdlib.h>
#include <string.h>

#define POOL_BLOCK_OBJECTS 64
#define ARENA_BLOCK_BYTES (64u << 10)

struct pool_block {
    struct pool_block *next;
    max_align_t objects[];
};

struct mem_block {
    struct mem_block *next;
    size_t used, capacity;
    max_align_t bytes[];
};

void mem_pool_init(struct mem_pool *pool, size_t object_bytes)
{
    size_t unit = _Alignof(max_align_t);

    *pool = (struct mem_pool){.object_bytes = (object_bytes + unit - 1) / unit * unit};
}

static int add_block(struct mem_pool *pool)
{
    struct pool_block *block;

    if (FAULT("mem.pool"))
        return -1;
    block = malloc(sizeof *block + POOL_BLOCK_OBJECTS * pool->object_bytes);
    if (block == NULL)
        return -1;
    block->next = pool->blocks;
    pool->blocks = block;
    for (int i = POOL_BLOCK_OBJECTS - 1; i >= 0; i--) {
        void *object = (char *)block->objects + (size_t)i * pool->object_bytes;

        memcpy(object, &pool->free_list, sizeof(void *));
        pool->free_list = object;
    }
    return 0;
}

void *mem_pool_get(struct mem_pool *pool)
{
    void *object;

    if (pool->free_list == NULL && add_block(pool) != 0)
        return NULL;
    object = pool->free_list;
    memcpy(&pool->free_list, object, sizeof(void *));
    memset(object, 0, pool->object_bytes);
    pool->live++;
    return object;
}

void mem_pool_put(struct mem_pool *pool, void *object)
{
    memcpy(object, &pool->free_list, sizeof(void *));
    pool->free_list = object;
    pool->live--;
}

void mem_pool_release(struct mem_pool *pool)
{
    struct pool_block *block = pool->blocks;

    while (block != NULL) {
        struct pool_block *next = block->next;

        free(block);
        block = next;
    }
    mem_pool_init(pool, pool->object_bytes);
}

void *mem_arena_get(struct mem_arena *arena, size_t bytes)
{
    struct mem_block *block = arena->block;
    void *p;

    bytes = (bytes + 15) / 16 * 16;
    if (block == NULL || block->capacity - block->used < bytes) {
        size_t capacity = bytes > ARENA_BLOCK_BYTES ? bytes : ARENA_BLOCK_BYTES;

        if (FAULT("mem.arena"))
            return NULL;
        block = malloc(sizeof *block + capacity);
        if (block == NULL)
            return NULL;
        *block = (struct mem_block){arena->block, 0, capacity};
        arena->block = block;
    }
    p = (char *)block->bytes + block->used;
    block->used += bytes;
    return p;
}

void mem_arena_reset(struct mem_arena *arena)
{
    struct mem_block *keep = arena->block;

    for (struct mem_block *b = arena->block; b != NULL; b = b->next)
        if (b->capacity > keep->capacity)
            keep = b;
    for (struct mem_block *b = arena->block; b != NULL;) {
        struct mem_block *next = b->next;

        if (b != keep)
            free(b);
        b = next;
    }
    if (keep != NULL) {
        keep->next = NULL;
        keep->used = 0;
    }
    arena->block = keep;
}

void mem_arena_release(struct mem_arena *arena)
{
    mem_arena_reset(arena);
    free(arena->block);
    arena->block = NULL;
}
