/*
 * fast.c: the short way: one operation of a cached name, waited for.  Within one host the
 * task is started and stepped without an entry or a handle.  If it is not done after one
 * spin, an entry takes it over, so that waiting, failing and taking back are the same as
 * ever.  A small one between hosts (eager.c) has a handle with an entry from the beginning:
 * the spare one, which comes back when it has been done within one spin.
 *
 * The task of a name is kept and started again: in the steady state nothing is looked up
 * but the name, nothing is checked that was checked before, and nothing allocated but the
 * output, if the caller has none; it lies in the spare entry until it is taken.
 */
#include "engine/engine_int.h"

#include "base/clock.h"
#include "base/thread.h"

#include <stdlib.h>

/* The time of one in so many is taken; a prime, so that it is not always the same tensor of a
 * step. */
#define TIMED_RUNS 61

/* What a caller gets whose output is allocated here. */
struct taken {
    struct hvd_output *out;
    int64_t *splits;                    /* room for rows received */
    int room;
};

/* Of an operation with open sizes: what is wrong is said where entries are made. */
static bool has_rows(const struct pset *s, const struct cached *c,
                     const struct hvd_request *req)
{
    int64_t sum = 0;

    if (!form_has_rows(&c->form, req->ndim, req->shape) || req->shape[0] < 0 ||
        (uint64_t)req->shape[0] > UINT64_MAX / 16 / form_row(&c->form))
        return false;
    if (req->op == HVD_ALLGATHER)
        return true;
    if (req->splits == NULL)
        return req->shape[0] % s->count == 0;
    for (int i = 0; i < s->count; i++)
        if (req->splits[i] < 0 || __builtin_add_overflow(sum, req->splits[i], &sum))
            return false;
    return sum <= req->shape[0];
}

static bool request_matches(const struct pset *s, const struct cached *c,
                            const struct hvd_request *req)
{
    const struct tensor_form *f = &c->form;

    if (f->op != req->op || f->dtype != req->dtype || f->reduce != req->reduce ||
        f->device != (req->device >= 0) || req->problem != NULL ||
        f->prescale != (req->prescale == 0 ? 1.0 : req->prescale) ||
        f->postscale != (req->postscale == 0 ? 1.0 : req->postscale))
        return false;
    if (req->op == HVD_BROADCAST && s->ranks[f->root] != req->root)
        return false;
    if (c->open)
        return has_rows(s, c, req);
    return req->splits == NULL && form_has_shape(f, req->ndim, req->shape);
}

static bool has_short_cut(const struct way *w)
{
    return w->ops == &way_local || w->ops == &way_eager;
}

/* The cached name of the request, if the way is open to it; else NULL. */
static struct cached *find(struct engine *e, const struct hvd_request *req,
                           const struct taken *taken)
{
    struct pset *s = pset_find(e, req->process_set);
    const char *name = req->op == HVD_BARRIER ? BARRIER_NAME : req->name;
    struct cached *c;

    if (s == NULL || !pset_starts_cached(s) || s->ending || req->op > HVD_BARRIER ||
        (req->output == NULL && req->op != HVD_BARRIER && taken == NULL) || name == NULL ||
        TRACED(e) || e->tune != NULL ||
        (taken != NULL && req->op == HVD_ALLTOALL && taken->room < s->count) ||
        atomic_load_explicit(&e->state, memory_order_relaxed) != ENGINE_RUNNING)
        return NULL;
    c = hash_get(&s->cache, name, strlen(name));
    return c != NULL && has_short_cut(c->way) && c->entry == NULL &&
                   request_matches(s, c, req) ? c : NULL;
}

/* A step; with open sizes, the output is placed in the spare entry. */
static enum hvd_status step(struct engine *e, const struct pset *s, const struct cached *c,
                            struct hvd_error *err)
{
    enum hvd_status status = coll_step(c->kept, err);

