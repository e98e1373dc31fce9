/*
 * gpu_memory.c: device memory that the runtime gives out, and host memory that is pinned.
 *
 * What is given out belongs to a tensor of the user, who may have queued work with it: the driver
 * waits for that in its own free, which the thread calls that drops the tensor.
 */
#include "base/log.h"
#include "gpu/gpu_int.h"

#include <stdlib.h>

#define LOG_COMPONENT "gpu"

struct range {
    struct range *next;
    struct gpu_device *device;
    void *at;
    size_t bytes;
    bool pinned;                        /* host memory; else device memory given out */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;
static atomic_bool has_ranges;

static struct range *range_find(const void *at, bool pinned, bool take)
{
    struct range **place, *r;

    if (!atomic_load_explicit(&has_ranges, memory_order_relaxed))
        return NULL;
    pthread_mutex_lock(&lock);
    for (place = &ranges; *place != NULL; place = &(*place)->next)
        if ((*place)->at == at && (*place)->pinned == pinned)
            break;
    r = *place;
    if (r != NULL && take)
        *place = r->next;
    pthread_mutex_unlock(&lock);
    return r;
}

static bool range_add(struct gpu_device *d, void *at, size_t bytes, bool pinned)
{
    struct range *r = calloc(1, sizeof *r);

    if (r == NULL)
        return false;
    r->device = d;
    r->at = at;
    r->bytes = bytes;
    r->pinned = pinned;
    pthread_mutex_lock(&lock);
    r->next = ranges;
    ranges = r;
    atomic_store(&has_ranges, true);
    pthread_mutex_unlock(&lock);
    return true;
}

enum hvd_status gpu_memory_new(struct gpu_device *d, size_t bytes, void **at_p,
                               struct hvd_error *err)
{
    cu_address at = 0;

    CUDA_TRY(d->index, alloc, (&at, bytes > 0 ? bytes : 1), err);
    if (!range_add(d, (void *)at, bytes, false)) {
        gpu.cuda.free(at);
        return error_set(err, HVD_NOMEM, -1, "no memory");
    }
    *at_p = (void *)at;
    return HVD_OK;
}

bool gpu_owns(const void *at)
{
    return at != NULL && range_find(at, false, false) != NULL;
}

void gpu_free(void *at)
{
    struct range *r = range_find(at, false, true);
    struct hvd_error err;

    if (r == NULL)
        return;
    if (gpu_enter(r->device, &err) == HVD_OK) {
        gpu.cuda.free((cu_address)at);
        gpu_leave();
    }
    free(r);
}

void gpu_memory_pin(struct gpu_device *d, void *at, size_t bytes)
{
    static atomic_bool warned;
    struct range *r = range_find(at, true, false);
    cu_result code;

    if (r != NULL && r->bytes >= bytes)
        return;
    if (r != NULL)
        gpu_unpin(at);
    code = gpu.cuda.pin(at, bytes, CUDA_HOST_PORTABLE);
    if (code == CUDA_OK) {
        if (!range_add(d, at, bytes, true))
            gpu.cuda.unpin(at);
    } else if (code != CUDA_ALREADY_REGISTERED && !atomic_exchange(&warned, true)) {
        log_warn("%zu bytes of host memory cannot be locked for GPU %d (CUDA error %d): "
                 "copies are slower; see ulimit -l", bytes, d->index, code);
    }
}

void gpu_unpin(const void *at)
{
    struct range *r = range_find(at, true, true);
    struct hvd_error err;

    if (r == NULL)
        return;
    if (gpu_enter(r->device, &err) == HVD_OK) {
        gpu.cuda.unpin(r->at);
        gpu_leave();
    }
    free(r);
}
