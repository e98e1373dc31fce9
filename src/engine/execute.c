/*
 * execute.c: runs negotiated batches.  One tensor is processed where it lies; several are
 * packed into a fusion buffer in shared memory, reduced in one collective, and unpacked.
 */
#include "base/clock.h"
#include "engine/device.h"
#include "engine/engine_int.h"

#include <stdlib.h>

struct batch *batch_new(int count)
{
    struct batch *b = calloc(1, sizeof *b + (size_t)count * sizeof b->entries[0]);

    if (b == NULL)
        return NULL;
    list_init(&b->node);
    b->count = count;
    b->counts = calloc((size_t)count, sizeof *b->counts);
    b->segments = calloc((size_t)count, sizeof *b->segments);
    b->plans = calloc((size_t)count, sizeof *b->plans);
    if (b->counts == NULL || b->segments == NULL || b->plans == NULL) {
        free(b->counts);
        free(b->segments);
        free(b->plans);
        free(b);
        return NULL;
    }
    return b;
}

/* ---- Fusion buffers: kept, so that their pages are touched once ---------------------- */

static char *fusion_get(struct engine *e, const struct batch *b, size_t bytes)
{
    size_t size = 64u << 10;
    void *grown;
    char *at;

    for (int i = 0; i < e->fusion_count; i++)
        if (!e->fusion[i].used && e->fusion[i].bytes >= bytes) {
            e->fusion[i].used = true;
            return e->fusion[i].at;
        }
    trace_batch(e, b, "INIT_FUSION_BUFFER");
    while (size < bytes)
        size *= 2;
    grown = realloc(e->fusion, (size_t)(e->fusion_count + 1) * sizeof *e->fusion);
    if (grown == NULL)
        return NULL;
    e->fusion = grown;
    at = output_alloc(size);
    if (at == NULL)
        return NULL;
    e->fusion[e->fusion_count].at = at;
    e->fusion[e->fusion_count].bytes = size;
    e->fusion[e->fusion_count].used = true;
    e->fusion_count++;
    return at;
}

static void fusion_put(struct engine *e, const char *at)
{
    for (int i = 0; i < e->fusion_count; i++)
        if (e->fusion[i].at == at)
            e->fusion[i].used = false;
}

void batch_free(struct engine *e, struct batch *b)
{
    if (b->fused != NULL)
        fusion_put(e, b->fused);
    for (int i = 0; i < b->count; i++)
        plan_release(&b->plans[i]);
    plan_release(&b->all);
    device_run_free(b->device);
    free(b->counts);
    free(b->segments);
    free(b->plans);
    free(b);
}

/* ---- Start --------------------------------------------------------------------------- */

static void complete_batch(struct engine *e, struct batch *b, enum hvd_status status,
                           const struct hvd_error *err)
{
    struct pset *s = b->set;

    for (int i = 0; i < b->count; i++)
        if (b->entries[i] != NULL)
            entry_complete(e, b->entries[i], status, err);
    list_remove(&b->node);
    s->running--;
    s->running_mask &= ~(1ull << b->board);
    batch_free(e, b);
}

enum hvd_status batch_take_bytes(struct engine *e, struct batch *b, size_t bytes,
                                 struct hvd_error *err)
{
    b->fused = fusion_get(e, b, bytes);
    if (b->fused == NULL)
        return error_set(err, HVD_NOMEM, e->topo->rank,
                         "rank %d: no memory for a fusion buffer", e->topo->rank);
    return HVD_OK;
}

enum hvd_status batch_take_room(struct engine *e, struct batch *b, struct hvd_error *err)
{
    TRY(pack_plan(b, err));
    return batch_take_bytes(e, b, pack_bytes(b), err);
}

/* Packs what is not alone, or lets a rank that has joined bring neutral elements. */
static enum hvd_status fuse_in(struct engine *e, struct batch *b, struct hvd_error *err)
{
    TRY(batch_take_room(e, b, err));
    trace_batch(e, b, "MEMCPY_IN_FUSION_BUFFER");
    pack_in(b);
    return HVD_OK;
}

enum hvd_status batch_start_task(struct engine *e, struct batch *b, struct hvd_error *err)
{
    bool alone = b->fused == NULL;
    struct coll_call call;

    plan_call(&call, b->set, &b->form, alone ? &b->plans[0] : &b->all);
    call.board = b->board;
    call.turn = ++b->set->turns[b->board];
    call.agreed = true;
    for (int i = 0; i < b->count; i++) {
        b->segments[i] = b->counts[i];
        call.count += b->counts[i];
    }
    call.segments = b->segments;
    call.segment_count = b->count;
    call.in = alone ? b->entries[0]->input : b->fused;
    call.out = alone ? b->entries[0]->output : pack_result(b);
    trace_batch(e, b, NULL);
    return coll_start(b->set->team, &call, &b->task, err);
}

static enum hvd_status start(struct engine *e, struct batch *b, struct hvd_error *err)
{
    if (b->form.device)
        return device_begin(e, b, err);
    if (b->count != 1 || b->entries[0] == NULL)
        TRY(fuse_in(e, b, err));
    return batch_start_task(e, b, err);
}

/* Takes b.  Never fails by itself: what cannot be started ends the job, since the other
 * members have started it; the verdict then ends the batch. */
enum hvd_status execute_batch(struct engine *e, struct pset *s, struct batch *b,
                              const struct wire_batch *w)
{
    struct hvd_error err;

    b->set = s;
    b->start_us = clock_us();
    b->form = w->form;
    b->board = (uint32_t)(s->batches % BATCH_BOARDS);
    s->batches++;
    s->running++;
    s->running_mask |= 1ull << b->board;
    list_append(&e->batches, &b->node);
    if (w->form.op == HVD_BARRIER) {         /* all members have announced it: that is all */
        complete_batch(e, b, HVD_OK, NULL);
        return HVD_OK;
    }
    if (start(e, b, &err) != HVD_OK) {
        b->task = NULL;
        mesh_fail(e->mesh, &err);
    }
    return HVD_OK;
}

static bool step(struct engine *e, struct batch *b)
{
    struct hvd_error err;
    enum hvd_status status;

    if (b->task == NULL)
        return false;
    status = coll_step(b->task, &err);
    if (status == HVD_AGAIN)
        return false;
    coll_finish(b->task);
    b->task = NULL;
    if (status == HVD_OK && b->fused != NULL) {
        trace_batch(e, b, "MEMCPY_OUT_FUSION_BUFFER");
        pack_out(b);
    }
    complete_batch(e, b, status, &err);
    return true;
}

static bool step_device(struct engine *e, struct batch *b)
{
    struct hvd_error err = {.rank = -1};
    enum hvd_status status = device_step(e, b, &err);

    if (status != HVD_AGAIN)
        complete_batch(e, b, status, &err);
    return status != HVD_AGAIN;
}

bool execute_step_all(struct engine *e)
{
    bool moved = false;

    list_each_safe(node, &e->batches) {
        struct batch *b = list_entry(node, struct batch, node);

        moved |= b->device != NULL ? step_device(e, b) : step(e, b);
    }
    return moved;
}

/* Ends all batches of s (NULL: of all sets) that have not finished. */
void execute_fail(struct engine *e, const struct pset *s, enum hvd_status status,
                  const struct hvd_error *why)
{
    list_each_safe(node, &e->batches) {
        struct batch *b = list_entry(node, struct batch, node);

        if (s != NULL && b->set != s)
            continue;
        if (b->task != NULL)
            coll_cancel(b->task);
        b->task = NULL;
        if (b->device != NULL)
            device_cancel(e, b);
        complete_batch(e, b, status, why);
    }
}