    if (status != HVD_AGAIN || coll_sizes(c->kept) == NULL)
        return status;
    status = entry_place(&e->spare->entries[0], &c->form, s->count, c->kept, err);
    if (status == HVD_OK)
        return coll_step(c->kept, err);
    err->rank = e->topo->rank;          /* the others wait for our part */
    mesh_fail(e->mesh, err);
    return status;
}

static enum hvd_status spin(struct engine *e, const struct pset *s, const struct cached *c,
                            struct hvd_error *err)
{
    enum hvd_status status;
    uint64_t start_ns = 0;

    for (int i = 1;; i++) {
        status = step(e, s, c, err);
        if (status != HVD_AGAIN)
            return status;
        if (e->spin_us <= 0) {          /* more ranks than CPUs: let one of them run */
            if (!engine_yield(i, &start_ns))
                return HVD_AGAIN;
            continue;
        }
        if (i == 1)
            recorder_look(e->recorder); /* in place of a pause: costs nothing */
        else
            thread_pause();
        if (i % 256 != 0)
            continue;
        if (start_ns == 0)
            start_ns = clock_ns();
        else if ((double)(clock_ns() - start_ns) > e->spin_us * 1000)
            return HVD_AGAIN;
    }
}

/* ---- An entry takes over ------------------------------------------------------------- */

/* A handle with room for any name, kept ready, so that taking over cannot fail. */
static struct handle *spare_new(void)
{
    struct handle *h = handle_new(1);

    if (h != NULL)
        h->entries[0].name = malloc(NAME_LIMIT + 1);
    if (h != NULL && h->entries[0].name == NULL) {
        handle_free(h);
        return NULL;
    }
    return h;
}

static bool has_spare(struct engine *e, struct pset *s, const struct cached *c)
{
    struct entry *t;

    if (e->spare == NULL)
        e->spare = spare_new();
    if (e->spare == NULL || hash_reserve(&s->inflight) != 0)
        return false;
    t = &e->spare->entries[0];
    if (c->form.op != HVD_ALLTOALL || e->spare_rows >= s->count)
        return true;
    free(t->recv_rows);
    t->recv_rows = malloc((size_t)s->count * sizeof *t->recv_rows);
    e->spare_rows = t->recv_rows != NULL ? s->count : 0;
    return t->recv_rows != NULL;
}

/* What comes from the plan; with open sizes entry_place sees to it. */
static void fill_output(const struct pset *s, struct entry *t, const struct cached *c)
{
    if (!c->open)
        t->out_rows = c->plan.out_rows;
    if (c->plan.recv_rows != NULL && !c->open)
        memcpy(t->recv_rows, c->plan.recv_rows, (size_t)s->count * sizeof *t->recv_rows);
    if (c->form.op == HVD_ALLTOALL)
        return;
    free(t->recv_rows);
    t->recv_rows = NULL;
}

/* The spare handle, as the one of this request; its entry is open. */
static struct handle *spare_take(struct engine *e, struct pset *s, struct cached *c,
                                 const struct hvd_request *req)
{
    struct handle *h = e->spare;
    struct entry *t = &h->entries[0];

    e->spare = NULL;
    e->spare_rows = 0;
    memcpy(t->name, c->name, c->name_bytes + 1u);
    t->name_bytes = c->name_bytes;
    t->set = s;
    t->set_size = s->count;
    t->form = c->form;
    t->count = c->count;
    if (c->open) {
        t->form.shape[0] = req->shape[0];
        t->count = (uint64_t)req->shape[0] * form_row(&c->form);
    }
    t->input = req->input;
    if (req->output != NULL)
        t->output = req->output;
    fill_output(s, t, c);
    t->submit_us = clock_us();
    recorder_add(e->recorder, RECORDER_SUBMIT, t->form.op, s->id,
                 t->count * hvd_dtype_bytes(t->form.dtype), HVD_OK, t->name);
    e->open_entries++;
    BUG_ON(hash_put(&s->inflight, t->name, t->name_bytes, t) != 0);
    return h;
}

