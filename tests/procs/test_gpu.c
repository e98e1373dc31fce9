/* test_gpu.c: tensors on the stand-in's GPUs: every operation, by NCCL and through host memory. */
#include "check.h"
#include "gpu_harness.h"

#include <stdlib.h>

static void run(enum gpu_way way, int size, int hosts, const char *const *more,
                job_body_fn body)
{
    struct job_options opt = {.size = size, .hosts = hosts, .env = gpu_env(way, 7, more)};

    job_run(&opt, body, NULL);
}

static void all_cases(int rank, int size, void *context)
{
    (void)context;
    job_init();
    gpu_all_cases(rank, size);
    gpu_end();
}

TEST(all_operations_through_host_memory)
{
    run(BY_HOST, 2, 1, NULL, all_cases);
    run(BY_HOST, 3, 1, NULL, all_cases);
}

TEST(all_operations_through_host_memory_between_hosts)
{
    run(BY_HOST, 4, 2, NULL, all_cases);
}

TEST(all_operations_by_nccl)
{
    run(BY_NCCL, 2, 1, NULL, all_cases);
    run(BY_NCCL, 3, 1, NULL, all_cases);
}

TEST(all_operations_by_nccl_between_hosts)
{
    run(BY_NCCL, 4, 2, (const char *[]){"HOROVOD_NUM_NCCL_STREAMS=4", NULL}, all_cases);
}

/* ---- More than one tensor -------------------------------------------------------------------- */

enum { MANY = 40 };

static void check_values(const struct gpu_tensor *t, float value)
{
    float *x = malloc(t->bytes);

    standin_read(x, t->at, t->bytes);
    for (size_t i = 0; i < t->bytes / sizeof *x; i++)
        CHECK_EQ(x[i], value);
    free(x);
}

static struct gpu_tensor tensor_of(int count, float value)
{
    float *x = malloc((size_t)count * sizeof *x);
    struct gpu_tensor t;

    for (int i = 0; i < count; i++)
        x[i] = value;
    t = gpu_tensor_new(x, (size_t)count * sizeof *x);
    free(x);
    return t;
}

/* Groups, fused tensors and cached names, some of them larger than is fused. */
static void many_sums(int rank, int size, void *context)
{
    static const int counts[] = {1, 300, 5000, 400000};
    struct hvd_request req[MANY];
    struct gpu_tensor t[MANY];
    char names[MANY][16];
    struct hvd_error err;
    hvd_handle handle, group;

    (void)context;
    job_init();
    for (int round = 0; round < 4; round++) {
        hvd_handle single[MANY / 2];

        for (int i = 0; i < MANY; i++) {
            t[i] = tensor_of(counts[i % 20 == 7 ? 3 : i % 3], (float)(rank + i));
            snprintf(names[i], sizeof names[i], "x%d", i);
            req[i] = gpu_sum(names[i], &t[i]);
        }
        for (int i = 0; i < MANY / 2; i++) {
            CHECK_OK(hvd_submit(&req[i], 1, &handle, &err), err);
            single[i] = handle;
        }
        CHECK_OK(hvd_submit(req + MANY / 2, MANY / 2, &group, &err), err);
        CHECK_OK(hvd_wait(group, -1, &err), err);
        hvd_release(group);
        for (int i = 0; i < MANY / 2; i++) {
            CHECK_OK(hvd_wait(single[i], -1, &err), err);
            hvd_release(single[i]);
        }
        for (int i = 0; i < MANY; i++) {
            check_values(&t[i], (float)(size * i + size * (size - 1) / 2));
            gpu_tensor_free(&t[i]);
        }
    }
    gpu_end();
}

static const char *const chunks[] = {"HOROVOD_GPU_CHUNK=64", NULL};
static const char *const larger_chunks[] = {"HOROVOD_GPU_CHUNK=64kb", NULL};

TEST(large_tensors_in_chunks)
{
    run(BY_HOST, 3, 1, chunks, all_cases);
    run(BY_HOST, 2, 1, larger_chunks, many_sums);
    run(BY_HOST, 4, 2, larger_chunks, many_sums);
}

