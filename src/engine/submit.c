/* submit.c: from a user's request to an entry that is announced or started. */
#include "base/clock.h"
#include "engine/device.h"

#include <stdio.h>
#include <stdlib.h>

static enum hvd_status check_shape(struct entry *t, const struct hvd_request *req,
                                   struct hvd_error *err)
{
    uint64_t count = 1;

    if (req->ndim < 0 || req->ndim > HVD_DIMS_MAX)
        return error_set(err, HVD_INVALID, -1, "%d dimensions; at most %d are possible",
                         req->ndim, HVD_DIMS_MAX);
    t->form.ndim = (uint8_t)req->ndim;
    for (int i = 0; i < req->ndim; i++) {
        t->form.shape[i] = req->shape[i];
        if (req->shape[i] < 0 ||
            __builtin_mul_overflow(count, (uint64_t)req->shape[i], &count) ||
            count > UINT64_MAX / 16)
            return error_set(err, HVD_INVALID, -1, "dimension %d is %lld", i,
                             (long long)req->shape[i]);
    }
    t->count = count;
    return HVD_OK;
}

static enum hvd_status check_reduction(const struct hvd_request *req,
                                       struct hvd_error *err)
{
    if (req->op == HVD_REDUCESCATTER && req->reduce != HVD_SUM &&
        req->reduce != HVD_AVERAGE)
        return error_set(err, HVD_UNSUPPORTED, -1,
                         "reducescatter supports only Sum and Average");
    if (req->reduce == HVD_ADASUM && req->dtype != HVD_F16 && req->dtype != HVD_BF16 &&
        req->dtype != HVD_F32 && req->dtype != HVD_F64)
        return error_set(err, HVD_UNSUPPORTED, -1, "Adasum of %s is not possible",
                         hvd_dtype_name(req->dtype));
    return HVD_OK;
}

static enum hvd_status check_splits(struct entry *t, const struct hvd_request *req,
                                    struct hvd_error *err)
{
    int64_t sum = 0, rows = t->form.ndim > 0 ? t->form.shape[0] : 0;

    if (t->form.ndim == 0)
        return error_set(err, HVD_INVALID, -1, "alltoall of a scalar is not possible");
    if (req->splits == NULL && rows % t->set->count != 0)
        return error_set(err, HVD_INVALID, -1,
                         "alltoall without splits needs a first dimension that is a "
                         "multiple of %d, not %lld", t->set->count, (long long)rows);
    if (req->splits == NULL)
        return HVD_OK;
    for (int i = 0; i < t->set->count; i++)
        if (req->splits[i] < 0 || __builtin_add_overflow(sum, req->splits[i], &sum))
            return error_set(err, HVD_INVALID, -1, "alltoall: split %d is %lld", i,
                             (long long)req->splits[i]);
    if (sum > rows)
        return error_set(err, HVD_INVALID, -1,
                         "alltoall: splits add up to %lld, but there are %lld rows",
                         (long long)sum, (long long)rows);
    t->split_count = (uint32_t)t->set->count;
    t->splits = malloc(t->split_count * sizeof *t->splits);
    if (t->splits == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for splits");
    memcpy(t->splits, req->splits, t->split_count * sizeof *t->splits);
    return HVD_OK;
}

static enum hvd_status check_root(struct entry *t, const struct hvd_request *req,
                                  struct hvd_error *err)
{
    t->form.root = -1;
    for (int i = 0; i < t->set->count; i++)
        if (t->set->ranks[i] == req->root)
            t->form.root = i;
    if (t->form.root < 0)
        return error_set(err, HVD_INVALID, -1,
                         "root rank %d is not a member of process set %d", req->root,
                         t->set->id);
    return HVD_OK;
}

static enum hvd_status set_name(struct entry *t, const struct hvd_request *req,
                                struct hvd_error *err)
{
    char unnamed[64];
    const char *name = req->name;

