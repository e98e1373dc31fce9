/*
 * swap.c: a small cached tensor of a process set over several hosts travels with its
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
#include "engine/swap_int.h"

#include "base/clock.h"

#include <stdlib.h>

/* Largest tensor.  Up to here one is answered in half the time of hit, response and transfer,
 * and many of them in a cycle cost little more; above, the copies into and out of messages do.
 * Everybody sends its own to all others: with more of them, each may be smaller.  Measured
 * with 2 and 4 ranks; through a leader there are more copies. */
#define SWAP_BYTES_OUT (16u << 10)
#define SWAP_BYTES_LEAST 2048
#define SWAP_BYTES_BY_HOST 1024
/* Items are held back for more of them up to this size: a few of the largest, in a message
 * that malloc does not have to ask the kernel for. */
#define SWAP_MESSAGE (64u << 10)
/* With more groups, all to all costs more than asking the coordinator. */
#define SWAP_GROUPS_MAX 16

struct early_item {
    struct list node;
    int member;
    struct wire_swap w;
    uint8_t data[];
};

/* ---- Life --------------------------------------------------------------------------- */

/* True if no host has several members, or all are on one: then rank order is the order. */
static bool is_flat(const struct engine *e, const struct pset *s)
{
    bool one_host = true, alone = true;

    for (int a = 0; a < s->count; a++)
        for (int b = 0; b < a; b++) {
            bool same = e->topo->host_of[s->ranks[a]] == e->topo->host_of[s->ranks[b]];

            one_host &= same;
            alone &= !same;
        }
    return one_host || alone;
}

static void find_groups(const struct engine *e, const struct pset *s, struct swap *w)
{
    for (int m = 0; m < s->count; m++) {
        int g = w->by_host ? 0 : w->group_count;

        while (g < w->group_count && e->topo->host_of[s->ranks[w->leaders[g]]] !=
                                         e->topo->host_of[s->ranks[m]])
            g++;
        if (g == w->group_count)
            w->leaders[w->group_count++] = m;
        w->group_of[m] = g;
        w->group_size[g]++;
    }
    w->group = w->group_of[s->self];
    for (int m = 0; m < s->count; m++) {
        if (w->group_of[m] != w->group)
            continue;
        if (m == s->self)
            w->place = w->mate_count;
        w->mates[w->mate_count++] = m;
    }
}

void swap_free(struct swap *w)
{
    struct list *node;

    if (w == NULL)
        return;
    while ((node = list_pop(&w->early)) != NULL)
        free(list_entry(node, struct early_item, node));
    strbuf_release(&w->up.bytes);
    strbuf_release(&w->across.bytes);
    strbuf_release(&w->down.bytes);
    free(w->group_of);
    free(w->group_size);
    free(w->leaders);
    free(w->mates);
    free(w->ended);
    free(w->sources);
    free(w);
}

enum hvd_status swap_new(const struct engine *e, const struct pset *s,
                         struct swap **swap_p, struct hvd_error *err)
{
    size_t n = (size_t)s->count;
    struct swap *w = calloc(1, sizeof *w);

