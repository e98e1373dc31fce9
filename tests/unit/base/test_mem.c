/* test_mem.c: pools and arenas: no allocation in the steady state, failure is NULL. */
#include "base/mem.h"

#include "base/fault.h"
#include "check.h"

#include <stdint.h>

struct object {
    char bytes[40];
};

static bool is_zero(const struct object *o)
{
    for (size_t i = 0; i < sizeof *o; i++)
        if (o->bytes[i] != 0)
            return false;
    return true;
}

TEST(pool_objects_are_zeroed_aligned_and_distinct)
{
    struct object *objects[200];
    struct mem_pool pool;

    mem_pool_init(&pool, sizeof(struct object));
    for (int i = 0; i < 200; i++) {
        objects[i] = mem_pool_get(&pool);
        CHECK(is_zero(objects[i]));
        CHECK_EQ((uintptr_t)objects[i] % _Alignof(max_align_t), (uintptr_t)0);
        memset(objects[i], i + 1, sizeof(struct object));
    }
    for (int i = 0; i < 200; i++)
        for (size_t b = 0; b < sizeof(struct object); b++)
            CHECK_EQ((unsigned char)objects[i]->bytes[b], (unsigned char)(i + 1));
    CHECK_EQ(pool.live, (size_t)200);
    mem_pool_release(&pool);
}

TEST(pool_hands_out_what_came_back)
{
    struct mem_pool pool;
    struct object *first;

    mem_pool_init(&pool, sizeof(struct object));
    first = mem_pool_get(&pool);
    memset(first, 7, sizeof *first);
    mem_pool_put(&pool, first);
    CHECK_EQ(pool.live, (size_t)0);
    CHECK(mem_pool_get(&pool) == first);
    CHECK(is_zero(first));
    mem_pool_release(&pool);
    CHECK(pool.blocks == NULL && pool.live == 0);
}

TEST(pool_steady_state_does_not_allocate)
{
    struct mem_pool pool;

    mem_pool_init(&pool, sizeof(struct object));
    mem_pool_put(&pool, mem_pool_get(&pool));
    CHECK(fault_setup("mem.pool times=-1 nomem", 0));
    for (int i = 0; i < 1000; i++)
        mem_pool_put(&pool, mem_pool_get(&pool));
    CHECK_EQ(fault_count("mem.pool"), 0L);
    mem_pool_release(&pool);
}

TEST(pool_without_memory_gives_null_and_goes_on)
{
    struct mem_pool pool;

    mem_pool_init(&pool, sizeof(struct object));
    CHECK(fault_setup("mem.pool nomem", 0));
    CHECK(mem_pool_get(&pool) == NULL);
    CHECK_EQ(pool.live, (size_t)0);
    CHECK(mem_pool_get(&pool) != NULL);
    mem_pool_release(&pool);
}

TEST(arena_pieces_are_aligned_and_do_not_overlap)
{
    struct mem_arena arena = {0};
    unsigned char *pieces[100];

    for (int i = 0; i < 100; i++) {
        pieces[i] = mem_arena_get(&arena, (size_t)i * 37 + 1);
        CHECK_EQ((uintptr_t)pieces[i] % 16, (uintptr_t)0);
        memset(pieces[i], i, (size_t)i * 37 + 1);
    }
    for (int i = 0; i < 100; i++)
        for (int b = 0; b < i * 37 + 1; b++)
            CHECK_EQ(pieces[i][b], (unsigned char)i);
    mem_arena_release(&arena);
    CHECK(arena.block == NULL);
}

TEST(arena_keeps_its_largest_block)
{
    struct mem_arena arena = {0};

    mem_arena_get(&arena, 100);
    mem_arena_get(&arena, 1 << 20);
    mem_arena_get(&arena, 100);
    mem_arena_reset(&arena);
    CHECK(fault_setup("mem.arena times=-1 nomem", 0));
    CHECK(mem_arena_get(&arena, 1 << 20) != NULL);
    CHECK_EQ(fault_count("mem.arena"), 0L);
    CHECK(mem_arena_get(&arena, 1 << 20) == NULL);
    mem_arena_release(&arena);
    mem_arena_release(&arena);
}
