/*
 * test_gpu_seeds.c: orders of streams.  A seed decides how late each operation of each stream is;
 * no seed may give a wrong byte, and each wait that is left out (HOROVOD_FAULT, gpu.skip_*) must
 * be noticed by one of them.
 *
 *   HVD_SEEDS=n    n / 40 seeds, split over the ways, and 24 at least (48)
 *   HVD_SEED=n     this one alone
 */
#include "check.h"
#include "gpu_harness.h"

#include <stdlib.h>
#include <unistd.h>

#define WRONG 9                         /* exit code: bytes differed */

static unsigned number_of(const char *name, unsigned initial)
{
    const char *text = getenv(name);

    return text != NULL ? (unsigned)atoi(text) : initial;
}

/* Operations of several kinds after each other, read by the host or by another stream. */
static void mixed(int rank, int size, void *context)
{
    bool by_stream = context != NULL;
    char name[16];

    job_init();
    for (int k = 0; k < 24; k++) {
        struct gpu_case c = {.op = HVD_ALLREDUCE, .dtype = HVD_F32, .reduce = HVD_SUM,
                             .rows = 40 + k % 3 * 900, .row = 16, .in_place = k % 2 == 0,
                             .by_stream = by_stream};

        if (k % 6 == 4) {
            c.op = HVD_ALLGATHER;
            c.own_output = true;
        } else if (k % 6 == 5) {
            c.op = HVD_BROADCAST;
            c.root = k % size;
        }
        snprintf(name, sizeof name, "m%d", k % 12);
        if (!gpu_run_case(&c, name, rank))
            _exit(WRONG);
    }
    gpu_end();
}

static const struct {
    const char *name;
    enum gpu_way way;
    const char *const env[3];
    bool by_stream;
} ways[] = {
    {"host", BY_HOST, {"HOROVOD_GPU_CHUNK=8192", NULL}, false},
    {"NCCL", BY_NCCL, {"HOROVOD_NUM_NCCL_STREAMS=2", NULL}, false},
    {"NCCL, asynchronous", BY_NCCL,
     {"HOROVOD_ENABLE_ASYNC_COMPLETION=1", "HOROVOD_NUM_NCCL_STREAMS=2", NULL}, true},
};
#define WAYS ((int)(sizeof ways / sizeof ways[0]))

static void run_seed(int way, unsigned seed)
{
    struct job_options opt = {.size = 2 + (int)(seed % 5 == 0),
                              .env = gpu_env(ways[way].way, seed, ways[way].env)};

    job_run(&opt, mixed, ways[way].by_stream ? &opt : NULL);
}

static void run_seeds(int way)
{
    unsigned count = number_of("HVD_SEEDS", 48 * 40) / 40, one = number_of("HVD_SEED", 0);

    count = (count < 24 ? 24 : count) / WAYS;
    if (one > 0) {
        run_seed(way, one);
        return;
    }
    for (unsigned seed = 1; seed <= count; seed++)
        run_seed(way, (unsigned)way * 100000 + seed);
}

TEST(seeds_through_host_memory, .limit_s = 1200)
{
    run_seeds(0);
}

TEST(seeds_by_nccl, .limit_s = 1200)
{
    run_seeds(1);
}

TEST(seeds_by_nccl_with_asynchronous_completion, .limit_s = 1200)
{
    run_seeds(2);
}

/* ---- Waits that are left out ----------------------------------------------------------------- */

/* True: a rank has seen wrong bytes. */
static bool is_noticed(int way, unsigned seed, const char *fault)
{
    const char *const env[] = {fault, ways[way].env[0], ways[way].env[0] != NULL
                               ? ways[way].env[1] : NULL, NULL};
    struct job_options opt = {.size = 2, .env = gpu_env(ways[way].way, seed, env)};
    bool noticed = false;
    struct job job;

    job_start(&job, &opt, mixed, ways[way].by_stream ? &opt : NULL);
    for (int r = 0; r < opt.size; r++)
        noticed |= job_wait(&job, r) == WRONG;
    job_end(&job);
    return noticed;
}

/* ThreadSanitizer reports the race itself. */
static void check_noticed(int way, const char *fault)
{
    if (CHECK_SANITIZED)
        return;
    for (unsigned seed = 1; seed <= 40; seed++)
        if (is_noticed(way, seed, fault))
            return;
    check_fail(__FILE__, __LINE__, "%s by %s: no seed has noticed", fault, ways[way].name);
}

#define SKIP(point) "HOROVOD_FAULT=gpu." point " times=1000000"

TEST(a_missing_wait_for_the_caller_is_noticed, .limit_s = 300)
{
    check_noticed(0, SKIP("skip_ready"));
    check_noticed(1, SKIP("skip_ready"));
}

TEST(a_missing_wait_for_the_end_is_noticed, .limit_s = 300)
{
    check_noticed(0, SKIP("skip_done"));
    check_noticed(1, SKIP("skip_done"));
}

TEST(a_missing_wait_of_the_callers_stream_is_noticed, .limit_s = 300)
{
    check_noticed(2, SKIP("skip_end"));
}
