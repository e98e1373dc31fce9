/*
 * gpu_work.c: the thread of a device, and a work from its start to its end.
 *
 *   NEW        in the list, behind works of the same lane that are not on the stream yet
 *   ISSUED     NCCL is at it without blocking (connections, the end of a communicator), and is
 *              asked again and again: nothing tells
 *   LAUNCHED   all of it is on the stream, and so is its end event
 *   FAILED     NCCL has failed; said a little later, so that the verdict on a lost peer, of
 *              which this is the echo, comes first
 *
 * The thread sleeps until a work comes, the bell of a lane rings or somebody aborts; and looks
 * every LOOK_US for errors while something runs, since a device that has failed rings no bell.
 */
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/thread.h"
#include "gpu/gpu_int.h"

#include <stdlib.h>
#include <string.h>

#define LOG_COMPONENT "gpu"
#define LOOK_US 50000
#define ASK_US 500                      /* ISSUED */
#define ECHO_US 1000000                 /* FAILED */

/* ---- Copies ------------------------------------------------------------------------------ */

enum hvd_status lane_wait_all(struct gpu_work *w, struct gpu_lane *lane, struct hvd_error *err)
{
    if (FAULT("gpu.skip_ready"))
        return HVD_OK;
    for (int i = 0; i < w->after_count; i++)
        if (w->after[i] != NULL)
            CUDA_TRY(w->device, stream_wait, (lane->stream, w->after[i]->event, 0), err);
    return HVD_OK;
}

static enum hvd_status make_news(struct gpu_device *d, struct gpu_work *w,
                                 struct hvd_error *err)
{
    for (int i = 0; i < w->new_count; i++)
        TRY(gpu_memory_new(d, w->news[i].bytes, &w->news[i].at, err));
    return HVD_OK;
}

static enum hvd_status copy_all(struct gpu_device *d, struct gpu_work *w,
                                struct hvd_error *err)
{
    struct gpu_lane *lane = w->state->lane;

    if (w->pin != NULL)
        gpu_memory_pin(d, w->pin, w->pin_bytes);
    TRY(make_news(d, w, err));
    TRY(lane_wait_all(w, lane, err));
    for (int i = 0; i < w->piece_count; i++) {
        const struct gpu_piece *p = &w->pieces[i];
        char *to = p->of_new < 0 ? p->to : (char *)w->news[p->of_new].at + (uintptr_t)p->to;

        if (p->bytes > 0)
            CUDA_TRY(d->index, copy, ((cu_address)to, (cu_address)p->from, p->bytes,
                                      lane->stream), err);
    }
    return HVD_OK;
}

static enum hvd_status say_hello(struct gpu_device *d, struct gpu_work *w,
                                 struct hvd_error *err)
{
    CUDA_TRY(d->index, device_uuid, (w->uuid, d->index), err);
    for (int i = 0; i < w->id_count; i++) {
        struct nccl_id id;
        nccl_result code = gpu.nccl.new_id(&id);

        if (code != NCCL_OK)
            return error_set(err, HVD_DEVICE, -1, "NCCL error %d (ncclGetUniqueId): %s", code,
                             gpu.nccl.error_text(code));
        memcpy(w->ids[i], &id, sizeof id);
    }
    return HVD_OK;
}

/* ---- One work ---------------------------------------------------------------------------- */

static enum hvd_status issue(struct gpu_device *d, struct gpu_work *w, struct hvd_error *err)
{
    switch (w->kind) {
    case GPU_HELLO:
        return say_hello(d, w, err);
    case GPU_COPY_IN:
    case GPU_COPY_OUT:
        return copy_all(d, w, err);
    case GPU_CONNECT:
        return comm_connect(d, w, err);
    case GPU_COLLECT:
        if (w->state->phase == PHASE_NEW)
            TRY(make_news(d, w, err));
        return collect_issue(d, w, err);
    case GPU_HANG_UP:
        return comm_hang_up(w);
    }
    BUG_ON(true);
}

static void ring(void *context)
{
    gpu_device_wake(context);
}

/* All of it is on the stream. */
static enum hvd_status launch(struct gpu_device *d, struct gpu_work *w, struct hvd_error *err)
{
    struct gpu_lane *lane = w->state->lane;

