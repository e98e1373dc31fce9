/*
 * eager.c: a small cached tensor of a process set over several hosts travels with its
 * announcement: nobody is asked, and no response is needed.
 *
 * Members form groups, one per host; where no host has several members, or its members
 * share no memory, every member is a group of its own.  The first member of a group leads.
 *
 *   part    a member brings its tensor to its leader
 *   sum     a leader that has all parts of its group sends their sum to the other leaders
 *   result  a leader that has all sums adds them up, and gives the result to its group
 *
 * What is ready at the same time goes in one message to each peer.  Sums are made in the
 * one order of collective.h: the bits are those of every other way.
 *
 * 1. The items of an operation are known by number, seq (of the response that gave the
 *    number) and turn.  Whoever sends turn t has ended turn t - 1, so everybody has come to
 *    t - 1 and has ended t - 2: two turns are under way at most.
 * 2. An item whose seq we have not met yet is kept until we do.  One whose number was taken
 *    back is dropped.
 * 3. When a number is taken back, the response says which turn the promising member has
 *    come to last.  Up to this turn all have come, and it completes; a later one never
 *    does, on no rank, and starts over.
 */
#include "engine/eager_int.h"

#include "base/clock.h"

#include <stdlib.h>

/* Largest tensor.  Up to here one is answered in half the time of hit, response and transfer,
 * and many of them in a cycle cost little more; above, the copies into and out of messages do.
 * Everybody sends its own to all others: with more of them, each may be smaller.  Measured
 * with 2 and 4 ranks; through a leader there are more copies. */
#define EAGER_BYTES_OUT (16u << 10)
#define EAGER_BYTES_LEAST 2048
#define EAGER_BYTES_BY_HOST 1024
/* Items are held back for more of them up to this size: a few of the largest, in a message
 * that malloc does not have to ask the kernel for. */
#define EAGER_MESSAGE (64u << 10)
/* With more groups, all to all costs more than asking the coordinator. */
#define EAGER_GROUPS_MAX 16

struct early_item {
    struct list node;
    int member;
    struct wire_eager w;
    uint8_t data[];
};

/* ---- Life --------------------------------------------------------------------------- */

static void eager_close(struct way *way)
{
    struct eager *w = eager_of(way);
    struct list *node;

    while ((node = list_pop(&w->early)) != NULL)
        free(list_entry(node, struct early_item, node));
    strbuf_release(&w->up.bytes);
    strbuf_release(&w->across.bytes);
    strbuf_release(&w->down.bytes);
    layout_release(&w->own);
    free(w->ended);
    free(w->sources);
    free(w);
}

static struct eager *eager_new(const struct pset *s, bool by_host, struct hvd_error *err)
{
    size_t n = (size_t)s->count;
    struct eager *w = calloc(1, sizeof *w);

    if (w == NULL) {
        error_set(err, HVD_NOMEM, -1, "no memory for process set %d", s->id);
        return NULL;
    }
    list_init(&w->early);
    w->by_host = by_host;
    w->groups = by_host ? s->layout : &w->own;
    w->ended = calloc(n, sizeof *w->ended);
    w->sources = calloc(n, sizeof *w->sources);
    if (w->ended == NULL || w->sources == NULL)
        error_set(err, HVD_NOMEM, -1, "no memory for process set %d", s->id);
    else if (by_host || layout_make(&w->own, NULL, 0, s->count, s->self, err) == HVD_OK)
        return w;
    eager_close(&w->way);
    return NULL;
}

static enum hvd_status eager_open(struct engine *e, struct pset *s, struct way **way_p,
                                  struct hvd_error *err)
{
    bool by_host = !layout_is_flat(s->layout);
    struct eager *w;

    (void)e;
    if (s->local || (by_host ? s->layout->host_count : s->count) > EAGER_GROUPS_MAX)
        return HVD_OK;
    w = eager_new(s, by_host, err);
    if (w == NULL)
        return HVD_NOMEM;
    *way_p = &w->way;
    return HVD_OK;
}

static size_t largest(const struct eager *w)
{
    size_t others = w->groups->host_count > 1 ? (size_t)w->groups->host_count - 1 : 1;

    if (w->by_host)
        return EAGER_BYTES_BY_HOST;
    return EAGER_BYTES_OUT / others > EAGER_BYTES_LEAST ? EAGER_BYTES_OUT / others
                                                      : EAGER_BYTES_LEAST;
}

