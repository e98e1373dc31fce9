/*
 * relay.c: one message per host: the hits of a host's members, and of the hosts below it in
 * the tree (tree.h), go to the coordinator together, and its responses come to the host once.
 * See docs/design/003-relay.md and 008-many-hosts.md.
 *
 * The first member of a host leads it.  On the coordinator's host that is the coordinator
 * itself, so there, and where a host below it has one member only and none below, nothing is
 * relayed.  A leader decides nothing: the coordinator knows what it would know without leaders.
 *
 * 1. Members send hits to their leader, leaders to the one above.  It counts them, and sends on
 *    those numbers that all of its node have come to: RELAY, one item for all of them, with
 *    the depth of the node.
 * 2. What has not come from all within TELL_US is sent on for those who have come, mates one by
 *    one and nodes below as a whole, so that the coordinator can tell who is missing; and from
 *    then on, also at all leaders above, what comes to this number goes on as it comes.
 * 3. Hits are known by number and seq (of the response that gave the number): those of an
 *    earlier seq are dropped, a later one begins anew.  Stale ones that pass are dropped by
 *    the coordinator.
 * Responses come back the same way, see responses.c.
 */
#include "engine/full.h"

#include "base/clock.h"

#include <stdlib.h>

/* Long against the distance of ranks that work in step, short against a stall report. */
#define TELL_US 100000

/* The hits for one number, at a leader. */
struct tally {
    struct list node;                   /* in b->waiting while some, and only some, have come
                                         * and the coordinator has not been told */
    uint32_t number, seq;
    int count;                          /* members of the node that have come */
    bool told;                          /* rule 2: the coordinator knows of them */
    uint64_t first_us;
    bool *has;                          /* by place among the mates, then by child: all of it */
};

struct relay {
    struct way way;
    struct tally *tallies;              /* by number; NULL: we lead nobody */
    bool *has;                          /* of all tallies */
    int places;                         /* mates and children */
    int members;                        /* of the node */
    struct list waiting;                /* tally.node, oldest first */
    struct strbuf out;
    uint32_t out_count;
};

static struct relay *relay_of(const struct way *w)
{
    return (struct relay *)w;
}

/* ---- Life ---------------------------------------------------------------------------- */

static void relay_close(struct way *w)
{
    struct relay *b = relay_of(w);

    strbuf_release(&b->out);
    free(b->tallies);
    free(b->has);
    free(b);
}

static bool make_tallies(struct relay *b, const struct pset *s)
{
    size_t places;

    b->places = s->layout->mate_count + s->tree.children;
    b->members = s->layout->begin[s->tree.high] - s->layout->begin[s->tree.low];
    places = (size_t)b->places;
    b->tallies = calloc(CACHE_NUMBERS, sizeof *b->tallies);
    b->has = calloc(CACHE_NUMBERS * places, sizeof *b->has);
    for (uint32_t i = 0; b->tallies != NULL && b->has != NULL && i < CACHE_NUMBERS; i++) {
        list_init(&b->tallies[i].node);
        b->tallies[i].number = i;
        b->tallies[i].has = b->has + i * places;
    }
    return b->tallies != NULL && b->has != NULL;
}

/* Somebody's hits go through a leader that is not the coordinator. */
static bool is_needed(const struct pset *s)
{
    if (s->deep)
        return true;
    for (int host = 0; host < s->layout->host_count; host++)
        if (s->layout->leaders[host] != 0 && layout_size(s->layout, host) > 1)
            return true;
    return false;
}

/* At the leaders, and at the coordinator, who hears of them. */
static enum hvd_status relay_open(struct engine *e, struct pset *s, struct way **way_p,
                                  struct hvd_error *err)
{
    bool leads = s->self != 0 && (pset_leads(s) || (layout_leads(s->layout) && s->tree.depth > 1));
    struct relay *b;

