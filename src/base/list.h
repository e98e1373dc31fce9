/* list.h: intrusive doubly linked list; a list head is a node that links to itself. */
#ifndef HVD_BASE_LIST_H
#define HVD_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next, *prev;
};

#define list_entry(node, type, member) ((type *)((char *)(node)-offsetof(type, member)))
#define list_each(node, head)                                                          \
    for (struct list *node = (head)->next; node != (head); node = node->next)
/* The body may remove `node`. */
#define list_each_safe(node, head)                                                     \
    for (struct list *node = (head)->next, *node##_next_ = node->next;                 \
         node != (head); node = node##_next_, node##_next_ = node->next)

static inline void list_init(struct list *head)
{
    head->next = head->prev = head;
}

static inline bool list_is_empty(const struct list *head)
{
    return head->next == head;
}

static inline void list_append(struct list *head, struct list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

static inline void list_remove(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    node->next = node->prev = node;
}

static inline struct list *list_pop(struct list *head)
{
    struct list *first = head->next;

    if (first == head)
        return NULL;
    list_remove(first);
    return first;
}

#endif