/* The same on all members: it follows from what they have agreed on. */
static bool eager_fits(const struct way *way, const struct cached *c)
{
    return c->form.device == 0 &&
           (c->call.op == COLL_BARRIER ||
            (c->call.op == COLL_ALLREDUCE &&
             c->plan.out_count * hvd_dtype_bytes(c->form.dtype) <= largest(eager_of(way))));
}

static bool eager_has_open(const struct way *way)
{
    return eager_of(way)->open > 0;
}

static bool eager_is_open(const struct way *way, const struct engine *e)
{
    (void)e;
    return eager_has_open(way);
}

static uint32_t eager_pending(const struct way *way)
{
    const struct eager *w = eager_of(way);

    return w->up.count + w->across.count + w->down.count;
}

static bool eager_is_full(const struct way *way)
{
    const struct eager *w = eager_of(way);

    return (w->up.count > 0 && w->up.bytes.length >= EAGER_MESSAGE) ||
           (w->across.count > 0 && w->across.bytes.length >= EAGER_MESSAGE);
}

/* ---- Rooms -------------------------------------------------------------------------- */

static size_t elements(const struct cached *c)
{
    return c->call.op == COLL_BARRIER ? 0 : c->plan.out_count;
}

static struct eager_room *room_new(const struct eager *w, const struct cached *c)
{
    size_t part = elements(c) * hvd_dtype_bytes(c->form.dtype);
    size_t sum = w->by_host ? elements(c) * coll_partial_bytes(c->form.dtype) : part;
    size_t parts = (part + 63) / 64 * 64, sums = (sum + 63) / 64 * 64;
    size_t mates = (size_t)w->groups->mate_count, groups = (size_t)w->groups->host_count;
    size_t data = (w->by_host ? mates * parts : 0) + groups * sums;
    size_t flags = mates + groups;
    size_t head = (sizeof(struct eager_room) + 2 * flags + 63) / 64 * 64;
    struct eager_room *room = aligned_alloc(64, head + 2 * data);
    bool *flag = (bool *)(room + 1);
    char *at = (char *)room + head;

    if (room == NULL)
        return NULL;
    memset(room, 0, head);
    room->part_bytes = part;
    room->sum_bytes = sum;
    for (int i = 0; i < 2; i++, at += data, flag += flags) {
        room->turns[i].has_part = flag;
        room->turns[i].has_sum = flag + mates;
        room->turns[i].sum = w->by_host ? at + mates * parts : at;
        room->turns[i].part = at;
    }
    return room;
}

static char *place_of(char *at, size_t bytes, int i)
{
    return at + (bytes + 63) / 64 * 64 * (size_t)i;
}

static void set_waiting(struct eager *w, struct eager_turn *t, bool waiting)
{
    w->waiting += (int)waiting - (int)t->waiting;
    t->waiting = waiting;
}

static void eager_forget(struct way *way, struct cached *c)
{
    if (c->room == NULL)
        return;
    for (int i = 0; i < 2; i++)
        set_waiting(eager_of(way), &c->room->turns[i], false);
    free(c->room);
    c->room = NULL;
}

/* The place of a turn, emptied when it is the first time; NULL: no memory. */
static struct eager_turn *turn_of(struct eager *w, struct cached *c, uint32_t turn)
{
    struct eager_turn *t;

    if (c->room == NULL)
        c->room = room_new(w, c);
    if (c->room == NULL)
        return NULL;
    t = &c->room->turns[turn & 1];
    if (t->turn == turn)
        return t;
    t->turn = turn;
    t->parts = t->sums = 0;
    t->first_us = clock_us();
    memset(t->has_part, 0, (size_t)(w->groups->mate_count + w->groups->host_count));
    set_waiting(w, t, true);
    return t;
}

/* ---- Sending ------------------------------------------------------------------------ */

static void put(struct pset *s, struct eager_out *out, const struct cached *c,
                uint32_t turn, const void *data, size_t bytes)
{
    struct wire_eager item = {.number = c->number, .seq = c->seq, .turn = turn,
                             .bytes = (uint32_t)bytes, .data = data};

    if (out->count == 0)
        pset_put_head(s, MESSAGE_EAGER, &out->bytes);
    put_eager(&out->bytes, &item);
    out->count++;
}