    *swap_p = NULL;
    if (w == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for process set %d", s->id);
    list_init(&w->early);
    w->group_of = calloc(n, sizeof *w->group_of);
    w->group_size = calloc(n, sizeof *w->group_size);
    w->leaders = calloc(n, sizeof *w->leaders);
    w->mates = calloc(n, sizeof *w->mates);
    w->ended = calloc(n, sizeof *w->ended);
    w->sources = calloc(n, sizeof *w->sources);
    if (w->group_of == NULL || w->group_size == NULL || w->leaders == NULL ||
        w->mates == NULL || w->ended == NULL || w->sources == NULL) {
        swap_free(w);
        return error_set(err, HVD_NOMEM, -1, "no memory for process set %d", s->id);
    }
    w->by_host = !is_flat(e, s);
    find_groups(e, s, w);
    if (w->group_count <= SWAP_GROUPS_MAX)
        *swap_p = w;
    else
        swap_free(w);
    return HVD_OK;
}

static size_t largest(const struct swap *w)
{
    size_t others = w->group_count > 1 ? (size_t)w->group_count - 1 : 1;

    if (w->by_host)
        return SWAP_BYTES_BY_HOST;
    return SWAP_BYTES_OUT / others > SWAP_BYTES_LEAST ? SWAP_BYTES_OUT / others
                                                      : SWAP_BYTES_LEAST;
}

/* The same on all members: it follows from what they have agreed on. */
bool swap_fits(const struct pset *s, const struct cached *c)
{
    return s->swap != NULL &&
           (c->call.op == COLL_BARRIER ||
            (c->call.op == COLL_ALLREDUCE &&
             c->plan.out_count * hvd_dtype_bytes(c->dtype) <= largest(s->swap)));
}

bool swap_has_open(const struct pset *s)
{
    return s->swap != NULL && s->swap->open > 0;
}

uint32_t swap_pending(const struct pset *s)
{
    const struct swap *w = s->swap;

    return w != NULL ? w->up.count + w->across.count + w->down.count : 0;
}

bool swap_is_full(const struct pset *s)
{
    const struct swap *w = s->swap;

    return (w->up.count > 0 && w->up.bytes.length >= SWAP_MESSAGE) ||
           (w->across.count > 0 && w->across.bytes.length >= SWAP_MESSAGE);
}

static void broken(struct engine *e, struct hvd_error *err)
{
    error_prefix(err, "rank %d", e->topo->rank);
    err->rank = e->topo->rank;
    mesh_fail(e->mesh, err);
}

/* ---- Rooms -------------------------------------------------------------------------- */

static size_t elements(const struct cached *c)
{
    return c->call.op == COLL_BARRIER ? 0 : c->plan.out_count;
}

static struct swap_room *room_new(const struct swap *w, const struct cached *c)
{
    size_t part = elements(c) * hvd_dtype_bytes(c->dtype);
    size_t sum = w->by_host ? elements(c) * coll_partial_bytes(c->dtype) : part;
    size_t parts = (part + 63) / 64 * 64, sums = (sum + 63) / 64 * 64;
    size_t mates = (size_t)w->mate_count, groups = (size_t)w->group_count;
    size_t data = (w->by_host ? mates * parts : 0) + groups * sums;
    size_t flags = mates + groups;
    size_t head = (sizeof(struct swap_room) + 2 * flags + 63) / 64 * 64;
    struct swap_room *room = aligned_alloc(64, head + 2 * data);
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

static void set_waiting(struct swap *w, struct swap_turn *t, bool waiting)
{
    w->waiting += (int)waiting - (int)t->waiting;
    t->waiting = waiting;
}

void swap_forget(struct pset *s, struct cached *c)
{
    if (c->room == NULL)
        return;
    for (int i = 0; i < 2; i++)
        set_waiting(s->swap, &c->room->turns[i], false);
    free(c->room);
    c->room = NULL;
}

/* The place of a turn, emptied when it is the first time; NULL: no memory. */
static struct swap_turn *turn_of(struct pset *s, struct cached *c, uint32_t turn)
{
    struct swap *w = s->swap;
    struct swap_turn *t;

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
    memset(t->has_part, 0, (size_t)(w->mate_count + w->group_count));
    set_waiting(w, t, true);
    return t;
}

/* ---- Sending ------------------------------------------------------------------------ */

static void put(struct pset *s, struct swap_out *out, const struct cached *c,
                uint32_t turn, const void *data, size_t bytes)
{
    struct wire_swap item = {.number = c->number, .seq = c->seq, .turn = turn,
                             .bytes = (uint32_t)bytes, .data = data};

    if (out->count == 0)
        pset_put_head(s, MESSAGE_SWAP, &out->bytes);
    put_swap(&out->bytes, &item);
    out->count++;
}

static void post(struct engine *e, struct pset *s, int member, const struct strbuf *bytes)
{
    struct hvd_error err;

    if (member == s->self || mesh_has_left(e->mesh, s->ranks[member]))
        return;
    if (mesh_post(e->mesh, s->ranks[member], bytes->text, bytes->length, &err) != HVD_OK &&
        err.status != HVD_SHUTDOWN && mesh_verdict(e->mesh) == NULL)
        broken(e, &err);
}

static void send_out(struct engine *e, struct pset *s, struct swap_out *out,
                     const int *members, int count)
{
    struct hvd_error err;

    if (out->count == 0)
        return;
    if (out->bytes.failed) {
        error_set(&err, HVD_NOMEM, e->topo->rank, "no memory for a message");
        broken(e, &err);
        return;
    }
    patch_message_count(&out->bytes, 0, out->count);
    out->count = 0;
    for (int i = 0; i < count; i++)
        post(e, s, members[i], &out->bytes);
}

void swap_flush(struct engine *e, struct pset *s)
{
    struct swap *w = s->swap;

    send_out(e, s, &w->up, w->mates, 1);
    send_out(e, s, &w->across, w->leaders, w->group_count);
    send_out(e, s, &w->down, w->mates, w->mate_count);
}

/* ---- Combining ---------------------------------------------------------------------- */

void swap_withdraw(struct entry *t)
{
    t->set->swap->open--;
    if (t->orphan)
        t->set->orphans--;
    t->orphan = false;
}

/* The entry ends here; with it a number that was taken back while it was under way. */
static void end(struct engine *e, struct entry *t, enum hvd_status status,
                const struct hvd_error *err)
{
    struct pset *s = t->set;
    struct cached *c = t->cached;

    swap_withdraw(t);
    c->entry = NULL;
    t->cached = NULL;
    if (c->dying)
        cached_free(s, c);
    else if (s->neg != NULL)
        neg_ended(s->neg, c->number);
    trace_direct(e, t);
    entry_complete(e, t, status, err);
}

/* The sum of our group.  Alone in its group, a member's input is the sum. */
static const void *own_sum(const struct swap *w, const struct cached *c,
                           const struct swap_turn *t)
{
    return w->by_host ? place_of(t->sum, c->room->sum_bytes, w->group) : c->entry->input;
}

static void sum_group(struct pset *s, struct cached *c, struct swap_turn *t)
{
    struct swap *w = s->swap;
    size_t bytes = c->room->part_bytes;
    const void *sum = own_sum(w, c, t);

    for (int i = 0; i < w->mate_count; i++)
        w->sources[i] = place_of(t->part, bytes, i);
    if (w->by_host)
        coll_fold(&c->call, COLL_FOLD_HOST, w->sources, w->mate_count, elements(c),
                  (void *)sum);
    t->has_sum[w->group] = true;
    t->sums++;
    if (w->group_count > 1)
        put(s, &w->across, c, t->turn, sum, c->room->sum_bytes);
}

static void sum_all(struct engine *e, struct pset *s, struct cached *c,
                    struct swap_turn *t)
{
    struct swap *w = s->swap;
    struct entry *entry = c->entry;
    struct swap_room *room = c->room;