    TRY(gpu_event_take(d, &w->end, err));
    CUDA_TRY(d->index, event_record, (w->end->event, lane->stream), err);
    CUDA_TRY(d->index, stream_wait, (lane->bell, w->end->event, 0), err);
    CUDA_TRY(d->index, call, (lane->bell, ring, d), err);
    return HVD_OK;
}

/* From the moment that `done` is set, w may be gone. */
static void say(struct gpu_device *d, struct gpu_work *w, atomic_uint *word)
{
    void (*tell)(void *), *context;

    pthread_mutex_lock(&d->lock);
    tell = w->tell;
    context = w->context;
    atomic_store(word, 1);
    thread_wake_all(word);
    if (tell != NULL)
        tell(context);
    pthread_mutex_unlock(&d->lock);
}

static void say_done(struct gpu_device *d, struct gpu_work *w)
{
    struct gpu_state *state = w->state;

    if (state->scratch != NULL)
        gpu_free(state->scratch);
    if (state->factor_op > 0 && w->comm->comms[w->lane] != NULL)
        gpu.nccl.factor_free(state->factor_op, w->comm->comms[w->lane]);
    free(state);
    w->state = NULL;
    list_remove(&w->node);
    if (w->kind == GPU_HANG_UP) {       /* nobody waits for it */
        free(w->comm);
        free(w);
        return;
    }
    say(d, w, &w->done);
}

static bool is_of_nccl(const struct gpu_work *w)
{
    return w->kind == GPU_CONNECT || w->kind == GPU_COLLECT;
}

static bool fail(struct gpu_device *d, struct gpu_work *w, const struct hvd_error *err)
{
    w->err = *err;
    if (is_of_nccl(w) && !w->comm->aborted) {
        comm_do_abort(w->comm);
        w->comm->failure = *err;
        w->state->phase = PHASE_FAILED;
        w->state->fail_us = clock_us() + ECHO_US;
        return true;
    }
    if (!is_of_nccl(w) && d->broken.status == HVD_OK)
        d->broken = *err;
    say_done(d, w);
    return true;
}

static bool go_on(struct gpu_device *d, struct gpu_work *w)
{
    struct hvd_error err = {.rank = -1};
    enum hvd_status status = issue(d, w, &err);

    if (status == HVD_AGAIN) {
        w->state->phase = PHASE_ISSUED;
        return false;
    }
    if (status == HVD_OK && w->state->lane != NULL)
        status = launch(d, w, &err);
    if (status != HVD_OK)
        return fail(d, w, &err);
    if (w->state->lane == NULL || FAULT("gpu.skip_done")) {
        say_done(d, w);
        return true;
    }
    w->state->phase = PHASE_LAUNCHED;
    say(d, w, &w->launched);
    return true;
}

/* The stream has come to its end, or something has failed. */
static bool look_at_end(struct gpu_device *d, struct gpu_work *w)
{
    struct hvd_error err = {.rank = -1};
    cu_result code = gpu.cuda.event_query(w->end->event);

    if (code == CUDA_NOT_READY) {
        if (w->kind == GPU_COLLECT && comm_check(w->comm, w->lane, &err) != HVD_OK)
            return fail(d, w, &err);
        return false;
    }
    if (cuda_check(code, "event_query", d->index, &err) != HVD_OK)
        return fail(d, w, &err);
    if (w->kind == GPU_COLLECT && w->comm->aborted)
        w->err = w->comm->failure;
    say_done(d, w);
    return true;
}

static bool look_at_failed(struct gpu_device *d, struct gpu_work *w)
{
    uint64_t now_us = clock_us();

    if (!atomic_load(&w->comm->abort) && now_us < w->state->fail_us)
        return false;
    if (gpu_is_launched(w) && now_us < w->state->fail_us + ECHO_US &&
        gpu.cuda.event_query(w->end->event) == CUDA_NOT_READY)
        return false;                   /* the caller's memory is in use as long */
    say_done(d, w);
    return true;
}

/* The first of its lane that is not on the stream. */
static bool is_next(const struct gpu_device *d, const struct gpu_work *w)
{
    list_each(node, &d->works) {
        const struct gpu_work *other = list_entry(node, struct gpu_work, node);

        if (other == w)
            return true;
        if (other->state->lane == w->state->lane && w->state->lane != NULL &&
            other->state->phase < PHASE_LAUNCHED)
            return false;
    }
    return true;
}