static void post(struct engine *e, struct pset *s, int member, const struct strbuf *bytes)
{
    struct hvd_error err;

    if (member == s->self || mesh_has_left(e->mesh, s->ranks[member]))
        return;
    if (mesh_post(e->mesh, s->ranks[member], bytes->text, bytes->length, &err) != HVD_OK &&
        err.status != HVD_SHUTDOWN && mesh_verdict(e->mesh) == NULL)
        engine_break(e, &err);
}

static void send_out(struct engine *e, struct pset *s, struct eager_out *out,
                     const int *members, int count)
{
    struct hvd_error err;

    if (out->count == 0)
        return;
    if (out->bytes.failed) {
        error_set(&err, HVD_NOMEM, e->topo->rank, "no memory for a message");
        engine_break(e, &err);
        return;
    }
    patch_message_count(&out->bytes, out->count);
    out->count = 0;
    for (int i = 0; i < count; i++)
        post(e, s, members[i], &out->bytes);
}

bool eager_flush(struct way *way, struct engine *e, bool held)
{
    struct eager *w = eager_of(way);
    struct pset *s = way->set;

    (void)held;                         /* it is the operation itself */
    if (eager_pending(way) == 0)
        return false;
    send_out(e, s, &w->up, w->groups->mates, 1);
    send_out(e, s, &w->across, w->groups->leaders, w->groups->host_count);
    send_out(e, s, &w->down, w->groups->mates, w->groups->mate_count);
    return true;
}

/* ---- Combining ---------------------------------------------------------------------- */

static void eager_withdraw(struct entry *t)
{
    eager_of(t->way)->open--;
    if (t->orphan)
        t->set->orphans--;
    t->orphan = false;
}

/* Up to the turn that the promising member has come to, all have. */
static bool eager_take_back(struct entry *t, uint32_t turn)
{
    if ((int32_t)(t->turn - turn) > 0)
        return false;
    t->cached->dying = true;
    return true;
}

static bool eager_is_committed(const struct entry *t)
{
    (void)t;                            /* not known here; eager_leave finds out */
    return true;
}

/* The entry ends here; with it a number that was taken back while it was under way: the
 * caller uses neither t nor its cached name afterwards. */
static void end(struct engine *e, struct entry *t, enum hvd_status status,
                const struct hvd_error *err)
{
    struct pset *s = t->set;
    struct cached *c = t->cached;

    eager_withdraw(t);
    c->entry = NULL;
    t->cached = NULL;
    if (c->dying)
        cached_free(s, c);
    else if (s->neg != NULL)
        neg_ended(s->neg, c->number);
    trace_local(e, t);
    entry_complete(e, t, status, err);
}

/* The sum of our group.  Alone in its group, a member's input is the sum. */
static const void *own_sum(const struct eager *w, const struct cached *c,
                           const struct eager_turn *t)
{
    return w->by_host ? place_of(t->sum, c->room->sum_bytes, w->groups->host) : c->entry->input;
}

static void sum_group(struct eager *w, struct cached *c, struct eager_turn *t)
{
    size_t bytes = c->room->part_bytes;
    const void *sum = own_sum(w, c, t);

    for (int i = 0; i < w->groups->mate_count; i++)
        w->sources[i] = place_of(t->part, bytes, i);
    if (w->by_host)
        coll_fold(&c->call, COLL_FOLD_HOST, w->sources, w->groups->mate_count, elements(c),
                  (void *)sum);
    t->has_sum[w->groups->host] = true;
    t->sums++;
    if (w->groups->host_count > 1)
        put(w->way.set, &w->across, c, t->turn, sum, c->room->sum_bytes);
}

/* Ends the entry of c. */
static void sum_all(struct engine *e, struct eager *w, struct cached *c,
                    struct eager_turn *t)
{
    struct entry *entry = c->entry;
    struct eager_room *room = c->room;