    if (req->op == HVD_BARRIER) {
        name = BARRIER_NAME;
    } else if (req->op == HVD_JOIN) {
        name = "join.noname";
    } else if (name == NULL) {
        snprintf(unnamed, sizeof unnamed, "%s.noname.%lld", hvd_op_name(req->op),
                 (long long)++t->set->unnamed[req->op]);
        name = unnamed;
    }
    if (*name == '\0' || strlen(name) > NAME_LIMIT)
        return error_set(err, HVD_INVALID, -1, "a name has 1 to %d bytes", NAME_LIMIT);
    t->name_bytes = (uint16_t)strlen(name);
    t->name = strdup(name);
    return t->name != NULL ? HVD_OK : error_set(err, HVD_NOMEM, -1, "no memory");
}

static enum hvd_status find_set(struct engine *e, struct entry *t, int id,
                                struct hvd_error *err)
{
    t->set = pset_find(e, id);
    if (t->set == NULL || t->set->ending)
        return error_set(err, HVD_INVALID, -1, "process set %d does not exist", id);
    if (t->set->self < 0)
        return error_set(err, HVD_INVALID, -1,
                         "rank %d is not a member of process set %d", e->topo->rank, id);
    t->set_size = t->set->count;
    return HVD_OK;
}

/* Checks one request against the state of the engine and fills the entry. */
enum hvd_status entry_fill(struct engine *e, struct entry *t,
                           const struct hvd_request *req, struct hvd_error *err)
{
    TRY(find_set(e, t, req->process_set, err));
    t->form.op = (uint8_t)req->op;
    t->form.dtype = (uint8_t)req->dtype;
    t->form.reduce = (uint8_t)req->reduce;
    t->form.device = req->device >= 0 && req->op < HVD_BARRIER;
    t->form.prescale = req->prescale == 0 ? 1.0 : req->prescale;
    t->form.postscale = req->postscale == 0 ? 1.0 : req->postscale;
    t->input = req->input;
    t->output = req->output;
    if (req->problem != NULL) {
        t->problem = strndup(req->problem, PROBLEM_LIMIT);
        if (t->problem == NULL)
            return error_set(err, HVD_NOMEM, -1, "no memory");
        return set_name(t, req, err);
    }
    TRY(check_shape(t, req, err));
    if (req->op == HVD_ALLREDUCE || req->op == HVD_REDUCESCATTER)
        TRY(check_reduction(req, err));
    if (req->op == HVD_REDUCESCATTER && t->form.ndim == 0)
        return error_set(err, HVD_INVALID, -1, "reducescatter of a scalar is not possible");
    if (req->op == HVD_ALLGATHER && t->form.ndim == 0)
        return error_set(err, HVD_INVALID, -1, "allgather of a scalar is not possible");
    if (req->op == HVD_ALLTOALL)
        TRY(check_splits(t, req, err));
    if (req->op == HVD_BROADCAST)
        TRY(check_root(t, req, err));
    if (req->op == HVD_BARRIER || req->op == HVD_JOIN)
        t->count = 0;
    if (t->form.device)
        TRY(device_check(e, t, req, err));
    TRY(set_name(t, req, err));
    if (hash_get(&t->set->inflight, t->name, t->name_bytes) != NULL)
        return error_set(err, HVD_INVALID, -1,
                         "a tensor named %.200s is already in flight on process set %d; "
                         "names must be unique until their operation is done", t->name,
                         t->set->id);
    return HVD_OK;
}

/* A JOIN carries the counters of unnamed operations. */
static void put_counters(struct entry *t)
{
    t->splits = malloc(OP_KIND_COUNT * sizeof *t->splits);
    if (t->splits == NULL)
        return;
    memcpy(t->splits, t->set->unnamed, OP_KIND_COUNT * sizeof *t->splits);
    t->split_count = OP_KIND_COUNT;
}

void entry_set_out(struct engine *e, struct entry *t, struct cached *c)
{
    t->state = ENTRY_CACHED;
    t->way = c->way;
    t->cached = c;
    c->entry = t;
    e->cache_hits++;
}

/* The entry enters the engine: owner of the baton only. */
void entry_begin(struct engine *e, struct entry *t)
{
    struct pset *s = t->set;
    struct cached *c = hash_get(&s->cache, t->name, t->name_bytes);

    ASSERT_OWNER(e);
    BUG_ON(t->state != ENTRY_NEW);
    e->open_entries++;
    if (hash_put(&s->inflight, t->name, t->name_bytes, t) != 0) {
        struct hvd_error err;

        t->state = ENTRY_ANNOUNCED;
        entry_complete(e, t, error_set(&err, HVD_NOMEM, -1, "no memory"), &err);
        return;
    }
    recorder_add(e->recorder, RECORDER_SUBMIT, t->form.op, s->id,
                 t->count * hvd_dtype_bytes(t->form.dtype), HVD_OK, t->name);
    trace_submit(e, t);
    if (t->form.op == HVD_JOIN) {
        s->join_entry = t;
        s->join_held = true;            /* member_flush announces it */
        t->state = ENTRY_ANNOUNCED;
        put_counters(t);
        return;
    }
    if (c != NULL && pset_starts_cached(s) && t->problem == NULL && cached_matches(c, t)) {
        c->way->ops->start(c->way, e, t, c);
        return;
    }
    entry_announce(e, t, c);
    /* The promise: from here on this rank does not start that number any more. */
    if (c != NULL)
        hash_remove(&s->cache, c->name, c->name_bytes);
}
