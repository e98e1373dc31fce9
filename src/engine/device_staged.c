/*
 * device_staged.c: tensors on GPUs through host memory: copied into a fusion buffer, reduced there
 * as on the CPU, and copied back.  So results are those of the CPU, bit for bit.
 */
#include "engine/device.h"

#include <stdlib.h>

static void add_in(void *context, int tensor, size_t at, char *packed, size_t bytes)
{
    struct batch *b = context;
    struct device_run *r = b->device;
    const struct entry *t = b->entries[tensor];

    if (t == NULL)
        pack_neutral(b, packed, bytes);
    else
        r->pieces[r->piece_count++] = (struct gpu_piece){
            .to = packed, .from = (const char *)t->input + at, .bytes = bytes, .of_new = -1};
}

static void add_out(void *context, int tensor, size_t at, char *packed, size_t bytes)
{
    struct batch *b = context;
    struct device_run *r = b->device;
    const struct entry *t = b->entries[tensor];
    int of_new = r->of_new[tensor];

    if (t != NULL)
        r->pieces[r->piece_count++] = (struct gpu_piece){
            .to = of_new < 0 ? (char *)t->output + at : (void *)at, .from = packed,
            .bytes = bytes, .of_new = of_new};
}

static enum hvd_status copy_in(struct engine *e, struct batch *b, struct hvd_error *err)
{
    struct device_run *r = b->device;

    pack_walk_in(b, add_in, b);
    r->work = (struct gpu_work){
        .kind = GPU_COPY_IN, .after = r->after, .after_count = r->after_count,
        .pieces = r->pieces, .piece_count = r->piece_count, .pin = b->fused,
        .pin_bytes = pack_bytes(b)};
    r->phase = RUN_IN;
    trace_batch(e, b, "MEMCPY_IN_FUSION_BUFFER");
    return b->set->device->index >= 0 ? device_start(e, b, err) : HVD_OK;
}

static enum hvd_status copy_out(struct engine *e, struct batch *b, struct hvd_error *err)
{
    struct device_run *r = b->device;

    r->piece_count = 0;
    pack_walk_out(b, add_out, b);
    gpu_work_release(&r->work);
    r->work = (struct gpu_work){
        .kind = GPU_COPY_OUT, .pieces = r->pieces, .piece_count = r->piece_count,
        .news = r->news, .new_count = r->new_count};
    r->phase = RUN_OUT;
    trace_batch(e, b, "MEMCPY_OUT_FUSION_BUFFER");
    return b->set->device->index >= 0 ? device_start(e, b, err) : HVD_OK;
}

enum hvd_status staged_begin(struct engine *e, struct batch *b, struct hvd_error *err)
{
    size_t pieces = (size_t)b->count * (size_t)b->set->count;

    TRY(batch_take_room(e, b, err));
    b->device->pieces = calloc(pieces, sizeof *b->device->pieces);
    if (b->device->pieces == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for copies");
    return copy_in(e, b, err);
}

static enum hvd_status await(struct engine *e, struct batch *b, struct hvd_error *err)
{
    return b->device->under_way ? device_await(e, b, err) : HVD_OK;
}

enum hvd_status staged_step(struct engine *e, struct batch *b, struct hvd_error *err)
{
    if (b->device->phase == RUN_IN) {
        TRY(await(e, b, err));
        TRY(batch_start_task(e, b, err));
        b->device->phase = RUN_TASK;
    }
    if (b->device->phase == RUN_TASK) {
        enum hvd_status status = coll_step(b->task, err);

        if (status == HVD_AGAIN)
            return status;
        coll_finish(b->task);
        b->task = NULL;
        TRY(status);
        TRY(copy_out(e, b, err));
    }
    return await(e, b, err);
}
