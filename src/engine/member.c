/*
 * member.c: this rank as a member of a process set: does the coordinator's responses one after
 * the other, and keeps the cache.
 *
 * Responses are done in their order.  One that cannot be done yet blocks those behind it:
 * a batch whose board is still in use, a removal while tasks of the set are committed.
 */
#include "engine/engine_int.h"

#include <stdlib.h>

/* ---- The cache of this member ------------------------------------------------------ */

void cached_free(struct pset *s, struct cached *c)
{
    if (hash_get(&s->cache, c->name, c->name_bytes) == c)
        hash_remove(&s->cache, c->name, c->name_bytes);
    s->by_number[c->number] = NULL;
    ways_forget(s, c);
    if (c->kept != NULL)
        coll_drop(c->kept);
    plan_release(&c->plan);
    free(c->name);
    free(c);
}

bool cached_matches(const struct cached *c, const struct entry *t)
{
    if (c->open)
        return form_is_like(&c->form, &t->form) &&
               form_has_rows(&c->form, t->form.ndim, t->form.shape);
    return t->split_count == 0 && form_equals(&c->form, &t->form);
}

static struct cached *cached_new(const struct entry *t, const struct wire_tensor *w,
                                 uint32_t seq)
{
    struct cached *c = calloc(1, sizeof *c);

    if (c == NULL)
        return NULL;
    c->name = strdup(t->name);
    c->name_bytes = t->name_bytes;
    c->form = t->form;
    c->count = t->count;
    c->number = w->cached - 1;
    c->seq = seq;
    c->turn = w->turn;
    if (c->name == NULL) {
        free(c);
        return NULL;
    }
    return c;
}

enum hvd_status member_cache_add(struct engine *e, struct pset *s, const struct entry *t,
                                 const struct wire_tensor *w, struct plan *p)
{
    struct cached *c;

    if (w->cached > CACHE_NUMBERS || s->by_number[w->cached - 1] != NULL)
        return HVD_PROTO;
    c = cached_new(t, w, s->seq + 1);
    if (c == NULL || hash_put(&s->cache, c->name, c->name_bytes, c) != 0)
        return HVD_NOMEM;
    c->plan = *p;
    *p = (struct plan){0};
    plan_call(&c->call, s, &c->form, &c->plan);
    c->open = s->open_sizes && form_can_open(&c->form);
    c->call.open = c->open;
    c->call.board = BATCH_BOARDS + c->number;
    recorder_prepare(&c->done, RECORDER_DONE, c->form.op, s->id,
                     c->count * hvd_dtype_bytes(c->form.dtype), HVD_OK, c->name);
    c->way = ways_choose(s, c);
    if (c->way == NULL)
        return HVD_NOMEM;
    s->by_number[c->number] = c;
    return HVD_OK;
}

/* ---- Responses --------------------------------------------------------------------- */

/* Nobody starts this number any more; c goes, at once or with its entry. */
static void take_back(struct engine *e, struct pset *s, struct cached *c, uint32_t turn)
{
    cached_take_back(e, c, turn);
    if (!c->dying)
        cached_free(s, c);
    else if (hash_get(&s->cache, c->name, c->name_bytes) == c)
        hash_remove(&s->cache, c->name, c->name_bytes);
}

static enum hvd_status do_revoke(struct engine *e, struct pset *s, struct wire_in *in,
                                 struct hvd_error *err)
{
    struct wire_revoke r;
    struct cached *c;

    TRY(get_revoke(in, &r, err));
    c = r.number < CACHE_NUMBERS ? s->by_number[r.number] : NULL;
    if (c == NULL || c->seq != r.seq || r.promising >= s->count)
        return error_set(err, HVD_PROTO, -1, "revocation of an unknown number");
    take_back(e, s, c, r.turn);
    return HVD_OK;
}

static enum hvd_status do_joined(struct engine *e, struct pset *s, struct wire_in *in,
                                 struct hvd_error *err)
{
    struct wire_joined j;
    uint32_t *turns;