    for (int g = 0; g < w->groups->host_count; g++)
        w->sources[g] = g == w->groups->host ? own_sum(w, c, t)
                                      : place_of(t->sum, room->sum_bytes, g);
    coll_fold(&c->call, w->by_host                                ? COLL_FOLD_HOSTS
                        : w->way.set->layout->host_count == 1 ? COLL_FOLD_ONE
                                                              : COLL_FOLD_ALL,
              w->sources, w->groups->host_count, elements(c), entry->output);
    if (w->groups->mate_count > 1)
        put(w->way.set, &w->down, c, t->turn, entry->output, room->part_bytes);
    set_waiting(w, t, false);
    end(e, entry, HVD_OK, NULL);
}

static void advance(struct engine *e, struct eager *w, struct cached *c,
                    struct eager_turn *t)
{
    if (t->parts == w->groups->mate_count && !t->has_sum[w->groups->host])
        sum_group(w, c, t);
    if (t->sums == w->groups->host_count)
        sum_all(e, w, c, t);
}

/* ---- Coming ------------------------------------------------------------------------- */

static enum hvd_status add(bool *has, int *count, char *to, const void *data,
                           size_t bytes, size_t expected, struct hvd_error *err)
{
    if (bytes != expected || *has)
        return error_set(err, HVD_PROTO, -1, "eager tensor of %zu bytes, %zu were expected%s",
                         bytes, expected, *has ? "; it came twice" : "");
    if (bytes > 0 && to != NULL)
        memcpy(to, data, bytes);
    *has = true;
    ++*count;
    return HVD_OK;
}

/* Of another group we see only that all of it have come. */
static void trace_group(struct engine *e, const struct eager *w, const struct cached *c,
                        int group)
{
    for (int m = 0; m < w->way.set->count; m++)
        if (w->groups->host_of[m] == group)
            trace_item(e, w->way.set, m, c);
}

/* A part of one of our group, or the sum of another group.  May end the entry of c. */
static enum hvd_status take(struct engine *e, struct eager *w, struct cached *c,
                            int member, uint32_t turn, const void *data, size_t bytes,
                            struct hvd_error *err)
{
    struct eager_turn *t = turn_of(w, c, turn);
    int place = 0, group = w->groups->host_of[member];

    if (t == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a cached tensor");
    if (group != w->groups->host) {
        TRY(add(&t->has_sum[group], &t->sums,
                place_of(t->sum, c->room->sum_bytes, group), data, bytes,
                c->room->sum_bytes, err));
        if (TRACED(e))
            trace_group(e, w, c, group);
    } else {
        while (w->groups->mates[place] != member)
            place++;
        TRY(add(&t->has_part[place], &t->parts,
                w->by_host ? place_of(t->part, c->room->part_bytes, place) : NULL, data,
                bytes, c->room->part_bytes, err));
        trace_item(e, w->way.set, member, c);
    }
    advance(e, w, c, t);
    return HVD_OK;
}

static void eager_start(struct way *way, struct engine *e, struct entry *t,
                        struct cached *c)
{
    struct pset *s = way->set;
    struct eager *w = eager_of(way);
    size_t bytes = elements(c) * hvd_dtype_bytes(c->form.dtype);
    struct hvd_error err;

