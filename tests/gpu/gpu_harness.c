/* gpu_harness.c: cases on the CPU and on the GPU, and how their bytes compare. */
#include "gpu_harness.h"

#include "check.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* ---- Environment ---------------------------------------------------------------------------- */

static void path_of(char *path, size_t room, const char *prefix, const char *name)
{
    Dl_info info;

    CHECK(dladdr((void *)standin_alloc, &info) != 0);
    snprintf(path, room, "%s=%.*s%s", prefix,
             (int)(strrchr(info.dli_fname, '/') + 1 - info.dli_fname), info.dli_fname, name);
}

const char *const *gpu_env(enum gpu_way way, unsigned seed, const char *const *more)
{
    static char cuda[4096], nccl[4096], seeds[64];
    static const char *env[32];
    int n = 0;

    path_of(cuda, sizeof cuda, "HOROVOD_CUDART_LIBRARY", "libhvd_standin_cuda.so");
    path_of(nccl, sizeof nccl, "HOROVOD_NCCL_LIBRARY",
            way == BY_BROKEN_PATH ? "nowhere.so" : "libhvd_standin_nccl.so");
    snprintf(seeds, sizeof seeds, "STANDIN_SEED=%u", seed);
    env[n++] = cuda;
    env[n++] = nccl;
    env[n++] = seeds;
    env[n++] = way == BY_HOST ? "HOROVOD_GPU_BACKEND=host" : "HOROVOD_GPU_BACKEND=auto";
    for (; more != NULL && *more != NULL; more++)
        env[n++] = *more;
    env[n] = NULL;
    return env;
}

/* ---- Values --------------------------------------------------------------------------------- */

static uint16_t bfloat_of(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static uint16_t half_of(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    if (f == 0)
        return 0;
    return (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 23 & 255) - 112) << 10 |
                      (bits >> 13 & 1023));
}

static void put(void *at, size_t i, enum hvd_dtype dtype, int x)
{
    switch (dtype) {
    case HVD_U8: case HVD_I8: ((int8_t *)at)[i] = (int8_t)x; break;
    case HVD_BOOL: ((uint8_t *)at)[i] = x & 1; break;
    case HVD_U16: case HVD_I16: ((int16_t *)at)[i] = (int16_t)x; break;
    case HVD_I32: ((int32_t *)at)[i] = x; break;
    case HVD_I64: ((int64_t *)at)[i] = x; break;
    case HVD_F16: ((uint16_t *)at)[i] = half_of((float)x); break;
    case HVD_BF16: ((uint16_t *)at)[i] = bfloat_of((float)x); break;
    case HVD_F32: ((float *)at)[i] = (float)x; break;
    case HVD_F64: ((double *)at)[i] = x; break;
    case HVD_DTYPE_COUNT: break;
    }
}

/* Sums and averages of 12s are exact, over 2, 3 and 4 ranks; products need smaller ones. */
static void fill(void *at, size_t count, const struct gpu_case *c, int rank)
{
    for (size_t i = 0; i < count; i++)
        put(at, i, c->dtype, c->reduce == HVD_PRODUCT ? 1 + (int)((i + (size_t)rank) % 2)
                                                      : 12 * (int)((i + (size_t)rank) % 3));
}

/* ---- Cases ---------------------------------------------------------------------------------- */

static struct hvd_request request_of(const struct gpu_case *c, const char *name)
{
    return (struct hvd_request){
        .size = sizeof(struct hvd_request), .op = c->op, .dtype = c->dtype,
        .reduce = c->reduce, .root = c->root, .process_set = c->set, .device = -1,
        .name = name, .ndim = 2, .shape = {c->rows, c->row}, .prescale = c->prescale,
        .postscale = c->postscale, .splits = c->splits};
}

struct result {
    char *data;
    size_t bytes;
    int64_t rows;
};

static size_t bytes_of(const struct hvd_output *out, enum hvd_dtype dtype)
{
    size_t bytes = hvd_dtype_bytes(dtype);

    for (int i = 0; i < out->ndim; i++)
        bytes *= (size_t)out->shape[i];
    return bytes;
}

static struct result on_cpu(const struct gpu_case *c, const char *name, const void *in)
{
    struct hvd_request req = request_of(c, name);
    struct hvd_output out = {.size = sizeof out};
    struct result r;
    struct hvd_error err;
    hvd_handle handle;

