/*
 * mem.h: pools of equal objects and arenas, for code that must not allocate in its steady
 * state.  One thread at a time.
 */
#ifndef HVD_BASE_MEM_H
#define HVD_BASE_MEM_H

#include <stddef.h>

/* Objects of one size; freed ones are kept and handed out again. */
struct mem_pool {
    size_t object_bytes;
    void *free_list;
    void *blocks;
    size_t live;                        /* handed out and not given back */
};

void mem_pool_init(struct mem_pool *pool, size_t object_bytes);
void *mem_pool_get(struct mem_pool *pool);      /* zeroed; NULL: out of memory */
void mem_pool_put(struct mem_pool *pool, void *object);
void mem_pool_release(struct mem_pool *pool);   /* all objects become invalid */

/* Memory that is given back all at once; keeps its largest block for the next round. */
struct mem_arena {
    struct mem_block *block;
};

void *mem_arena_get(struct mem_arena *arena, size_t bytes);     /* 16-byte aligned */
void mem_arena_reset(struct mem_arena *arena);
void mem_arena_release(struct mem_arena *arena);

#endif