    (void)e;
    if (s->local || !is_needed(s) || (!leads && s->self != 0))
        return HVD_OK;
    b = calloc(1, sizeof *b);
    if (b == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for process set %d", s->id);
    list_init(&b->waiting);
    strbuf_init(&b->out);
    if (leads && !make_tallies(b, s)) {
        relay_close(&b->way);
        return error_set(err, HVD_NOMEM, -1, "no memory for process set %d", s->id);
    }
    *way_p = &b->way;
    return HVD_OK;
}

/* Where members send their hits changes nothing for the others: it need not be alike. */
static bool relay_fits(const struct way *w, const struct cached *c)
{
    (void)c;
    return relay_of(w)->tallies != NULL;
}

/* ---- Hits ---------------------------------------------------------------------------- */

static void put(struct relay *b, const struct tally *t, int member, int all)
{
    struct wire_hit hit = {.number = t->number, .seq = t->seq, .member = member,
                           .all = (uint8_t)all};

    if (b->out_count == 0)
        pset_put_head(b->way.set, MESSAGE_RELAY, &b->out);
    put_hit(&b->out, &hit);
    b->out_count++;
}

static void clear(const struct relay *b, struct tally *t)
{
    list_remove(&t->node);
    t->count = 0;
    t->told = false;
    memset(t->has, 0, (size_t)b->places);
}

/* Rule 2. */
static void tell(struct relay *b, struct tally *t)
{
    const struct pset *s = b->way.set;
    const struct layout *l = s->layout;

    for (int i = 0; i < l->mate_count; i++)
        if (t->has[i])
            put(b, t, l->mates[i], 0);
    for (int i = 0; i < s->tree.children; i++)
        if (t->has[l->mate_count + i])
            put(b, t, l->leaders[tree_child(&s->tree, i)], s->tree.depth + 1);
    t->told = true;
    list_remove(&t->node);
}

/* `hit` comes, of `size` members: a mate or a whole child, at its place, or -1: some of those
 * below a child, which has told what is late. */
static void add(struct relay *b, const struct wire_hit *hit, int place, int size,
                uint64_t now_us)
{
    struct tally *t = &b->tallies[hit->number];

    if ((int32_t)(hit->seq - t->seq) > 0)
        clear(b, t);                    /* rule 3 */
    if ((int32_t)(hit->seq - t->seq) < 0 || (place >= 0 && t->has[place]))
        return;
    t->seq = hit->seq;
    if (t->count == 0) {
        t->first_us = now_us;
        list_append(&b->waiting, &t->node);
    }
    t->count += size;
    if (place < 0 && !t->told)
        tell(b, t);
    if (place >= 0)
        t->has[place] = true;
    if (t->told)
        put(b, t, hit->member, hit->all);
    else if (t->count == b->members)
        put(b, t, hit->member, b->way.set->tree.depth);
    if (t->count >= b->members)
        clear(b, t);
}

static void relay_start(struct way *w, struct engine *e, struct entry *t, struct cached *c)
{
    struct wire_hit hit = {.number = c->number, .seq = c->seq, .member = w->set->self};

    add(relay_of(w), &hit, 0, 1, t->submit_us); /* who leads is the first */
    full_wait(e, t, c);
}

/* HITS of one of our mates. */
static enum hvd_status on_hits(struct relay *b, int member, struct wire_in *in,
                               uint32_t count, struct hvd_error *err)
{
    const struct layout *l = b->way.set->layout;
    uint64_t now_us = clock_us();
    struct wire_number hit;
    int place = 0;

    while (place < l->mate_count && l->mates[place] != member)
        place++;
    for (uint32_t i = 0; i < count; i++) {
        TRY(get_number(in, &hit, err));
        if (place == l->mate_count || hit.number >= CACHE_NUMBERS)
            return error_set(err, HVD_PROTO, -1, "hits for a leader not understood");
        add(b, &(struct wire_hit){.number = hit.number, .seq = hit.seq, .member = member},
            place, 1, now_us);
    }
    return HVD_OK;
}

/* The node that a hit of a child speaks for; false: it cannot speak for it. */
static bool find_node(const struct pset *s, int child, const struct wire_hit *hit,
                      struct tree_node *node)
{
    const struct layout *l = s->layout;

