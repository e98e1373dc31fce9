/* way.c: what is asked of all ways of a process set, and of all entries under way. */
#include "engine/engine_int.h"
#include "engine/full.h"

#include <stdlib.h>

#define each_way(w, s)                                                                 \
    for (struct way *w, *const *at_ = (s)->ways, *const *end_ = at_ + (s)->way_count;  \
         at_ < end_ && (w = *at_, true); at_++)

static const struct way_ops *const all_ways[] = {&way_local, &way_eager, &way_relay,
                                                 &way_full};

_Static_assert(sizeof all_ways / sizeof all_ways[0] <= WAYS_MAX, "room in pset");

/* ---- Life and choice ------------------------------------------------------------------ */

enum hvd_status ways_open(struct engine *e, struct pset *s, struct hvd_error *err)
{
    for (size_t i = 0; i < sizeof all_ways / sizeof all_ways[0]; i++) {
        struct way *w = NULL;

        TRY(all_ways[i]->open(e, s, &w, err));
        if (w == NULL)
            continue;
        w->ops = all_ways[i];
        w->set = s;
        s->ways[s->way_count++] = w;
    }
    return HVD_OK;
}

void ways_close(struct pset *s)
{
    each_way(w, s)
        w->ops->close(w);
    s->way_count = 0;
}

/* Within a host a device's names go by number as well, since the order of its operations is
 * that of the responses: `full` is opened with the first of them. */
static struct way *open_for_device(struct pset *s)
{
    struct hvd_error err;
    struct way *w = NULL;

    if (s->way_count == WAYS_MAX || full_new(&w, &err) != HVD_OK)
        return NULL;
    w->ops = &way_full;
    w->set = s;
    s->ways[s->way_count++] = w;
    return w;
}

struct way *ways_choose(struct pset *s, const struct cached *c)
{
    each_way(w, s)
        if (w->ops->fits(w, c))
            return w;
    BUG_ON(c->form.device == 0);        /* `local` or `full` fits everything else */
    return open_for_device(s);
}

void ways_forget(struct pset *s, struct cached *c)
{
    each_way(w, s)
        if (w->ops->forget != NULL)
            w->ops->forget(w, c);
}

/* ---- Sending -------------------------------------------------------------------------- */

uint32_t ways_pending(const struct pset *s)
{
    uint32_t count = 0;

    each_way(w, s)
        count += w->ops->pending != NULL ? w->ops->pending(w) : 0;
    return count;
}

bool ways_flush(struct engine *e, struct pset *s, bool held)
{
    bool sent = false;

    each_way(w, s)
        sent |= w->ops->flush != NULL && w->ops->flush(w, e, held);
    return sent;
}

void ways_flush_data(struct engine *e, struct pset *s)
{
    each_way(w, s)
        if (w->ops->carries_data)
            w->ops->flush(w, e, false);
}

bool ways_have_full(const struct pset *s)
{
    each_way(w, s)
        if (w->ops->is_full != NULL && w->ops->is_full(w))
            return true;
    return false;
}

void ways_drop(struct pset *s)
{
    each_way(w, s)
        if (w->ops->drop != NULL)
            w->ops->drop(w);
}

uint64_t ways_due_us(const struct pset *s)
{
    uint64_t due_us = UINT64_MAX;

    each_way(w, s) {
        uint64_t us = w->ops->due_us != NULL ? w->ops->due_us(w) : UINT64_MAX;

        due_us = us < due_us ? us : due_us;
    }
    return due_us;
}

/* ---- Coming --------------------------------------------------------------------------- */

struct way *ways_for(const struct pset *s, enum message_kind kind)
{
    each_way(w, s)
        if (w->ops->takes != NULL && w->ops->takes(w, kind))
            return w;
    return NULL;
}

void ways_on_response(struct engine *e, struct pset *s)
{
    each_way(w, s)
        if (w->ops->on_response != NULL)
            w->ops->on_response(w, e);
}

/* ---- Joining, ending ------------------------------------------------------------------ */

bool ways_keep_turns(const struct pset *s)
{
    each_way(w, s)
        if (w->ops->keeps_turns)
            return true;
    return false;
}

bool ways_are_open(const struct engine *e, const struct pset *s)
{
    each_way(w, s)
        if (w->ops->is_open != NULL && w->ops->is_open(w, e))
            return true;
    return false;
}

bool ways_are_running(const struct pset *s)
{
    each_way(w, s)
        if (w->ops->is_running != NULL && w->ops->is_running(w))
            return true;
    return false;
}

bool ways_end(struct engine *e, struct pset *s)
{
    bool ended = true;

    each_way(w, s)
        ended &= w->ops->end == NULL || w->ops->end(w, e);
    return ended;
}

void ways_leave(struct engine *e, struct pset *s, enum hvd_status status,
                const struct hvd_error *why)
{
    each_way(w, s)
        if (w->ops->leave != NULL)
            w->ops->leave(w, e, status, why);
}

/* ---- Who is missing ------------------------------------------------------------------- */

bool ways_have_report(const struct pset *s)
{
    each_way(w, s)
        if (w->ops->has_report != NULL && w->ops->has_report(w))
            return true;
    return false;
}

void ways_each_waiting(const struct pset *s, uint64_t since_us, bool *missing,
                       neg_stall_fn each, void *context)
{
    each_way(w, s)
        if (w->ops->each_waiting != NULL)
            w->ops->each_waiting(w, since_us, missing, each, context);
}

/* ---- Entries in e->running ------------------------------------------------------------- */

bool running_step_all(struct engine *e)
{
    bool moved = false;

    list_each_safe(node, &e->running) {
        struct entry *t = list_entry(node, struct entry, node);

        moved |= t->way->ops->step(e, t);
    }
    return moved;
}

bool running_needs_us(const struct engine *e)
{
    list_each(node, &e->running) {
        const struct entry *t = list_entry(node, struct entry, node);

        if (t->way->ops->needs_us(t))
            return true;
    }
    return false;
}

/* True if s has an entry there that is committed (or one that is not). */
bool running_has(const struct engine *e, const struct pset *s, bool committed)
{
    list_each(node, &e->running) {
        const struct entry *t = list_entry(node, struct entry, node);

        if (t->set == s && t->way->ops->is_committed(t) == committed)
            return true;
    }
    return false;
}

/* ---- Taking a number back -------------------------------------------------------------- */

static void start_over(struct engine *e, struct entry *t)
{
    t->way->ops->withdraw(t);
    t->way = NULL;
    if (t->own_output) {
        entry_drop_output(t);
        t->output = NULL;
    }
    free(t->recv_rows);
    t->recv_rows = NULL;
    entry_announce(e, t, NULL);
}

/*
 * The number of c is taken back because a member will not come to its next turn.  That
 * member has ended the turns before, so a turn that is under way here is either one of
 * those, and committed, or the one that nobody will finish.  Within a host the board tells
 * which; between hosts it does not, and `turn` is the last one that member has come to.
 */
void cached_take_back(struct engine *e, struct cached *c, uint32_t turn)
{
    struct entry *t = c->entry;

    if (t == NULL)
        return;
    if (t->way->ops->take_back != NULL && t->way->ops->take_back(t, turn)) {
        t->orphan = true;
        t->set->orphans++;
        return;
    }
    c->entry = NULL;
    start_over(e, t);
}
