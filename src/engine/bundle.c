/*
 * bundle.c: one message per host: the hits of a host's members go to the coordinator
 * together, and its responses come to the host once.  See docs/design/003-bundle.md.
 *
 * The first member of a host leads it.  On the coordinator's host that is the coordinator
 * itself, so there, and where a host has one member only, nothing is bundled.  A leader
 * decides nothing: the coordinator knows what it would know without leaders.
 *
 * 1. Members send hits to their leader.  It counts them, and sends on those numbers that all
 *    of its host have come to: BUNDLE, one item for all of them.
 * 2. What has not come from all within TELL_US is sent on for those who have come, one by one,
 *    so that the coordinator can tell who is missing.
 * 3. Hits are known by number and seq (of the response that gave the number): those of an
 *    earlier seq are dropped, a later one begins anew.  Stale ones that pass are dropped by
 *    the coordinator.
 * 4. A leader hands responses on at once and in their order, before it does them itself.
 *    After the last response of a set comes a message without any (RESPONSES, no items):
 *    when the coordinator leaves the job, and when the set is removed.  What has been
 *    answered by then is done by all members, what has not fails on all.
 * 5. A leader that has left the job hands nothing on any more.  It had ended all that it took
 *    part in, so nothing was left that its host could complete.
 */
#include "engine/engine_int.h"

#include "base/clock.h"

#include <stdlib.h>

/* Long against the distance of ranks that work in step, short against a stall report. */
#define TELL_US 100000

/* The hits for one number, at a leader. */
struct tally {
    struct list node;                   /* in b->waiting while some, and only some, have come
                                         * and the coordinator has not been told */
    uint32_t number, seq;
    int count;                          /* members that have come */
    bool told;                          /* rule 2: the coordinator knows of them */
    uint64_t first_us;
    bool *has;                          /* by place among the mates */
};

struct bundle {
    int *leader_of;                     /* by member: who bundles for it */
    int *mates, mate_count;             /* members that we lead, ourselves included */
    struct tally *tallies;              /* by number; NULL: we lead nobody */
    bool *has;                          /* of all tallies */
    struct list waiting;                /* tally.node, oldest first */
    struct strbuf out;
    uint32_t out_count;
};

/* ---- Life ---------------------------------------------------------------------------- */

void bundle_free(struct bundle *b)
{
    if (b == NULL)
        return;
    strbuf_release(&b->out);
    free(b->leader_of);
    free(b->mates);
    free(b->tallies);
    free(b->has);
    free(b);
}

/* True if somebody's hits go through a leader that is not the coordinator. */
static bool find_leaders(const struct engine *e, const struct pset *s, struct bundle *b)
{
    const int *host_of = e->topo->host_of;
    bool any = false;

    for (int m = 0; m < s->count; m++) {
        int k = 0;

        while (host_of[s->ranks[k]] != host_of[s->ranks[m]])
            k++;
        b->leader_of[m] = k;
        any |= k != m && k != 0;
        if (k == s->self)
            b->mates[b->mate_count++] = m;
    }
    return any;
}

static bool make_tallies(const struct pset *s, struct bundle *b)
{
    size_t mates = (size_t)b->mate_count;

    if (b->mate_count < 2 || s->self == 0)
        return true;
    b->tallies = calloc(CACHE_NUMBERS, sizeof *b->tallies);
    b->has = calloc(CACHE_NUMBERS * mates, sizeof *b->has);
    for (uint32_t i = 0; b->tallies != NULL && b->has != NULL && i < CACHE_NUMBERS; i++) {
        list_init(&b->tallies[i].node);
        b->tallies[i].number = i;
        b->tallies[i].has = b->has + i * mates;
    }
    return b->tallies != NULL && b->has != NULL;
}

enum hvd_status bundle_new(const struct engine *e, const struct pset *s,
                           struct bundle **bundle_p, struct hvd_error *err)
{
    struct bundle *b = calloc(1, sizeof *b);
    size_t n = (size_t)s->count;

    *bundle_p = b;
    if (b != NULL) {
        list_init(&b->waiting);
        strbuf_init(&b->out);
        b->leader_of = calloc(n, sizeof *b->leader_of);
        b->mates = calloc(n, sizeof *b->mates);
    }
    if (b == NULL || b->leader_of == NULL || b->mates == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for process set %d", s->id);
    if (!find_leaders(e, s, b)) {
        bundle_free(b);
        *bundle_p = NULL;
    } else if (!make_tallies(s, b)) {
        return error_set(err, HVD_NOMEM, -1, "no memory for process set %d", s->id);
    }
    return HVD_OK;
}

int bundle_source(const struct pset *s)
{
    int leader = s->bundle != NULL ? s->bundle->leader_of[s->self] : 0;

    return leader != s->self ? leader : 0;
}

bool bundle_leads(const struct pset *s)
{
    return s->bundle != NULL && s->bundle->tallies != NULL;
}

/* ---- Hits ---------------------------------------------------------------------------- */

static void put(struct pset *s, const struct tally *t, int member, bool all)
{
    struct bundle *b = s->bundle;
    struct wire_hit hit = {.number = t->number, .seq = t->seq, .member = member, .all = all};

    if (b->out_count == 0)
        pset_put_head(s, MESSAGE_BUNDLE, &b->out);
    put_hit(&b->out, &hit);
    b->out_count++;
}

static void clear(const struct bundle *b, struct tally *t)
{
    list_remove(&t->node);
    t->count = 0;
    t->told = false;
    memset(t->has, 0, (size_t)b->mate_count);
}

/* A hit of the mate at `place`. */
static void add(struct pset *s, int place, uint32_t number, uint32_t seq, uint64_t now_us)
{
    struct bundle *b = s->bundle;
    struct tally *t = &b->tallies[number];

    if ((int32_t)(seq - t->seq) > 0)
        clear(b, t);                    /* rule 3 */
    if ((int32_t)(seq - t->seq) < 0 || t->has[place])
        return;
    t->seq = seq;
    t->has[place] = true;
    if (t->count++ == 0) {
        t->first_us = now_us;
        list_append(&b->waiting, &t->node);
    }
    if (t->told || t->count == b->mate_count)
        put(s, t, b->mates[place], !t->told);
    if (t->count == b->mate_count)
        clear(b, t);
}

void bundle_add(struct pset *s, uint32_t number, uint32_t seq, uint64_t now_us)
{
    add(s, 0, number, seq, now_us);     /* who leads is the first */
}

/* HITS of one of our mates. */
enum hvd_status bundle_on_hits(struct pset *s, int member, struct wire_in *in,
                               uint32_t count, struct hvd_error *err)
{
    const struct bundle *b = s->bundle;
    uint64_t now_us = clock_us();
    int place = 0;

    while (place < b->mate_count && b->mates[place] != member)
        place++;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = get_u32(in), seq = get_u32(in);

        if (in->failed || place == b->mate_count || number >= CACHE_NUMBERS)
            return error_set(err, HVD_PROTO, -1, "hits for a leader not understood");
        add(s, place, number, seq, now_us);
    }
    return HVD_OK;
}

