/*
 * device_ring.c: a large tensor through host memory, in chunks: while one is reduced, the device
 * copies the next one in and the last one out.  A ring of SLOTS chunks serves a tensor of any size.
 *
 * The chunks are tasks one after the other on the batch's board, the same on all members.
 */
#include "engine/device.h"

#include <stdlib.h>

#define SLOTS 3

enum slot_state { SLOT_FREE, SLOT_IN, SLOT_READY, SLOT_TASK, SLOT_OUT };

struct slot {
    enum slot_state state;
    struct gpu_work work;
    struct gpu_piece piece;
};

struct device_ring {
    struct slot slots[SLOTS];
    uint64_t chunk, total;              /* elements */
    uint64_t chunks, in, task, out;     /* so many there are, have begun each */
};

static uint64_t chunk_of(const struct engine *e, const struct batch *b)
{
    return e->conf->gpu_chunk / hvd_dtype_bytes(b->form.dtype);
}

/* The same on all members: by what they agreed on. */
bool ring_fits(const struct engine *e, const struct batch *b)
{
    return b->count == 1 && b->counts[0] >= 2 * chunk_of(e, b) &&
           ((b->form.op == HVD_ALLREDUCE && b->form.reduce != HVD_ADASUM) ||
            b->form.op == HVD_BROADCAST);
}

static struct slot *slot_of(const struct device_ring *g, uint64_t chunk)
{
    return &((struct device_ring *)g)->slots[chunk % SLOTS];
}

static char *place_of(const struct batch *b, uint64_t chunk)
{
    return b->fused + chunk % SLOTS * b->device->ring->chunk *
                          hvd_dtype_bytes(b->form.dtype);
}

static uint64_t count_of(const struct device_ring *g, uint64_t chunk)
{
    uint64_t rest = g->total - chunk * g->chunk;

    return rest < g->chunk ? rest : g->chunk;
}

enum hvd_status ring_begin(struct engine *e, struct batch *b, struct hvd_error *err)
{
    struct device_ring *g = calloc(1, sizeof *g);

    if (g == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a large tensor");
    b->device->ring = g;
    b->device->phase = RUN_RING;
    g->chunk = chunk_of(e, b);
    g->total = b->counts[0];
    g->chunks = (g->total + g->chunk - 1) / g->chunk;
    return batch_take_bytes(e, b, SLOTS * g->chunk * hvd_dtype_bytes(b->form.dtype), err);
}

/* A copy of one chunk between the tensor and its slot; none where this rank has joined. */
static enum hvd_status copy(struct engine *e, struct batch *b, uint64_t chunk, bool in,
                            struct hvd_error *err)
{
    struct device_run *r = b->device;
    struct slot *slot = slot_of(r->ring, chunk);
    size_t element = hvd_dtype_bytes(b->form.dtype);
    size_t at = chunk * r->ring->chunk * element, bytes = count_of(r->ring, chunk) * element;
    const struct entry *t = b->entries[0];
    char *place = place_of(b, chunk);

    slot->state = in ? SLOT_IN : SLOT_OUT;
    gpu_work_release(&slot->work);
    slot->work = (struct gpu_work){.kind = in ? GPU_COPY_IN : GPU_COPY_OUT,
                                   .pieces = &slot->piece, .piece_count = 1};
    if (t == NULL) {
        pack_neutral(b, place, bytes);
        return HVD_OK;
    }
    if (in) {
        slot->piece = (struct gpu_piece){place, (const char *)t->input + at, bytes, -1};
        slot->work.after = r->after;
        slot->work.after_count = r->after_count;
        slot->work.pin = b->fused;
        slot->work.pin_bytes = SLOTS * r->ring->chunk * element;
    } else {
        slot->piece = (struct gpu_piece){(char *)r->result + at, place, bytes, -1};
    }
    return device_start_work(e, b, &slot->work, err);
}

static enum hvd_status begin_task(struct batch *b, struct hvd_error *err)
{
    struct device_ring *g = b->device->ring;
    size_t count = count_of(g, g->task);
    struct coll_call call;

