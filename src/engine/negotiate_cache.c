/*
 * negotiate_cache.c: the coordinator's half of the response cache.
 *
 * 1. A number is live from the response that gives it to the REVOKE (or JOINED) that
 *    takes it back; both stand in the one order of responses.
 * 2. A number is given again only after every member has acknowledged the response that
 *    took it back: then nobody looks at its board any more.
 * 3. A number that the coordinator itself has started is not evicted; so the coordinator
 *    can promise not to come to the turn that others may already have started.  The promise
 *    holds from that moment, not from when its own member does the REVOKE
 *    (tests/model/negotiation.pml shows why).
 */
#include "engine/negotiate_int.h"

#include <stdlib.h>

uint32_t neg_cache_number(const struct negotiator *n, const struct neg_cached *c)
{
    return (uint32_t)(c - n->cached);
}

bool neg_cache_init(struct negotiator *n)
{
    int limit = n->opt.cache_capacity > 0 ? n->opt.cache_capacity + CACHE_SLACK : 0;

    list_init(&n->lru);
    list_init(&n->ready_cached);
    n->cached_limit = limit;
    if (limit == 0)
        return true;
    n->cached = calloc((size_t)limit, sizeof *n->cached);
    n->retired = calloc((size_t)limit, sizeof *n->retired);
    n->free_numbers = calloc((size_t)limit, sizeof *n->free_numbers);
    if (n->cached == NULL || n->retired == NULL || n->free_numbers == NULL)
        return false;
    for (int i = limit - 1; i >= 0; i--)
        n->free_numbers[n->free_count++] = (uint32_t)i;
    return true;
}

static void forget(struct negotiator *n, struct neg_cached *c)
{
    hash_remove(&n->cached_names, c->request->r.name, c->request->r.name_bytes);
    list_remove(&c->lru);
    if (c->is_ready)
        list_remove(&c->ready);
    else if (c->hits > 0)
        n->half_hit--;
    free(c->request);
    free(c->hit);
    c->request = NULL;
    c->hit = NULL;
    c->live = c->is_ready = c->in_use = false;
    n->cached_live--;
}

void neg_cache_release(struct negotiator *n)
{
    for (int i = 0; i < n->cached_limit && n->cached != NULL; i++)
        if (n->cached[i].live)
            forget(n, &n->cached[i]);
    hash_release(&n->cached_names);
    free(n->cached);
    free(n->retired);
    free(n->free_numbers);
}

static void retire(struct negotiator *n, struct neg_cached *c)
{
    int at = (n->retired_first + n->retired_count) % n->cached_limit;

    n->retired[at] = (struct neg_retired){neg_cache_number(n, c), n->seq};
    n->retired_count++;
    forget(n, c);
}

void neg_cache_revoke(struct negotiator *n, struct neg_cached *c, int promising,
                      uint32_t turn)
{
    struct wire_revoke r = {.number = neg_cache_number(n, c), .seq = c->seq,
                            .promising = promising, .turn = turn};

    neg_begin_response(n, RESPONSE_REVOKE);
    put_revoke(&n->out, &r);
    n->counters.revokes++;
    retire(n, c);
}

void neg_cache_clear(struct negotiator *n)
{
    for (int i = 0; i < n->cached_limit; i++)
        if (n->cached[i].live)
            retire(n, &n->cached[i]);
}

static uint32_t lowest_ack(const struct negotiator *n)
{
    uint32_t lowest = n->acked[0];

    for (int m = 1; m < n->opt.member_count; m++)
        if (n->acked[m] < lowest)
            lowest = n->acked[m];
    return lowest;
}

static void take_back_acknowledged(struct negotiator *n)
{
    uint32_t acked;

    if (n->retired_count == 0)
        return;
    acked = lowest_ack(n);
    while (n->retired_count > 0 && n->retired[n->retired_first].seq <= acked) {
        n->free_numbers[n->free_count++] = n->retired[n->retired_first].cached;
        n->retired_first = (n->retired_first + 1) % n->cached_limit;
        n->retired_count--;
    }
}

