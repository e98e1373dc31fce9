/*
 * horovod.h: the worker side of libhvd, usable from plain C.
 *
 * Chapters: 1 status and errors, 2 life cycle, 3 memory, 4 operations, 5 handles,
 * 6 process sets, 7 diagnostics, 8 GPUs.
 *
 * Thread: every function may be called from any thread, unless its comment says
 * otherwise.  In a forked child every function that needs a job fails with HVD_FORKED.
 * A function that returns enum hvd_status describes a failure in *err, if err is given,
 * and leaves *err alone on success.
 */
#ifndef HOROVOD_HOROVOD_H
#define HOROVOD_HOROVOD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- 1. Status and errors ------------------------------------------------------- */

/*
 * name, scope, text.  The scope says what is broken: NONE nothing, OP this handle, SET
 * the process set, JOB the job (elastic restores, others stop), PROCESS this process.
 */
#define HVD_STATUS_MAP(X)                                                              \
    X(OK,          NONE,    "success")                                                 \
    X(AGAIN,       NONE,    "not finished yet")                                        \
    X(INVALID,     OP,      "invalid argument")                                        \
    X(MISMATCH,    OP,      "ranks disagree")                                          \
    X(UNSUPPORTED, OP,      "not supported")                                           \
    X(REMOTE,      OP,      "another rank could not take part")                        \
    X(REMOVED,     SET,     "process set removed")                                     \
    X(PEER_LOST,   JOB,     "peer lost")                                               \
    X(STALLED,     JOB,     "stalled for too long")                                    \
    X(SHUTDOWN,    JOB,     "shut down")                                               \
    X(ABORTED,     JOB,     "aborted")                                                 \
    X(TIMEOUT,     JOB,     "deadline passed")                                         \
    X(PROTO,       JOB,     "protocol violated")                                       \
    X(AUTH,        JOB,     "peer did not prove the job key")                          \
    X(VERSION,     JOB,     "versions differ")                                         \
    X(NOT_INIT,    PROCESS, "not initialised")                                         \
    X(FORKED,      PROCESS, "called in a forked child")                                \
    X(NOMEM,       PROCESS, "out of memory")                                           \
    X(SYS,         PROCESS, "system call failed")                                      \
    X(RETIRED,     PROCESS, "this worker is no longer needed")                         \
    X(DEVICE,      JOB,     "a GPU or one of its libraries failed")

enum hvd_status {
#define HVD_STATUS_ENUM(name, scope, text) HVD_##name,
    HVD_STATUS_MAP(HVD_STATUS_ENUM)
#undef HVD_STATUS_ENUM
    HVD_STATUS_COUNT
};

enum hvd_scope { HVD_SCOPE_NONE, HVD_SCOPE_OP, HVD_SCOPE_SET, HVD_SCOPE_JOB,
                 HVD_SCOPE_PROCESS };

#define HVD_ERROR_TEXT 1024

struct hvd_error {
    enum hvd_status status;
    int rank;                           /* global rank at fault, -1 if none */
    char text[HVD_ERROR_TEXT];          /* one line, no newline, no escape codes */
};

const char *hvd_status_name(enum hvd_status status);    /* "PEER_LOST" */
const char *hvd_status_text(enum hvd_status status);    /* "peer lost" */
enum hvd_scope hvd_status_scope(enum hvd_status status);
/* The text as a person should see it: with " [HVD-203, docs/troubleshooting.md]" behind it where
 * that page has an entry.  Returns its length without the final 0, as snprintf does. */
size_t hvd_error_show(const char *text, char *buffer, size_t capacity);
const char *hvd_version(void);                          /* "0.29.0" */

/* ---- 2. Life cycle -------------------------------------------------------------- */

struct hvd_set_spec {
    const int *ranks;
    int rank_count;
};

