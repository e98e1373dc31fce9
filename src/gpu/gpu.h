/*
 * gpu.h: GPU memory for the engine: which libraries are there, events of callers' streams, and
 * work that is handed to the thread of a device.
 *
 * Nobody but the thread of a device calls what can block in the driver or in NCCL.  The engine
 * fills a struct gpu_work, hands it over with gpu_start, is told (`tell`, from that thread, which
 * then has no lock but the device's) and finds it done with gpu_is_done.
 *
 * Order on a device:
 *   1. A lane is a stream with the works that were started on it, which run in their order.
 *      Lanes are independent of each other: copies in, copies out, and those of communicators.
 *   2. Before a work, its lane waits for the events of its callers (gpu_note_caller).
 *   3. A work is done when the event behind the last of its calls has been seen to be complete.
 *
 * Thread: any, unless it says otherwise.
 */
#ifndef HVD_GPU_GPU_H
#define HVD_GPU_GPU_H

#include "base/error.h"
#include "base/list.h"

#include <stdatomic.h>

#define GPU_STREAMS_MAX 8               /* HOROVOD_NUM_NCCL_STREAMS */
#define GPU_ID_BYTES 128

/* ---- What is there (library.c) ----------------------------------------------------------- */

/* Directories with ':' between them, asked after what is in the process already. */
void gpu_search(const char *directories);
/* Loads what can be found, once; no CUDA initialisation. */
void gpu_find(struct hvd_gpu *found);
bool gpu_is_forced(void);               /* NCCL is wanted, nothing else will do */
int gpu_nccl_version(void);             /* loads NCCL alone; 0: none */

/* ---- Events (gpu_event.c) ---------------------------------------------------------------- */

struct gpu_event;                       /* counted */

/* Notes what the caller has queued on its stream so far.  Blocks: for the first of a device
 * until its context is there.  Errors: HVD_UNSUPPORTED (no library, no such device), HVD_INVALID
 * (the stream is being captured), HVD_DEVICE. */
enum hvd_status gpu_note_caller(int device, uint64_t stream, struct gpu_event **event_p,
                                struct hvd_error *err);
struct gpu_event *gpu_event_share(struct gpu_event *event);
void gpu_event_put(struct gpu_event *event);    /* may be NULL */
/* The stream waits for it, not this thread. */
enum hvd_status gpu_event_wait(struct gpu_event *event, uint64_t stream,
                               struct hvd_error *err);

/* ---- Memory (gpu_memory.c) --------------------------------------------------------------- */

bool gpu_owns(const void *at);          /* given out by a work; never true without a GPU */
void gpu_free(void *at);
/* Host memory that a work has pinned is about to go. */
void gpu_unpin(const void *at);

/* ---- Work (gpu_work.c) ------------------------------------------------------------------- */

struct gpu_piece {
    void *to;                           /* of_new >= 0: an offset in that memory */
    const void *from;
    size_t bytes;
    int of_new;                         /* -1: none */
};

struct gpu_new {
    size_t bytes;
    void *at;                           /* set when the work is done, owned by the caller */
};

/* One operation of NCCL; elements, by set rank. */
struct gpu_call {
    enum hvd_op op;
    const void *in;                     /* NULL: this rank has joined and brings `fill` */
    void *out;                          /* NULL and in != NULL: news[of_new] */
    int of_new;
    size_t count;
    const uint64_t *counts, *recv_counts;
    int root;
    const void *fill;                   /* of count elements, host memory */
};

enum gpu_kind {
    GPU_HELLO,                          /* who this device is, ids of new communicators */
    GPU_COPY_IN, GPU_COPY_OUT,          /* pieces */
    GPU_CONNECT,                        /* makes the communicators of comm */
    GPU_COLLECT,                        /* calls, on a lane of comm */
    GPU_HANG_UP,                        /* ends them: gpu_comm_end */
};

struct gpu_comm;

struct gpu_work {
    enum gpu_kind kind;
    int device;
    struct gpu_event **after;           /* borrowed, as all lists */
    int after_count;
    struct gpu_new *news;
    int new_count;
    struct gpu_piece *pieces;           /* copies */
    int piece_count;
    void *pin;                          /* host memory of pin_bytes, pinned first if it can be */
    size_t pin_bytes;
    struct gpu_comm *comm;
    int lane;                           /* COLLECT: of the communicator */
    struct gpu_call *calls;
    int call_count;
    enum hvd_dtype dtype;
    enum hvd_reduce reduce;
    double factor;                      /* SUM, AVERAGE: of each contribution; 1: none */
    void (*tell)(void *context);        /* may be called a little before gpu_is_done */
    void *context;

    uint8_t uuid[16];                   /* HELLO: results */
    int id_count;                       /* wanted */
    uint8_t ids[GPU_STREAMS_MAX][GPU_ID_BYTES];
    struct hvd_error err;               /* valid when done; HVD_OK */

    struct gpu_state *state;            /* of the device's thread */
    struct list node;
    atomic_uint launched;               /* all of it is on the stream, and so is `end` */
    struct gpu_event *end;              /* valid when launched; the work's, take a share */
    atomic_uint done;
};

/* Errors: HVD_UNSUPPORTED, HVD_DEVICE, HVD_NOMEM; then nothing has been started. */
enum hvd_status gpu_start(struct gpu_work *work, struct hvd_error *err);
bool gpu_is_done(struct gpu_work *work);
bool gpu_is_launched(struct gpu_work *work);
/* Waits for it.  False: the time is over, and the work must not be touched any more. */
bool gpu_wait(struct gpu_work *work, int64_t timeout_us);
void gpu_work_release(struct gpu_work *work);   /* after it is done */

/* ---- Communicators (gpu_comm.c) ---------------------------------------------------------- */

/* Whether NCCL itself can do it; the same answer on all ranks. */
bool gpu_nccl_can(enum hvd_op op, enum hvd_dtype dtype, enum hvd_reduce reduce,
                  double factor);
struct gpu_comm *gpu_comm_new(int device, int rank, int size, int lanes,
                              const uint8_t (*ids)[GPU_ID_BYTES]);
/* What is under way on it ends, at once, whoever else takes part. */
void gpu_comm_abort(struct gpu_comm *comm);
/* Ends it, in good order if nothing has failed, and frees it.  Blocks: never. */
void gpu_comm_end(struct gpu_comm *comm);

/* Ends the threads of all devices that have nothing to do.  Blocks: bounded. */
void gpu_close(void);

#endif
