/* membership_queue.c: actions on their way out, in order; see membership.h. */
#include "elastic/membership_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *array_new(int count, size_t item_bytes)
{
    void *array = calloc((size_t)count + 1, item_bytes);

    BUG_ON(array == NULL);
    return array;
}

void *array_grow(void *array, int count, int *capacity_p, size_t item_bytes)
{
    int capacity = *capacity_p == 0 ? 8 : 2 * *capacity_p;

    if (count < *capacity_p)
        return array;
    array = realloc(array, (size_t)capacity * item_bytes);
    BUG_ON(array == NULL);
    memset((char *)array + (size_t)*capacity_p * item_bytes, 0,
           (size_t)(capacity - *capacity_p) * item_bytes);
    *capacity_p = capacity;
    return array;
}

static void action_release(struct action *action)
{
    free(action->places);
    free(action->text);
    free(action->host);
    memset(action, 0, sizeof *action);
}

struct action *action_put(struct membership *m, enum member_action_kind kind, int worker)
{
    struct action *action;

    if (m->queue_at > 0 && m->queue_at == m->queue_count) {
        for (int i = 0; i < m->queue_count; i++)
            action_release(&m->queue[i]);
        m->queue_at = m->queue_count = 0;
    }
    m->queue = array_grow(m->queue, m->queue_count, &m->queue_capacity, sizeof *m->queue);
    action = &m->queue[m->queue_count++];
    memset(action, 0, sizeof *action);
    action->a.kind = kind;
    action->a.worker = worker;
    action->a.grace_ms = m->opt.grace_ms;
    return action;
}

bool membership_next(struct membership *m, struct member_action *action)
{
    struct action *next;

    if (m->queue_at == m->queue_count)
        return false;
    next = &m->queue[m->queue_at++];
    *action = next->a;
    action->places = next->places;
    action->text = next->text != NULL ? next->text : "";
    action->host = next->host;
    return true;
}

static char *format_text(const char *format, va_list args)
{
    char *text;

    BUG_ON(vasprintf(&text, format, args) < 0);
    return text;
}

void membership_say(struct membership *m, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    action_put(m, MEMBER_SAY, 0)->text = format_text(format, args);
    va_end(args);
}

void membership_end(struct membership *m, bool ok, int worker, const char *format, ...)
{
    struct action *action;
    va_list args;

    if (m->is_over)
        return;
    m->is_over = true;
    va_start(args, format);
    action = action_put(m, MEMBER_END, worker);
    action->text = format_text(format, args);
    action->a.ok = ok;
    va_end(args);
}

void queue_release(struct membership *m)
{
    for (int i = 0; i < m->queue_count; i++)
        action_release(&m->queue[i]);
    free(m->queue);
}