struct hvd_options {
    uint32_t size;                      /* sizeof(struct hvd_options) */
    const struct hvd_set_spec *sets;    /* static process sets, equal on all ranks */
    int set_count;
    bool dynamic_sets;                  /* process sets may be added and removed */
};

/*
 * Joins the job that the HOROVOD_* variables describe (docs/config.md); without any, a
 * job of one process.  Idempotent while a job is up.  opt may be NULL.
 * Blocks: until all ranks have come or HOROVOD_GLOO_TIMEOUT_SECONDS is over.
 * Errors: HVD_INVALID, HVD_TIMEOUT (names who is missing), HVD_AUTH, HVD_VERSION,
 * HVD_MISMATCH, HVD_SYS.  After a failure everything is released; init may be retried.
 */
enum hvd_status hvd_init(const struct hvd_options *opt, struct hvd_error *err);

/* Leaves the job.  Pending operations fail with HVD_SHUTDOWN here and on the others.
 * Blocks: a bounded time, never for another rank's main thread.  Safe at any time. */
void hvd_shutdown(void);

/* Ends the job for all ranks because of `why`.  Every blocked or later operation on
 * every rank fails with HVD_ABORTED and that text. */
void hvd_abort(const char *why);

bool hvd_is_initialized(void);

/* -1 before hvd_init. */
int hvd_rank(void);
int hvd_size(void);
int hvd_local_rank(void);
int hvd_local_size(void);
int hvd_cross_rank(void);
int hvd_cross_size(void);
int hvd_is_homogeneous(void);

/*
 * Elastic jobs.  hvd_shutdown and hvd_init again is how a worker changes generations: hvd_init
 * says that this worker is ready and blocks until the driver gives it a rank in the next
 * generation, or HVD_RETIRED: leave with exit code 0.
 */
struct hvd_elastic {
    uint32_t size;                      /* sizeof(struct hvd_elastic) */
    bool is_elastic;                    /* this process has a driver */
    int worker;                         /* its number, which no other ever has */
    uint32_t generation;                /* counts up from 1; 0: none yet */
    bool sync;                          /* not all of this generation have the same state:
                                         * rank 0 has the right one */
};

void hvd_elastic_info(struct hvd_elastic *info);

/* What the driver has said about the next generation, since the present one was formed:
 * 0: nothing; 1: members are to go; 2: members are to come; 4: this process is to go.
 * The caller, at a point where the state is whole, agrees with the other ranks, and then
 * calls hvd_shutdown and hvd_init.  Costs nothing; *version_p counts up. */
#define HVD_ELASTIC_REMOVED 1u
#define HVD_ELASTIC_ADDED 2u
#define HVD_ELASTIC_LEAVE 4u
unsigned hvd_elastic_pending(uint32_t *version_p);

/* The state has been saved `count` times by now: who has most becomes rank 0. */
void hvd_elastic_committed(uint64_t count);

/* This process was told to leave (SIGTERM): the driver has it leave at the next commit. */
void hvd_elastic_leave(void);

/* ---- 3. Memory ------------------------------------------------------------------ */

/*
 * Memory that all ranks of this host can reach: collectives read and write it in place,
 * without a copy.  64-byte aligned, zeroed.  Stays valid after hvd_shutdown until
 * hvd_free; a new job in the same process reaches it as ordinary private memory.
 * NULL when there is none left (the caller falls back on malloc).
 */
void *hvd_alloc(size_t bytes);
void hvd_free(void *p);

struct hvd_copy {
    void *dst;
    const void *src;
    size_t bytes;
};

/*
 * Begins to copy `count` pieces that do not overlap, in a thread of its own that sleeps when
 * there is nothing to do.  Needs no job.  A batch that is under way is completed first.
 * Owns: the list is copied; the memory is borrowed until hvd_copy_wait has returned.
 * Blocks: as hvd_copy_wait.  Errors: HVD_NOMEM.
 */
enum hvd_status hvd_copy_start(const struct hvd_copy *pieces, size_t count,
                               struct hvd_error *err);

