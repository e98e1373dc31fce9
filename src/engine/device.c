/* device.c: batches of tensors on GPUs, from the response to the completion; see device.h. */
#include "engine/device.h"

#include "base/clock.h"

#include <stdlib.h>

/* When the job has failed, NCCL's kernels are aborted and what is on the streams ends; a driver
 * that has not done so by then never will, and its memory is left alone. */
#define CANCEL_US 5000000

/* ---- Submitting -------------------------------------------------------------------------- */

enum hvd_status device_note_caller(struct handle *h, const struct hvd_request *req, int count,
                                   struct hvd_error *err)
{
    h->device = req->device;
    for (int i = 1; i < count; i++)
        if (req[i].device != req->device)
            return error_set(err, HVD_INVALID, -1,
                             "the tensors of one group lie on different devices: %d and %d "
                             "(-1 is the CPU)", req->device, req[i].device);
    if (req->device < 0 || req->op >= HVD_BARRIER || req->problem != NULL)
        return HVD_OK;
    for (int i = 0; i < count; i++) {
        if (i > 0 && req[i].stream == req[i - 1].stream)
            h->entries[i].ready = gpu_event_share(h->entries[i - 1].ready);
        else
            TRY(gpu_note_caller(req->device, req[i].stream, &h->entries[i].ready, err));
    }
    return HVD_OK;
}

/* Communicators are made for one device of each rank. */
enum hvd_status device_check(struct engine *e, struct entry *t, const struct hvd_request *req,
                             struct hvd_error *err)
{
    struct pset *s = t->set;

    if (s->device_index >= 0 && s->device_index != req->device)
        return error_set(err, HVD_INVALID, -1,
                         "rank %d uses GPU %d in process set %d, and GPU %d before: a process "
                         "has one GPU, see torch.cuda.set_device", e->topo->rank, req->device,
                         s->id, s->device_index);
    s->device_index = req->device;
    e->device_index = req->device;
    return HVD_OK;
}

/* ---- Works ------------------------------------------------------------------------------- */

static void kick(void *context)
{
    mesh_kick(context);
}

enum hvd_status device_start_work(struct engine *e, const struct batch *b, struct gpu_work *w,
                                  struct hvd_error *err)
{
    w->device = b->set->device->index;
    w->tell = kick;
    w->context = e->mesh;
    return gpu_start(w, err);
}

enum hvd_status device_await_work(const struct engine *e, struct gpu_work *w,
                                  struct hvd_error *err)
{
    if (!gpu_is_done(w))
        return HVD_AGAIN;
    if (w->err.status == HVD_OK)
        return HVD_OK;
    *err = w->err;
    error_prefix(err, "rank %d on %s", e->topo->rank, e->topo->hosts[e->topo->rank]);
    err->rank = e->topo->rank;
    return err->status;
}

enum hvd_status device_start(struct engine *e, struct batch *b, struct hvd_error *err)
{
    TRY(device_start_work(e, b, &b->device->work, err));
    b->device->under_way = true;
    return HVD_OK;
}

enum hvd_status device_await(struct engine *e, struct batch *b, struct hvd_error *err)
{
    enum hvd_status status = device_await_work(e, &b->device->work, err);

    if (status != HVD_AGAIN)
        b->device->under_way = false;
    return status;
}

static int count_news(const struct batch *b)
{
    int count = 0;

    for (int i = 0; i < b->count; i++)
        count += b->entries[i] != NULL && b->entries[i]->output == NULL;
    return count;
}

/* Outputs that the callers have not brought. */
enum hvd_status device_make_news(struct batch *b, struct hvd_error *err)
{
    size_t element = hvd_dtype_bytes(b->form.dtype);
    struct device_run *r = b->device;

    r->of_new = malloc((size_t)b->count * sizeof *r->of_new);
    r->news = calloc((size_t)count_news(b) + 1, sizeof *r->news);
    if (r->of_new == NULL || r->news == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for outputs");
    for (int i = 0; i < b->count; i++) {
        r->of_new[i] = -1;
        if (b->entries[i] == NULL || b->entries[i]->output != NULL)
            continue;
        r->news[r->new_count].bytes = b->plans[i].out_count * element;
        r->of_new[i] = r->new_count++;
    }
    return HVD_OK;
}

static void give_news(struct batch *b)
{
    for (int i = 0; i < b->count; i++) {
        int at = b->device->of_new[i];

        if (at < 0 || b->device->news[at].at == NULL)
            continue;
        b->entries[i]->output = b->device->news[at].at;
        b->entries[i]->own_output = true;
        b->device->news[at].at = NULL;
    }
}

/* The callers' events, each once. */
static enum hvd_status list_after(struct batch *b, struct hvd_error *err)
{
    struct device_run *r = b->device;