    req.input = in;
    CHECK_OK(hvd_submit(&req, 1, &handle, &err), err);
    CHECK_OK(hvd_wait(handle, -1, &err), err);
    CHECK_OK(hvd_output(handle, 0, &out, &err), err);
    CHECK_EQ(out.device, -1);
    r.bytes = bytes_of(&out, c->dtype);
    r.rows = out.shape[0];
    r.data = malloc(r.bytes + 1);
    memcpy(r.data, out.data, r.bytes);
    hvd_release(handle);
    return r;
}

struct gpu_tensor gpu_tensor_new(const void *from, size_t bytes)
{
    struct gpu_tensor t = {.at = standin_alloc(0, bytes), .bytes = bytes,
                           .stream = standin_stream_new(0)};
    char *junk = malloc(bytes + 1);

    memset(junk, 0x5a, bytes);
    standin_write(t.at, junk, bytes);
    free(junk);
    standin_stream_write(t.stream, t.at, from, bytes);
    return t;
}

void gpu_tensor_free(struct gpu_tensor *t)
{
    standin_stream_sync(t->stream);
    standin_stream_end(t->stream);
    standin_free(t->at);
}

/* What lies at `at` when the handle is done, as the host or as another stream sees it. */
static struct result read_back(const struct gpu_case *c, hvd_handle handle, void *at,
                               size_t bytes)
{
    struct result r = {.bytes = bytes, .data = malloc(bytes + 1)};
    struct hvd_error err;
    void *stream;

    memset(r.data, 0xa5, bytes);
    if (!c->by_stream) {
        standin_read(r.data, (uintptr_t)at, bytes);
        return r;
    }
    stream = standin_stream_new(0);
    CHECK_OK(hvd_stream_wait(handle, (uintptr_t)stream, &err), err);
    standin_stream_read(stream, r.data, (uintptr_t)at, bytes);
    standin_stream_sync(stream);
    standin_stream_end(stream);
    return r;
}

static struct result on_gpu(const struct gpu_case *c, const char *name, const void *in,
                            size_t in_bytes, size_t out_bytes)
{
    struct hvd_request req = request_of(c, name);
    struct hvd_output out = {.size = sizeof out};
    struct gpu_tensor t = gpu_tensor_new(in, in_bytes);
    uintptr_t other = standin_alloc(0, out_bytes);
    struct hvd_error err;
    struct result r;
    hvd_handle handle;

    req.device = 0;
    req.stream = (uintptr_t)t.stream;
    req.input = (void *)t.at;
    req.output = c->own_output ? NULL : c->in_place ? (void *)t.at : (void *)other;
    CHECK_OK(hvd_submit(&req, 1, &handle, &err), err);
    CHECK_OK(hvd_wait(handle, -1, &err), err);
    CHECK_OK(hvd_output(handle, 0, &out, &err), err);
    CHECK_EQ(out.device, 0);
    r = read_back(c, handle, out.data, bytes_of(&out, c->dtype));
    r.rows = out.shape[0];
    if (c->own_output) {
        CHECK_OK(hvd_take_output(handle, 0, &out, &err), err);
        hvd_release(handle);
        hvd_free(out.data);
    } else {
        hvd_release(handle);
    }
    standin_free(other);
    gpu_tensor_free(&t);
    return r;
}

bool gpu_run_case(const struct gpu_case *c, const char *name, int rank)
{
    size_t count = (size_t)(c->rows * c->row), bytes = count * hvd_dtype_bytes(c->dtype);
    void *in = malloc(bytes + 1);
    struct result cpu, gpu;
    char other[256];
    bool same;

    fill(in, count, c, rank);
    snprintf(other, sizeof other, "cpu.%s", name);
    cpu = on_cpu(c, other, in);
    gpu = on_gpu(c, name, in, bytes, cpu.bytes);
    same = cpu.bytes == gpu.bytes && cpu.rows == gpu.rows &&
           memcmp(cpu.data, gpu.data, cpu.bytes) == 0;
    free(cpu.data);
    free(gpu.data);
    free(in);
    return same;
}