TEST(groups_and_many_tensors)
{
    run(BY_HOST, 2, 1, NULL, many_sums);
    run(BY_NCCL, 2, 1, (const char *[]){"HOROVOD_NUM_NCCL_STREAMS=3", NULL}, many_sums);
    run(BY_NCCL, 4, 2, NULL, many_sums);
}

/* ---- Process sets, join ---------------------------------------------------------------------- */

/* Two sets at once, whose members come to them in different orders. */
static void in_sets(int rank, int size, void *context)
{
    int first[] = {0, 1}, last[] = {1, 2}, ids[2];
    struct hvd_error err;

    (void)size;
    (void)context;
    job_init();
    CHECK_OK(hvd_add_process_set(first, 2, &ids[0], &err), err);
    CHECK_OK(hvd_add_process_set(last, 2, &ids[1], &err), err);
    for (int k = 0; k < 4; k++) {
        int set = rank == 1 ? k % 2 : rank == 0 ? 0 : 1;
        struct gpu_case c = {.op = k < 2 ? HVD_BROADCAST : HVD_ALLREDUCE, .dtype = HVD_F32,
                             .reduce = HVD_SUM, .rows = 5, .row = 3,
                             .root = set == 0 ? 0 : 2, .set = ids[set]};
        char name[16];

        snprintf(name, sizeof name, "k%d", rank == 1 ? k / 2 * 2 : k);
        if (rank == 1 || k % 2 == 0)
            gpu_check_case(&c, name, rank);
    }
    CHECK_OK(hvd_remove_process_set(ids[1], &err), err);
    CHECK_OK(hvd_remove_process_set(ids[0], &err), err);
    gpu_end();
}

TEST(process_sets)
{
    const char *const dynamic[] = {"HOROVOD_DYNAMIC_PROCESS_SETS=1", NULL};

    run(BY_HOST, 3, 1, dynamic, in_sets);
    run(BY_NCCL, 3, 1, dynamic, in_sets);
}

static void join_early(int rank, int size, void *context)
{
    struct hvd_request join = {.size = sizeof join, .op = HVD_JOIN, .device = -1};
    struct hvd_error err;
    hvd_handle handle;

    (void)context;
    job_init();
    for (int k = 0; k < 3 + (rank > 0 ? 3 : 0); k++) {
        struct gpu_tensor t = tensor_of(100, 2);
        struct hvd_request req = gpu_sum("x", &t);

        CHECK_OK(hvd_submit(&req, 1, &handle, &err), err);
        CHECK_OK(hvd_wait(handle, -1, &err), err);
        hvd_release(handle);
        check_values(&t, (float)(k < 3 ? 2 * size : 2 * (size - 1)));
        gpu_tensor_free(&t);
    }
    CHECK_OK(hvd_submit(&join, 1, &handle, &err), err);
    CHECK_OK(hvd_wait(handle, -1, &err), err);
    hvd_release(handle);
    gpu_end();
}

TEST(a_rank_that_has_joined_brings_zeros)
{
    run(BY_HOST, 3, 1, NULL, join_early);
    run(BY_HOST, 3, 1, chunks, join_early);
    run(BY_NCCL, 3, 1, NULL, join_early);
}

/* ---- What ranks disagree on ------------------------------------------------------------------ */

static void cpu_against_gpu(int rank, int size, void *context)
{
    struct gpu_tensor t;
    struct hvd_request req;
    struct hvd_error err;
    float x = 1;

    (void)context;
    job_init();
    t = tensor_of(1, 1);
    req = gpu_sum("x", &t);
    if (rank == 0) {
        req.device = -1;
        req.input = req.output = &x;
    }
    CHECK(hvd_run(&req, &err) == HVD_MISMATCH);
    CHECK(strstr(err.text, "CPU") != NULL && strstr(err.text, "GPU") != NULL);
    req = gpu_sum("y", &t);
    req.device = 1;                     /* another GPU than before is refused, the job goes on */
    CHECK(rank == 0 || hvd_run(&req, &err) == HVD_INVALID);
    CHECK_EQ(job_sum("z", 1), (double)size);
    gpu_tensor_free(&t);
    gpu_end();
}

TEST(cpu_and_gpu_under_one_name)
{
    run(BY_NCCL, 2, 1, NULL, cpu_against_gpu);
}