    if (child < 0 || hit->member >= s->count ||
        tree_child_of(&s->tree, l->host_of[hit->member]) != child)
        return false;
    *node = tree_above(l->host_count, s->fanout, l->host_of[hit->member], hit->all);
    return hit->all == 0 || (hit->all == node->depth && node->depth > s->tree.depth);
}

/* A leader takes the RELAY of one below. */
static void pass(struct relay *b, int child, const struct wire_hit *hit,
                 const struct tree_node *node, uint64_t now_us)
{
    const struct pset *s = b->way.set;
    const struct layout *l = s->layout;
    bool whole = hit->all == s->tree.depth + 1;

    add(b, hit, whole ? l->mate_count + child : -1,
        hit->all > 0 ? l->begin[node->high] - l->begin[node->low] : 1, now_us);
}

static void note_hit(struct engine *e, const struct pset *s, int member,
                     const struct wire_hit *hit, uint64_t now_us)
{
    trace_hit(e, s, member, hit->number);
    neg_on_hit(s->neg, member, hit->number, hit->seq, now_us);
}

/* The coordinator takes it: as if everybody had sent it. */
static void take(struct engine *e, const struct pset *s, const struct wire_hit *hit,
                 const struct tree_node *node, uint64_t now_us)
{
    const struct layout *l = s->layout;

    for (int i = l->begin[node->low]; hit->all > 0 && i < l->begin[node->high]; i++)
        if (l->by_host[i] != hit->member)
            note_hit(e, s, l->by_host[i], hit, now_us);
    note_hit(e, s, hit->member, hit, now_us);
}

static enum hvd_status on_relay(struct relay *b, struct engine *e, int leader,
                                struct wire_in *in, uint32_t count, struct hvd_error *err)
{
    const struct pset *s = b->way.set;
    const struct layout *l = s->layout;
    int child = tree_child_of(&s->tree, l->host_of[leader]);
    uint64_t now_us = clock_us();
    struct tree_node node;
    struct wire_hit hit;

    if (child >= 0 && l->leaders[tree_child(&s->tree, child)] != leader)
        child = -1;
    for (uint32_t i = 0; i < count; i++) {
        TRY(get_hit(in, &hit, err));
        if (hit.number >= CACHE_NUMBERS || !find_node(s, child, &hit, &node))
            return error_set(err, HVD_PROTO, -1, "hits of member %d", hit.member);
        if (s->neg != NULL)
            take(e, s, &hit, &node, now_us);
        else
            pass(b, child, &hit, &node, now_us);
    }
    return HVD_OK;
}

static bool relay_takes(const struct way *w, enum message_kind kind)
{
    return kind == MESSAGE_RELAY || (kind == MESSAGE_HITS && w->set->neg == NULL);
}

static enum hvd_status relay_on_message(struct way *w, struct engine *e, int member,
                                        const struct message_head *head,
                                        struct wire_in *in, struct hvd_error *err)
{
    e->heard = true;
    if (head->kind == MESSAGE_HITS)
        return on_hits(relay_of(w), member, in, head->count, err);
    return on_relay(relay_of(w), e, member, in, head->count, err);
}

/* The number was taken back: nobody waits for it. */
static void relay_forget(struct way *w, struct cached *c)
{
    struct relay *b = relay_of(w);

    if (b->tallies != NULL)
        clear(b, &b->tallies[c->number]);
}

static void tell_late(struct relay *b)
{
    uint64_t now_us = clock_us();

    list_each_safe(node, &b->waiting) {
        struct tally *t = list_entry(node, struct tally, node);

        if (t->first_us + TELL_US > now_us)
            return;
        tell(b, t);
    }
}

static uint64_t relay_due_us(const struct way *w)
{
    const struct relay *b = relay_of(w);

    if (list_is_empty(&b->waiting))
        return UINT64_MAX;
    return list_entry(b->waiting.next, struct tally, node)->first_us + TELL_US;
}

static uint32_t relay_pending(const struct way *w)
{
    return relay_of(w)->out_count;
}

static void relay_drop(struct way *w)
{
    relay_of(w)->out_count = 0;
}

static bool relay_flush(struct way *w, struct engine *e, bool held)
{
    struct relay *b = relay_of(w);
    uint32_t count;

    (void)held;                         /* others wait for what we have of them */
    if (!list_is_empty(&b->waiting))
        tell_late(b);
    count = b->out_count;
    b->out_count = 0;
    if (count > 0)
        member_send(e, w->set, pset_source(w->set), &b->out, count);
    return count > 0;
}

const struct way_ops way_relay = {
    .name = "relay", .by_response = true, .open = relay_open, .close = relay_close,
    .fits = relay_fits, .start = relay_start, .forget = relay_forget,
    .withdraw = full_withdraw, .pending = relay_pending, .flush = relay_flush,
    .drop = relay_drop, .due_us = relay_due_us, .takes = relay_takes,
    .on_message = relay_on_message,
};