static bool evict_one(struct negotiator *n)
{
    list_each(node, &n->lru) {
        struct neg_cached *c = list_entry(node, struct neg_cached, lru);

        if (c->in_use || (c->hit != NULL && c->hit[0]))
            continue;
        n->counters.evictions++;
        if (n->opt.on_promise != NULL)
            n->opt.on_promise(n->opt.context, neg_cache_number(n, c));
        neg_cache_revoke(n, c, 0, c->turn);
        return true;
    }
    return false;
}

/* Varying shapes would be revoked in every step: better negotiated each time.  Where sizes are
 * open, they are said with each operation. */
static bool is_worth_caching(const struct negotiator *n, const struct neg_tensor *t)
{
    const struct wire_request *r = &t->by_member[0]->r;

    if (r->form.op == HVD_JOIN || r->form.op >= OP_SET_ADD)
        return false;
    if (n->opt.open_sizes && form_can_open(&r->form))
        return true;
    if (r->split_count > 0)
        return false;
    for (int m = 1; m < n->opt.member_count; m++)
        if (r->form.op == HVD_ALLGATHER && t->by_member[m]->r.form.shape[0] != r->form.shape[0])
            return false;
    return true;
}

int neg_cache_assign(struct negotiator *n, struct neg_tensor *t, uint64_t count,
                     uint64_t bytes)
{
    struct neg_cached *c;

    if (n->opt.cache_capacity == 0 || n->joined_count > 0 || !is_worth_caching(n, t))
        return -1;
    take_back_acknowledged(n);
    if (n->free_count == 0)
        return -1;
    if (n->cached_live >= n->opt.cache_capacity && !evict_one(n))
        return -1;
    c = &n->cached[n->free_numbers[n->free_count - 1]];
    c->hit = calloc((size_t)n->opt.member_count, sizeof *c->hit);
    c->request = neg_request_copy(&t->by_member[0]->r);
    if (c->hit == NULL || c->request == NULL ||
        hash_put(&n->cached_names, c->request->r.name, t->name_bytes, c) != 0) {
        free(c->hit);
        free(c->request);
        c->hit = NULL;
        c->request = NULL;
        return -1;
    }
    n->free_count--;
    c->live = true;
    c->in_use = true;                   /* until its EXECUTE is written */
    c->hits = 0;
    c->turn += 2;                       /* beyond any turn started by anybody */
    c->count = count;
    c->bytes = bytes;
    list_append(&n->lru, &c->lru);
    n->cached_live++;
    return (int)neg_cache_number(n, c);
}

void neg_started(struct negotiator *n, uint32_t cached, uint32_t turn)
{
    struct neg_cached *c = &n->cached[cached];

    c->turn = turn;
    c->in_use = true;
    list_remove(&c->lru);
    list_append(&n->lru, &c->lru);
}

void neg_ended(struct negotiator *n, uint32_t cached)
{
    n->cached[cached].in_use = false;
}

void neg_on_hit(struct negotiator *n, int member, uint32_t cached, uint32_t seq,
                uint64_t now_us)
{
    struct neg_cached *c;

    if (cached >= (uint32_t)n->cached_limit)
        return;
    c = &n->cached[cached];
    if (!c->live || c->seq != seq || c->hit[member])
        return;
    if (c->hits == 0) {
        c->first_us = now_us;
        n->half_hit++;
    }
    c->hit[member] = true;
    if (++c->hits == n->opt.member_count) {
        c->is_ready = true;
        n->half_hit--;
        neg_note_last(n, member, c->first_us, now_us);
        c->ready_us = now_us;
        list_append(&n->ready_cached, &c->ready);
    }
}

void neg_on_ack(struct negotiator *n, int member, uint32_t seq)
{
    if (seq > n->acked[member] && seq <= n->seq)
        n->acked[member] = seq;
}
