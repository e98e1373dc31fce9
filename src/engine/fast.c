/*
 * fast.c: the short way: one operation of a cached name, waited for.  Within one host the
 * task is started and stepped without an entry or a handle.  If it is not done after one
 * spin, an entry takes it over, so that waiting, failing and taking back are the same as
 * ever.  A small one between hosts (swap.c) has a handle with an entry from the beginning:
 * the spare one, which comes back when it has been done within one spin.
 *
 * The task of a name is kept and started again: in the steady state nothing is looked up
 * but the name, nothing is checked that was checked before, and nothing allocated.
 */
#include "engine/engine_int.h"

#include "base/clock.h"
#include "base/thread.h"

#include <stdlib.h>

/* The time of one in so many is taken; a prime, so that it is not always the same tensor of a
 * step. */
#define TIMED_RUNS 61

static const char barrier_name[] = "barrier.noname";

static bool request_matches(const struct pset *s, const struct cached *c,
                            const struct hvd_request *req)
{
    if (c->op != req->op || c->dtype != req->dtype || c->ndim != req->ndim ||
        c->reduce != req->reduce || req->problem != NULL || req->splits != NULL ||
        c->prescale != (req->prescale == 0 ? 1.0 : req->prescale) ||
        c->postscale != (req->postscale == 0 ? 1.0 : req->postscale))
        return false;
    if (req->op == HVD_BROADCAST && s->ranks[c->root] != req->root)
        return false;
    return memcmp(c->shape, req->shape, c->ndim * sizeof c->shape[0]) == 0;
}

/* The cached name of the request, if the way is open to it; else NULL. */
static struct cached *find(struct engine *e, const struct hvd_request *req)
{
    struct pset *s = pset_find(e, req->process_set);
    const char *name = req->op == HVD_BARRIER ? barrier_name : req->name;
    struct cached *c;

    if (s == NULL || (!s->direct && s->swap == NULL) || s->joined_count > 0 ||
        s->join_entry != NULL || s->ending || req->op > HVD_BARRIER ||
        (req->output == NULL && req->op != HVD_BARRIER) || name == NULL || TRACED(e) ||
        e->tune != NULL ||
        atomic_load_explicit(&e->state, memory_order_relaxed) != ENGINE_RUNNING)
        return NULL;
    c = hash_get(&s->cache, name, strlen(name));
    return c != NULL && (s->direct || c->swaps) && c->entry == NULL &&
                   request_matches(s, c, req) ? c : NULL;
}

static enum hvd_status spin(struct engine *e, struct coll_task *task,
                            struct hvd_error *err)
{
    enum hvd_status status;
    uint64_t start_ns = 0;