static bool step(struct gpu_device *d, struct gpu_work *w)
{
    if (w->comm != NULL && atomic_load(&w->comm->abort))
        comm_do_abort(w->comm);         /* from here on only the streams are waited for */
    if (w->state->phase == PHASE_LAUNCHED)
        return look_at_end(d, w);
    if (w->state->phase == PHASE_FAILED)
        return look_at_failed(d, w);
    if (is_of_nccl(w) && w->comm->aborted)
        return fail(d, w, &w->comm->failure);
    if (d->broken.status != HVD_OK && w->kind != GPU_HANG_UP)
        return fail(d, w, &d->broken);
    return is_next(d, w) && go_on(d, w);
}

/* ---- The thread --------------------------------------------------------------------------- */

static void take_inbox(struct gpu_device *d)
{
    struct list *node;

    pthread_mutex_lock(&d->lock);
    while ((node = list_pop(&d->inbox)) != NULL)
        list_append(&d->works, node);
    pthread_mutex_unlock(&d->lock);
}

static struct gpu_lane *lane_of(struct gpu_device *d, struct gpu_work *w)
{
    if (w->kind == GPU_COPY_IN)
        return &d->in;
    if (w->kind == GPU_COPY_OUT)
        return &d->out;
    return w->kind == GPU_COLLECT ? &w->comm->lane[w->lane] : NULL;
}

static bool step_all(struct gpu_device *d)
{
    bool moved = false;

    list_each_safe(node, &d->works)
        moved |= step(d, list_entry(node, struct gpu_work, node));
    return moved;
}

static int64_t sleep_us(const struct gpu_device *d)
{
    list_each(node, &d->works)
        if (list_entry(node, struct gpu_work, node)->state->phase == PHASE_ISSUED)
            return ASK_US;
    return list_is_empty(&d->works) ? -1 : LOOK_US;
}

void *gpu_thread_main(void *context)
{
    struct gpu_device *d = context;

    d->broken = (struct hvd_error){.rank = -1};
    if (gpu_device_open(d, &d->broken) != HVD_OK)
        log_debug("GPU %d: %s", d->index, d->broken.text);
    for (;;) {
        unsigned seen = atomic_load(&d->wake);

        take_inbox(d);
        if (step_all(d))
            continue;
        if (list_is_empty(&d->works) && atomic_load(&d->stop))
            break;
        thread_wait(&d->wake, seen, sleep_us(d));
    }
    gpu_device_end(d);
    atomic_store(&d->ended, 1);
    thread_wake_all(&d->ended);
    return NULL;
}

/* ---- The engine's side --------------------------------------------------------------------- */

enum hvd_status gpu_start(struct gpu_work *w, struct hvd_error *err)
{
    struct gpu_device *d;

    w->err = (struct hvd_error){.rank = -1};
    TRY(gpu_device_get(w->device, &d, err));
    TRY(gpu_device_start(d, err));
    w->state = calloc(1, sizeof *w->state);
    if (w->state == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for GPU %d", w->device);
    w->state->lane = lane_of(d, w);
    pthread_mutex_lock(&d->lock);
    list_append(&d->inbox, &w->node);
    pthread_mutex_unlock(&d->lock);
    gpu_device_wake(d);
    return HVD_OK;
}

bool gpu_is_done(struct gpu_work *w)
{
    return atomic_load_explicit(&w->done, memory_order_acquire) != 0;
}

bool gpu_is_launched(struct gpu_work *w)
{
    return atomic_load_explicit(&w->launched, memory_order_acquire) != 0;
}

bool gpu_wait(struct gpu_work *w, int64_t timeout_us)
{
    uint64_t until_us = clock_us() + (uint64_t)timeout_us;
    struct gpu_device *d = gpu_device_of(w->device);
    bool done;

    for (uint64_t now_us = clock_us(); !gpu_is_done(w) && now_us < until_us;
         now_us = clock_us())
        thread_wait(&w->done, 0, (int64_t)(until_us - now_us));
    pthread_mutex_lock(&d->lock);       /* from here on it is told nobody */
    done = gpu_is_done(w);
    w->tell = NULL;
    pthread_mutex_unlock(&d->lock);
    return done;
}

void gpu_work_release(struct gpu_work *w)
{
    gpu_event_put(w->end);
    w->end = NULL;
}