    entry_set_out(e, t, c);
    t->turn = ++c->turn;
    w->open++;
    if (s->neg != NULL)
        neg_started(s->neg, c->number, c->turn);
    if (entry_prepare_output(t, &c->plan, &err) != HVD_OK) {
        error_prefix(&err, "%.200s", t->name);
        engine_break(e, &err);                /* the verdict ends it */
    } else if (!layout_leads(w->groups)) {
        put(s, &w->up, c, t->turn, t->input, bytes);
    } else if (take(e, w, c, s->self, t->turn, t->input, bytes, &err) != HVD_OK) {
        engine_break(e, &err);
    }
}

static enum hvd_status take_result(struct engine *e, struct cached *c,
                                   const struct wire_eager *item, struct hvd_error *err)
{
    struct entry *t = c->entry;

    if (t == NULL || t->turn != item->turn ||
        item->bytes != elements(c) * hvd_dtype_bytes(c->form.dtype))
        return error_set(err, HVD_PROTO, -1, "result of turn %u of number %u", item->turn,
                         item->number);
    if (item->bytes > 0)
        memcpy(t->output, item->data, item->bytes);
    end(e, t, HVD_OK, NULL);
    return HVD_OK;
}

/* Rule 1. */
static bool is_possible(const struct cached *c, uint32_t turn)
{
    return turn == c->turn + 1 || (turn == c->turn && c->entry != NULL);
}

static enum hvd_status deliver(struct engine *e, struct eager *w, int member,
                               const struct wire_eager *item, struct hvd_error *err)
{
    struct pset *s = w->way.set;
    struct cached *c = item->number < CACHE_NUMBERS ? s->by_number[item->number] : NULL;

    if (c == NULL || c->seq != item->seq || (c->dying && item->turn > c->turn))
        return HVD_OK;                  /* rule 2 */
    if (c->entry == NULL && atomic_load(&e->state) != ENGINE_RUNNING)
        return HVD_OK;                  /* it has failed here */
    if (c->way != &w->way || !is_possible(c, item->turn))
        return error_set(err, HVD_PROTO, -1, "turn %u of number %u", item->turn,
                         item->number);
    if (!layout_leads(w->groups) && member == w->groups->mates[0])
        return take_result(e, c, item, err);
    if (!layout_leads(w->groups) || (w->groups->host_of[member] != w->groups->host &&
                           w->groups->leaders[w->groups->host_of[member]] != member))
        return error_set(err, HVD_PROTO, -1, "number %u for another rank", item->number);
    return take(e, w, c, member, item->turn, item->data, item->bytes, err);
}

static enum hvd_status keep_early(struct eager *w, int member, const struct wire_eager *item,
                                  struct hvd_error *err)
{
    struct early_item *k = malloc(sizeof *k + item->bytes);

    if (k == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a cached tensor");
    k->member = member;
    k->w = *item;
    memcpy(k->data, item->data, item->bytes);
    k->w.data = k->data;
    list_append(&w->early, &k->node);
    return HVD_OK;
}

static bool eager_takes(const struct way *way, enum message_kind kind)
{
    (void)way;
    return kind == MESSAGE_EAGER;
}

static enum hvd_status eager_on_message(struct way *way, struct engine *e, int member,
                                        const struct message_head *head,
                                        struct wire_in *in, struct hvd_error *err)
{
    struct eager *w = eager_of(way);
    struct wire_eager item;

    if (member == way->set->self)
        return error_set(err, HVD_PROTO, -1, "eager tensor of our own");
    e->heard = true;
    w->ended[member] |= head->count == 0;
    for (uint32_t i = 0; i < head->count; i++) {
        TRY(get_eager(in, &item, err));
        if ((int32_t)(item.seq - way->set->seq) > 0)
            TRY(keep_early(w, member, &item, err));
        else
            TRY(deliver(e, w, member, &item, err));
    }
    return HVD_OK;
}

/* A response has been done: what came for it too early is taken now. */
static void eager_on_response(struct way *way, struct engine *e)
{
    struct pset *s = way->set;

    list_each_safe(node, &eager_of(way)->early) {
        struct early_item *k = list_entry(node, struct early_item, node);
        struct hvd_error err;

        if ((int32_t)(k->w.seq - s->seq) > 0)
            continue;
        list_remove(&k->node);
        if (deliver(e, eager_of(way), k->member, &k->w, &err) != HVD_OK) {
            error_prefix(&err, "message of rank %d", s->ranks[k->member]);
            err.rank = s->ranks[k->member];
            mesh_fail(e->mesh, &err);
        }
        free(k);
    }
}

const struct way_ops way_eager = {
    .name = "eager", .carries_data = true, .keeps_turns = true,
    .open = eager_open, .close = eager_close, .fits = eager_fits, .start = eager_start,
    .forget = eager_forget, .is_committed = eager_is_committed, .waits = eager_waits,
    .has_come = eager_has_come, .take_back = eager_take_back, .withdraw = eager_withdraw,
    .pending = eager_pending, .is_full = eager_is_full, .flush = eager_flush,
    .takes = eager_takes, .on_message = eager_on_message, .on_response = eager_on_response,
    .is_open = eager_is_open, .is_running = eager_has_open, .end = eager_end,
    .leave = eager_leave, .has_report = eager_has_report,
    .each_waiting = eager_each_waiting,
};