    TRY(get_joined(in, &j, err));
    turns = j.member < s->count ? calloc(CACHE_NUMBERS, sizeof *turns) : NULL;
    if (turns == NULL)
        return error_set(err, j.member < s->count ? HVD_NOMEM : HVD_PROTO, -1,
                         "member %d joins", j.member);
    for (uint32_t i = 0; i < j.turn_count; i++) {
        uint64_t turn = (uint64_t)get_split(j.turns, i);

        if (turn >> 32 < CACHE_NUMBERS)
            turns[turn >> 32] = (uint32_t)turn;
    }
    s->joined_count++;
    for (int i = 0; i < CACHE_NUMBERS; i++)
        if (s->by_number[i] != NULL && !s->by_number[i]->dying)
            take_back(e, s, s->by_number[i], turns[i]);
    free(turns);
    return HVD_OK;
}

static enum hvd_status do_join_done(struct engine *e, struct pset *s, struct wire_in *in,
                                    struct hvd_error *err)
{
    struct wire_join_done done;
    struct entry *t = s->join_entry;

    TRY(get_join_done(in, &done, err));
    memcpy(s->unnamed, done.counters, sizeof s->unnamed);
    s->joined_count = 0;
    s->join_entry = NULL;
    if (t != NULL) {
        t->value = done.last;
        entry_complete(e, t, HVD_OK, NULL);
    }
    return HVD_OK;
}

static bool is_target(const struct wire_failure *f, int self)
{
    for (uint32_t i = 0; i < f->target_count; i++)
        if (get_member(f->targets, i) == self)
            return true;
    return f->target_count == 0;
}

static enum hvd_status do_error(struct engine *e, struct pset *s, struct wire_in *in,
                                struct hvd_error *err)
{
    struct wire_failure f;
    struct hvd_error why;
    struct entry *t;

    TRY(get_failure(in, &f, err));
    if (!is_target(&f, s->self)) {
        trace_pass(e, s, f.name, f.name_bytes);
        return HVD_OK;
    }
    t = hash_get(&s->inflight, f.name, f.name_bytes);
    if (t == NULL || t->state != ENTRY_ANNOUNCED)
        return error_set(err, HVD_PROTO, -1, "failure of an unknown tensor");
    error_set(&why, f.status, f.rank, "%.*s", f.text_bytes, f.text);
    entry_complete(e, t, f.status, &why);
    return HVD_OK;
}

static enum hvd_status do_set_added(struct engine *e, struct pset *s, struct wire_in *in,
                                    struct hvd_error *err)
{
    struct wire_set_added a;
    struct pset *added;
    struct entry *t;
    int *ranks;

    TRY(get_set_added(in, &a, err));
    if (a.rank_count > (uint32_t)e->topo->size || a.id == 0 || a.id >= TEAM_SLOTS ||
        a.slot == 0 || a.slot >= TEAM_SLOTS)
        return error_set(err, HVD_PROTO, -1, "new process set %u in slot %u", a.id, a.slot);
    ranks = malloc(a.rank_count * sizeof *ranks);
    if (ranks == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a process set");
    for (uint32_t i = 0; i < a.rank_count; i++)
        ranks[i] = get_member(a.ranks, i);
    t = hash_get(&s->inflight, a.name, a.name_bytes);
    if (pset_new(e, (int)a.id, (int)a.slot, a.epoch, ranks, (int)a.rank_count, &added,
                 err) == HVD_OK)
        engine_replay_early(e, added);
    free(ranks);
    if (added == NULL)
        return err->status;
    if (t != NULL) {
        t->value = a.id;
        entry_complete(e, t, HVD_OK, NULL);
    }
    return HVD_OK;
}

/* What all members have come to is done here, and what is not, never will be: the same on
 * all of them. */
static bool has_ended(struct engine *e, struct pset *s)
{
    pset_say_end(e, s);
    return pset_has_ended(e, s) && list_is_empty(&s->responses) && s->running == 0 &&
           !running_has(e, s, true) && ways_end(e, s);
}

static enum hvd_status do_set_removed(struct engine *e, struct pset *s,
                                      struct wire_in *in, struct hvd_error *err)
{
    struct wire_set_removed r;
    struct pset *removed;
    struct hvd_error why;
    struct entry *t;

