/* procset.c: process sets of this rank: the global one, static and dynamic ones. */
#include "engine/device.h"
#include "engine/engine_int.h"

#include <stdlib.h>

static int position_of(const int *ranks, int count, int rank)
{
    for (int i = 0; i < count; i++)
        if (ranks[i] == rank)
            return i;
    return -1;
}

static int capacity_of(const struct engine *e)
{
    int most = CACHE_NUMBERS - CACHE_SLACK;

    return e->conf->cache_capacity < most ? (int)e->conf->cache_capacity : most;
}

/* The coordinator's own member forgets the name at once: it must not start it again. */
static void keep_promise(void *context, uint32_t number)
{
    struct pset *s = context;
    struct cached *c = s->by_number[number];

    if (c != NULL && hash_get(&s->cache, c->name, c->name_bytes) == c)
        hash_remove(&s->cache, c->name, c->name_bytes);
}

static enum hvd_status join_set(struct engine *e, struct pset *s, struct hvd_error *err)
{
    struct neg_options opt = {
        .member_count = s->count, .ranks = s->ranks,
        .cache_capacity = capacity_of(e),
        .fusion_bytes = e->conf->fusion_threshold,
        .window_us = (uint64_t)(e->conf->cycle_time_ms * 1000),
        .group_fusion = !e->conf->disable_group_fusion,
        .on_promise = keep_promise, .context = s,
    };

    TRY(coll_team_new(e->mesh, s->ranks, s->count, s->slot, s->epoch, &s->team, err));
    s->local = coll_team_is_local(s->team);
    s->layout = coll_team_layout(s->team);
    s->fanout = (int)e->conf->tree_fanout;
    pset_find_tree(s);
    s->open_sizes = s->local && coll_can_open(s->team, COLL_ALLGATHER) &&
                    coll_can_open(s->team, COLL_ALLTOALL);
    opt.open_sizes = s->open_sizes;
    TRY(ways_open(e, s, err));
    s->by_number = calloc(CACHE_NUMBERS, sizeof *s->by_number);
    s->counts = calloc((size_t)s->count, sizeof *s->counts);
    if (s->self == 0)
        s->neg = neg_new(&opt);
    if (s->by_number == NULL || s->counts == NULL || (s->self == 0 && s->neg == NULL))
        return error_set(err, HVD_NOMEM, -1, "no memory for process set %d", s->id);
    return HVD_OK;
}

enum hvd_status pset_new(struct engine *e, int id, int slot, uint32_t epoch,
                         const int *ranks, int count, struct pset **set_p,
                         struct hvd_error *err)
{
    struct pset *s = calloc(1, sizeof *s);
    enum hvd_status status = HVD_OK;

    *set_p = NULL;
    if (s == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for process set %d", id);
    s->id = id;
    s->slot = slot;
    s->epoch = epoch;
    s->count = count;
    s->device_index = -1;
    s->self = position_of(ranks, count, e->topo->rank);
    list_init(&s->responses);
    strbuf_init(&s->requests);
    strbuf_init(&s->upward);
    s->ranks = malloc((size_t)count * sizeof *s->ranks);
    if (s->ranks == NULL) {
        status = error_set(err, HVD_NOMEM, -1, "no memory for process set %d", id);
        goto out;
    }
    memcpy(s->ranks, ranks, (size_t)count * sizeof *ranks);
    if (s->self >= 0)
        TRY_OUT(join_set(e, s, err));
    pthread_mutex_lock(&e->front);
    e->sets[id] = s;
    pthread_mutex_unlock(&e->front);
    *set_p = s;
out:
    if (status != HVD_OK)
        pset_free(e, s);
    return status;
}

static void clear_cache(struct pset *s)
{
    for (int i = 0; i < CACHE_NUMBERS && s->by_number != NULL; i++)
        if (s->by_number[i] != NULL)
            cached_free(s, s->by_number[i]);
}

void pset_free(struct engine *e, struct pset *s)
{
    struct list *node;

    pthread_mutex_lock(&e->front);
    if (e->sets[s->id] == s)
        e->sets[s->id] = NULL;
    pthread_mutex_unlock(&e->front);
    clear_cache(s);
    while ((node = list_pop(&s->responses)) != NULL)
        free(list_entry(node, struct inbound, node));
    ways_close(s);
    device_close(s);
    if (s->team != NULL)
        coll_team_free(s->team);
    neg_free(s->neg);
    hash_release(&s->inflight);
    hash_release(&s->cache);
    strbuf_release(&s->requests);
    strbuf_release(&s->upward);
    free(s->by_number);
    free(s->counts);
    free(s->ranks);
    free(s);
}

void pset_find_tree(struct pset *s)
{
    s->tree = tree_find(s->layout->host_count, s->fanout, s->layout->host);
    s->deep = s->layout->host_count - 1 > s->fanout;
}

/* Begins a message of this set. */
void pset_put_head(const struct pset *s, enum message_kind kind, struct strbuf *out)
{
    struct message_head head = {.kind = kind, .set = (uint32_t)s->id, .epoch = s->epoch};

    strbuf_clear(out);
    put_message_head(out, &head);
}

struct pset *pset_find(struct engine *e, int id)
{
    return id >= 0 && id < TEAM_SLOTS ? e->sets[id] : NULL;
}

/* A rank that has announced its JOIN starts no cached number any more. */
bool pset_starts_cached(const struct pset *s)
{
    return s->joined_count == 0 && (s->join_entry == NULL || s->join_held);
}

void entry_fail(struct engine *e, struct entry *t, enum hvd_status status,
                const struct hvd_error *why)
{
    if (t->way != NULL)
        t->way->ops->withdraw(t);
    t->way = NULL;
    if (t->cached != NULL)
        t->cached->entry = NULL;
    t->cached = NULL;
    if (t->set->join_entry == t) {
        t->set->join_entry = NULL;
        t->set->join_held = false;
    }
    entry_complete(e, t, status, why);
}

/* As far as this rank can know, it changes memory of others. */
static bool is_committed(const struct entry *t)
{
    return t->state == ENTRY_BATCH ||
           (t->way != NULL && t->way->ops->is_committed != NULL &&
            t->way->ops->is_committed(t));
}

/* Fails what is in flight; without `committed_too` only what has changed nothing yet (ways
 * that cannot know say so when a rank has left, see ways_leave). */
void pset_fail(struct engine *e, struct pset *s, enum hvd_status status,
               const struct hvd_error *why, bool committed_too)
{
    if (committed_too)
        execute_fail(e, s, status, why);
    for (size_t i = 0; i < s->inflight.capacity; i++) {
        struct entry *t = s->inflight.slots[i].value;

        if (t != NULL && (committed_too || !is_committed(t)))
            entry_fail(e, t, status, why);
    }
    s->request_count = 0;
    ways_drop(s);
}