    r->after = calloc((size_t)b->count, sizeof *r->after);
    if (r->after == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for events");
    for (int i = 0; i < b->count; i++) {
        struct gpu_event *ready = b->entries[i] != NULL ? b->entries[i]->ready : NULL;

        if (ready == NULL || (r->after_count > 0 && r->after[r->after_count - 1] == ready))
            continue;
        r->after[r->after_count++] = gpu_event_share(ready);
    }
    return HVD_OK;
}

void device_run_free(struct device_run *r)
{
    if (r == NULL)
        return;
    gpu_work_release(&r->work);
    ring_free(r->ring);
    for (int i = 0; i < r->after_count; i++)
        gpu_event_put(r->after[i]);
    for (int i = 0; i < r->new_count; i++)
        if (r->news[i].at != NULL)
            gpu_free(r->news[i].at);
    free(r->after);
    free(r->news);
    free(r->of_new);
    free(r->pieces);
    free(r->calls);
    free(r->fill);
    free(r);
}

/* ---- NCCL -------------------------------------------------------------------------------- */

static double factor_of(const struct tensor_form *f)
{
    bool reduces = f->op == HVD_ALLREDUCE || f->op == HVD_REDUCESCATTER;

    return reduces ? f->prescale * f->postscale : 1;
}

static enum hvd_status fill_neutral(struct batch *b, struct hvd_error *err)
{
    size_t element = hvd_dtype_bytes(b->form.dtype), most = 0;

    for (int i = 0; i < b->count; i++)
        if (b->entries[i] == NULL && b->counts[i] > most)
            most = b->counts[i];
    b->device->fill = most > 0 ? malloc(most * element) : NULL;
    if (most > 0 && b->device->fill == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for neutral elements");
    if (most > 0)
        pack_neutral(b, b->device->fill, most * element);
    return HVD_OK;
}

static enum hvd_status list_calls(struct batch *b, struct hvd_error *err)
{
    struct device_run *r = b->device;

    r->calls = calloc((size_t)b->count, sizeof *r->calls);
    if (r->calls == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for operations");
    for (int i = 0; i < b->count; i++) {
        const struct entry *t = b->entries[i];

        r->calls[i] = (struct gpu_call){
            .op = b->form.op, .in = t != NULL ? t->input : NULL,
            .out = t != NULL ? t->output : NULL, .of_new = r->of_new[i],
            .count = b->counts[i], .counts = b->plans[i].counts,
            .recv_counts = b->plans[i].recv_counts, .root = b->form.root, .fill = r->fill,
        };
    }
    return HVD_OK;
}

static enum hvd_status nccl_begin(struct engine *e, struct batch *b, struct hvd_error *err)
{
    struct device_set *d = b->set->device;
    struct device_run *r = b->device;

    TRY(device_make_news(b, err));
    TRY(fill_neutral(b, err));
    TRY(list_calls(b, err));
    r->work = (struct gpu_work){
        .kind = GPU_COLLECT, .after = r->after, .after_count = r->after_count,
        .news = r->news, .new_count = r->new_count, .comm = d->comm,
        .lane = (int)(d->sequence++ % (uint64_t)d->lanes), .calls = r->calls,
        .call_count = b->count, .dtype = b->form.dtype, .reduce = b->form.reduce,
        .factor = factor_of(&b->form),
    };
    r->phase = RUN_NCCL;
    trace_batch(e, b, "NCCL");
    return device_start(e, b, err);
}

/* The callers' streams wait for the end, nobody else does. */
static void tell_entries(struct engine *e, struct batch *b)
{
    b->device->told = true;
    give_news(b);
    for (int i = 0; i < b->count; i++) {
        struct entry *t = b->entries[i];

        b->entries[i] = NULL;
        if (t == NULL)
            continue;
        t->end = gpu_event_share(b->device->work.end);
        entry_complete(e, t, HVD_OK, NULL);
    }
}

static enum hvd_status nccl_step(struct engine *e, struct batch *b, struct hvd_error *err)
{
    struct device_run *r = b->device;

