/* test_arena.c: the allocator of shared memory: alignment, zeros, reuse, limits, forks. */
#include "base/fault.h"
#include "check.h"
#include "transport/transport.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static bool is_zero(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0)
            return false;
    return true;
}

TEST(memory_is_aligned_and_zeroed)
{
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4000, 32768, 32769, 65536, 1000003};

    for (int turn = 0; turn < 3; turn++) {
        char *p[10];

        for (int i = 0; i < 10; i++) {
            p[i] = arena_alloc(sizes[i]);
            CHECK(p[i] != NULL && arena_owns(p[i]));
            CHECK_EQ((uintptr_t)p[i] % 64, (uintptr_t)0);
            CHECK(is_zero(p[i], sizes[i]));
            memset(p[i], 0xaa, sizes[i]);
        }
        for (int i = 0; i < 10; i++)
            arena_free(p[(i * 7) % 10]);
    }
    CHECK(!arena_owns(malloc));
    arena_free(NULL);
}

/* Against a model: no two allocations overlap, contents stay, nothing gets lost. */
TEST(allocations_do_not_overlap)
{
    enum { SLOTS = 200 };
    struct { unsigned char *p; size_t bytes; } live[SLOTS] = {0};
    unsigned seed = 12345;

    for (int turn = 0; turn < 20000; turn++) {
        int i;

        seed = seed * 1103515245u + 12345u;
        i = (int)(seed >> 16) % SLOTS;
        if (live[i].p != NULL) {
            for (size_t k = 0; k < live[i].bytes; k += 509)
                CHECK_EQ(live[i].p[k], (unsigned char)i);
            arena_free(live[i].p);
            live[i].p = NULL;
            continue;
        }
        seed = seed * 1103515245u + 12345u;
        live[i].bytes = (seed >> 8) % 100 < 90 ? (seed >> 4) % 3000 : (seed >> 4) % 400000;
        live[i].p = arena_alloc(live[i].bytes);
        CHECK(live[i].p != NULL);
        CHECK(is_zero((char *)live[i].p, live[i].bytes));
        memset(live[i].p, i, live[i].bytes);
    }
    for (int i = 0; i < SLOTS; i++)
        arena_free(live[i].p);
}

TEST(freed_memory_is_used_again)
{
    char *first = arena_alloc(10 << 20), *p;

    CHECK(first != NULL);
    for (int i = 0; i < 100; i++) {
        arena_free(first);
        p = arena_alloc(10 << 20);
        CHECK(p == first);
        p[i] = 1;
    }
    arena_free(p);
}

TEST(a_full_memory_is_no_crash)
{
    char *p = arena_alloc(1 << 20), *q;

    CHECK(p != NULL);
    CHECK(arena_alloc((size_t)1 << 45) == NULL);
    CHECK(arena_alloc(SIZE_MAX) == NULL);
    CHECK(fault_setup("arena.reserve nospc times=1000", 0));
    CHECK(arena_alloc(5 << 20) == NULL);
    CHECK(arena_alloc(100) == NULL);
    CHECK(fault_setup(NULL, 0));
    q = arena_alloc(5 << 20);
    CHECK(q != NULL && is_zero(q, 5 << 20));
    arena_free(p);
    arena_free(q);
}

TEST(a_forked_child_reads_but_does_not_allocate)
{
    char *p = arena_alloc(100);
    int status;
    pid_t pid;

    p[5] = 42;
    pid = fork();
    if (pid == 0) {
        CHECK_EQ(p[5], 42);
        CHECK(arena_alloc(100) == NULL);
        arena_free(p);
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    p[6] = 1;
    arena_free(p);
    CHECK(arena_alloc(100) == p);
}
