/*
 * membership_form.c: a generation: who is in it, in which order, with which numbers
 * (membership.h, rules 6 and 8).
 */
#include "elastic/membership_int.h"

#include <stdlib.h>
#include <string.h>

/* One who comes in question, in the order of hosts and slots. */
struct candidate {
    int worker;                         /* 0 in a guess about a slot that is not started */
    int host, slot;
    int machine;                        /* host_machine */
};

struct candidates {
    struct candidate *items;
    int count;
};

static void add_slot(struct candidates *c, const struct membership *m, int worker, int host,
                     int slot)
{
    c->items[c->count++] =
        (struct candidate){worker, host, slot, host_machine(m, host)};
}

static void add(struct candidates *c, const struct membership *m, int worker)
{
    const struct member_worker *w = worker_of(m, worker);

    add_slot(c, m, worker, w->host, w->slot);
}

bool form_is_better_root(const struct member_worker *a, const struct member_worker *b)
{
    if ((a->first_generation > 0) != (b->first_generation > 0))
        return a->first_generation > 0;
    if (a->commits != b->commits)
        return a->commits > b->commits;
    return a->first_generation < b->first_generation;
}

/* Ready workers on wanted slots in the order of hosts and slots. */
static void collect(struct membership *m, struct candidates *c, uint64_t now_us)
{
    for (int o = 0; o < m->host_count; o++) {
        const struct member_host *h = &m->hosts[m->order[o]];

        for (int s = 0; s < h->slot_capacity; s++) {
            int number = h->slots[s].worker;
            const struct member_worker *w = number > 0 ? worker_of(m, number) : NULL;

            if (w != NULL && w->state == WORKER_READY && worker_is_wanted(m, w, now_us))
                add(c, m, number);
        }
    }
}

static bool has_state(const struct membership *m, const struct candidates *c)
{
    for (int i = 0; i < c->count; i++)
        if (worker_of(m, c->items[i].worker)->is_member)
            return true;
    return m->generation == 0;
}

/* Rule 6: when all who have the state are about to go, the best of them hands over. */
static void keep_one(struct membership *m, struct candidates *c)
{
    int best = 0;

    for (int n = 1; n <= m->worker_count; n++) {
        const struct member_worker *w = worker_of(m, n);

        if (w->state == WORKER_READY && w->is_member &&
            (best == 0 || form_is_better_root(w, worker_of(m, best))))
            best = n;
    }
    if (best != 0)
        add(c, m, best);
}

static void move_front(struct candidate *items, int from)
{
    struct candidate moved = items[from];

    memmove(items + 1, items, (size_t)from * sizeof *items);
    items[0] = moved;
}

/* Those of one machine follow its first one; else the order stays. */
static void group_by_machine(struct candidates *c)
{
    for (int front = 1; front < c->count; front++)
        for (int i = front; i < c->count; i++)
            if (c->items[i].machine == c->items[front - 1].machine) {
                move_front(c->items + front, i - front);
                break;
            }
}

/* Rule 8: the root first, then the others of its machine, then the rest as they are. */
static void put_root_first(const struct membership *m, struct candidates *c)
{
    int root = 0;

    for (int i = 1; i < c->count; i++)
        if (form_is_better_root(worker_of(m, c->items[i].worker),
                           worker_of(m, c->items[root].worker)))
            root = i;
    move_front(c->items, root);
    group_by_machine(c);
}

/* Ranks in the order of the candidates; local and cross numbers as launch/assign.c. */
static void number_places(const struct candidates *c, struct member_place *places)
{
    for (int r = 0; r < c->count; r++) {
        struct member_place *p = &places[r];

        *p = (struct member_place){.worker = c->items[r].worker, .rank = r};
        for (int k = 0; k < c->count; k++)
            if (c->items[k].machine == c->items[r].machine) {
                p->local_size++;
                p->local_rank += k < r;
            }
    }
    for (int r = 0; r < c->count; r++)
        for (int k = 0; k < c->count; k++)
            if (places[k].local_rank == places[r].local_rank) {
                places[r].cross_size++;
                places[r].cross_rank += k < r;
            }
}

static struct candidates candidates_new(const struct membership *m)
{
    int room = m->worker_count + 1;

