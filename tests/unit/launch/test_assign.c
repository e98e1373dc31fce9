/* test_assign.c: the tables of the contract. */
#include "launch/assign.h"

#include "check.h"

static struct hvd_error err;

struct want {
    const char *host;
    int local_rank, local_size, cross_rank, cross_size;
};

static void check(const char *text, int np, const struct want *want)
{
    struct slot slots[16];
    struct host_list hosts;

    CHECK_OK(hosts_parse(text, &hosts, &err), err);
    CHECK_OK(assign_slots(&hosts, np, slots, &err), err);
    for (int r = 0; r < np; r++) {
        CHECK_EQ(slots[r].rank, r);
        CHECK_EQ(slots[r].size, np);
        CHECK_STR(hosts.items[slots[r].host].name, want[r].host);
        CHECK_EQ(slots[r].local_rank, want[r].local_rank);
        CHECK_EQ(slots[r].local_size, want[r].local_size);
        CHECK_EQ(slots[r].cross_rank, want[r].cross_rank);
        CHECK_EQ(slots[r].cross_size, want[r].cross_size);
    }
    hosts_release(&hosts);
}

TEST(two_equal_hosts)
{
    check("w0:2,w1:2", 4, (struct want[]){{"w0", 0, 2, 0, 2}, {"w0", 1, 2, 0, 2},
                                          {"w1", 0, 2, 1, 2}, {"w1", 1, 2, 1, 2}});
}

TEST(hosts_of_different_size)
{
    check("w0:1,w1:2", 3, (struct want[]){{"w0", 0, 1, 0, 2}, {"w1", 0, 2, 1, 2},
                                          {"w1", 1, 2, 0, 1}});
    check("a:3,b:1,c:2", 6,
          (struct want[]){{"a", 0, 3, 0, 3}, {"a", 1, 3, 0, 2}, {"a", 2, 3, 0, 1},
                          {"b", 0, 1, 1, 3}, {"c", 0, 2, 2, 3}, {"c", 1, 2, 1, 2}});
}

TEST(more_slots_than_ranks)
{
    check("w0:2,w1:2", 2, (struct want[]){{"w0", 0, 2, 0, 1}, {"w0", 1, 2, 0, 1}});
    check("w0:2,w1:9", 3, (struct want[]){{"w0", 0, 2, 0, 2}, {"w0", 1, 2, 0, 1},
                                          {"w1", 0, 1, 1, 2}});
}

TEST(fewer_slots_than_ranks)
{
    struct host_list hosts;
    struct slot slots[4];

    CHECK_OK(hosts_parse("a:1,b:1", &hosts, &err), err);
    CHECK_EQ((int)assign_slots(&hosts, 3, slots, &err), (int)HVD_INVALID);
    CHECK_STR(err.text,
              "Requested more processes (3) than there are available slots (2)");
    hosts_release(&hosts);
}
