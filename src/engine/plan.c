/* plan.c: what a response means for the buffers of this rank. */
#include "engine/engine_int.h"
#include "gpu/gpu.h"

#include <stdlib.h>

/* Outputs of at least this size come from the arena, which keeps its pages. */
#define ARENA_OUTPUT_BYTES (64u << 10)

void *output_alloc(size_t bytes)
{
    void *p = bytes >= ARENA_OUTPUT_BYTES ? arena_alloc_dirty(bytes) : NULL;

    if (p == NULL && posix_memalign(&p, 64, bytes > 0 ? bytes : 1) != 0)
        return NULL;
    return p;
}

void output_release(void *p)
{
    if (p != NULL && arena_owns(p))
        arena_free(p);
    else
        free(p);
}

void entry_drop_output(struct entry *t)
{
    if (t->own_output && t->form.device)
        gpu_free(t->output);
    else if (t->own_output)
        output_release(t->output);
    t->own_output = false;
}

enum red_op plan_reduce(uint8_t reduce)
{
    switch (reduce) {
    case HVD_MIN:
        return RED_MIN;
    case HVD_MAX:
        return RED_MAX;
    case HVD_PRODUCT:
        return RED_PROD;
    default:
        return RED_SUM;
    }
}

void plan_release(struct plan *p)
{
    free(p->counts);
    free(p->recv_counts);
    free(p->recv_rows);
    *p = (struct plan){0};
}

static bool copy_list(uint64_t **to, const uint64_t *from, int n)
{
    if (from == NULL)
        return true;
    *to = malloc((size_t)n * sizeof **to);
    if (*to != NULL)
        memcpy(*to, from, (size_t)n * sizeof **to);
    return *to != NULL;
}

enum hvd_status plan_copy(struct plan *p, const struct plan *from, int members,
                          struct hvd_error *err)
{
    *p = (struct plan){.out_count = from->out_count, .out_rows = from->out_rows,
                       .most = from->most};
    if (copy_list(&p->counts, from->counts, members) &&
        copy_list(&p->recv_counts, from->recv_counts, members) &&
        copy_list((uint64_t **)&p->recv_rows, (const uint64_t *)from->recv_rows, members))
        return HVD_OK;
    plan_release(p);
    return error_set(err, HVD_NOMEM, -1, "no memory for a plan");
}

static enum hvd_status plan_allgather(struct plan *p, const struct pset *s,
                                      const struct entry *t, const struct wire_tensor *w,
                                      struct hvd_error *err)
{
    if (w->size_count != (uint32_t)s->count)
        return error_set(err, HVD_PROTO, -1, "allgather with %u sizes", w->size_count);
    p->out_rows = 0;
    for (int m = 0; m < s->count; m++) {
        int64_t rows = get_split(w->sizes, (uint32_t)m);

        p->counts[m] = (uint64_t)rows * form_row(&t->form);
        p->out_rows += rows;
    }
    p->out_count = (uint64_t)p->out_rows * form_row(&t->form);
    return HVD_OK;
}

static enum hvd_status plan_alltoall(struct plan *p, const struct pset *s,
                                     const struct entry *t, const struct wire_tensor *w,
                                     struct hvd_error *err)
{
    uint32_t n = (uint32_t)s->count, self = (uint32_t)s->self;
    bool equal = w->size_count == 1;

