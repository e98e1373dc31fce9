/*
 * member_batch.c: from the response that says which tensors run together to the batch: each
 * tensor finds its entry, and a plan from the response or from the cache.
 */
#include "engine/engine_int.h"

#include <stdlib.h>

/* The board of the next batch is free here: its last batch has ended. */
static bool is_board_free(const struct pset *s)
{
    return (s->running_mask >> (s->batches % BATCH_BOARDS) & 1) == 0;
}

static enum hvd_status prepare_output(struct engine *e, struct entry *t,
                                      const struct plan *p, struct hvd_error *err)
{
    enum hvd_status status;

    trace_begin(e, t);
    if (t->form.op == HVD_ALLGATHER)
        trace_activity(e, t, "ALLOCATE_OUTPUT");
    status = entry_prepare_output(t, p, err);
    if (t->form.op == HVD_ALLGATHER)
        trace_activity(e, t, NULL);
    return status;
}

static enum hvd_status take_tensor(struct engine *e, struct pset *s, struct batch *b,
                                   int i, const struct wire_tensor *w,
                                   struct hvd_error *err)
{
    struct entry *t = hash_get(&s->inflight, w->name, w->name_bytes);
    struct plan p;

    b->counts[i] = w->count;
    /* This rank has joined: neutral elements.  A tensor of that name which still runs is
     * of an earlier operation. */
    if ((t == NULL || t->state != ENTRY_ANNOUNCED) && s->joined_count > 0) {
        trace_pass(e, s, w->name, w->name_bytes);
        return HVD_OK;
    }
    if (t == NULL || t->state != ENTRY_ANNOUNCED)
        return error_set(err, HVD_PROTO, -1, "batch with unknown tensor %.*s",
                         w->name_bytes, w->name);
    b->entries[i] = t;
    t->state = ENTRY_BATCH;
    TRY(plan_make(&b->plans[i], s, t, w, err));
    TRY(prepare_output(e, t, &b->plans[i], err));
    if (w->cached == 0)
        return HVD_OK;
    TRY(plan_copy(&p, &b->plans[i], s->count, err));
    if (member_cache_add(e, s, t, w, &p) == HVD_OK)
        return HVD_OK;
    plan_release(&p);
    return error_set(err, HVD_NOMEM, -1, "no memory for the cache");
}

enum hvd_status member_execute(struct engine *e, struct pset *s, struct wire_in *in,
                               struct hvd_error *err)
{
    struct wire_batch w;
    struct wire_tensor tensor;
    struct batch *b;
    enum hvd_status status = HVD_OK;

    if (!is_board_free(s))
        return HVD_AGAIN;
    TRY(get_batch(in, &w, err));
    b = batch_new((int)w.tensor_count);
    if (b == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a batch");
    for (uint32_t i = 0; i < w.tensor_count; i++) {
        TRY_OUT(get_tensor(in, &tensor, err));
        TRY_OUT(take_tensor(e, s, b, (int)i, &tensor, err));
    }
    return execute_batch(e, s, b, &w);
out:
    batch_free(e, b);
    return status;
}

/* Moves the entry of a cached name into place i of the batch. */
static enum hvd_status take_cached(struct engine *e, struct pset *s, struct batch *b,
                                   int i, uint32_t number, struct wire_batch *w,
                                   struct hvd_error *err)
{
    struct cached *c = number < CACHE_NUMBERS ? s->by_number[number] : NULL;
    struct entry *t = c != NULL ? c->entry : NULL;

    if (t == NULL || !t->way->ops->by_response)
        return error_set(err, HVD_PROTO, -1, "cached batch with number %u", number);
    w->form = c->form;
    b->entries[i] = t;
    b->counts[i] = t->count;
    t->way->ops->withdraw(t);
    t->way = NULL;
    t->state = ENTRY_BATCH;
    t->cached = NULL;
    c->entry = NULL;
    TRY(plan_copy(&b->plans[i], &c->plan, s->count, err));
    return prepare_output(e, t, &b->plans[i], err);
}

enum hvd_status member_execute_cached(struct engine *e, struct pset *s,
                                      struct wire_in *in, struct hvd_error *err)
{
    struct wire_cached list;
    struct wire_batch w;
    struct batch *b;
    enum hvd_status status = HVD_OK;

    if (!is_board_free(s))
        return HVD_AGAIN;
    TRY(get_cached(in, &list, err));
    w = (struct wire_batch){.tensor_count = list.count};
    b = batch_new((int)list.count);
    if (b == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a batch");
    for (uint32_t i = 0; i < list.count; i++)
        TRY_OUT(take_cached(e, s, b, (int)i, (uint32_t)get_member(list.numbers, i), &w,
                            err));
    return execute_batch(e, s, b, &w);
out:
    batch_free(e, b);
    return status;
}
