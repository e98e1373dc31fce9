/*
 * gpu_int.h: devices, lanes and works as the thread of a device sees them.
 *
 * Locks: `lock` of a device guards its inbox and the hand-over of results (done, tell); the
 * list of works and all lanes belong to its thread.  gpu_lock (gpu_device.c) guards the table of
 * devices.
 */
#ifndef HVD_GPU_GPU_INT_H
#define HVD_GPU_GPU_INT_H

#include "gpu/gpu.h"
#include "gpu/names.h"

#include <pthread.h>

#define GPU_DEVICES_MAX 64

struct gpu_lane {
    cu_stream stream;
    cu_stream bell;                     /* rings when an event of `stream` has come, so that
                                         * the works behind it need not wait for the host */
};

/* How far a work is; see gpu_work.c. */
enum gpu_phase { PHASE_NEW, PHASE_ISSUED, PHASE_LAUNCHED, PHASE_FAILED };

struct gpu_state {
    enum gpu_phase phase;
    struct gpu_lane *lane;              /* NULL: none, it is done when it returns */
    void *scratch;                      /* device memory of a joined rank */
    int factor_op;                      /* of NCCL, >= 0 */
    uint64_t fail_us;                   /* FAILED: when it is said */
    int step;                           /* CONNECT, HANG_UP: communicator at hand */
    bool ending;                        /* HANG_UP: finalize has been called on it */
};

struct gpu_device {
    int index;
    cu_context context;
    int priority;
    struct gpu_lane in, out;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    struct list inbox;
    struct list works;
    atomic_uint wake;
    atomic_bool stop;
    atomic_uint ended;                  /* the thread is at its end */
    bool lost;                          /* it hangs in the driver, and is left alone */
    struct hvd_error broken;            /* HVD_OK; a CUDA call has failed */
    pthread_mutex_t events_lock;
    struct gpu_event *spare;            /* events that nobody uses */
};

struct gpu_event {
    cu_event event;
    struct gpu_device *device;
    atomic_int shares;
    struct gpu_event *next;
};

struct gpu_comm {
    int device, rank, size, lanes;
    struct nccl_id ids[GPU_STREAMS_MAX];
    nccl_comm comms[GPU_STREAMS_MAX];   /* NULL: not made, or ended */
    struct gpu_lane lane[GPU_STREAMS_MAX];
    atomic_bool abort;                  /* wanted */
    bool aborted;
    struct hvd_error failure;           /* HVD_OK */
};

/* library.c */
extern atomic_bool gpu_is_loaded;
enum hvd_status gpu_load(struct hvd_error *err);        /* HVD_UNSUPPORTED: none */

/* gpu_device.c */
enum hvd_status gpu_device_get(int index, struct gpu_device **device_p, struct hvd_error *err);
enum hvd_status gpu_device_start(struct gpu_device *d, struct hvd_error *err);
/* In its thread: context and lanes. */
enum hvd_status gpu_device_open(struct gpu_device *d, struct hvd_error *err);
void gpu_device_end(struct gpu_device *d);
struct gpu_device *gpu_device_of(int index);    /* NULL: never used */
enum hvd_status gpu_enter(struct gpu_device *d, struct hvd_error *err);
void gpu_leave(void);
void gpu_device_wake(struct gpu_device *d);
enum hvd_status cuda_check(cu_result code, const char *what, int device,
                           struct hvd_error *err);
#define CUDA_TRY(device, field, arguments, err)                                        \
    TRY(cuda_check(gpu.cuda.field arguments, #field, device, err))
enum hvd_status lane_open(struct gpu_device *d, struct gpu_lane *lane, struct hvd_error *err);
void lane_close(struct gpu_lane *lane);

/* gpu_event.c */
enum hvd_status gpu_event_take(struct gpu_device *d, struct gpu_event **event_p,
                               struct hvd_error *err);
void gpu_events_free(struct gpu_device *d);

/* gpu_memory.c */
enum hvd_status gpu_memory_new(struct gpu_device *d, size_t bytes, void **at_p,
                               struct hvd_error *err);
void gpu_memory_pin(struct gpu_device *d, void *at, size_t bytes);

/* gpu_work.c */
void *gpu_thread_main(void *device);
enum hvd_status lane_wait_all(struct gpu_work *w, struct gpu_lane *lane, struct hvd_error *err);

/* gpu_comm.c, gpu_collect.c: HVD_AGAIN: to be asked again; HVD_OK: ended, or on its stream */
enum hvd_status comm_connect(struct gpu_device *d, struct gpu_work *w, struct hvd_error *err);
enum hvd_status comm_hang_up(struct gpu_work *w);
enum hvd_status comm_check(struct gpu_comm *comm, int lane, struct hvd_error *err);
void comm_do_abort(struct gpu_comm *comm);
enum hvd_status collect_issue(struct gpu_device *d, struct gpu_work *w, struct hvd_error *err);
enum hvd_status nccl_check(nccl_result code, const char *what, const struct gpu_comm *comm,
                           struct hvd_error *err);

#endif
