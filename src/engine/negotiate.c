/*
 * negotiate.c: announcements come in, responses go out.
 *
 * 1. A tensor is ready when every member has announced it or has joined.
 * 2. A disagreement is found at the announcement that shows it.  Those who have announced
 *    get the error at once; a tomb remembers who has not, and their announcement of that
 *    name gets the same error when it comes.
 * 3. All members get the same responses in the same order; ERROR names its targets.
 */
#include "engine/negotiate_int.h"

#include <stdlib.h>

struct negotiator *neg_new(const struct neg_options *opt)
{
    struct negotiator *n = calloc(1, sizeof *n);
    size_t members = (size_t)opt->member_count;

    if (n == NULL)
        return NULL;
    n->opt = *opt;
    n->next_id = 1;
    list_init(&n->pending);
    list_init(&n->ready);
    list_init(&n->tombs);
    strbuf_init(&n->out);
    n->ranks = malloc(members * sizeof *n->ranks);
    n->acked = calloc(members, sizeof *n->acked);
    n->joined = calloc(members, sizeof *n->joined);
    n->late = calloc(members, sizeof *n->late);
    if (n->ranks == NULL || n->acked == NULL || n->joined == NULL || n->late == NULL ||
        !neg_cache_init(n)) {
        neg_free(n);
        return NULL;
    }
    memcpy(n->ranks, opt->ranks, members * sizeof *n->ranks);
    return n;
}

static void tomb_free(struct neg_tomb *tomb)
{
    list_remove(&tomb->node);
    free(tomb->name);
    free(tomb->owed);
    free(tomb);
}

void neg_free(struct negotiator *n)
{
    if (n == NULL)
        return;
    while (!list_is_empty(&n->pending))
        neg_tensor_free(n, list_entry(n->pending.next, struct neg_tensor, order));
    while (!list_is_empty(&n->ready))
        neg_tensor_free(n, list_entry(n->ready.next, struct neg_tensor, order));
    list_each_safe(node, &n->tombs)
        tomb_free(list_entry(node, struct neg_tomb, node));
    neg_cache_release(n);
    neg_sets_release(n);
    hash_release(&n->names);
    strbuf_release(&n->out);
    free(n->ranks);
    free(n->acked);
    free(n->joined);
    free(n->late);
    free(n);
}

void neg_begin_response(struct negotiator *n, enum response_kind kind)
{
    put_response_kind(&n->out, kind);
    n->out_count++;
    n->seq++;
    n->counters.responses++;
}

void neg_note_last(struct negotiator *n, int member, uint64_t first_us, uint64_t now_us)
{
    n->late[member].count++;
    n->late[member].us += now_us - first_us;
}

const struct neg_late *neg_late(const struct negotiator *n)
{
    return n->late;
}

bool neg_is_waiting(const struct negotiator *n)
{
    return !list_is_empty(&n->pending) || n->half_hit > 0;
}

uint64_t neg_elements(const struct wire_request *r)
{
    uint64_t count = 1;

    for (int i = 0; i < r->form.ndim; i++)
        count *= (uint64_t)r->form.shape[i];
    return count;
}

struct neg_request *neg_request_copy(const struct wire_request *r)
{
    size_t split_bytes = 8 * (size_t)r->split_count;
    struct neg_request *q =
        malloc(sizeof *q + r->name_bytes + r->problem_bytes + split_bytes + 1);
    char *at;

    if (q == NULL)
        return NULL;
    q->r = *r;
    at = q->bytes;
    memcpy(at, r->name, r->name_bytes);
    q->r.name = at;
    at += r->name_bytes;
    if (r->problem_bytes > 0)
        memcpy(at, r->problem, r->problem_bytes);
    q->r.problem = at;
    at += r->problem_bytes;
    if (split_bytes > 0)
        memcpy(at, r->splits, split_bytes);
    q->r.splits = (const uint8_t *)at;
    return q;
}

void neg_tensor_free(struct negotiator *n, struct neg_tensor *t)
{
    hash_remove(&n->names, t->name, t->name_bytes);
    list_remove(&t->order);
    for (int m = 0; m < n->opt.member_count; m++)
        free(t->by_member[m]);
    free(t->by_member);
    free(t);
}

const struct neg_request *neg_any_request(const struct negotiator *n,
                                          const struct neg_tensor *t)
{
    for (int m = 0; m < n->opt.member_count; m++)
        if (t->by_member[m] != NULL)
            return t->by_member[m];
    return NULL;
}

