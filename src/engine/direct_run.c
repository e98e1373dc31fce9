/*
 * direct_run.c: cached names of a process set whose members share one host.  The task on the
 * board of the name is announcement and operation at once; see docs/design/001.
 */
#include "engine/engine_int.h"

#include <stdlib.h>

bool cached_matches(const struct cached *c, const struct entry *t)
{
    return c->op == t->op && c->dtype == t->dtype && c->ndim == t->ndim &&
           c->reduce == t->reduce && c->root == t->root && t->split_count == 0 &&
           c->prescale == t->prescale && c->postscale == t->postscale &&
           memcmp(c->shape, t->shape, t->ndim * sizeof t->shape[0]) == 0;
}

/* A rank that cannot do its part of what the others have begun ends the job: they would
 * wait for it for ever. */
static void fail_all(struct engine *e, const struct entry *t, struct hvd_error *err)
{
    error_prefix(err, "rank %d: %.200s", e->topo->rank, t->name);
    err->rank = e->topo->rank;
    mesh_fail(e->mesh, err);
}

void direct_start(struct engine *e, struct entry *t, struct cached *c)
{
    struct coll_call call = c->call;
    struct hvd_error err;

    if (entry_prepare_output(t, &c->plan, &err) != HVD_OK) {
        t->state = ENTRY_DIRECT;
        fail_all(e, t, &err);
        return;
    }
    call.in = t->input;
    call.out = t->output;
    call.count = t->count;
    call.turn = ++c->turn;
    t->state = ENTRY_DIRECT;
    t->cached = c;
    c->entry = t;
    e->cache_hits++;
    list_append(&e->direct, &t->node);
    if (t->set->neg != NULL)
        neg_started(t->set->neg, c->number, c->turn);
    if (coll_start(t->set->team, &call, &t->task, &err) != HVD_OK)
        fail_all(e, t, &err);
}

static void end(struct engine *e, struct entry *t)
{
    list_remove(&t->node);
    if (t->orphan)
        t->set->orphans--;
    if (t->cached != NULL) {
        t->cached->entry = NULL;
        if (t->set->neg != NULL)
            neg_ended(t->set->neg, t->cached->number);
    }
    t->cached = NULL;
}

/* True if t has finished. */
bool direct_step(struct engine *e, struct entry *t)
{
    struct hvd_error err;
    enum hvd_status status;

    if (t->task == NULL)
        return false;                   /* its start failed; the verdict ends it */
    if (TRACED(e) && coll_is_committed(t->task))
        trace_direct(e, t);
    status = coll_step(t->task, &err);
    if (status == HVD_AGAIN)
        return false;
    if (status == HVD_OK)
        trace_direct(e, t);
    coll_finish(t->task);
    t->task = NULL;
    end(e, t);
    entry_complete(e, t, status, &err);
    return true;
}

/* True if something finished. */
bool direct_step_all(struct engine *e)
{
    bool moved = false;

    list_each_safe(node, &e->direct)
        moved |= direct_step(e, list_entry(node, struct entry, node));
    return moved;
}

static void start_over(struct engine *e, struct entry *t)
{
    if (t->state == ENTRY_DIRECT) {
        coll_cancel(t->task);
        t->task = NULL;
        end(e, t);
        t->orphan = false;
    } else if (t->state == ENTRY_SWAP) {
        swap_withdraw(t);
    } else {
        t->set->hits_open--;
    }
    if (t->own_output) {
        output_free(t->output);
        t->output = NULL;
        t->own_output = false;
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
void direct_take_back(struct engine *e, struct pset *s, struct cached *c, uint32_t turn)
{
    struct entry *t = c->entry;

    if (t == NULL)
        return;
    if (t->state == ENTRY_SWAP && (int32_t)(t->turn - turn) <= 0) {
        t->orphan = true;
        s->orphans++;
        c->dying = true;
        return;
    }
    c->entry = NULL;
    if (t->state == ENTRY_DIRECT && (t->task == NULL || coll_is_committed(t->task))) {
        t->orphan = true;
        t->cached = NULL;
        s->orphans++;
        return;
    }
    start_over(e, t);
}

/* True while this rank may still have to announce again what it has started. */
bool direct_is_open(const struct engine *e, const struct pset *s)
{
    list_each(node, &e->direct) {
        const struct entry *t = list_entry(node, struct entry, node);

        if (t->set == s && t->task != NULL && !coll_is_committed(t->task))
            return true;
    }
    return false;
}
