/*
 * gpu_harness.h: operations on the stand-in's GPUs, checked against the same on the CPU.
 *
 * Numbers are such that every order of additions gives the same bits, so that NCCL's result is
 * the CPU's, too.
 */
#ifndef TESTS_GPU_HARNESS_H
#define TESTS_GPU_HARNESS_H

#include "support/job_harness.h"
#include "standin.h"

enum gpu_way { BY_HOST, BY_NCCL, BY_BROKEN_PATH };

/* Environment of a job: the stand-ins, this way, and `more` ("NAME=value", NULL at the end; may
 * be NULL).  Valid until the next call. */
const char *const *gpu_env(enum gpu_way way, unsigned seed, const char *const *more);

struct gpu_case {
    enum hvd_op op;
    enum hvd_dtype dtype;
    enum hvd_reduce reduce;
    double prescale, postscale;
    int64_t rows, row;                  /* of this rank */
    int root, set;
    bool in_place, own_output;          /* else memory of the caller, elsewhere */
    const int64_t *splits;
    bool by_stream;                     /* the result is read by a stream that waits */
};

/* Runs it on the CPU and on the GPU; false: the bytes differ. */
bool gpu_run_case(const struct gpu_case *c, const char *name, int rank);
/* The same with CHECK, and its text. */
void gpu_check_case(const struct gpu_case *c, const char *name, int rank);

/* A tensor on the GPU whose bytes come late, by a stream. */
struct gpu_tensor {
    uintptr_t at;
    size_t bytes;
    void *stream;
};
struct gpu_tensor gpu_tensor_new(const void *from, size_t bytes);
void gpu_tensor_free(struct gpu_tensor *t);
struct hvd_request gpu_sum(const char *name, const struct gpu_tensor *t);
/* hvd_shutdown, and nothing of the driver's is left. */
void gpu_end(void);

/* Every operation, type and reduction. */
void gpu_all_cases(int rank, int size);

#endif