static void one_sum(int rank, int size, void *context)
{
    struct gpu_tensor t;
    struct hvd_request req;
    struct hvd_error err;

    (void)context;
    job_init();
    t = tensor_of(1000, (float)rank);
    req = gpu_sum("x", &t);
    CHECK_OK(hvd_run(&req, &err), err);
    check_values(&t, (float)(size * (size - 1) / 2));
    gpu_tensor_free(&t);
    gpu_end();
}

/* A new generation makes its communicators anew. */
static void three_jobs(int rank, int size, void *context)
{
    for (int i = 0; i < 3; i++)
        one_sum(rank, size, context);
}

TEST(a_job_after_another_in_the_same_processes)
{
    run(BY_NCCL, 2, 1, NULL, three_jobs);
    run(BY_HOST, 2, 1, NULL, three_jobs);
}

static void one_refusal(int rank, int size, void *context)
{
    struct gpu_tensor t;
    struct hvd_request req;
    struct hvd_error err;

    (void)rank;
    (void)context;
    job_init();
    t = tensor_of(1000, 1);
    req = gpu_sum("x", &t);
    CHECK(hvd_run(&req, &err) == HVD_MISMATCH);
    CHECK(strstr(err.text, "ranks 0 and 1") != NULL);
    CHECK_EQ(job_sum("z", 1), (double)size);
    gpu_tensor_free(&t);
    gpu_end();
}

static void odd_version(int rank, int size, void *context)
{
    if (rank == 1)
        setenv("STANDIN_NCCL_VERSION", "22005", 1);
    (context != NULL ? one_refusal : one_sum)(rank, size, NULL);
}

TEST(ranks_that_cannot_use_nccl_together_use_the_host)
{
    run(BY_NCCL, 2, 1, (const char *[]){"STANDIN_SAME=1", NULL}, one_sum);
    run(BY_NCCL, 2, 1, NULL, odd_version);
    run(BY_NCCL, 2, 1, (const char *[]){"STANDIN_NCCL_VERSION=20803", NULL}, one_sum);
    run(BY_BROKEN_PATH, 2, 1, NULL, one_sum);
}

TEST(or_fail_if_nccl_was_wanted)
{
    const char *const forced[] = {"HOROVOD_GPU_BACKEND=nccl", NULL};
    struct job_options opt = {.size = 2, .env = gpu_env(BY_NCCL, 3, forced)};

    job_run(&opt, odd_version, &opt);
    run(BY_NCCL, 2, 1, (const char *[]){"HOROVOD_GPU_BACKEND=nccl", "STANDIN_SAME=1", NULL},
        one_refusal);
}

static void refused_calls(int rank, int size, void *context)
{
    struct hvd_request req[2];
    struct gpu_tensor t;
    struct hvd_error err;
    hvd_handle handle;

    (void)rank;
    (void)context;
    job_init();
    t = tensor_of(10, 1);
    req[0] = gpu_sum("x", &t);
    req[1] = gpu_sum("y", &t);
    req[1].device = -1;
    CHECK(hvd_submit(req, 2, &handle, &err) == HVD_INVALID);
    req[0].device = 99;
    CHECK(hvd_submit(req, 1, &handle, &err) == HVD_UNSUPPORTED);
    setenv("STANDIN_CAPTURING", "1", 1);
    req[0].device = 0;
    CHECK(hvd_submit(req, 1, &handle, &err) == HVD_INVALID);
    CHECK(strstr(err.text, "captured") != NULL);
    CHECK_EQ(job_sum("z", 1), (double)size);
    gpu_tensor_free(&t);
    hvd_shutdown();
}

TEST(calls_that_are_refused)
{
    run(BY_NCCL, 2, 1, NULL, refused_calls);
}

/* A job on the CPU calls nothing of CUDA. */
static void cpu_only(int rank, int size, void *context)
{
    (void)rank;
    (void)context;
    job_init();
    CHECK_EQ(job_sum("x", 1), (double)size);
    hvd_shutdown();
    CHECK_EQ(standin_call_count(), 0l);
}

TEST(nothing_is_called_without_a_tensor_on_a_gpu)
{
    run(BY_NCCL, 2, 1, NULL, cpu_only);
}