/* Returns when the batch is copied; the caller copies what is left of it, too. */
void hvd_copy_wait(void);

/* 64 bits that tell, by all probability, whether bytes are the same; a seed carries the digest
 * of what came before.  Not for secrets.  Needs no job.  Thread: any. */
uint64_t hvd_digest(const void *bytes, size_t count, uint64_t seed);

/* ---- 4. Operations -------------------------------------------------------------- */

/* name, text */
#define HVD_OP_MAP(X)                                                                  \
    X(ALLREDUCE, "allreduce") X(ALLGATHER, "allgather") X(BROADCAST, "broadcast")      \
    X(ALLTOALL, "alltoall") X(REDUCESCATTER, "reducescatter") X(BARRIER, "barrier")    \
    X(JOIN, "join")

enum hvd_op {
#define HVD_OP_ENUM(name, text) HVD_##name,
    HVD_OP_MAP(HVD_OP_ENUM)
#undef HVD_OP_ENUM
    HVD_OP_COUNT
};

const char *hvd_op_name(enum hvd_op op);                /* "allreduce"; unknown: "-" */

/*
 * Rounding.  Elements are combined in the order of ranks, first within each host, then
 * between hosts.  SUM, PRODUCT: float32 and float64 round at every step, float16 and
 * bfloat16 are combined in float32 and rounded once.  AVERAGE: within a host float32 is
 * combined in float64 and rounded once, too, so that the average of equal inputs is the
 * input; between hosts partial sums are rounded to the type (float32 for 16-bit types);
 * float64 divides with one rounding; integers divide exactly and are cut towards zero.
 */
enum hvd_reduce { HVD_AVERAGE, HVD_SUM, HVD_ADASUM, HVD_MIN, HVD_MAX, HVD_PRODUCT };

/* name, bytes of one element, text */
#define HVD_DTYPE_MAP(X)                                                               \
    X(U8, 1, "uint8") X(I8, 1, "int8") X(U16, 2, "uint16") X(I16, 2, "int16")          \
    X(I32, 4, "int32") X(I64, 8, "int64") X(F16, 2, "float16") X(F32, 4, "float32")    \
    X(F64, 8, "float64") X(BOOL, 1, "bool") X(BF16, 2, "bfloat16")

enum hvd_dtype {
#define HVD_DTYPE_ENUM(name, bytes, text) HVD_##name,
    HVD_DTYPE_MAP(HVD_DTYPE_ENUM)
#undef HVD_DTYPE_ENUM
    HVD_DTYPE_COUNT
};

size_t hvd_dtype_bytes(enum hvd_dtype dtype);
const char *hvd_dtype_name(enum hvd_dtype dtype);

#define HVD_DIMS_MAX 16

/* One tensor of one operation.  Zero-initialise, then set what the operation needs. */
struct hvd_request {
    uint32_t size;                      /* sizeof(struct hvd_request) */
    enum hvd_op op;
    enum hvd_dtype dtype;
    enum hvd_reduce reduce;             /* ALLREDUCE, REDUCESCATTER (SUM, AVERAGE) */
    int root;                           /* BROADCAST: a global rank */
    int process_set;                    /* 0 is the global set */
    int device;                         /* -1 is the CPU; else the GPU, by CUDA's index in this
                                         * process, that input and output lie on */
    const char *name;                   /* NULL: counted per set and kind */
    const void *input;                  /* borrowed until the handle is done */
    void *output;                       /* NULL: allocated by the runtime, hvd_output;
                                         * equal to input: in place */
    int ndim;
    int64_t shape[HVD_DIMS_MAX];
    double prescale, postscale;         /* 0 counts as 1.0 */
    const int64_t *splits;              /* ALLTOALL: rows for each set rank, or NULL */
    const char *problem;                /* not NULL: this rank cannot take part and says
                                         * why, so that the others fail, too */
    uint64_t stream;                    /* GPU: the CUDA stream (its handle) on which input and
                                         * output are ready; 0: the default one */
};