    for (int g = 0; g < w->group_count; g++)
        w->sources[g] = g == w->group ? own_sum(w, c, t)
                                      : place_of(t->sum, room->sum_bytes, g);
    coll_fold(&c->call, w->by_host ? COLL_FOLD_HOSTS : COLL_FOLD_ALL, w->sources,
              w->group_count, elements(c), entry->output);
    if (w->mate_count > 1)
        put(s, &w->down, c, t->turn, entry->output, room->part_bytes);
    set_waiting(w, t, false);
    end(e, entry, HVD_OK, NULL);
}

static void advance(struct engine *e, struct pset *s, struct cached *c,
                    struct swap_turn *t)
{
    struct swap *w = s->swap;

    if (t->parts == w->mate_count && !t->has_sum[w->group])
        sum_group(s, c, t);
    if (t->sums == w->group_count)
        sum_all(e, s, c, t);
}

/* ---- Coming ------------------------------------------------------------------------- */

static enum hvd_status add(bool *has, int *count, char *to, const void *data,
                           size_t bytes, size_t expected, struct hvd_error *err)
{
    if (bytes != expected || *has)
        return error_set(err, HVD_PROTO, -1, "swap of %zu bytes, %zu were expected%s",
                         bytes, expected, *has ? "; it came twice" : "");
    if (bytes > 0 && to != NULL)
        memcpy(to, data, bytes);
    *has = true;
    ++*count;
    return HVD_OK;
}

/* A part of one of our group, or the sum of another group. */
static enum hvd_status take(struct engine *e, struct pset *s, struct cached *c,
                            int member, uint32_t turn, const void *data, size_t bytes,
                            struct hvd_error *err)
{
    struct swap *w = s->swap;
    struct swap_turn *t = turn_of(s, c, turn);
    int place = 0, group = w->group_of[member];