static struct neg_tensor *tensor_for(struct negotiator *n, struct neg_request *q,
                                     uint64_t now_us)
{
    struct neg_tensor *t = hash_get(&n->names, q->r.name, q->r.name_bytes);

    if (t != NULL)
        return t;
    t = calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    t->by_member = calloc((size_t)n->opt.member_count, sizeof *t->by_member);
    t->name = q->r.name;
    t->name_bytes = q->r.name_bytes;
    t->first_us = now_us;
    if (t->by_member == NULL || hash_put(&n->names, t->name, t->name_bytes, t) != 0) {
        free(t->by_member);
        free(t);
        return NULL;
    }
    list_append(&n->pending, &t->order);
    return t;
}

/* ---- Failures ------------------------------------------------------------------- */

static void put_error(struct negotiator *n, const char *name, uint16_t name_bytes,
                      const struct hvd_error *why, const uint8_t *targets, uint32_t count)
{
    struct wire_failure f = {.status = (uint8_t)why->status, .rank = why->rank,
                             .name = name, .name_bytes = name_bytes, .text = why->text,
                             .text_bytes = (uint16_t)strlen(why->text),
                             .targets = targets, .target_count = count};

    neg_begin_response(n, RESPONSE_ERROR);
    put_failure(&n->out, &f);
    n->counters.errors++;
}

static struct neg_tomb *tomb_new(struct negotiator *n, const struct neg_tensor *t,
                                 const struct hvd_error *why)
{
    struct neg_tomb *tomb = calloc(1, sizeof *tomb);

    if (tomb == NULL)
        return NULL;
    list_init(&tomb->node);
    tomb->name = malloc(t->name_bytes);
    tomb->owed = calloc((size_t)n->opt.member_count, sizeof *tomb->owed);
    if (tomb->name == NULL || tomb->owed == NULL) {
        tomb_free(tomb);
        return NULL;
    }
    memcpy(tomb->name, t->name, t->name_bytes);
    tomb->name_bytes = t->name_bytes;
    tomb->why = *why;
    list_append(&n->tombs, &tomb->node);
    return tomb;
}

/* Every member has announced it or has joined (or both: it joined afterwards). */
static bool is_complete(const struct negotiator *n, const struct neg_tensor *t)
{
    if (t->announced + n->joined_count < n->opt.member_count)
        return false;
    for (int m = 0; m < n->opt.member_count; m++)
        if (t->by_member[m] == NULL && !n->joined[m])
            return false;
    return true;
}

/* Without memory for a tomb the late members wait and the stall report names them. */
static void remember_late_members(struct negotiator *n, const struct neg_tensor *t,
                                  const struct hvd_error *why)
{
    struct neg_tomb *tomb;

    if (is_complete(n, t))
        return;
    tomb = tomb_new(n, t, why);
    for (int m = 0; tomb != NULL && m < n->opt.member_count; m++) {
        tomb->owed[m] = t->by_member[m] == NULL && !n->joined[m];
        tomb->owed_count += tomb->owed[m];
    }
}

static void fail_announced(struct negotiator *n, struct neg_tensor *t,
                           const struct hvd_error *why)
{
    struct strbuf targets;
    uint32_t count = 0;

    strbuf_init(&targets);
    for (int m = 0; m < n->opt.member_count; m++)
        if (t->by_member[m] != NULL) {
            put_member(&targets, m);
            count++;
        }
    put_error(n, t->name, t->name_bytes, why, (const uint8_t *)targets.text, count);
    strbuf_release(&targets);
}

void neg_fail(struct negotiator *n, struct neg_tensor *t, const struct hvd_error *why)
{
    fail_announced(n, t, why);
    remember_late_members(n, t, why);
    neg_tensor_free(n, t);
}

bool neg_give_up(struct negotiator *n, const char *name, const struct hvd_error *why)
{
    struct neg_tensor *t = hash_get(&n->names, name, strlen(name));

    if (t == NULL || is_complete(n, t))
        return false;
    fail_announced(n, t, why);
    neg_tensor_free(n, t);
    return true;
}

static struct neg_tomb *tomb_of(struct negotiator *n, int member,
                                const struct wire_request *r)
{
    list_each(node, &n->tombs) {
        struct neg_tomb *tomb = list_entry(node, struct neg_tomb, node);

        if (tomb->owed[member] && tomb->name_bytes == r->name_bytes &&
            memcmp(tomb->name, r->name, r->name_bytes) == 0)
            return tomb;
    }
    return NULL;
}