    if (!equal && w->size_count != (uint64_t)n * n)
        return error_set(err, HVD_PROTO, -1, "alltoall with %u sizes", w->size_count);
    p->recv_counts = calloc(n, sizeof *p->recv_counts);
    p->recv_rows = calloc(n, sizeof *p->recv_rows);
    if (p->recv_counts == NULL || p->recv_rows == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a plan");
    p->out_rows = 0;
    for (uint32_t m = 0; m < n; m++) {
        p->counts[m] = (uint64_t)get_split(w->sizes, equal ? 0 : self * n + m) *
                       form_row(&t->form);
        p->recv_rows[m] = get_split(w->sizes, equal ? 0 : m * n + self);
        p->recv_counts[m] = (uint64_t)p->recv_rows[m] * form_row(&t->form);
        p->out_rows += p->recv_rows[m];
    }
    for (uint32_t i = 0; i < w->size_count; i++) {
        uint64_t part = (uint64_t)get_split(w->sizes, i) * form_row(&t->form);

        p->most = part > p->most ? part : p->most;
    }
    p->out_count = (uint64_t)p->out_rows * form_row(&t->form);
    return HVD_OK;
}

/* The first `rows % n` members get one row more. */
static void plan_reducescatter(struct plan *p, const struct pset *s, const struct entry *t)
{
    int64_t rows = t->form.shape[0], share = rows / s->count, more = rows % s->count;

    for (int m = 0; m < s->count; m++)
        p->counts[m] = (uint64_t)(share + (m < more)) * form_row(&t->form);
    p->out_rows = share + (s->self < more);
    p->out_count = p->counts[s->self];
}

enum hvd_status plan_make(struct plan *p, const struct pset *s, const struct entry *t,
                          const struct wire_tensor *w, struct hvd_error *err)
{
    *p = (struct plan){.out_count = t->count, .out_rows = -1};
    if (t->form.op != HVD_ALLGATHER && t->form.op != HVD_ALLTOALL &&
        t->form.op != HVD_REDUCESCATTER)
        return HVD_OK;
    p->counts = calloc((size_t)s->count, sizeof *p->counts);
    if (p->counts == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a plan");
    if (t->form.op == HVD_ALLGATHER)
        return plan_allgather(p, s, t, w, err);
    if (t->form.op == HVD_ALLTOALL)
        return plan_alltoall(p, s, t, w, err);
    plan_reducescatter(p, s, t);
    return HVD_OK;
}

static enum coll_op coll_op_of(uint8_t op, uint8_t reduce)
{
    static const enum coll_op ops[] = {
        [HVD_ALLREDUCE] = COLL_ALLREDUCE,   [HVD_ALLGATHER] = COLL_ALLGATHER,
        [HVD_BROADCAST] = COLL_BROADCAST,   [HVD_ALLTOALL] = COLL_ALLTOALL,
        [HVD_REDUCESCATTER] = COLL_REDUCESCATTER, [HVD_BARRIER] = COLL_BARRIER,
    };

    return op == HVD_ALLREDUCE && reduce == HVD_ADASUM ? COLL_ADASUM : ops[op];
}

/* All of a call but its buffers, count, board and turn. */
void plan_call(struct coll_call *call, const struct pset *s,
               const struct tensor_form *f, const struct plan *p)
{
    bool reduces = f->op == HVD_ALLREDUCE || f->op == HVD_REDUCESCATTER;

    *call = (struct coll_call){
        .op = coll_op_of(f->op, f->reduce), .dtype = f->dtype,
        .reduce = plan_reduce(f->reduce), .counts = p->counts,
        .recv_counts = p->recv_counts, .most = p->most, .root = f->root, .prescale = f->prescale,
        .postscale = f->postscale,
        .divisor = reduces && f->reduce == HVD_AVERAGE ? s->count : 1,
    };
}

/* Room for the rows of each member; `recv_rows` may be there already. */
static enum hvd_status take_rows(struct entry *t, int members, struct hvd_error *err)
{
    if (t->recv_rows == NULL)
        t->recv_rows = malloc((size_t)members * sizeof *t->recv_rows);
    return t->recv_rows != NULL
               ? HVD_OK : error_set(err, HVD_NOMEM, -1, "no memory for received splits");
}

static enum hvd_status take_output(struct entry *t, size_t bytes, struct hvd_error *err)
{
    if (t->output != NULL)
        return HVD_OK;
    t->output = output_alloc(bytes);
    if (t->output == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for an output of %zu bytes",
                         bytes);
    t->own_output = true;
    return HVD_OK;
}

enum hvd_status entry_prepare_output(struct entry *t, const struct plan *p,
                                     struct hvd_error *err)
{
    t->out_rows = p->out_rows;
    if (p->recv_rows != NULL) {
        TRY(take_rows(t, t->set->count, err));
        memcpy(t->recv_rows, p->recv_rows, (size_t)t->set->count * sizeof *t->recv_rows);
    }
    if (t->form.op == HVD_BARRIER || t->form.device)    /* device memory: device.c */
        return HVD_OK;
    return take_output(t, p->out_count * hvd_dtype_bytes(t->form.dtype), err);
}

/* The same once the task knows what all members bring (open sizes). */
enum hvd_status entry_place(struct entry *t, const struct tensor_form *f, int members,
                            struct coll_task *task, struct hvd_error *err)
{
    const uint64_t *sizes = coll_sizes(task);
    uint64_t row = form_row(f), total = 0;

    if (f->op == HVD_ALLTOALL)
        TRY(take_rows(t, members, err));
    for (int m = 0; m < members; m++) {
        if (f->op == HVD_ALLTOALL)
            t->recv_rows[m] = (int64_t)(sizes[m] / row);
        total += sizes[m];
    }
    t->out_rows = (int64_t)(total / row);
    TRY(take_output(t, total * hvd_dtype_bytes(f->dtype), err));
    coll_place(task, t->output);
    return HVD_OK;
}

/* What this rank brings to a call with open sizes, by member.  splits: NULL: equal ones. */
void plan_open_counts(uint64_t *counts, const struct tensor_form *f, const struct pset *s,
                      int64_t rows, const int64_t *splits)
{
    uint64_t row = form_row(f);

    if (f->op == HVD_ALLGATHER) {
        counts[s->self] = (uint64_t)rows * row;
        return;
    }
    for (int m = 0; m < s->count; m++)
        counts[m] = (uint64_t)(splits != NULL ? splits[m] : rows / s->count) * row;
}
