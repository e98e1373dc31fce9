/* gpu_event.c: events, which are kept for the next that needs one. */
#include "base/fault.h"
#include "gpu/gpu_int.h"

#include <stdlib.h>

/* With the device's context. */
enum hvd_status gpu_event_take(struct gpu_device *d, struct gpu_event **event_p,
                               struct hvd_error *err)
{
    struct gpu_event *v;

    pthread_mutex_lock(&d->events_lock);
    v = d->spare;
    if (v != NULL)
        d->spare = v->next;
    pthread_mutex_unlock(&d->events_lock);
    if (v == NULL) {
        v = calloc(1, sizeof *v);
        if (v == NULL)
            return error_set(err, HVD_NOMEM, -1, "no memory for an event");
        if (cuda_check(gpu.cuda.event_new(&v->event, CUDA_EVENT_NO_TIMING), "event_new",
                       d->index, err) != HVD_OK) {
            free(v);
            return HVD_DEVICE;
        }
        v->device = d;
    }
    atomic_store(&v->shares, 1);
    *event_p = v;
    return HVD_OK;
}

struct gpu_event *gpu_event_share(struct gpu_event *v)
{
    atomic_fetch_add(&v->shares, 1);
    return v;
}

void gpu_event_put(struct gpu_event *v)
{
    struct gpu_device *d;

    if (v == NULL || atomic_fetch_sub(&v->shares, 1) > 1)
        return;
    d = v->device;
    pthread_mutex_lock(&d->events_lock);
    v->next = d->spare;
    d->spare = v;
    pthread_mutex_unlock(&d->events_lock);
}

void gpu_events_free(struct gpu_device *d)
{
    pthread_mutex_lock(&d->events_lock);
    while (d->spare != NULL) {
        struct gpu_event *v = d->spare;

        d->spare = v->next;
        gpu.cuda.event_free(v->event);
        free(v);
    }
    pthread_mutex_unlock(&d->events_lock);
}

/* With the context.  An event of a capturing stream would become part of the graph. */
static enum hvd_status record(struct gpu_device *d, uint64_t stream, struct gpu_event **event_p,
                              struct hvd_error *err)
{
    cu_stream s = (cu_stream)(uintptr_t)stream;
    int capturing = 0;

    CUDA_TRY(d->index, stream_capturing, (s, &capturing), err);
    if (capturing != 0)
        return error_set(err, HVD_INVALID, -1,
                         "the current stream of GPU %d is being captured into a CUDA graph; "
                         "operations between ranks cannot be captured", d->index);
    TRY(gpu_event_take(d, event_p, err));
    if (cuda_check(gpu.cuda.event_record((*event_p)->event, s), "event_record", d->index,
                   err) == HVD_OK)
        return HVD_OK;
    gpu_event_put(*event_p);
    *event_p = NULL;
    return HVD_DEVICE;
}

enum hvd_status gpu_note_caller(int device, uint64_t stream, struct gpu_event **event_p,
                                struct hvd_error *err)
{
    struct gpu_device *d;
    enum hvd_status status;

    TRY(gpu_device_get(device, &d, err));
    TRY(gpu_enter(d, err));
    status = record(d, stream, event_p, err);
    gpu_leave();
    return status;
}

enum hvd_status gpu_event_wait(struct gpu_event *v, uint64_t stream, struct hvd_error *err)
{
    enum hvd_status status;

    if (FAULT("gpu.skip_end"))
        return HVD_OK;
    TRY(gpu_enter(v->device, err));
    status = cuda_check(gpu.cuda.stream_wait((cu_stream)(uintptr_t)stream, v->event, 0),
                        "stream_wait", v->device->index, err);
    gpu_leave();
    return status;
}