/* True: the announcement belongs to an operation that has failed already. */
static bool is_owed_to_tomb(struct negotiator *n, int member,
                            const struct wire_request *r)
{
    struct neg_tomb *tomb = tomb_of(n, member, r);
    uint8_t target[4];

    if (tomb == NULL)
        return false;
    for (int i = 0; i < 4; i++)
        target[i] = (uint8_t)((uint32_t)member >> (8 * i));
    put_error(n, r->name, r->name_bytes, &tomb->why, target, 1);
    tomb->owed[member] = false;
    if (--tomb->owed_count == 0)
        tomb_free(tomb);
    return true;
}

/* ---- Join ----------------------------------------------------------------------- */

static void drop_tombs_of(struct negotiator *n, int member)
{
    list_each_safe(node, &n->tombs) {
        struct neg_tomb *tomb = list_entry(node, struct neg_tomb, node);

        tomb->owed_count -= tomb->owed[member];
        tomb->owed[member] = false;
        if (tomb->owed_count == 0)
            tomb_free(tomb);
    }
}

/* What is ready only because ranks have joined must run before that is over. */
static void finish_join(struct negotiator *n)
{
    struct wire_join_done done = {.last = n->ranks[n->last_joined]};

    neg_flush(n);
    memcpy(done.counters, n->join_counters, sizeof done.counters);
    neg_begin_response(n, RESPONSE_JOIN_DONE);
    put_join_done(&n->out, &done);
    memset(n->joined, 0, (size_t)n->opt.member_count * sizeof *n->joined);
    memset(n->join_counters, 0, sizeof n->join_counters);
    n->joined_count = 0;
}

static void check_ready(struct negotiator *n, struct neg_tensor *t, int member,
                        uint64_t now_us);

/* Behind the counters a JOIN has the last turns of its member. */
static void put_joined_member(struct negotiator *n, int member,
                              const struct wire_request *r)
{
    struct wire_joined j = {.member = member};

    if (r->split_count > OP_KIND_COUNT) {
        j.turn_count = r->split_count - OP_KIND_COUNT;
        j.turns = r->splits + 8 * (size_t)OP_KIND_COUNT;
    }
    neg_begin_response(n, RESPONSE_JOINED);
    put_joined(&n->out, &j);
}

/* A JOIN carries the counters of unnamed operations, so that all go on from the same. */
static void on_join(struct negotiator *n, int member, const struct wire_request *r,
                    uint64_t now_us)
{
    if (n->joined[member])
        return;
    for (uint32_t i = 0; i < r->split_count && i < OP_KIND_COUNT; i++) {
        int64_t counter = get_split(r->splits, i);

        if (counter > n->join_counters[i])
            n->join_counters[i] = counter;
    }
    n->joined[member] = true;
    n->joined_count++;
    n->last_joined = member;
    drop_tombs_of(n, member);
    put_joined_member(n, member, r);
    neg_cache_clear(n);
    list_each_safe(node, &n->pending) {
        struct neg_tensor *t = list_entry(node, struct neg_tensor, order);

        check_ready(n, t, t->lowest, now_us);
    }
    if (n->joined_count == n->opt.member_count)
        finish_join(n);
}

/* ---- Announcements -------------------------------------------------------------- */

/* `member`: who has announced it now; when somebody else joins, any of those who have. */
static void check_ready(struct negotiator *n, struct neg_tensor *t, int member,
                        uint64_t now_us)
{
    struct hvd_error why;

    if (neg_check(n, t, member, &why) != HVD_OK) {
        neg_fail(n, t, &why);
        return;
    }
    t->lowest = member < t->lowest ? member : t->lowest;
    if (!is_complete(n, t))
        return;
    if (neg_any_request(n, t)->r.form.op == OP_SET_ADD) {
        neg_add_set(n, t);
    } else if (neg_any_request(n, t)->r.form.op == OP_SET_REMOVE) {
        neg_remove_set(n, t);
    } else {
        t->is_ready = true;
        t->ready_us = now_us;
        list_remove(&t->order);
        list_append(&n->ready, &t->order);
    }
}

static void revoke_if_current(struct negotiator *n, int member,
                              const struct wire_request *r)
{
    struct neg_cached *c;

    if (r->revoked == 0 || r->revoked > (uint32_t)n->cached_limit)
        return;
    c = &n->cached[r->revoked - 1];
    if (c->live && c->seq == r->revoked_seq)
        neg_cache_revoke(n, c, member, r->revoked_turn);
}