    TRY(get_set_removed(in, &r, err));
    removed = r.id > 0 && r.id < TEAM_SLOTS ? pset_find(e, (int)r.id) : NULL;
    if (removed == NULL)
        return error_set(err, HVD_PROTO, -1, "removal of process set %u", r.id);
    if (removed->self >= 0 && !has_ended(e, removed))
        return HVD_AGAIN;
    error_set(&why, HVD_REMOVED, -1, "process set %u was removed", r.id);
    pset_fail(e, removed, HVD_REMOVED, &why, true);
    pset_free(e, removed);
    t = hash_get(&s->inflight, r.name, r.name_bytes);
    if (t != NULL)
        entry_complete(e, t, HVD_OK, NULL);
    return HVD_OK;
}

static enum hvd_status do_tune(struct engine *e, struct wire_in *in,
                               struct hvd_error *err)
{
    struct wire_tune tune;

    TRY(get_tune(in, &tune, err));
    e->conf->cycle_time_ms = tune.cycle_ms;
    e->conf->fusion_threshold = tune.fusion_bytes;
    e->conf->source[config_find("CYCLE_TIME")] = CONFIG_AUTOTUNE;
    e->conf->source[config_find("FUSION_THRESHOLD")] = CONFIG_AUTOTUNE;
    for (int i = 0; i < TEAM_SLOTS; i++)
        if (e->sets[i] != NULL && e->sets[i]->neg != NULL)
            neg_tune(e->sets[i]->neg, tune.fusion_bytes,
                     (uint64_t)(tune.cycle_ms * 1000));
    return HVD_OK;
}

static enum hvd_status do_response(struct engine *e, struct pset *s, struct wire_in *in,
                                   struct hvd_error *err)
{
    enum response_kind kind;

    TRY(get_response_kind(in, &kind, err));
    switch (kind) {
    case RESPONSE_EXECUTE:
        return member_execute(e, s, in, err);
    case RESPONSE_CACHED:
        return member_execute_cached(e, s, in, err);
    case RESPONSE_ERROR:
        return do_error(e, s, in, err);
    case RESPONSE_REVOKE:
        return do_revoke(e, s, in, err);
    case RESPONSE_JOINED:
        return do_joined(e, s, in, err);
    case RESPONSE_JOIN_DONE:
        return do_join_done(e, s, in, err);
    case RESPONSE_SET_ADDED:
        return do_set_added(e, s, in, err);
    case RESPONSE_SET_REMOVED:
        return do_set_removed(e, s, in, err);
    case RESPONSE_TUNE:
        return do_tune(e, in, err);
    case RESPONSE_KIND_COUNT:
        break;
    }
    return error_set(err, HVD_PROTO, -1, "response not understood");
}

void member_process(struct engine *e, struct pset *s)
{
    while (!list_is_empty(&s->responses) && mesh_verdict(e->mesh) == NULL) {
        struct inbound *m = list_entry(s->responses.next, struct inbound, node);
        struct wire_in in = wire_in_from(m->bytes + m->at, m->n - m->at);
        struct hvd_error err = {.rank = -1};
        enum hvd_status status = do_response(e, s, &in, &err);

        if (status == HVD_AGAIN)
            return;
        if (status != HVD_OK) {
            engine_break(e, &err);
            return;
        }
        s->seq++;
        ways_on_response(e, s);
        m->at = (size_t)(in.at - m->bytes);
        if (--m->left == 0) {
            list_remove(&m->node);
            free(m);
        }
    }
}
