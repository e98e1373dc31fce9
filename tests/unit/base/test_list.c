/* test_list.c: order, removal while walking, and the empty list. */
#include "base/list.h"

#include "check.h"

struct item {
    int number;
    struct list node;
};

static void append_numbers(struct list *head, struct item *items, int count)
{
    for (int i = 0; i < count; i++) {
        items[i].number = i;
        list_append(head, &items[i].node);
    }
}

TEST(a_new_list_is_empty)
{
    struct list head;

    list_init(&head);
    CHECK(list_is_empty(&head));
    CHECK(list_pop(&head) == NULL);
}

TEST(pop_gives_the_order_of_append)
{
    struct item items[3];
    struct list head;

    list_init(&head);
    append_numbers(&head, items, 3);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(list_entry(list_pop(&head), struct item, node)->number, i);
    CHECK(list_is_empty(&head));
}

TEST(each_safe_allows_removal_of_any_node)
{
    struct item items[6];
    struct list head;
    int seen = 0;

    list_init(&head);
    append_numbers(&head, items, 6);
    list_each_safe(node, &head) {
        seen++;
        if (list_entry(node, struct item, node)->number % 2 == 0)
            list_remove(node);
    }
    CHECK_EQ(seen, 6);
    seen = 0;
    list_each(node, &head) {
        CHECK_EQ(list_entry(node, struct item, node)->number, 2 * seen + 1);
        seen++;
    }
    CHECK_EQ(seen, 3);
}

TEST(a_removed_node_may_be_removed_again)
{
    struct item items[2];
    struct list head;

    list_init(&head);
    append_numbers(&head, items, 2);
    list_remove(&items[0].node);
    list_remove(&items[0].node);
    CHECK(head.next == &items[1].node && head.prev == &items[1].node);
}
