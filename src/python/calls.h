/*
 * calls.h: the functions of libhvd that `_core` lends to our other libraries in the process
 * (src/tensorflow), which must use the same job.  `_core` hides its names; it shows this
 * table alone, as horovod_calls.
 */
#ifndef HVD_PYTHON_CALLS_H
#define HVD_PYTHON_CALLS_H

#include "horovod/horovod.h"

/* X(name without hvd_) */
#define HVD_CALLS(X)                                                                   \
    X(status_name) X(dtype_bytes) X(rank) X(size) X(local_rank) X(local_size)          \
    X(process_set_rank) X(process_set_size) X(submit) X(submit_then) X(wait)           \
    X(release) X(output) X(take_output) X(free)

struct hvd_calls {
    uint32_t bytes;                     /* sizeof(struct hvd_calls) */
#define HVD_CALL_FIELD(name) __typeof__(hvd_##name) *name;
    HVD_CALLS(HVD_CALL_FIELD)
#undef HVD_CALL_FIELD
};

#endif
