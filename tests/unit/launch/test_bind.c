/* test_bind.c: when ranks are bound, and to what. */
#include "launch/bind.h"

#include "check.h"

static cpu_set_t set_of(int first, int last)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    for (int cpu = first; cpu <= last; cpu++)
        CPU_SET(cpu, &set);
    return set;
}

TEST(ranks_that_fit_are_left_alone)
{
    cpu_set_t all = set_of(0, 7), got;

    CHECK(!bind_choose_from(&all, &all, 1, 0, 4, &got));
    CHECK(!bind_choose_from(&all, &all, 1, 0, 1, &got));
}

TEST(more_ranks_than_cpus_share_evenly)
{
    cpu_set_t all = set_of(4, 5), got;

    for (int rank = 0; rank < 8; rank++) {
        CHECK(bind_choose_from(&all, &all, 1, rank, 8, &got));
        CHECK_EQ(CPU_COUNT(&got), 1);
        CHECK(CPU_ISSET(rank < 4 ? 4 : 5, &got));
    }
}

TEST(numa_nodes_get_blocks_of_ranks)
{
    cpu_set_t all = set_of(0, 7), nodes[3] = {set_of(0, 3), set_of(4, 7), set_of(8, 11)};
    cpu_set_t got;

    for (int rank = 0; rank < 4; rank++) {
        CHECK(bind_choose_from(&all, nodes, 3, rank, 4, &got));
        CHECK_EQ(CPU_COUNT(&got), 4);
        CHECK(CPU_ISSET(rank < 2 ? 0 : 4, &got));
    }
}

TEST(there_is_at_least_one_cpu)
{
    CHECK(bind_cpu_count() >= 1);
}