typedef int64_t hvd_handle;             /* > 0 */

/*
 * Hands `count` requests to the engine as one group with one handle; all or nothing.
 * Blocks: never for another rank; while another thread drives the engine, for the piece of
 * work that it is at.  Owns: names and shapes are copied, buffers borrowed.
 * Errors: HVD_INVALID (bad argument, name in flight, unknown set, not a member),
 * HVD_NOT_INIT, HVD_SHUTDOWN and the verdict of a job that has failed.
 */
enum hvd_status hvd_submit(const struct hvd_request *req, int count,
                           hvd_handle *handle_p, struct hvd_error *err);

/*
 * What hvd_submit_then calls when the operation is done: status and, unless that is HVD_OK,
 * why (else NULL; valid during the call).
 * Thread: the one that has made the operation done: the engine's, or one that is in a function
 * of this header, hvd_submit_then and hvd_shutdown included.  No lock of the library is held, so
 * it may call the functions of chapters 4 and 5 (submit the next operation, take outputs,
 * release the handle).  Calls come one after the other, in the order in which operations
 * became done.
 * It must not block, since those behind it wait, nor call hvd_init or hvd_shutdown.
 */
typedef void (*hvd_done_fn)(void *context, hvd_handle handle, enum hvd_status status,
                            const struct hvd_error *why);

/*
 * As hvd_submit, and `done` is called exactly once: with the result, also when the job
 * fails or is shut down; perhaps before this function returns, so *handle_p may be released
 * by then.  Never called if this function fails.  The handle stays until hvd_release; who
 * waits for it may come back a little before `done` is called.
 */
enum hvd_status hvd_submit_then(const struct hvd_request *req, int count, hvd_done_fn done,
                                void *context, hvd_handle *handle_p,
                                struct hvd_error *err);

/* hvd_submit, hvd_wait and hvd_release in one, for one request with its own output. */
enum hvd_status hvd_run(const struct hvd_request *req, struct hvd_error *err);

/* As hvd_run without sleeping, for callers that have other things to look after while they
 * wait: HVD_AGAIN if the operation is not done after one spin; hvd_wait and hvd_release
 * then go on with *handle_p. */
enum hvd_status hvd_run_start(const struct hvd_request *req, hvd_handle *handle_p,
                              struct hvd_error *err);

/* ---- 5. Handles ----------------------------------------------------------------- */

/* HVD_AGAIN while under way, HVD_INVALID for an unknown handle, else the result. */
enum hvd_status hvd_poll(hvd_handle handle, struct hvd_error *err);

/* Waits up to timeout_us (-1: as long as the job lives).  HVD_AGAIN: time is over.
 * The waiting thread makes the engine's progress itself. */
enum hvd_status hvd_wait(hvd_handle handle, int64_t timeout_us, struct hvd_error *err);

/* Forgets the handle and frees outputs that were not taken.  Waits until the buffers
 * are no longer in use. */
void hvd_release(hvd_handle handle);

struct hvd_output {
    uint32_t size;
    void *data;
    int ndim;
    int64_t shape[HVD_DIMS_MAX];
    int set_size;
    const int64_t *splits;              /* ALLTOALL: rows received, set_size of them;
                                         * valid until hvd_release */
    int64_t value;                      /* JOIN: the rank that joined last */
    int device;                         /* of data; -1: the CPU */
};

/* The output of tensor `index` of a finished handle. */
enum hvd_status hvd_output(hvd_handle handle, int index, struct hvd_output *out,
                           struct hvd_error *err);

/* As hvd_output for a tensor the runtime allocated, and the memory now belongs to the
 * caller, who ends it with hvd_free. */
enum hvd_status hvd_take_output(hvd_handle handle, int index, struct hvd_output *out,
                                struct hvd_error *err);

