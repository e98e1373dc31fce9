/* gpu_device.c: the devices of this process: context, lanes, thread. */
#include "base/clock.h"
#include "base/thread.h"
#include "gpu/gpu_int.h"

#include <stdlib.h>

#define CLOSE_US 2000000                /* a thread that hangs in the driver is left alone */

static pthread_mutex_t gpu_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gpu_device *_Atomic devices[GPU_DEVICES_MAX];

enum hvd_status cuda_check(cu_result code, const char *what, int device,
                           struct hvd_error *err)
{
    const char *text = NULL;

    if (code == CUDA_OK || code == CUDA_DEINITIALIZED)
        return HVD_OK;
    if (gpu.cuda.error_text(code, &text) != CUDA_OK || text == NULL)
        text = "no text";
    return error_set(err, HVD_DEVICE, -1, "CUDA error %d on device %d (%s): %s", code, device,
                     what, text);
}

enum hvd_status gpu_enter(struct gpu_device *d, struct hvd_error *err)
{
    return cuda_check(gpu.cuda.context_push(d->context), "context_push", d->index, err);
}

void gpu_leave(void)
{
    cu_context unused;

    gpu.cuda.context_pop(&unused);
}

/* ---- Lanes -------------------------------------------------------------------------------- */

enum hvd_status lane_open(struct gpu_device *d, struct gpu_lane *lane, struct hvd_error *err)
{
    CUDA_TRY(d->index, stream_new, (&lane->stream, CUDA_STREAM_NON_BLOCKING, d->priority), err);
    CUDA_TRY(d->index, stream_new, (&lane->bell, CUDA_STREAM_NON_BLOCKING, d->priority), err);
    return HVD_OK;
}

void lane_close(struct gpu_lane *lane)
{
    if (lane->stream != NULL)
        gpu.cuda.stream_free(lane->stream);
    if (lane->bell != NULL)
        gpu.cuda.stream_free(lane->bell);
    *lane = (struct gpu_lane){0};
}

/* ---- Devices ------------------------------------------------------------------------------ */

static enum hvd_status device_new(int index, struct gpu_device **device_p,
                                  struct hvd_error *err)
{
    struct gpu_device *d;
    int count = 0;

    CUDA_TRY(index, init, (0), err);
    CUDA_TRY(index, device_count, (&count), err);
    if (index >= count || index >= GPU_DEVICES_MAX)
        return error_set(err, HVD_UNSUPPORTED, -1, "there is no GPU %d; this process sees %d",
                         index, count);
    d = calloc(1, sizeof *d);
    if (d == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a device");
    d->index = index;
    if (cuda_check(gpu.cuda.context_retain(&d->context, index), "context_retain", index,
                   err) != HVD_OK) {
        free(d);
        return HVD_DEVICE;
    }
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->events_lock, NULL);
    list_init(&d->inbox);
    list_init(&d->works);
    *device_p = d;
    return HVD_OK;
}

struct gpu_device *gpu_device_of(int index)
{
    return index >= 0 && index < GPU_DEVICES_MAX ? atomic_load(&devices[index]) : NULL;
}

enum hvd_status gpu_device_get(int index, struct gpu_device **device_p, struct hvd_error *err)
{
    enum hvd_status status = HVD_OK;
    struct gpu_device *d;

    TRY(gpu_load(err));
    *device_p = gpu_device_of(index);
    if (*device_p != NULL)
        return HVD_OK;
    pthread_mutex_lock(&gpu_lock);
    if (gpu_device_of(index) == NULL) {
        status = device_new(index, &d, err);
        if (status == HVD_OK)
            atomic_store(&devices[index], d);
    }
    pthread_mutex_unlock(&gpu_lock);
    *device_p = gpu_device_of(index);
    return status;
}

static enum hvd_status open_lanes(struct gpu_device *d, struct hvd_error *err)
{
    int least;

    CUDA_TRY(d->index, priorities, (&least, &d->priority), err);
    TRY(lane_open(d, &d->in, err));
    return lane_open(d, &d->out, err);
}

/* Its lanes and its thread, which are not there before the first work, nor after gpu_close. */
enum hvd_status gpu_device_start(struct gpu_device *d, struct hvd_error *err)
{
    enum hvd_status status = HVD_OK;
    int code;

    pthread_mutex_lock(&gpu_lock);
    if (d->lost)
        status = error_set(err, HVD_DEVICE, -1, "the driver of GPU %d does not answer",
                           d->index);
    if (d->has_thread || d->lost)
        goto out;
    atomic_store(&d->stop, false);
    atomic_store(&d->ended, 0);
    code = thread_start(&d->thread, gpu_thread_main, d);
    if (code != 0)
        status = error_set(err, HVD_SYS, -1, "no thread for GPU %d: error %d", d->index, code);
    d->has_thread = code == 0;
out:
    pthread_mutex_unlock(&gpu_lock);
    return status;
}

void gpu_device_wake(struct gpu_device *d)
{
    atomic_fetch_add(&d->wake, 1);
    thread_wake_all(&d->wake);
}

enum hvd_status gpu_device_open(struct gpu_device *d, struct hvd_error *err)
{
    TRY(gpu_enter(d, err));
    return open_lanes(d, err);
}

void gpu_device_end(struct gpu_device *d)
{
    lane_close(&d->in);
    lane_close(&d->out);
    gpu_leave();
}

static void await_end(struct gpu_device *d)
{
    uint64_t until_us = clock_us() + CLOSE_US;

    for (uint64_t now_us = clock_us(); atomic_load(&d->ended) == 0 && now_us < until_us;
         now_us = clock_us())
        thread_wait(&d->ended, 0, (int64_t)(until_us - now_us));
    d->lost = atomic_load(&d->ended) == 0;
    if (d->lost)
        pthread_detach(d->thread);
    else
        pthread_join(d->thread, NULL);
}

static void end_thread(struct gpu_device *d)
{
    if (!d->has_thread)
        return;
    atomic_store(&d->stop, true);
    gpu_device_wake(d);
    await_end(d);
    d->has_thread = false;
}

void gpu_close(void)
{
    for (int i = 0; i < GPU_DEVICES_MAX; i++) {
        struct gpu_device *d = gpu_device_of(i);
        struct hvd_error err;

        if (d == NULL)
            continue;
        end_thread(d);
        if (d->lost || gpu_enter(d, &err) != HVD_OK)
            continue;
        gpu_events_free(d);
        gpu_leave();
    }
}