    if (t == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a cached tensor");
    if (group != w->group) {
        TRY(add(&t->has_sum[group], &t->sums,
                place_of(t->sum, c->room->sum_bytes, group), data, bytes,
                c->room->sum_bytes, err));
    } else {
        while (w->mates[place] != member)
            place++;
        TRY(add(&t->has_part[place], &t->parts,
                w->by_host ? place_of(t->part, c->room->part_bytes, place) : NULL, data,
                bytes, c->room->part_bytes, err));
    }
    advance(e, s, c, t);
    return HVD_OK;
}

void swap_start(struct engine *e, struct entry *t, struct cached *c)
{
    struct pset *s = t->set;
    struct swap *w = s->swap;
    size_t bytes = elements(c) * hvd_dtype_bytes(c->dtype);
    struct hvd_error err;

    t->state = ENTRY_SWAP;
    t->cached = c;
    t->turn = ++c->turn;
    c->entry = t;
    w->open++;
    e->cache_hits++;
    if (s->neg != NULL)
        neg_started(s->neg, c->number, c->turn);
    if (entry_prepare_output(t, &c->plan, &err) != HVD_OK) {
        error_prefix(&err, "%.200s", t->name);
        broken(e, &err);                /* the verdict ends it */
    } else if (!swap_leads(w)) {
        put(s, &w->up, c, t->turn, t->input, bytes);
    } else if (take(e, s, c, s->self, t->turn, t->input, bytes, &err) != HVD_OK) {
        broken(e, &err);
    }
}

static enum hvd_status take_result(struct engine *e, struct cached *c,
                                   const struct wire_swap *item, struct hvd_error *err)
{
    struct entry *t = c->entry;

    if (t == NULL || t->state != ENTRY_SWAP || t->turn != item->turn ||
        item->bytes != elements(c) * hvd_dtype_bytes(c->dtype))
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

static enum hvd_status deliver(struct engine *e, struct pset *s, int member,
                               const struct wire_swap *item, struct hvd_error *err)
{
    const struct swap *w = s->swap;
    struct cached *c = item->number < CACHE_NUMBERS ? s->by_number[item->number] : NULL;

    if (c == NULL || c->seq != item->seq || (c->dying && item->turn > c->turn))
        return HVD_OK;                  /* rule 2 */
    if (c->entry == NULL && atomic_load(&e->state) != ENGINE_RUNNING)
        return HVD_OK;                  /* it has failed here */
    if (!c->swaps || !is_possible(c, item->turn))
        return error_set(err, HVD_PROTO, -1, "turn %u of number %u", item->turn,
                         item->number);
    if (!swap_leads(w) && member == w->mates[0])
        return take_result(e, c, item, err);
    if (!swap_leads(w) || (w->group_of[member] != w->group &&
                           w->leaders[w->group_of[member]] != member))
        return error_set(err, HVD_PROTO, -1, "number %u for another rank", item->number);
    return take(e, s, c, member, item->turn, item->data, item->bytes, err);
}

static enum hvd_status keep_early(struct swap *w, int member, const struct wire_swap *item,
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

enum hvd_status swap_on_message(struct engine *e, struct pset *s, int member,
                                struct wire_in *in, uint32_t count, struct hvd_error *err)
{
    struct wire_swap item;

    if (s->swap == NULL || member == s->self)
        return error_set(err, HVD_PROTO, -1, "swap in process set %d", s->id);
    e->heard = true;
    s->swap->ended[member] |= count == 0;
    for (uint32_t i = 0; i < count; i++) {
        TRY(get_swap(in, &item, err));
        if ((int32_t)(item.seq - s->seq) > 0)
            TRY(keep_early(s->swap, member, &item, err));
        else
            TRY(deliver(e, s, member, &item, err));
    }
    return HVD_OK;
}

/* A response has been done: what came for it too early is taken now. */
void swap_replay(struct engine *e, struct pset *s)
{
    list_each_safe(node, &s->swap->early) {
        struct early_item *k = list_entry(node, struct early_item, node);
        struct hvd_error err;

        if ((int32_t)(k->w.seq - s->seq) > 0)
            continue;
        list_remove(&k->node);
        if (deliver(e, s, k->member, &k->w, &err) != HVD_OK) {
            error_prefix(&err, "message of rank %d", s->ranks[k->member]);
            err.rank = s->ranks[k->member];
            mesh_fail(e->mesh, &err);
        }
        free(k);
    }
}

bool swap_has_early(const struct pset *s)
{
    return s->swap != NULL && !list_is_empty(&s->swap->early);
}