/* The output in the spare entry is given to the caller. */
static void give_output(const struct pset *s, struct entry *t, const struct hvd_request *req,
                        const struct taken *taken)
{
    struct hvd_output *out = taken->out;

    out->data = t->output;
    out->ndim = req->ndim;
    memcpy(out->shape, req->shape, (size_t)req->ndim * sizeof *req->shape);
    if (t->out_rows >= 0 && req->ndim > 0)
        out->shape[0] = t->out_rows;
    out->set_size = s->count;
    out->splits = NULL;
    if (req->op == HVD_ALLTOALL) {
        memcpy(taken->splits, t->recv_rows, (size_t)s->count * sizeof *t->recv_rows);
        out->splits = taken->splits;
    }
    out->value = 0;
    t->own_output = false;
}

/* It has been done without anybody sleeping for it. */
static void spare_put(struct engine *e, struct handle *h)
{
    struct entry *t = &h->entries[0];
    char *name = t->name;

    if (e->spare != NULL || h->err.status != HVD_OK || t->own_output ||
        t->recv_rows != NULL || t->splits != NULL) {
        handle_free(h);
        return;
    }
    *t = (struct entry){.handle = h, .name = name, .out_rows = -1};
    list_init(&t->node);
    h->left = 1;
    atomic_store_explicit(&h->done, 0, memory_order_relaxed);
    e->spare = h;
}

static struct handle *adopt(struct engine *e, struct pset *s, struct cached *c,
                            const struct hvd_request *req)
{
    struct handle *h = spare_take(e, s, c, req);
    struct entry *t = &h->entries[0];

    entry_set_out(e, t, c);
    t->task = c->kept;
    c->kept = NULL;
    list_append(&e->running, &t->node);
    return h;
}

/* ---- Running ------------------------------------------------------------------------- */

/* The task under way is c->kept. */
static enum hvd_status start(struct pset *s, struct cached *c,
                             const struct hvd_request *req, void *output,
                             struct hvd_error *err)
{
    struct coll_call call;

    if (c->open)
        plan_open_counts(s->counts, &c->form, s, req->shape[0], req->splits);
    if (c->kept != NULL)
        return coll_restart(c->kept, req->input, output, s->counts, c->turn + 1, err);
    call = c->call;
    call.in = req->input;
    call.out = output;
    call.count = c->count;
    if (c->open)
        call.counts = s->counts;
    call.turn = c->turn + 1;
    call.waited = true;
    return coll_start(s->team, &call, &c->kept, err);
}

static void end(struct engine *e, struct pset *s, struct cached *c, uint64_t count,
                uint64_t start_ns, enum hvd_status status)
{
    struct op_stats *stats = &e->stats[c->form.op];
    uint64_t bytes = count * hvd_dtype_bytes(c->form.dtype);

    coll_keep(c->kept);
    if (s->neg != NULL)
        neg_ended(s->neg, c->number);
    e->fast_runs++;
    stats->count++;
    stats->bytes += bytes;
    stats->errors += status != HVD_OK;
    if (start_ns > 0) {
        stats->timed++;
        stats->time_ns += clock_ns() - start_ns;
    }
    if (status != HVD_OK)
        recorder_add(e->recorder, RECORDER_FAIL, c->form.op, s->id, bytes, status, c->name);
    else if (count != c->count)
        recorder_add(e->recorder, RECORDER_DONE, c->form.op, s->id, bytes, status, c->name);
    else
        recorder_repeat(e->recorder, &c->done);
}

/* As much of an entry as placing an output needs. */
static void spare_begin(struct entry *t, struct pset *s, const struct cached *c,
                        const struct hvd_request *req)
{
    t->set = s;
    t->form.op = c->form.op;
    t->form.dtype = c->form.dtype;
    t->output = req->output;
    t->own_output = false;
    t->out_rows = -1;
}