    plan_call(&call, b->set, &b->form, &b->plans[0]);
    call.board = b->board;
    call.turn = ++b->set->turns[b->board];
    call.agreed = true;
    call.count = count;
    call.segments = &count;
    call.segment_count = 1;
    call.in = call.out = place_of(b, g->task);
    slot_of(g, g->task++)->state = SLOT_TASK;
    return coll_start(b->set->team, &call, &b->task, err);
}

/* What has ended in the slots goes on; HVD_AGAIN is not said. */
static enum hvd_status look(struct engine *e, struct batch *b, struct hvd_error *err)
{
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &b->device->ring->slots[i];
        enum hvd_status status;

        if (slot->state != SLOT_IN && slot->state != SLOT_OUT)
            continue;
        status = b->entries[0] != NULL ? device_await_work(e, &slot->work, err) : HVD_OK;
        if (status == HVD_AGAIN)
            continue;
        slot->state = slot->state == SLOT_IN ? SLOT_READY : SLOT_FREE;
        TRY(status);
    }
    return HVD_OK;
}

static enum hvd_status step_task(struct engine *e, struct batch *b, struct hvd_error *err)
{
    struct device_ring *g = b->device->ring;
    enum hvd_status status;

    if (b->task == NULL) {
        if (g->task == g->chunks || slot_of(g, g->task)->state != SLOT_READY)
            return HVD_AGAIN;
        TRY(begin_task(b, err));
    }
    status = coll_step(b->task, err);
    if (status == HVD_AGAIN)
        return status;
    coll_finish(b->task);
    b->task = NULL;
    TRY(status);
    return copy(e, b, g->out++, false, err);
}

/* Out of place: the output may be ours, and must be there before the first chunk comes out. */
static enum hvd_status find_result(struct engine *e, struct batch *b, struct hvd_error *err)
{
    struct device_run *r = b->device;
    const struct entry *t = b->entries[0];

    if (t == NULL || r->result != NULL)
        return HVD_OK;
    if (r->new_count == 0) {
        r->result = t->output;
        return HVD_OK;
    }
    if (!r->under_way) {
        r->work = (struct gpu_work){.kind = GPU_COPY_OUT, .news = r->news,
                                    .new_count = r->new_count};
        TRY(device_start(e, b, err));
    }
    TRY(device_await(e, b, err));
    r->result = r->news[0].at;
    return HVD_OK;
}

enum hvd_status ring_step(struct engine *e, struct batch *b, struct hvd_error *err)
{
    struct device_ring *g = b->device->ring;
    enum hvd_status status;

    TRY(find_result(e, b, err));
    do {
        TRY(look(e, b, err));
        while (g->in < g->chunks && slot_of(g, g->in)->state == SLOT_FREE)
            TRY(copy(e, b, g->in++, true, err));
        status = step_task(e, b, err);
    } while (status == HVD_OK);
    if (status != HVD_AGAIN)
        return status;
    for (int i = 0; i < SLOTS; i++)
        if (g->slots[i].state != SLOT_FREE)
            return HVD_AGAIN;
    return g->out == g->chunks ? HVD_OK : HVD_AGAIN;
}

bool ring_cancel(struct engine *e, struct batch *b)
{
    struct device_ring *g = b->device->ring;
    bool ended = true;

    for (int i = 0; i < SLOTS && b->entries[0] != NULL; i++)
        if (g->slots[i].state == SLOT_IN || g->slots[i].state == SLOT_OUT)
            ended &= device_give_up(e, &g->slots[i].work);
    return ended;
}

void ring_free(struct device_ring *g)
{
    for (int i = 0; g != NULL && i < SLOTS; i++)
        gpu_work_release(&g->slots[i].work);
    free(g);
}