    for (int h = 0; h < m->host_count; h++)
        room += m->hosts[h].slot_capacity;
    return (struct candidates){.items = array_new(room, sizeof(struct candidate))};
}

void form_guess(struct membership *m, int worker, struct member_place *place, int *size_p)
{
    struct candidates c = candidates_new(m);
    const struct member_worker *w = worker_of(m, worker);
    struct member_place *places;

    for (int o = 0; o < m->host_count; o++) {
        const struct member_host *h = &m->hosts[m->order[o]];

        for (int s = 0; s < h->slot_count; s++)
            if (slot_is_wanted(m, m->order[o], s, w->since_us))
                add_slot(&c, m, 0, m->order[o], s);
    }
    group_by_machine(&c);
    places = array_new(c.count, sizeof *places);
    number_places(&c, places);
    *place = (struct member_place){.worker = worker, .local_size = 1, .cross_size = 1};
    for (int r = 0; r < c.count; r++)
        if (c.items[r].host == w->host && c.items[r].slot == w->slot)
            *place = places[r];
    place->worker = worker;
    *size_p = c.count > 0 ? c.count : 1;
    free(places);
    free(c.items);
}

/* Those who are not in it have no more to do here. */
static void retire_others(struct membership *m, uint64_t now_us)
{
    for (int n = 1; n <= m->worker_count; n++) {
        struct member_worker *w = worker_of(m, n);
        struct action *action;

        if (w->state == WORKER_READY && (w->is_member || !worker_is_wanted(m, w, now_us))) {
            action = action_put(m, MEMBER_RETIRE, n);
            action->text = strdup(m->is_leaving   ? "the whole job was told to leave"
                                  : w->is_leaving ? "this worker was told to leave, and the "
                                                    "others go on without it"
                                  : "its host is not part of the job any more");
            worker_enter(m, w, WORKER_RETIRED, now_us);
        }
        w->is_member = w->state == WORKER_MEMBER;
    }
}

static void enter_generation(struct membership *m, const struct candidates *c,
                             uint64_t now_us)
{
    struct action *action = action_put(m, MEMBER_ASSIGN, 0);
    bool has_new = false;

    m->generation++;
    for (int i = 0; i < c->count; i++) {
        struct member_worker *w = worker_of(m, c->items[i].worker);

        has_new |= !w->is_member;
        if (!w->is_member) {
            char name[HVD_HOST_MAX + 16];

            membership_name(m, c->items[i].worker, name, sizeof name);
            if (m->generation > 1)
                strbuf_addf(&m->events, "%s%s came", m->events.length > 0 ? ", " : "", name);
        }
        if (w->first_generation == 0)
            w->first_generation = m->generation;
        w->told_update = 0;
        w->rank = i;
        worker_enter(m, w, WORKER_MEMBER, now_us);
    }
    action->a.generation = m->generation;
    action->a.version = m->version;
    action->a.count = c->count;
    action->a.sync = has_new || m->had_failure;
    action->places = array_new(c->count, sizeof *action->places);
    number_places(c, action->places);
}

static bool is_within_limit(struct membership *m)
{
    if (m->generation == 0)
        return true;
    if (m->opt.reset_limit >= 0 && m->resets >= m->opt.reset_limit) {
        membership_end(m, false, m->unhandled,
                       "Horovod was shutdown because number of resets during elastic job "
                       "exceeded limit: %d", m->opt.reset_limit);
        return false;
    }
    m->resets++;
    return true;
}

static void form_generation(struct membership *m, uint64_t now_us)
{
    struct candidates c = candidates_new(m);

    collect(m, &c, now_us);
    if (c.count > 0 && !has_state(m, &c))
        keep_one(m, &c);
    if (c.count >= m->opt.min_np && has_state(m, &c) && is_within_limit(m)) {
        put_root_first(m, &c);
        enter_generation(m, &c, now_us);
        retire_others(m, now_us);
        m->is_broken = m->had_failure = false;
        m->unhandled = 0;
        m->update = 0;
        m->update_key = 0;
    }
    free(c.items);
}

void form_next(struct membership *m, uint64_t now_us)
{
    if (m->is_leaving)
        retire_others(m, now_us);       /* rule 11: nobody goes on */
    else
        form_generation(m, now_us);
}
