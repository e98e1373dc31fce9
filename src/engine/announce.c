/*
 * announce.c: what this rank has to say to the coordinator of a set: tensors in full (by
 * number: see way.h), straight or up the tree of hosts (upward.c).  It is gathered in the
 * set until it is sent (cycle.c says when).
 */
#include "engine/engine_int.h"

#include <stdlib.h>

/* ---- Gathering ---------------------------------------------------------------------- */

void entry_announce(struct engine *e, struct entry *t, struct cached *revoked)
{
    struct pset *s = t->set;
    struct strbuf splits;
    struct wire_request r = {
        .form = t->form,
        .group_count = t->group_count, .group_key = t->group_key,
        .revoked = revoked != NULL ? revoked->number + 1 : 0,
        .revoked_seq = revoked != NULL ? revoked->seq : 0,
        .revoked_turn = revoked != NULL ? revoked->turn : 0,
        .name = t->name, .name_bytes = t->name_bytes,
        .problem = t->problem,
        .problem_bytes = (uint16_t)(t->problem != NULL ? strlen(t->problem) : 0),
        .split_count = t->split_count,
    };

    strbuf_init(&splits);
    for (uint32_t i = 0; i < t->split_count; i++)
        put_split(&splits, t->splits[i]);
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

/* ---- Sending ------------------------------------------------------------------------ */

void member_send(struct engine *e, struct pset *s, int member, struct strbuf *out,
                 uint32_t count)
{
    struct hvd_error err;

    if (out->failed) {
        error_set(&err, HVD_NOMEM, e->topo->rank, "no memory for a message");
        engine_break(e, &err);
        return;
    }
    if (s->orphans == 0)
        patch_message_acked(out, s->seq);
    patch_message_count(out, count);
    if (member == s->self)
        engine_on_message(e, e->topo->rank, (const uint8_t *)out->text, out->length);
    else if (mesh_post(e->mesh, s->ranks[member], out->text, out->length, &err) != HVD_OK &&
             err.status != HVD_SHUTDOWN && mesh_verdict(e->mesh) == NULL)
        engine_break(e, &err);                /* who has left in order says so, too */
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
        engine_break(e, &err);
        return;
    }
    for (uint32_t i = 0; i < CACHE_NUMBERS; i++) {
        const struct cached *c = s->by_number[i];

        if (c != NULL && c->way->ops->keeps_turns && !c->dying)
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
    if (!s->join_held || ways_are_open(e, s))
        return;
    s->join_held = false;
    if (ways_keep_turns(s))
        add_turns(e, s);
    entry_announce(e, s->join_entry, NULL);
}

void member_flush(struct engine *e, struct pset *s)
{
    uint32_t count;

    announce_held_join(e, s);
    count = s->request_count;
    s->request_count = 0;
    if (count > 0)
        member_send(e, s, upward_to(s), &s->requests, count);
}