/* As hvd_run_start for a request whose output the runtime allocates.  HVD_OK: it is done, and
 * *out is as hvd_take_output gives it; out->splits lies in `splits`, which has room for
 * `room` rows received.  HVD_AGAIN: it is under way; hvd_wait, hvd_take_output and
 * hvd_release go on with *handle_p. */
enum hvd_status hvd_run_take(const struct hvd_request *req, struct hvd_output *out,
                             int64_t *splits, int room, hvd_handle *handle_p,
                             struct hvd_error *err);

/* A handle that is done: the CUDA stream waits for the end of its operation, this thread does not.
 * Needed where HOROVOD_ENABLE_ASYNC_COMPLETION lets handles be done when the work is queued; else,
 * and for the CPU, there is nothing to wait for. */
enum hvd_status hvd_stream_wait(hvd_handle handle, uint64_t stream, struct hvd_error *err);

/* ---- 6. Process sets ------------------------------------------------------------ */

/* Collective over all ranks of the job, same order everywhere. */
enum hvd_status hvd_add_process_set(const int *ranks, int rank_count, int *id_p,
                                    struct hvd_error *err);
enum hvd_status hvd_remove_process_set(int id, struct hvd_error *err);

/* Large sums over this set will come: the connections that they use are made in the
 * background.  Otherwise the first sum makes them, and waits for it.  Blocks: as hvd_submit. */
void hvd_warm_process_set(int id);

int hvd_process_set_count(void);
int hvd_process_set_ids(int *ids, int capacity);        /* the number of sets */
int hvd_process_set_size(int id);                       /* -1: unknown */
int hvd_process_set_rank(int id);                       /* -1: unknown, -2: no member */
int hvd_process_set_ranks(int id, int *ranks, int capacity);

/* ---- 7. Diagnostics ------------------------------------------------------------- */

enum hvd_status hvd_timeline_start(const char *path, bool mark_cycles,
                                   struct hvd_error *err);
enum hvd_status hvd_timeline_stop(struct hvd_error *err);

/* Writes a JSON object (counts, bytes, times, cache, fusion, wait per peer) and returns
 * its length without the final 0, as snprintf does. */
size_t hvd_stats_json(char *buffer, size_t capacity);

/* Appends the flight recorder of this process to the file, as text. */
enum hvd_status hvd_recorder_dump(const char *path, struct hvd_error *err);

/* Called by the stall report to tell where the main thread is; must not block. */
typedef size_t (*hvd_where_fn)(char *buffer, size_t capacity);
void hvd_set_where(hvd_where_fn where);

/* A line per algorithm that HOROVOD_ALGORITHMS can choose, and the rules in force. */
size_t hvd_algorithms_text(char *buffer, size_t capacity);

/* A line per configuration row: name, value, default, source. */
size_t hvd_config_text(char *buffer, size_t capacity);

/* ---- 8. GPUs --------------------------------------------------------------------- */

enum { HVD_GPU_NONE, HVD_GPU_HOST, HVD_GPU_NCCL };

/* What this process alone can do; the ranks of a process set agree at their first operation. */
struct hvd_gpu {
    uint32_t size;
    int backend;                        /* NONE: requests for a GPU are refused; HOST: through
                                         * host memory; NCCL */
    int nccl_version;                   /* as ncclGetVersion says it; 0: none */
    char driver[256], nccl[256];        /* libraries that were loaded */
    char reason[256];                   /* why not more; "" */
};

/* Loads the CUDA driver and NCCL if they are there; does not initialise CUDA.  Needs no job. */
void hvd_gpu_info(struct hvd_gpu *info);

/* Loads NCCL alone; 0: not there.  Needs no job. */
int hvd_nccl_version(void);

/* Directories, with ':' between them, in which NCCL and CUDA are looked for before the system's.
 * Before the first GPU tensor. */
void hvd_gpu_search(const char *directories);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
