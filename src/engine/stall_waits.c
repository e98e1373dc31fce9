/*
 * stall_waits.c: which operations wait for which ranks, as far as this rank can know: its own
 * cached ones of its host, its own batches that do not get on, what it coordinates, and what it
 * leads (swap_wait.c).
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

/* missing: by member of s */
static void add_wait(struct waits *w, const struct pset *s, const char *name,
                     uint64_t since_us, const bool *missing)
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
    w->list[w->count++] = (struct stall_wait){copy + ranks, since_us, by_rank};
    if (since_us < w->oldest_us)
        w->oldest_us = since_us;
}

void waits_add(void *context, const char *name, uint8_t op, uint64_t first_us,
                           const bool *missing)
{
    struct waits *w = context;

    (void)op;
    add_wait(w, w->set, name, first_us, missing);
}

static void add_direct(struct waits *w, const struct entry *t, bool *missing)
{
    bool any = false;

    if (t->task == NULL || coll_is_committed(t->task))
        return;
    for (int m = 0; m < t->set->count; m++)
        any |= missing[m] = m != t->set->self && !coll_has_come(t->task, m);
    if (any)
        add_wait(w, t->set, t->name, t->submit_us, missing);
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
    if (since_us < w->e->stall->moved_us)
        since_us = w->e->stall->moved_us;
    for (int i = 0; any && i < b->count; i++)
        if (b->entries[i] != NULL) {
            add_wait(w, b->set, b->entries[i]->name, since_us, missing);
            return;                     /* one of a fused batch stands for all */
        }
}

static void note_movement(struct engine *e, uint64_t now_us)
{
    struct mesh_counters c;

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
    list_each(node, &e->direct)
        add_direct(w, list_entry(node, struct entry, node), missing);
    note_movement(e, now_us);
    list_each(node, &e->batches)
        add_batch(w, list_entry(node, struct batch, node), missing);
    for (int i = 0; i < TEAM_SLOTS; i++) {
        w->set = e->sets[i];
        if (w->set != NULL && w->set->neg != NULL)
            neg_each_stalled(w->set->neg, now_us, waits_add, w);
        if (w->set != NULL)
            swap_each_waiting(w->set, now_us, missing, waits_add, w);
    }
    free(missing);
}