    for (int i = 1;; i++) {
        status = coll_step(task, err);
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
    if (c->plan.recv_rows == NULL || e->spare_rows >= s->count)
        return true;
    free(t->recv_rows);
    t->recv_rows = malloc((size_t)s->count * sizeof *t->recv_rows);
    e->spare_rows = t->recv_rows != NULL ? s->count : 0;
    return t->recv_rows != NULL;
}

static void fill_output(const struct pset *s, struct entry *t, const struct plan *p)
{
    t->out_rows = p->out_rows;
    if (p->recv_rows != NULL) {
        memcpy(t->recv_rows, p->recv_rows, (size_t)s->count * sizeof *t->recv_rows);
        return;
    }
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
    t->op = c->op;
    t->dtype = c->dtype;
    t->reduce = c->reduce;
    t->ndim = c->ndim;
    t->root = c->root;
    memcpy(t->shape, c->shape, sizeof t->shape);
    t->prescale = c->prescale;
    t->postscale = c->postscale;
    t->count = c->count;
    t->input = req->input;
    t->output = req->output;
    fill_output(s, t, &c->plan);
    t->submit_us = clock_us();
    recorder_add(e->recorder, RECORDER_SUBMIT, t->op, s->id,
                 t->count * hvd_dtype_bytes(t->dtype), HVD_OK, t->name);
    e->open_entries++;
    BUG_ON(hash_put(&s->inflight, t->name, t->name_bytes, t) != 0);
    return h;
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

    t->state = ENTRY_DIRECT;
    t->cached = c;
    t->task = c->kept;
    c->kept = NULL;
    c->entry = t;
    e->cache_hits++;
    list_append(&e->direct, &t->node);
    return h;
}

/* ---- Running ------------------------------------------------------------------------- */

/* The task under way is c->kept. */
static enum hvd_status start(struct pset *s, struct cached *c,
                             const struct hvd_request *req, struct hvd_error *err)
{
    struct coll_call call;

    if (c->kept != NULL)
        return coll_restart(c->kept, req->input, req->output, c->turn + 1, err);
    call = c->call;
    call.in = req->input;
    call.out = req->output;
    call.count = c->count;
    call.turn = c->turn + 1;
    call.waited = true;
    return coll_start(s->team, &call, &c->kept, err);
}

static void end(struct engine *e, struct pset *s, struct cached *c, uint64_t start_ns,
                enum hvd_status status)
{
    struct op_stats *stats = &e->stats[c->op];
    uint64_t bytes = c->count * hvd_dtype_bytes(c->dtype);

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
        recorder_add(e->recorder, RECORDER_FAIL, c->op, s->id, bytes, status, c->name);
    else
        recorder_repeat(e->recorder, &c->done);
}

static enum hvd_status run_direct(struct engine *e, struct pset *s, struct cached *c,
                                  const struct hvd_request *req,
                                  struct handle **adopted_p, struct hvd_error *err)
{
    enum hvd_status status;
    /* A look at the clock costs as much as a flag.  Who has to wait looks anyway, for the
     * recorder; who comes last does each 8th time. */
    uint64_t start_ns = e->fast_runs % TIMED_RUNS == 0 ? clock_ns() : 0;

    if (e->fast_runs % 8 == 0)
        recorder_look(e->recorder);

    TRY(start(s, c, req, err));
    c->turn++;
    if (s->neg != NULL)
        neg_started(s->neg, c->number, c->turn);
    status = spin(e, c->kept, err);
    if (status == HVD_AGAIN) {
        *adopted_p = adopt(e, s, c, req);
        return HVD_AGAIN;
    }
    end(e, s, c, start_ns, status);
    if (status != HVD_OK)
        error_prefix(err, "%s %.200s", engine_op_text(c->op), c->name);
    return status;
}

static enum hvd_status run_swap(struct engine *e, struct pset *s, struct cached *c,
                                const struct hvd_request *req, struct handle **handle_p,
                                struct hvd_error *err)
{
    struct handle *h = spare_take(e, s, c, req);
    enum hvd_status status;

    mesh_disarm(e->mesh);
    swap_start(e, &h->entries[0], c);
    swap_flush(e, s);
    if (!engine_drive(e, h)) {
        *handle_p = h;
        return HVD_AGAIN;
    }
    status = h->err.status;
    if (status != HVD_OK && err != NULL)
        *err = h->err;
    spare_put(e, h);
    return status;
}

enum hvd_status fast_run(struct engine *e, const struct hvd_request *req,
                         struct handle **handle_p, struct hvd_error *err)
{
    enum hvd_status status = HVD_AGAIN;
    bool swaps = false;
    struct cached *c;

    *handle_p = NULL;
    if (!baton_try(e))
        return HVD_AGAIN;
    c = find(e, req);
    if (c != NULL) {
        struct pset *s = e->sets[req->process_set];

        swaps = !s->direct;
        if (!has_spare(e, s, c))
            status = error_set(err, HVD_NOMEM, -1, "no memory for a handle");
        else if (swaps)
            status = run_swap(e, s, c, req, handle_p, err);
        else
            status = run_direct(e, s, c, req, handle_p, err);
    }
    if (!swaps && e->open_entries == 0)
        baton_give(e);                  /* the mesh is as armed as before */
    else
        engine_leave(e);
    return status;
}