/* A name that is announced in full by one member cannot stay cached for the others. */
static void revoke_by_name(struct negotiator *n, int member, const struct wire_request *r)
{
    struct neg_cached *c = hash_get(&n->cached_names, r->name, r->name_bytes);

    if (c != NULL)
        neg_cache_revoke(n, c, member, r->revoked_turn);
}

/* What a decoder cannot know: the size of the set. */
static enum hvd_status check_request(const struct negotiator *n,
                                     const struct wire_request *r, struct hvd_error *err)
{
    if (r->form.op == HVD_BROADCAST &&
        (r->form.root < 0 || r->form.root >= n->opt.member_count))
        return error_set(err, HVD_PROTO, -1, "request with root %d", r->form.root);
    if (r->form.op == HVD_ALLTOALL && r->split_count != 0 &&
        r->split_count != (uint32_t)n->opt.member_count)
        return error_set(err, HVD_PROTO, -1, "request with %u splits", r->split_count);
    return HVD_OK;
}

enum hvd_status neg_on_request(struct negotiator *n, int member,
                               const struct wire_request *r, uint64_t now_us,
                               struct hvd_error *err)
{
    struct neg_request *q;
    struct neg_tensor *t;

    TRY(check_request(n, r, err));
    revoke_if_current(n, member, r);
    if (r->form.op == HVD_JOIN) {
        on_join(n, member, r, now_us);
        return HVD_OK;
    }
    if (is_owed_to_tomb(n, member, r))
        return HVD_OK;
    revoke_by_name(n, member, r);
    q = neg_request_copy(r);
    t = q != NULL ? tensor_for(n, q, now_us) : NULL;
    if (t == NULL) {
        free(q);
        return error_set(err, HVD_NOMEM, -1, "no memory for a request");
    }
    if (t->by_member[member] != NULL) {
        free(q);
        return error_set(err, HVD_PROTO, n->ranks[member], "rank %d announced %.*s twice",
                         n->ranks[member], r->name_bytes, r->name);
    }
    t->by_member[member] = q;
    if (t->announced++ == 0)
        t->lowest = member;
    if (is_complete(n, t))
        neg_note_last(n, member, t->first_us, now_us);
    check_ready(n, t, member, now_us);
    return HVD_OK;
}

void neg_tune(struct negotiator *n, uint64_t fusion_bytes, uint64_t window_us)
{
    n->opt.fusion_bytes = fusion_bytes;
    n->opt.window_us = window_us;
}

void neg_put_tune(struct negotiator *n, double cycle_ms, uint64_t fusion_bytes)
{
    struct wire_tune tune = {.cycle_ms = cycle_ms, .fusion_bytes = fusion_bytes};

    neg_begin_response(n, RESPONSE_TUNE);
    put_tune(&n->out, &tune);
    neg_tune(n, fusion_bytes, (uint64_t)(cycle_ms * 1000));
}

void neg_count(const struct negotiator *n, struct neg_counters *counters)
{
    *counters = n->counters;
}

void neg_each_stalled(const struct negotiator *n, uint64_t since_us, neg_stall_fn each,
                      void *context)
{
    bool *missing = calloc((size_t)n->opt.member_count, sizeof *missing);
    char name[NAME_LIMIT + 1];

    if (missing == NULL)
        return;
    list_each(node, &n->pending) {
        const struct neg_tensor *t = list_entry(node, struct neg_tensor, order);

        if (t->first_us > since_us)
            continue;
        for (int m = 0; m < n->opt.member_count; m++)
            missing[m] = t->by_member[m] == NULL && !n->joined[m];
        memcpy(name, t->name, t->name_bytes);
        name[t->name_bytes] = '\0';
        each(context, name, neg_any_request(n, t)->r.form.op, t->first_us, missing);
    }
    list_each(node, &n->lru) {
        const struct neg_cached *c = list_entry(node, struct neg_cached, lru);

        if (c->hits == 0 || c->is_ready || c->first_us > since_us)
            continue;
        for (int m = 0; m < n->opt.member_count; m++)
            missing[m] = !c->hit[m] && !n->joined[m];
        memcpy(name, c->request->r.name, c->request->r.name_bytes);
        name[c->request->r.name_bytes] = '\0';
        each(context, name, c->request->r.form.op, c->first_us, missing);
    }
    free(missing);
}
