/*
 * names.h: what we use of CUDA's driver API and of NCCL: types, constants and the table of
 * functions that library.c fills by dlopen.  Nothing of it is needed to build: the values are
 * those that the two libraries promise to keep.
 *
 * The driver API alone: it has a stable ABI, it is there wherever a GPU can be used (the runtime
 * library needs it, too), and torch may carry the runtime in itself.
 */
#ifndef HVD_GPU_NAMES_H
#define HVD_GPU_NAMES_H

#include <stddef.h>
#include <stdint.h>

/* ---- CUDA ------------------------------------------------------------------------------ */

typedef int cu_result;                  /* 0: success */
typedef struct cu_context *cu_context;
typedef struct cu_stream *cu_stream;
typedef struct cu_event *cu_event;
typedef uintptr_t cu_address;           /* of device or host memory: one space */

enum {
    CUDA_OK = 0, CUDA_OUT_OF_MEMORY = 2, CUDA_DEINITIALIZED = 4, CUDA_NO_DEVICE = 100,
    CUDA_NOT_READY = 600,
    CUDA_ALREADY_REGISTERED = 712,
};
#define CUDA_EVENT_NO_TIMING 2u
#define CUDA_STREAM_NON_BLOCKING 1u
#define CUDA_HOST_PORTABLE 1u

/* field, symbol, arguments */
#define CUDA_MAP(X)                                                                    \
    X(init, "cuInit", (unsigned flags))                                                \
    X(driver_version, "cuDriverGetVersion", (int *version_p))                          \
    X(error_text, "cuGetErrorString", (cu_result code, const char **text_p))           \
    X(device_count, "cuDeviceGetCount", (int *count_p))                                \
    X(device_uuid, "cuDeviceGetUuid", (uint8_t *uuid, int device))                     \
    X(context_retain, "cuDevicePrimaryCtxRetain", (cu_context *context_p, int device)) \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                   \
    X(context_push, "cuCtxPushCurrent_v2", (cu_context context))                       \
    X(context_pop, "cuCtxPopCurrent_v2", (cu_context *context_p))                      \
    X(priorities, "cuCtxGetStreamPriorityRange", (int *least_p, int *greatest_p))      \
    X(stream_new, "cuStreamCreateWithPriority",                                        \
      (cu_stream *stream_p, unsigned flags, int priority))                             \
    X(stream_free, "cuStreamDestroy_v2", (cu_stream stream))                           \
    X(stream_wait, "cuStreamWaitEvent", (cu_stream stream, cu_event event, unsigned flags)) \
    X(stream_capturing, "cuStreamIsCapturing", (cu_stream stream, int *status_p))      \
    X(event_new, "cuEventCreate", (cu_event *event_p, unsigned flags))                 \
    X(event_free, "cuEventDestroy_v2", (cu_event event))                               \
    X(event_record, "cuEventRecord", (cu_event event, cu_stream stream))               \
    X(event_query, "cuEventQuery", (cu_event event))                                   \
    X(alloc, "cuMemAlloc_v2", (cu_address *at_p, size_t bytes))                        \
    X(free, "cuMemFree_v2", (cu_address at))                                           \
    X(pin, "cuMemHostRegister_v2", (void *at, size_t bytes, unsigned flags))           \
    X(unpin, "cuMemHostUnregister", (void *at))                                        \
    X(copy, "cuMemcpyAsync", (cu_address to, cu_address from, size_t bytes, cu_stream stream)) \
    X(call, "cuLaunchHostFunc", (cu_stream stream, void (*function)(void *), void *context))

/* ---- NCCL ------------------------------------------------------------------------------ */

typedef int nccl_result;
typedef struct nccl_comm *nccl_comm;

enum { NCCL_OK = 0, NCCL_IN_PROGRESS = 7 };
enum { NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64, NCCL_UINT64, NCCL_FLOAT16,
       NCCL_FLOAT32, NCCL_FLOAT64, NCCL_BFLOAT16 };
enum { NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG };
enum { NCCL_SCALAR_ON_HOST = 1 };

/* Older ones cannot make a communicator without blocking, and lack what we count on: averages
 * and bfloat16 (2.10), factors (2.11). */
#define NCCL_OLDEST 21400

struct nccl_id {
    char bytes[128];
};

/* As of 2.14; `size` and `version` tell newer ones what is there. */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
};
#define NCCL_CONFIG_MAGIC 0xcafebeefu

#define NCCL_MAP(X)                                                                    \
    X(version, "ncclGetVersion", (int *version_p))                                     \
    X(new_id, "ncclGetUniqueId", (struct nccl_id *id))                                 \
    X(connect, "ncclCommInitRankConfig",                                               \
      (nccl_comm *comm_p, int count, struct nccl_id id, int rank,                      \
       struct nccl_config *config))                                                    \
    X(finalize, "ncclCommFinalize", (nccl_comm comm))                                  \
    X(destroy, "ncclCommDestroy", (nccl_comm comm))                                    \
    X(abort, "ncclCommAbort", (nccl_comm comm))                                        \
    X(state, "ncclCommGetAsyncError", (nccl_comm comm, nccl_result *state_p))          \
    X(group_start, "ncclGroupStart", (void))                                           \
    X(group_end, "ncclGroupEnd", (void))                                               \
    X(allreduce, "ncclAllReduce",                                                      \
      (const void *in, void *out, size_t count, int type, int op, nccl_comm comm,      \
       cu_stream stream))                                                              \
    X(reduce, "ncclReduce",                                                            \
      (const void *in, void *out, size_t count, int type, int op, int root,            \
       nccl_comm comm, cu_stream stream))                                              \
    X(broadcast, "ncclBroadcast",                                                      \
      (const void *in, void *out, size_t count, int type, int root, nccl_comm comm,    \
       cu_stream stream))                                                              \
    X(allgather, "ncclAllGather",                                                      \
      (const void *in, void *out, size_t count, int type, nccl_comm comm,              \
       cu_stream stream))                                                              \
    X(reducescatter, "ncclReduceScatter",                                              \
      (const void *in, void *out, size_t count, int type, int op, nccl_comm comm,      \
       cu_stream stream))                                                              \
    X(send, "ncclSend",                                                                \
      (const void *in, size_t count, int type, int peer, nccl_comm comm,               \
       cu_stream stream))                                                              \
    X(receive, "ncclRecv",                                                             \
      (void *out, size_t count, int type, int peer, nccl_comm comm, cu_stream stream)) \
    X(factor_new, "ncclRedOpCreatePreMulSum",                                          \
      (int *op_p, void *factor, int type, int residence, nccl_comm comm))              \
    X(factor_free, "ncclRedOpDestroy", (int op, nccl_comm comm))

#define CUDA_FIELD(field, symbol, arguments) cu_result (*field) arguments;
#define NCCL_FIELD(field, symbol, arguments) nccl_result (*field) arguments;

struct gpu_table {
    struct { CUDA_MAP(CUDA_FIELD) } cuda;
    struct { NCCL_MAP(NCCL_FIELD) const char *(*error_text)(nccl_result); } nccl;
};

extern struct gpu_table gpu;            /* filled by gpu_find, constant from then on */

#endif
