/*
 * stall_waits.c: which operations wait for which ranks, as far as this rank can know: its own
 * cached ones of its host, its own batches that do not get on, what it coordinates, and what it
 * leads (eager_wait.c).
 */
#include "engine/stall_int.h"

#include <stdlib.h>

static bool grow(struct waits *w)
{
    struct stall_wait *list;

    if (w->count < w->capacity)
        return true;
    w->capacity = w->capacity > 0 ? 2 * w->capacity : 16;
    list = realloc(w->list, (size_t)w->capacity * sizeof *list);
    if (list == NULL)
        return false;
    w->list = list;
    return true;
}

/* All who wait within a host see the same: the first of them tells it. */
static bool is_first_to_come(const struct waits *w, const struct pset *s,
                             const struct coll_task *task)
{
    const struct mesh_topology *topo = w->e->topo;

    for (int m = 0; m < s->self; m++)
        if (topo->host_of[s->ranks[m]] == topo->host_of[topo->rank] &&
            coll_has_come(task, m))
            return false;
    return true;
}

/* missing: by member of s */
static void add_wait(struct waits *w, const struct pset *s, const char *name, uint8_t op,
                     uint64_t since_us, const bool *missing, bool left_to_other)
{
    size_t ranks = (size_t)w->e->topo->size;
    char *copy = grow(w) ? malloc(ranks + strlen(name) + 1) : NULL;
    bool *by_rank = (bool *)copy;

    if (copy == NULL)
        return;                         /* the next report may have the memory */
    memset(by_rank, 0, ranks);
    for (int m = 0; m < s->count; m++)
        by_rank[s->ranks[m]] = missing[m];
    strcpy(copy + ranks, name);
    w->list[w->count++] = (struct stall_wait){copy + ranks, since_us, by_rank,
                                              left_to_other, op, s->id};
    if (since_us < w->oldest_us)
        w->oldest_us = since_us;
}

void waits_add(void *context, const char *name, uint8_t op, uint64_t first_us,
                           const bool *missing)
{
    struct waits *w = context;

    add_wait(w, w->set, name, op, first_us, missing, false);
}

static void add_running(struct waits *w, const struct entry *t, bool *missing)
{
    const struct way_ops *way = t->way->ops;
    bool any = false;

    if (way->waits == NULL || !way->waits(t))
        return;
    for (int m = 0; m < t->set->count; m++)
        any |= missing[m] = m != t->set->self && !way->has_come(t, m);
    if (any)
        add_wait(w, t->set, t->name, t->form.op, t->submit_us, missing,
                 !is_first_to_come(w, t->set, t->task));
}

/* A batch that runs, although nothing has moved for long: who of this host has not come to it,
 * and which others owe us bytes or do not take ours. */
static void add_batch(struct waits *w, const struct batch *b, bool *missing)
{
    const struct mesh_topology *topo = w->e->topo;
    uint64_t since_us = b->start_us;
    bool any = false;

    if (b->task == NULL)
        return;
    for (int m = 0; m < b->set->count; m++) {
        int rank = b->set->ranks[m];
        bool near = topo->host_of[rank] == topo->host_of[topo->rank];

        missing[m] = m != b->set->self &&
                     (mesh_is_owed(w->e->mesh, rank) ||
                      (near && !coll_has_come(b->task, m) && !coll_is_committed(b->task)));
        any |= missing[m];
    }
    if (w->e->stall != NULL && since_us < w->e->stall->moved_us)
        since_us = w->e->stall->moved_us;
    for (int i = 0; any && i < b->count; i++)
        if (b->entries[i] != NULL) {
            add_wait(w, b->set, b->entries[i]->name, b->form.op, since_us, missing,
                     !is_first_to_come(w, b->set, b->task));
            return;                     /* one of a fused batch stands for all */
        }
}

static void note_movement(struct engine *e, uint64_t now_us)
{
    struct mesh_counters c;

    if (e->stall == NULL)
        return;
    mesh_count(e->mesh, &c);
    if (c.bytes_sent + c.bytes_received != e->stall->bytes_seen)
        e->stall->moved_us = now_us;
    e->stall->bytes_seen = c.bytes_sent + c.bytes_received;
}

void waits_init(struct waits *w, struct engine *e)
{
    *w = (struct waits){.e = e, .oldest_us = UINT64_MAX};
}

void waits_release(struct waits *w)
{
    for (int i = 0; i < w->count; i++)
        free((void *)w->list[i].missing);       /* the block of both */
    free(w->list);
}

void waits_collect(struct waits *w, uint64_t now_us)
{
    struct engine *e = w->e;
    bool *missing = calloc((size_t)e->topo->size, sizeof *missing);

    if (missing == NULL)
        return;
    list_each(node, &e->running)
        add_running(w, list_entry(node, struct entry, node), missing);
    note_movement(e, now_us);
    list_each(node, &e->batches)
        add_batch(w, list_entry(node, struct batch, node), missing);
    for (int i = 0; i < TEAM_SLOTS; i++) {
        w->set = e->sets[i];
        if (w->set != NULL && w->set->neg != NULL)
            neg_each_stalled(w->set->neg, now_us, waits_add, w);
        if (w->set != NULL)
            ways_each_waiting(w->set, now_us, missing, waits_add, w);
    }
    free(missing);
}
