/* test_layout.c: members grouped by host. */
#include "check.h"
#include "collective/layout.h"

static struct hvd_error err;

static void check_list(const int *list, const int *expected, int count)
{
    for (int i = 0; i < count; i++)
        CHECK_EQ(list[i], expected[i]);
}

TEST(hosts_are_numbered_by_their_first_member)
{
    static const int key[] = {4, 1, 4, 1, 1, 2};
    struct layout l;

    CHECK_OK(layout_make(&l, key, 7, 6, 3, &err), err);
    CHECK_EQ(l.host_count, 3);
    check_list(l.host_of, (int[]){0, 1, 0, 1, 1, 2}, 6);
    check_list(l.by_host, (int[]){0, 2, 1, 3, 4, 5}, 6);
    check_list(l.begin, (int[]){0, 2, 5, 6}, 4);
    check_list(l.leaders, (int[]){0, 1, 5}, 3);
    CHECK_EQ(l.host, 1);
    CHECK_EQ(l.mate_count, 3);
    check_list(l.mates, (int[]){1, 3, 4}, 3);
    CHECK_EQ(l.place, 1);
    CHECK(!layout_leads(&l) && !layout_is_flat(&l));
    CHECK_EQ(layout_leader_of(&l, 4), 1);
    CHECK_EQ(layout_size(&l, 2), 1);
    layout_release(&l);
}

TEST(a_set_on_one_host_and_one_on_many_are_flat)
{
    static const int one[] = {3, 3, 3}, many[] = {2, 0, 1};
    struct layout l;

    CHECK_OK(layout_make(&l, one, 4, 3, 0, &err), err);
    CHECK(layout_is_flat(&l) && l.host_count == 1 && l.mate_count == 3 && layout_leads(&l));
    layout_release(&l);
    CHECK_OK(layout_make(&l, many, 3, 3, 2, &err), err);
    CHECK(layout_is_flat(&l) && l.host_count == 3 && l.mate_count == 1 && layout_leads(&l));
    layout_release(&l);
}

TEST(without_hosts_each_member_is_one)
{
    struct layout l;

    CHECK_OK(layout_make(&l, NULL, 0, 4, 2, &err), err);
    CHECK(l.host_count == 4 && l.host == 2 && l.place == 0);
    check_list(l.leaders, (int[]){0, 1, 2, 3}, 4);
    layout_release(&l);
}
