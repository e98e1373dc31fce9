/*
 * local.c: cached names of a process set whose members share one host.  The task on the
 * board of the name is announcement and operation at once; see docs/design/001.
 */
#include "engine/engine_int.h"

#include <stdlib.h>

static enum hvd_status local_open(struct engine *e, struct pset *s, struct way **way_p,
                                  struct hvd_error *err)
{
    (void)e;
    if (!s->local)
        return HVD_OK;
    *way_p = calloc(1, sizeof **way_p);
    return *way_p != NULL ? HVD_OK
                          : error_set(err, HVD_NOMEM, -1, "no memory for process set %d",
                                      s->id);
}

static void local_close(struct way *w)
{
    free(w);
}

static bool local_fits(const struct way *w, const struct cached *c)
{
    (void)w;
    return c->form.device == 0;
}

/* A rank that cannot do its part of what the others have begun ends the job: they would
 * wait for it for ever. */
static void fail_all(struct engine *e, const struct entry *t, struct hvd_error *err)
{
    error_prefix(err, "rank %d: %.200s", e->topo->rank, t->name);
    err->rank = e->topo->rank;
    mesh_fail(e->mesh, err);
}

static void local_start(struct way *w, struct engine *e, struct entry *t, struct cached *c)
{
    struct coll_call call = c->call;
    struct hvd_error err;

    entry_set_out(e, t, c);
    list_append(&e->running, &t->node);
    if (c->open) {
        plan_open_counts(w->set->counts, &t->form, w->set, t->form.shape[0], t->splits);
        call.counts = w->set->counts;
    } else if (entry_prepare_output(t, &c->plan, &err) != HVD_OK) {
        fail_all(e, t, &err);
        return;
    }
    call.in = t->input;
    call.out = t->output;
    call.count = t->count;
    call.turn = ++c->turn;
    if (w->set->neg != NULL)
        neg_started(w->set->neg, c->number, c->turn);
    if (coll_start(w->set->team, &call, &t->task, &err) != HVD_OK)
        fail_all(e, t, &err);
    else
        trace_come(e, t, false);
}

/* t leaves the way, ended or not. */
static void leave(struct entry *t)
{
    list_remove(&t->node);
    if (t->orphan)
        t->set->orphans--;
    t->orphan = false;
    if (t->cached != NULL) {
        t->cached->entry = NULL;
        if (t->set->neg != NULL)
            neg_ended(t->set->neg, t->cached->number);
    }
    t->cached = NULL;
}

static void trace_step(struct engine *e, const struct entry *t, bool committed)
{
    trace_come(e, t, committed);
    if (committed)
        trace_local(e, t);
}

static bool local_step(struct engine *e, struct entry *t)
{
    struct hvd_error err;
    enum hvd_status status;

    if (t->task == NULL)
        return false;                   /* its start failed; the verdict ends it */
    if (TRACED(e))
        trace_step(e, t, coll_is_committed(t->task));
    status = coll_step(t->task, &err);
    if (status == HVD_AGAIN && coll_sizes(t->task) != NULL) {
        if (entry_place(t, &t->form, t->set->count, t->task, &err) != HVD_OK) {
            fail_all(e, t, &err);
            return false;
        }
        status = coll_step(t->task, &err);
    }
    if (status == HVD_AGAIN)
        return false;
    if (TRACED(e) && status == HVD_OK)
        trace_step(e, t, true);
    coll_finish(t->task);
    t->task = NULL;
    leave(t);
    entry_complete(e, t, status, &err);
    return true;
}

static bool local_needs_us(const struct entry *t)
{
    return t->task != NULL && coll_needs_us(t->task);
}

static bool local_is_committed(const struct entry *t)
{
    return t->task != NULL && coll_is_committed(t->task);
}

static bool local_waits(const struct entry *t)
{
    return t->task != NULL && !coll_is_committed(t->task);
}

static bool local_has_come(const struct entry *t, int member)
{
    return coll_has_come(t->task, member);
}

static bool local_take_back(struct entry *t, uint32_t turn)
{
    (void)turn;                         /* the board knows better */
    if (t->task != NULL && !coll_is_committed(t->task))
        return false;
    t->cached->entry = NULL;
    t->cached = NULL;
    return true;
}

static void local_withdraw(struct entry *t)
{
    if (t->task != NULL)
        coll_cancel(t->task);
    t->task = NULL;
    leave(t);
}

static bool local_is_open(const struct way *w, const struct engine *e)
{
    return running_has(e, w->set, false);
}

const struct way_ops way_local = {
    .name = "local", .open = local_open, .close = local_close, .fits = local_fits,
    .start = local_start, .step = local_step, .needs_us = local_needs_us,
    .is_committed = local_is_committed, .waits = local_waits, .has_come = local_has_come,
    .take_back = local_take_back, .withdraw = local_withdraw, .is_open = local_is_open,
};
