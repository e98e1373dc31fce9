/*
 * backend_hvd.c: collbench on libhvd.  An operation of one size keeps its name, as a
 * gradient does in training: the first call negotiates it, the measured ones find it in
 * the cache.
 */
#include "system.h"

#include "horovod/horovod.h"

#include <stdio.h>
#include <stdlib.h>

static int size;

static void check(enum hvd_status status, const struct hvd_error *err)
{
    if (status == HVD_OK)
        return;
    fprintf(stderr, "collbench: %s: %s\n", hvd_status_name(status), err->text);
    exit(1);
}

void sys_init(int *argc, char ***argv, int *rank_p, int *size_p)
{
    struct hvd_error err;

    (void)argc, (void)argv;
    check(hvd_init(NULL, &err), &err);
    *rank_p = hvd_rank();
    *size_p = size = hvd_size();
}

void sys_finish(void)
{
    hvd_shutdown();
}

void *sys_alloc(size_t bytes, bool shared)
{
    void *p = shared ? hvd_alloc(bytes) : sys_alloc_private(bytes);

    if (p == NULL) {
        fprintf(stderr, "collbench: no shared memory for %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

/* The name is written only when operation or size change. */
static const char *name_of(enum hvd_op op, int64_t count, bool in_place)
{
    static char names[HVD_OP_COUNT][2][40];
    static int64_t counts[HVD_OP_COUNT][2];
    char *name = names[op][in_place];

    if (counts[op][in_place] != count) {
        counts[op][in_place] = count;
        snprintf(name, sizeof names[0][0], "bench.%d.%d.%lld", (int)op, in_place,
                 (long long)count);
    }
    return name;
}

static void run(enum hvd_op op, enum hvd_dtype dtype, const void *in, void *out,
                int64_t count)
{
    struct hvd_request request = {
        .size = sizeof request, .op = op, .dtype = dtype, .reduce = HVD_SUM, .device = -1,
        .name = name_of(op, count, in == out), .input = in, .output = out, .ndim = 1,
        .shape = {count},
    };
    struct hvd_error err;

    check(hvd_run(&request, &err), &err);
}

void sys_allreduce(const float *in, float *out, size_t count)
{
    run(HVD_ALLREDUCE, HVD_F32, in, out, (int64_t)count);
}

void sys_reducescatter(const float *in, float *out, size_t count_per_rank)
{
    run(HVD_REDUCESCATTER, HVD_F32, in, out, (int64_t)count_per_rank * size);
}

void sys_allgather(const void *in, void *out, size_t bytes_per_rank)
{
    run(HVD_ALLGATHER, HVD_U8, in, out, (int64_t)bytes_per_rank);
}

void sys_broadcast(void *buffer, size_t bytes, int root)
{
    (void)root;                         /* always 0 here */
    run(HVD_BROADCAST, HVD_U8, buffer, buffer, (int64_t)bytes);
}

void sys_alltoall(const void *in, void *out, size_t bytes_per_pair)
{
    run(HVD_ALLTOALL, HVD_U8, in, out, (int64_t)bytes_per_pair * size);
}