/* The coordinator takes a BUNDLE: as if everybody had sent it. */
enum hvd_status bundle_on_message(struct engine *e, struct pset *s, int leader,
                                  struct wire_in *in, uint32_t count,
                                  struct hvd_error *err)
{
    const struct bundle *b = s->bundle;
    uint64_t now_us = clock_us();
    struct wire_hit hit;

    for (uint32_t i = 0; i < count; i++) {
        TRY(get_hit(in, &hit, err));
        if (b == NULL || hit.member >= s->count || b->leader_of[hit.member] != leader)
            return error_set(err, HVD_PROTO, -1, "hits of member %d", hit.member);
        trace_hit(e, s, hit.number);
        for (int m = leader; hit.all && m < s->count; m++)
            if (b->leader_of[m] == leader && m != hit.member)
                neg_on_hit(s->neg, m, hit.number, hit.seq, now_us);
        neg_on_hit(s->neg, hit.member, hit.number, hit.seq, now_us);
    }
    return HVD_OK;
}

/* The number was taken back: nobody waits for it. */
void bundle_forget(struct pset *s, uint32_t number)
{
    if (bundle_leads(s))
        clear(s->bundle, &s->bundle->tallies[number]);
}

/* Rule 2. */
static void tell_late(struct pset *s)
{
    struct bundle *b = s->bundle;
    uint64_t now_us = clock_us();

    list_each_safe(node, &b->waiting) {
        struct tally *t = list_entry(node, struct tally, node);

        if (t->first_us + TELL_US > now_us)
            return;
        for (int i = 0; i < b->mate_count; i++)
            if (t->has[i])
                put(s, t, b->mates[i], false);
        t->told = true;
        list_remove(&t->node);
    }
}

uint64_t bundle_due_us(const struct pset *s)
{
    if (!bundle_leads(s) || list_is_empty(&s->bundle->waiting))
        return UINT64_MAX;
    return list_entry(s->bundle->waiting.next, struct tally, node)->first_us + TELL_US;
}

uint32_t bundle_pending(const struct pset *s)
{
    return bundle_leads(s) ? s->bundle->out_count : 0;
}

void bundle_drop(struct pset *s)
{
    if (bundle_leads(s))
        s->bundle->out_count = 0;
}

/* True if something was sent. */
bool bundle_flush(struct engine *e, struct pset *s)
{
    struct bundle *b = s->bundle;
    uint32_t count;

    if (!bundle_leads(s))
        return false;
    if (!list_is_empty(&b->waiting))
        tell_late(s);
    count = b->out_count;
    b->out_count = 0;
    if (count > 0)
        member_send(e, s, 0, &b->out, count);
    return count > 0;
}

/* ---- Responses ------------------------------------------------------------------------ */

/* Rule 4: from the coordinator to the leaders and its own host, from a leader to its host. */
void bundle_hand_on(struct engine *e, const struct pset *s, const void *bytes, size_t n)
{
    const struct bundle *b = s->bundle;
    struct hvd_error err;

    if (s->self != 0 && !bundle_leads(s))
        return;
    for (int m = 0; m < s->count; m++) {
        int leader = b != NULL ? b->leader_of[m] : 0;

        if (m == s->self || (leader != s->self && (s->self > 0 || leader != m)) ||
            mesh_has_left(e->mesh, s->ranks[m]))
            continue;
        if (mesh_post(e->mesh, s->ranks[m], bytes, n, &err) != HVD_OK &&
            err.status != HVD_SHUTDOWN)
            mesh_fail(e->mesh, &err);
    }
}

/* The coordinator says nothing more in this set. */
void bundle_say_end(struct engine *e, struct pset *s)
{
    struct hvd_error err;
    struct strbuf out;

    if (s->self != 0 || s->ended)
        return;
    s->ended = true;
    strbuf_init(&out);
    pset_put_head(s, MESSAGE_RESPONSES, &out);
    if (!out.failed) {
        bundle_hand_on(e, s, out.text, out.length);
    } else {
        error_set(&err, HVD_NOMEM, e->topo->rank, "no memory for a message");
        mesh_fail(e->mesh, &err);
    }
    strbuf_release(&out);
}

/* No response comes any more. */
bool bundle_has_ended(const struct engine *e, const struct pset *s)
{
    return s->ended || mesh_has_left(e->mesh, s->ranks[bundle_source(s)]);
}
