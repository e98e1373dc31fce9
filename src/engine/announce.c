/*
 * announce.c: what this rank has to say to the coordinator of a set: tensors in full, or by
 * their number in the cache.  It is gathered in the set until it is sent (cycle.c says when).
 */
#include "engine/engine_int.h"

#include <stdlib.h>

static void broken(struct engine *e, struct hvd_error *err)
{
    error_prefix(err, "rank %d", e->topo->rank);
    mesh_fail(e->mesh, err);
}

/* ---- Gathering ---------------------------------------------------------------------- */

void entry_announce(struct engine *e, struct entry *t, struct cached *revoked)
{
    struct pset *s = t->set;
    struct strbuf splits;
    struct wire_request r = {
        .op = t->op, .dtype = t->dtype, .reduce = t->reduce, .ndim = t->ndim,
        .root = t->root, .prescale = t->prescale, .postscale = t->postscale,
        .group_count = t->group_count, .group_key = t->group_key,
        .revoked = revoked != NULL ? revoked->number + 1 : 0,
        .revoked_seq = revoked != NULL ? revoked->seq : 0,
        .revoked_turn = revoked != NULL ? revoked->turn : 0,
        .name = t->name, .name_bytes = t->name_bytes,
        .problem = t->problem,
        .problem_bytes = (uint16_t)(t->problem != NULL ? strlen(t->problem) : 0),
        .split_count = t->split_count,
    };

    memcpy(r.shape, t->shape, sizeof r.shape);
    strbuf_init(&splits);
    for (uint32_t i = 0; i < t->split_count; i++)
        put_u64(&splits, (uint64_t)t->splits[i]);
    r.splits = (const uint8_t *)splits.text;
    if (s->request_count == 0)
        pset_put_head(s, MESSAGE_REQUESTS, &s->requests);
    put_request(&s->requests, &r);
    s->request_count++;
    strbuf_release(&splits);
    t->state = ENTRY_ANNOUNCED;
    t->cached = NULL;
    e->cache_misses++;
}

static void put_own_hit(struct pset *s, const struct cached *c)
{
    if (s->hit_count == 0)
        pset_put_head(s, MESSAGE_HITS, &s->hits);
    put_u32(&s->hits, c->number);
    put_u32(&s->hits, c->seq);
    s->hit_count++;
}

void entry_announce_hit(struct engine *e, struct entry *t, struct cached *c)
{
    struct pset *s = t->set;

    if (bundle_leads(s))
        bundle_add(s, c->number, c->seq, t->submit_us);
    else
        put_own_hit(s, c);
    t->state = ENTRY_HIT;
    s->hits_open++;
    t->cached = c;
    c->entry = t;
    e->cache_hits++;
}

/* ---- Sending ------------------------------------------------------------------------ */

static void put_acked(const struct pset *s, struct strbuf *out, uint32_t count)
{
    for (int i = 0; i < 4; i++)
        out->text[9 + i] = (char)(s->seq >> (8 * i));
    patch_message_count(out, 0, count);
}

void member_send(struct engine *e, struct pset *s, int member, struct strbuf *out,
                 uint32_t count)
{
    struct hvd_error err;

    if (out->failed) {
        error_set(&err, HVD_NOMEM, e->topo->rank, "no memory for a message");
        broken(e, &err);
        return;
    }
    if (s->orphans == 0)
        put_acked(s, out, count);
    else
        patch_message_count(out, 0, count);
    if (member == s->self)
        engine_on_message(e, e->topo->rank, (const uint8_t *)out->text, out->length);
    else if (mesh_post(e->mesh, s->ranks[member], out->text, out->length, &err) != HVD_OK &&
             err.status != HVD_SHUTDOWN && mesh_verdict(e->mesh) == NULL)
        broken(e, &err);                /* who has left in order says so, too */
}

/* A JOIN takes all numbers back, so it says which turns of them this rank has come to. */
static void add_turns(struct engine *e, struct pset *s)
{
    struct entry *t = s->join_entry;
    int64_t *grown = realloc(t->splits, (t->split_count + CACHE_NUMBERS) * sizeof *grown);
    struct hvd_error err;

    t->splits = grown != NULL ? grown : t->splits;
    if (grown == NULL || t->split_count < OP_KIND_COUNT) {
        error_set(&err, HVD_NOMEM, e->topo->rank, "no memory for a join");
        broken(e, &err);
        return;
    }
    for (uint32_t i = 0; i < CACHE_NUMBERS; i++) {
        const struct cached *c = s->by_number[i];

        if (c != NULL && c->swaps && !c->dying)
            t->splits[t->split_count++] = (int64_t)((uint64_t)i << 32 | c->turn);
    }
}

/*
 * A rank joins only when all it has started will end without it: what is announced in full,
 * and what is committed.  Otherwise it could have to announce a tensor again after the
 * others have already run it with a neutral element in its place.
 */
static void announce_held_join(struct engine *e, struct pset *s)
{
    if (!s->join_held || s->hits_open > 0 || direct_is_open(e, s) || swap_has_open(s))
        return;
    s->join_held = false;
    if (s->swap != NULL)
        add_turns(e, s);
    entry_announce(e, s->join_entry, NULL);
}

void member_flush(struct engine *e, struct pset *s)
{
    uint32_t requests, hits;

    announce_held_join(e, s);
    requests = s->request_count;
    hits = s->hit_count;
    s->request_count = s->hit_count = 0;
    if (requests > 0)
        member_send(e, s, 0, &s->requests, requests);
    if (hits > 0)
        member_send(e, s, bundle_source(s), &s->hits, hits);
}
