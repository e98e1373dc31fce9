/*
 * backend_hvd.c: collbench on libhvd.  An operation of one size keeps its name, as a gradient
 * does in training; the first call negotiates it, the measured ones find it in the cache.
 */
#include "coll.h"

#include "horovod/horovod.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_BYTES ((size_t)2 << 20)

static int size;

static void check(enum hvd_status status, const struct hvd_error *err)
{
    if (status == HVD_OK)
        return;
    fprintf(stderr, "collbench: %s: %s\n", hvd_status_name(status), err->text);
    exit(1);
}

void coll_init(int *argc, char ***argv, int *rank_p, int *size_p)
{
    struct hvd_error err;

    (void)argc, (void)argv;
    check(hvd_init(NULL, &err), &err);
    *rank_p = hvd_rank();
    *size_p = size = hvd_size();
}

void coll_finish(void)
{
    hvd_shutdown();
}

const char *coll_name(void)
{
    return "hvd";
}

/* Private memory comes as it does for the peers. */
void *coll_alloc(size_t bytes, bool shared)
{
    void *p = shared ? hvd_alloc(bytes) : NULL;

    if (p != NULL)
        return p;
    if (posix_memalign(&p, bytes >= HUGE_BYTES ? HUGE_BYTES : 4096, bytes) != 0)
        abort();
    if (bytes >= HUGE_BYTES)
        madvise(p, bytes, MADV_HUGEPAGE);
    return memset(p, 0, bytes);
}

/* Runs the operation; the text of the name is made only when the size changes. */
static int run(enum hvd_op op, enum hvd_dtype dtype, const void *in, void *out,
               int64_t count)
{
    static char names[HVD_OP_COUNT][32];
    static int64_t counts[HVD_OP_COUNT];
    struct hvd_request request = {
        .size = sizeof request, .op = op, .dtype = dtype, .reduce = HVD_SUM, .device = -1,
        .name = names[op], .input = in, .output = out, .ndim = 1, .shape = {count},
    };
    struct hvd_error err;

    if (counts[op] != count || names[op][0] == '\0') {
        counts[op] = count;
        snprintf(names[op], sizeof names[op], "bench.%d.%lld", (int)op, (long long)count);
    }
    check(hvd_run(&request, &err), &err);
    return 0;
}

int coll_barrier(void)
{
    struct hvd_request request = {.size = sizeof request, .op = HVD_BARRIER, .device = -1};
    struct hvd_error err;

    check(hvd_run(&request, &err), &err);
    return 0;
}

int coll_allreduce(const float *in, float *out, size_t count)
{
    return run(HVD_ALLREDUCE, HVD_F32, in, out, (int64_t)count);
}

int coll_reducescatter(const float *in, float *out, size_t count_per_rank)
{
    return run(HVD_REDUCESCATTER, HVD_F32, in, out, (int64_t)count_per_rank * size);
}

int coll_allgather(const void *in, void *out, size_t bytes_per_rank)
{
    return run(HVD_ALLGATHER, HVD_U8, in, out, (int64_t)bytes_per_rank);
}

int coll_broadcast(void *buffer, size_t bytes, int root)
{
    (void)root;                         /* always 0 here */
    return run(HVD_BROADCAST, HVD_U8, buffer, buffer, (int64_t)bytes);
}

int coll_alltoall(const void *in, void *out, size_t bytes_per_pair)
{
    return run(HVD_ALLTOALL, HVD_U8, in, out, (int64_t)bytes_per_pair * size);
}