    if (e->conf->enable_async_completion && !r->told && gpu_is_launched(&r->work) &&
        !gpu_is_done(&r->work))
        tell_entries(e, b);
    TRY(device_await(e, b, err));
    if (!r->told)
        give_news(b);
    return HVD_OK;
}

/* ---- The run ----------------------------------------------------------------------------- */

enum hvd_status device_begin(struct engine *e, struct batch *b, struct hvd_error *err)
{
    b->device = calloc(1, sizeof *b->device);
    if (b->device == NULL)
        return error_set(err, HVD_NOMEM, e->topo->rank, "rank %d: no memory for a batch",
                         e->topo->rank);
    b->device->phase = RUN_WAITING;
    TRY(list_after(b, err));
    if (b->set->device != NULL)
        return HVD_OK;
    b->device->phase = RUN_OPENING;
    return device_open_begin(e, b, err);
}

static enum hvd_status begin(struct engine *e, struct batch *b, struct hvd_error *err)
{
    const struct tensor_form *f = &b->form;

    if (b->set->device->backend == HVD_GPU_NCCL &&
        gpu_nccl_can(f->op, f->dtype, f->reduce, factor_of(f)))
        return nccl_begin(e, b, err);
    TRY(device_make_news(b, err));
    return ring_fits(e, b) ? ring_begin(e, b, err) : staged_begin(e, b, err);
}

static enum hvd_status step(struct engine *e, struct batch *b, struct hvd_error *err)
{
    struct device_run *r = b->device;

    if (r->phase == RUN_OPENING) {
        TRY(device_open_step(e, b, err));
        r->phase = RUN_WAITING;
    }
    if (r->phase == RUN_WAITING) {
        if (b->set->device->state != DEVICE_READY)
            return HVD_AGAIN;
        if (b->set->device->backend != HVD_GPU_NONE)
            TRY(begin(e, b, err));
        return HVD_AGAIN;
    }
    if (r->phase == RUN_NCCL)
        return nccl_step(e, b, err);
    TRY(r->phase == RUN_RING ? ring_step(e, b, err) : staged_step(e, b, err));
    give_news(b);
    return HVD_OK;
}

/* What fails here has failed for all members, who wait for it: the job ends. */
enum hvd_status device_step(struct engine *e, struct batch *b, struct hvd_error *err)
{
    const struct device_set *d = b->set->device;
    struct device_run *r = b->device;
    enum hvd_status status;

    if (r->phase == RUN_BROKEN)
        return HVD_AGAIN;
    status = step(e, b, err);
    if (r->phase == RUN_WAITING && d->state == DEVICE_READY && d->backend == HVD_GPU_NONE) {
        *err = d->refusal;              /* all have agreed on that, too */
        return err->status;
    }
    if (status == HVD_OK || status == HVD_AGAIN)
        return status;
    r->phase = RUN_BROKEN;
    err->rank = e->topo->rank;
    mesh_fail(e->mesh, err);
    return HVD_AGAIN;
}

bool device_give_up(struct engine *e, struct gpu_work *w)
{
    uint64_t now_us = clock_us();

    if (e->cancel_until_us == 0)
        e->cancel_until_us = now_us + CANCEL_US;
    if (w->comm != NULL)
        gpu_comm_abort(w->comm);
    return gpu_wait(w, now_us < e->cancel_until_us ? (int64_t)(e->cancel_until_us - now_us)
                                                   : 0);
}

/* The job has failed, or the set is removed.  After that the memory of the callers is not
 * touched any more. */
void device_cancel(struct engine *e, struct batch *b)
{
    struct device_run *r = b->device;
    bool ended = !r->under_way || device_give_up(e, &r->work);

    ended &= r->ring == NULL || ring_cancel(e, b);
    if (ended)
        return;
    b->fused = NULL;                    /* it stays with the driver, which has not answered */
    b->device = NULL;
}

void device_close(struct pset *s)
{
    struct device_set *d = s->device;

    if (d == NULL)
        return;
    if (d->comm != NULL)
        gpu_comm_end(d->comm);
    free(d->hellos);
    free(d);
    s->device = NULL;
}