/* Nobody has taken it. */
static void drop_output(struct entry *t)
{
    if (t->own_output)
        output_release(t->output);
    t->own_output = false;
}

static enum hvd_status run_local(struct engine *e, struct pset *s, struct cached *c,
                                  const struct hvd_request *req,
                                  const struct taken *taken, struct handle **adopted_p,
                                  struct hvd_error *err)
{
    struct entry *t = &e->spare->entries[0];
    uint64_t count = c->open ? (uint64_t)req->shape[0] * form_row(&c->form) : c->count;
    enum hvd_status status;
    /* A look at the clock costs as much as a flag.  Who has to wait looks anyway, for the
     * recorder; who comes last does each 8th time. */
    uint64_t start_ns = e->fast_runs % TIMED_RUNS == 0 ? clock_ns() : 0;

    if (e->fast_runs % 8 == 0)
        recorder_look(e->recorder);

    if (!c->open)
        TRY(entry_prepare_output(t, &c->plan, err));
    status = start(s, c, req, t->output, err);
    if (status != HVD_OK) {
        drop_output(t);
        return status;
    }
    c->turn++;
    if (s->neg != NULL)
        neg_started(s->neg, c->number, c->turn);
    status = spin(e, s, c, err);
    if (status == HVD_AGAIN) {
        *adopted_p = adopt(e, s, c, req);
        return HVD_AGAIN;
    }
    end(e, s, c, count, start_ns, status);
    if (status == HVD_OK && taken != NULL)
        give_output(s, t, req, taken);
    drop_output(t);
    if (status != HVD_OK)
        error_prefix(err, "%s %.200s", engine_op_text(c->form.op), c->name);
    return status;
}

static enum hvd_status run_eager(struct engine *e, struct pset *s, struct cached *c,
                                const struct hvd_request *req, const struct taken *taken,
                                struct handle **handle_p, struct hvd_error *err)
{
    struct handle *h = spare_take(e, s, c, req);
    enum hvd_status status;

    mesh_disarm(e->mesh);
    c->way->ops->start(c->way, e, &h->entries[0], c);
    ways_flush_data(e, s);
    if (!engine_drive(e, h)) {
        *handle_p = h;
        return HVD_AGAIN;
    }
    status = h->err.status;
    if (status != HVD_OK && err != NULL)
        *err = h->err;
    if (status == HVD_OK && taken != NULL)
        give_output(s, &h->entries[0], req, taken);
    spare_put(e, h);
    return status;
}

static enum hvd_status run(struct engine *e, const struct hvd_request *req,
                           const struct taken *taken, struct handle **handle_p,
                           struct hvd_error *err)
{
    enum hvd_status status = HVD_AGAIN;
    bool eager = false;
    struct cached *c;

    *handle_p = NULL;
    if (!baton_try(e))
        return HVD_AGAIN;
    c = find(e, req, taken);
    if (c != NULL) {
        struct pset *s = e->sets[req->process_set];

        eager = c->way->ops == &way_eager;
        if (!has_spare(e, s, c)) {
            status = error_set(err, HVD_NOMEM, -1, "no memory for a handle");
        } else {
            spare_begin(&e->spare->entries[0], s, c, req);
            status = (eager ? run_eager : run_local)(e, s, c, req, taken, handle_p, err);
        }
    }
    if (!eager && e->open_entries == 0)
        baton_give(e);                  /* the mesh is as armed as before */
    else
        engine_leave(e);
    return status;
}

enum hvd_status fast_run(struct engine *e, const struct hvd_request *req,
                         struct handle **handle_p, struct hvd_error *err)
{
    return run(e, req, NULL, handle_p, err);
}

enum hvd_status fast_take(struct engine *e, const struct hvd_request *req,
                          struct hvd_output *out, int64_t *splits, int room,
                          struct handle **handle_p, struct hvd_error *err)
{
    struct taken taken = {out, splits, room};

    return run(e, req, &taken, handle_p, err);
}
