/* test_tree.c: the tree of hosts: everybody is in it once, and it is flat. */
#include "check.h"
#include "engine/tree.h"

static int log_of(int hosts, int fanout)
{
    int depth = 0;

    for (long below = 1; below < hosts; below = below * fanout + 1)
        depth++;
    return depth;
}

static void check_node(int hosts, int fanout, int host)
{
    struct tree_node n = tree_find(hosts, fanout, host), above;
    int at = n.low + 1;

    CHECK_EQ(n.low, host);
    CHECK(n.children <= fanout && n.high <= hosts);
    CHECK_EQ(tree_child(&n, n.children), n.high);
    for (int i = 0; i < n.children; i++) {
        struct tree_node child = tree_find(hosts, fanout, tree_child(&n, i));

        CHECK_EQ(child.low, at);
        CHECK_EQ(child.parent, host);
        CHECK_EQ(child.depth, n.depth + 1);
        CHECK_EQ(child.high, tree_child(&n, i + 1));
        for (int h = child.low; h < child.high; h++)
            CHECK_EQ(tree_child_of(&n, h), i);
        at = child.high;
    }
    CHECK_EQ(at, n.high);
    CHECK_EQ(tree_child_of(&n, host), -1);
    CHECK_EQ(tree_child_of(&n, n.high), -1);
    for (int d = 0; d <= n.depth; d++) {
        above = tree_above(hosts, fanout, host, d);
        CHECK_EQ(above.depth, d);
        CHECK(above.low <= host && host < above.high);
    }
    CHECK(n.depth <= log_of(hosts, fanout) + 1);
}

TEST(everybody_has_one_parent_and_its_place)
{
    static const int hosts[] = {1, 2, 3, 4, 7, 8, 17, 18, 64, 100, 257};

    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++)
        for (int fanout = 2; fanout <= 16; fanout *= 2)
            for (int h = 0; h < hosts[i]; h++)
                check_node(hosts[i], fanout, h);
}

TEST(few_hosts_are_all_children_of_the_root)
{
    for (int h = 1; h <= 16; h++) {
        CHECK_EQ(tree_find(17, 16, h).parent, 0);
        CHECK_EQ(tree_find(17, 16, h).children, 0);
    }
    CHECK(tree_find(18, 16, 2).depth == 2 || tree_find(18, 16, 1).children == 1);
}

TEST(thousands_of_hosts_are_few_steps_away)
{
    int deepest = 0;

    for (int h = 0; h < 10000; h++) {
        int depth = tree_find(10000, 16, h).depth;

        deepest = depth > deepest ? depth : deepest;
    }
    CHECK(deepest <= 4);
}
