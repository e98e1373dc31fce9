/* engine_sets.c: process sets as other threads see them: made, removed, listed. */
#include "engine/engine_int.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>

enum hvd_status engine_add_static_set(struct engine *e, const int *ranks, int count,
                                      struct hvd_error *err)
{
    struct pset *s;
    enum hvd_status status = HVD_OK;
    int id = 1;

    baton_take(e);
    while (id < TEAM_SLOTS && e->sets[id] != NULL)
        id++;
    if (id == TEAM_SLOTS)
        status = error_set(err, HVD_INVALID, -1, "more than %d process sets",
                           NEG_SETS_MAX);
    else
        status = pset_new(e, id, id, (uint32_t)id + 1, ranks, count, &s, err);
    if (status == HVD_OK && e->sets[0]->neg != NULL)
        neg_know_set(e->sets[0]->neg, id, ranks, count);
    if (status == HVD_OK)
        engine_replay_early(e, s);
    engine_leave(e);
    return status;
}

static enum hvd_status submit_set_op(struct engine *e, int op, const int *ranks, int count,
                                     int id, hvd_handle *handle_p, struct hvd_error *err)
{
    struct handle *h = handle_new(1);
    struct entry *t;
    char name[48];

    if (h == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a handle");
    t = &h->entries[0];
    t->set = e->sets[0];
    t->set_size = t->set->count;
    t->form.op = (uint8_t)op;
    t->submit_us = clock_us();
    t->form.dtype = HVD_U8;
    t->form.prescale = t->form.postscale = 1.0;
    t->form.root = id;
    t->split_count = (uint32_t)count;
    t->splits = malloc((size_t)(count + 1) * sizeof *t->splits);
    baton_take(e);
    snprintf(name, sizeof name, "%s.%lld", op == OP_SET_ADD ? "set.add" : "set.remove",
             (long long)++e->sets[0]->unnamed[op]);
    if (op == OP_SET_REMOVE && pset_find(e, id) != NULL)
        e->sets[id]->ending = true;
    baton_give(e);
    t->name = strdup(name);
    t->name_bytes = (uint16_t)strlen(name);
    if (t->splits == NULL || t->name == NULL) {
        handle_free(h);
        return error_set(err, HVD_NOMEM, -1, "no memory for a process set");
    }
    for (int i = 0; i < count; i++)
        t->splits[i] = ranks[i];
    return engine_submit_handle(e, h, NULL, false, handle_p, err);
}

static enum hvd_status check_dynamic(const struct engine *e, struct hvd_error *err)
{
    if (e->dynamic_sets)
        return HVD_OK;
    return error_set(err, HVD_INVALID, -1,
                     "process sets cannot be changed: set HOROVOD_DYNAMIC_PROCESS_SETS=1 "
                     "or call init(process_sets=\"dynamic\")");
}

enum hvd_status engine_submit_add_set(struct engine *e, const int *ranks, int count,
                                      hvd_handle *handle_p, struct hvd_error *err)
{
    TRY(check_dynamic(e, err));
    return submit_set_op(e, OP_SET_ADD, ranks, count, 0, handle_p, err);
}

enum hvd_status engine_submit_remove_set(struct engine *e, int id, hvd_handle *handle_p,
                                         struct hvd_error *err)
{
    TRY(check_dynamic(e, err));
    if (id == 0)
        return error_set(err, HVD_INVALID, -1, "the global process set stays");
    return submit_set_op(e, OP_SET_REMOVE, NULL, 0, id, handle_p, err);
}

int engine_set_ids(struct engine *e, int *ids, int capacity)
{
    int n = 0;

    pthread_mutex_lock(&e->front);
    for (int i = 0; i < TEAM_SLOTS; i++)
        if (e->sets[i] != NULL) {
            if (n < capacity)
                ids[n] = i;
            n++;
        }
    pthread_mutex_unlock(&e->front);
    return n;
}

int engine_set_ranks(struct engine *e, int id, int *ranks, int capacity, int *self_p)
{
    int count = -1;

    pthread_mutex_lock(&e->front);
    if (id >= 0 && id < TEAM_SLOTS && e->sets[id] != NULL) {
        const struct pset *s = e->sets[id];

        count = s->count;
        *self_p = s->self;
        for (int i = 0; i < count && i < capacity; i++)
            ranks[i] = s->ranks[i];
    }
    pthread_mutex_unlock(&e->front);
    return count;
}

void engine_warm_set(struct engine *e, int id)
{
    const struct pset *s;

    baton_take(e);
    s = pset_find(e, id);
    if (s != NULL && s->team != NULL)
        coll_warm(s->team);
    engine_leave(e);
}