void gpu_check_case(const struct gpu_case *c, const char *name, int rank)
{
    if (!gpu_run_case(c, name, rank))
        check_fail(__FILE__, __LINE__, "%s: %s of %s by %d: wrong bytes", name,
                   hvd_op_name(c->op), hvd_dtype_name(c->dtype), c->reduce);
}

struct hvd_request gpu_sum(const char *name, const struct gpu_tensor *t)
{
    return (struct hvd_request){
        .size = sizeof(struct hvd_request), .op = HVD_ALLREDUCE, .dtype = HVD_F32,
        .reduce = HVD_SUM, .name = name, .ndim = 1, .shape = {(int64_t)t->bytes / 4},
        .input = (void *)t->at, .output = (void *)t->at, .stream = (uintptr_t)t->stream};
}

void gpu_end(void)
{
    hvd_shutdown();
    CHECK_EQ(standin_open_count(), 0);
}

/* ---- All of them ----------------------------------------------------------------------------- */

static bool is_float(enum hvd_dtype dtype)
{
    return dtype == HVD_F16 || dtype == HVD_BF16 || dtype == HVD_F32 || dtype == HVD_F64;
}

static void check_reductions(enum hvd_dtype dtype, int rank, int size)
{
    static const enum hvd_reduce all[] = {HVD_AVERAGE, HVD_SUM, HVD_MIN, HVD_MAX, HVD_PRODUCT,
                                          HVD_ADASUM};
    char name[64];

    for (int i = 0; i < 6; i++) {
        struct gpu_case c = {.op = HVD_ALLREDUCE, .dtype = dtype, .reduce = all[i],
                             .rows = 3, .row = 7, .in_place = i % 2 == 0,
                             .own_output = i == 3};

        if (all[i] == HVD_ADASUM && (!is_float(dtype) || (size & (size - 1)) != 0))
            continue;
        snprintf(name, sizeof name, "r%d.%d", dtype, all[i]);
        gpu_check_case(&c, name, rank);
        if (!is_float(dtype) || i > 1 || (all[i] == HVD_AVERAGE && size == 3))
            continue;                   /* NCCL multiplies by a third, the CPU divides */
        c.prescale = 0.5;
        c.postscale = 4;
        snprintf(name, sizeof name, "f%d.%d", dtype, all[i]);
        gpu_check_case(&c, name, rank);
    }
}

static void check_moves(enum hvd_dtype dtype, int rank, int size)
{
    int64_t splits[8];
    struct gpu_case c = {.op = HVD_BROADCAST, .dtype = dtype, .rows = 4, .row = 5,
                         .root = size - 1};
    char name[64];

    snprintf(name, sizeof name, "b%d", dtype);
    gpu_check_case(&c, name, rank);
    c = (struct gpu_case){.op = HVD_ALLGATHER, .dtype = dtype, .rows = 2, .row = 3,
                          .own_output = true};
    snprintf(name, sizeof name, "g%d", dtype);
    gpu_check_case(&c, name, rank);
    c.rows = rank;                      /* one brings none */
    snprintf(name, sizeof name, "u%d", dtype);
    gpu_check_case(&c, name, rank);
    for (int i = 0; i < size; i++)
        splits[i] = (rank + i) % 3;
    c = (struct gpu_case){.op = HVD_ALLTOALL, .dtype = dtype, .rows = 2 * size + 1, .row = 3,
                          .own_output = true, .splits = splits};
    snprintf(name, sizeof name, "a%d", dtype);
    gpu_check_case(&c, name, rank);
}

static void check_scatters(enum hvd_dtype dtype, int rank, int size)
{
    char name[64];

    for (int i = 0; i < 4; i++) {
        struct gpu_case c = {.op = HVD_REDUCESCATTER, .dtype = dtype,
                             .reduce = i % 2 == 0 ? HVD_SUM : HVD_AVERAGE,
                             .rows = 2 * size + (i > 1), .row = 3, .own_output = true};

        snprintf(name, sizeof name, "s%d.%d", dtype, i);
        gpu_check_case(&c, name, rank);
    }
}

void gpu_all_cases(int rank, int size)
{
    for (int dtype = 0; dtype < HVD_DTYPE_COUNT; dtype++) {
        check_reductions((enum hvd_dtype)dtype, rank, size);
        check_moves((enum hvd_dtype)dtype, rank, size);
        check_scatters((enum hvd_dtype)dtype, rank, size);
    }
}
