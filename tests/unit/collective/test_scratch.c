/* test_scratch.c: blocks that are kept. */
#include "check.h"
#include "base/fault.h"
#include "collective/collective_int.h"

TEST(a_block_is_handed_out_again)
{
    struct scratch *s = scratch_new();
    void *a = scratch_get(s, 1000), *b = scratch_get(s, 1000);

    CHECK(a != b && (uintptr_t)a % 64 == 0);
    memset(a, 1, 1000);
    scratch_put(s, a);
    CHECK(scratch_get(s, 1024) == a);
    scratch_put(s, a);
    scratch_put(s, b);
    scratch_free(s);
}

TEST(shared_and_private_blocks_do_not_mix)
{
    struct scratch *s = scratch_new();
    void *a = scratch_get(s, 1 << 20), *b = scratch_get_shared(s, 1 << 20);

    CHECK(!arena_owns(a) && arena_owns(b));
    scratch_put(s, a);
    scratch_put(s, b);
    CHECK(scratch_get(s, 1 << 20) == a);
    CHECK(scratch_get_shared(s, 1 << 20) == b);
    scratch_put(s, a);
    scratch_put(s, b);
    scratch_put(s, NULL);
    scratch_free(s);
}

TEST(no_memory_is_said)
{
    struct scratch *s = scratch_new();

    CHECK(fault_setup("coll.scratch nomem", 0));
    CHECK(scratch_get(s, 100) == NULL);
    CHECK(fault_setup(NULL, 0));
    CHECK(scratch_get(s, SIZE_MAX) == NULL);
    scratch_free(s);
}
