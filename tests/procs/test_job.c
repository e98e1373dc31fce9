/* test_job.c: jobs of real processes, end to end through the public C API. */
#include "check.h"
#include "job_harness.h"

#include "horovod/driver.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void sums_of_all_sizes(int rank, int size, void *context)
{
    static const int counts[] = {1, 3, 100, 1000, 4097, 70000, 1000003};

    (void)context;
    job_init();
    CHECK_EQ(hvd_rank(), rank);
    CHECK_EQ(hvd_size(), size);
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            struct hvd_error err;
            char name[32];
            float *x = round == 1 ? hvd_alloc(counts[i] * sizeof *x)
                                  : malloc(counts[i] * sizeof *x);
            struct hvd_request req = {.size = sizeof req, .op = HVD_ALLREDUCE,
                                      .dtype = HVD_F32, .reduce = HVD_SUM, .device = -1,
                                      .name = name, .ndim = 1, .shape = {counts[i]},
                                      .input = x, .output = x};

            CHECK(x != NULL);
            snprintf(name, sizeof name, "x%zu", i);
            for (int k = 0; k < counts[i]; k++)
                x[k] = (float)(rank + k % 7);
            CHECK_OK(hvd_run(&req, &err), err);
            for (int k = 0; k < counts[i]; k++)
                CHECK_EQ(x[k], (float)(size * (size - 1) / 2 + size * (k % 7)));
            hvd_free(x);
        }
    hvd_shutdown();
}

TEST(one_process_alone)
{
    job_run(&(struct job_options){.size = 1}, sums_of_all_sizes, NULL);
}

TEST(two_ranks_on_one_host)
{
    job_run(&(struct job_options){.size = 2}, sums_of_all_sizes, NULL);
}

TEST(four_ranks_on_one_host, .limit_s = 60)
{
    job_run(&(struct job_options){.size = 4, .limit_s = 50}, sums_of_all_sizes, NULL);
}

/* ---- Operations that are waited for, again and again by one name -------------------- */

enum { ROUNDS = 40, RANKS_MAX = 8, PART_MAX = 40000 };

static float short_in[RANKS_MAX * PART_MAX], short_out[RANKS_MAX * PART_MAX];

static float input_of(int rank, int round, int k)
{
    return (float)(rank * 3 + round + k % 11);
}

static float sum_of(int size, int round, int k)
{
    return (float)(size * (size - 1) / 2 * 3 + size * (round + k % 11));
}

/* Rows of the input and of the output of one rank; part: rows for each. */
static void rows_of(enum hvd_op op, int size, int part, int *in_p, int *out_p)
{
    *in_p = op == HVD_ALLTOALL || op == HVD_REDUCESCATTER ? part * size : part;
    *out_p = op == HVD_ALLGATHER || op == HVD_ALLTOALL ? part * size : part;
}

static float expected(enum hvd_op op, int rank, int size, int round, int part, int k)
{
    switch (op) {
    case HVD_ALLREDUCE:
        return sum_of(size, round, k);
    case HVD_ALLGATHER:
        return input_of(k / part, round, k % part);
    case HVD_BROADCAST:
        return input_of(size - 1, round, k);
    case HVD_ALLTOALL:
        return input_of(k / part, round, rank * part + k % part);
    default:
        return sum_of(size, round, rank * part + k);
    }
}

static void run_short(enum hvd_op op, int rank, int size, int round, int part)
{
    char name[32];
    int in_rows, out_rows;
    struct hvd_error err;
    struct hvd_request req = {.size = sizeof req, .op = op, .dtype = HVD_F32,
                              .reduce = HVD_SUM, .device = -1, .name = name,
                              .root = size - 1, .ndim = 1, .input = short_in,
                              .output = short_out};

    snprintf(name, sizeof name, "short.%d.%d", (int)op, part);
    rows_of(op, size, part, &in_rows, &out_rows);
    req.shape[0] = in_rows;
    for (int k = 0; k < in_rows; k++)
        short_in[k] = input_of(rank, round, k);
    if (round % 8 == rank)              /* the others wait for us longer than a spin */
        usleep(1000);
    CHECK_OK(hvd_run(&req, &err), err);
    for (int k = 0; k < out_rows; k++)
        CHECK_EQ(short_out[k], expected(op, rank, size, round, part, k));
}

static void all_operations(int rank, int size, void *context)
{
    static const int parts[] = {1, 50, 2000, PART_MAX};
    struct hvd_request meet = {.size = sizeof meet, .op = HVD_BARRIER, .device = -1};
    struct hvd_error err;

    (void)context;
    job_init();
    for (int round = 0; round < ROUNDS; round++)
        for (int op = HVD_ALLREDUCE; op < HVD_BARRIER; op++) {
            run_short((enum hvd_op)op, rank, size, round, parts[(round + op) % 4]);
            if (op % 2 == 0)
                CHECK_OK(hvd_run(&meet, &err), err);
        }
    hvd_shutdown();
}

TEST(operations_repeat_by_name, .limit_s = 120)
{
    static const int sizes[] = {1, 2, 3, 5, 8};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        job_run(&(struct job_options){.size = sizes[i], .limit_s = 60}, all_operations,
                NULL);
}

TEST(two_hosts, .limit_s = 60)
{
    job_run(&(struct job_options){.size = 2, .hosts = 2, .limit_s = 50},
            sums_of_all_sizes, NULL);
}

TEST(five_ranks_on_two_hosts, .limit_s = 60)
{
    job_run(&(struct job_options){.size = 5, .hosts = 2, .limit_s = 50},
            sums_of_all_sizes, NULL);
}

/* ---- One message per host --------------------------------------------------------------- */

/* A number of hvd_stats_json. */
static long stat_of(const char *key)
{
    static char text[65536];
    char quoted[64];
    const char *at;

    snprintf(quoted, sizeof quoted, "\"%s\": ", key);
    hvd_stats_json(text, sizeof text);
    at = strstr(text, quoted);
    CHECK(at != NULL);
    return strtol(at + strlen(quoted), NULL, 10);
}

/* Larger than what travels with its announcement (docs/design/002). */
static void sum_many(int rank, int size, int round)
{
    enum { TENSORS = 30, COUNT = 1024 };
    static float data[TENSORS][COUNT];
    hvd_handle handles[TENSORS];
    struct hvd_error err;

    for (int i = 0; i < TENSORS; i++) {
        char name[16];
        struct hvd_request req = {.size = sizeof req, .op = HVD_ALLREDUCE, .dtype = HVD_F32,
                                  .reduce = HVD_SUM, .device = -1, .name = name, .ndim = 1,
                                  .shape = {COUNT}, .input = data[i], .output = data[i]};

        snprintf(name, sizeof name, "many.%d", i);
        for (int k = 0; k < COUNT; k++)
            data[i][k] = (float)(rank + i + k % 7 + round);
        CHECK_OK(hvd_submit(&req, 1, &handles[i], &err), err);
    }
    for (int i = 0; i < TENSORS; i++) {
        CHECK_OK(hvd_wait(handles[i], -1, &err), err);
        hvd_release(handles[i]);
        for (int k = 0; k < COUNT; k++)
            CHECK_EQ(data[i][k], (float)(size * (i + k % 7 + round) + size * (size - 1) / 2));
    }
}

/* The first rank of a host (ranks are dealt out in turn or in blocks: the layout tells) speaks
 * for all of it. */
static void speak_through_leaders(int rank, int size, void *context)
{
    long before;

    (void)context;
    job_init();
    for (int round = 0; round < 3; round++)
        sum_many(rank, size, round);
    job_sum("all have cached them", 1);
    before = stat_of("messages_between_hosts");
    for (int round = 0; round < 20; round++)
        sum_many(rank, size, round);
    if (hvd_local_rank() > 0)
        CHECK_EQ(stat_of("messages_between_hosts"), before);
    else
        CHECK(stat_of("messages_between_hosts") > before);
    job_sum("end", 1);
    hvd_shutdown();
}

/* A tree of hosts that is deep although they are few. */
static const char *const deep_tree[] = {"HOROVOD_TREE_FANOUT=2", NULL};

TEST(leaders_speak_for_hosts_below, .limit_s = 120)
{
    job_run(&(struct job_options){.size = 8, .hosts = 5, .env = deep_tree},
            speak_through_leaders, NULL);
    job_run(&(struct job_options){.size = 7, .hosts = 7, .env = deep_tree}, all_operations,
            NULL);
}

TEST(leaders_speak_for_their_hosts, .limit_s = 60)
{
    job_run(&(struct job_options){.size = 4, .hosts = 2}, speak_through_leaders, NULL);
    job_run(&(struct job_options){.size = 5, .hosts = 3}, speak_through_leaders, NULL);
    job_run(&(struct job_options){.size = 8, .hosts = 2, .limit_s = 30},
            speak_through_leaders, NULL);
}

TEST(operations_repeat_between_hosts, .limit_s = 60)
{
    job_run(&(struct job_options){.size = 5, .hosts = 2, .limit_s = 50}, all_operations,
            NULL);
}

/* Rank 1 never comes to the sum; the byte of the pipe says that the others are about to. */
static void wait_for_the_end(int rank, int size, void *context)
{
    const int *ready = context;
    double x = 1;
    struct hvd_request req = {.size = sizeof req, .op = HVD_ALLREDUCE, .dtype = HVD_F64,
                              .reduce = HVD_SUM, .device = -1, .name = "x", .input = &x,
                              .output = &x};
    struct hvd_error err = {0};

    (void)size;
    job_init();
    job_sum("first", 1);
    CHECK_EQ(write(ready[1], "", 1), 1);
    if (rank == 1)
        while (hvd_run(&(struct hvd_request){.size = sizeof req, .op = HVD_BARRIER,
                                             .device = -1}, &err) == HVD_OK)
            ;
    else
        CHECK_EQ(hvd_run(&req, &err), HVD_ABORTED);
    CHECK_EQ(err.rank, 1);
    CHECK(strstr(err.text, "rank 1 went home") != NULL);
    hvd_shutdown();
}

static void end_by_the_server(int hosts)
{
    struct job_options opt = {.size = 3, .hosts = hosts};
    struct job job;
    int ready[2];
    char byte;

    CHECK_EQ(pipe(ready), 0);
    job_start(&job, &opt, wait_for_the_end, ready);
    for (int i = 0; i < opt.size; i++)
        CHECK_EQ(read(ready[0], &byte, 1), 1);
    hvd_server_abort(job.server, 1, "rank 1 went home");
    for (int rank = 0; rank < opt.size; rank++)
        CHECK_EQ(job_wait(&job, rank), 0);
    job_end(&job);
    close(ready[0]);
    close(ready[1]);
}

TEST(whoever_started_the_job_ends_it_on_one_host)
{
    end_by_the_server(1);
}

TEST(whoever_started_the_job_ends_it_on_two_hosts)
{
    end_by_the_server(2);
}

static void outlive_the_server(int rank, int size, void *context)
{
    const int *go = context;
    char byte;

    job_init();
    CHECK_EQ(job_sum("first", rank), size * (size - 1) / 2);
    CHECK_EQ(write(go[1], "", 1), 1);
    CHECK_EQ(read(go[2], &byte, 1), 1);
    CHECK_EQ(job_sum("second", rank), size * (size - 1) / 2);
    hvd_shutdown();
}

TEST(a_job_outlives_its_server)
{
    struct job_options opt = {.size = 2};
    struct job job;
    int go[4];
    char byte;

    CHECK_EQ(pipe(go), 0);
    CHECK_EQ(pipe(go + 2), 0);
    job_start(&job, &opt, outlive_the_server, go);
    for (int i = 0; i < opt.size; i++)
        CHECK_EQ(read(go[0], &byte, 1), 1);
    hvd_server_free(job.server);
    job.server = NULL;
    CHECK_EQ(write(go[3], "..", 2), 2);
    for (int rank = 0; rank < opt.size; rank++)
        CHECK_EQ(job_wait(&job, rank), 0);
    job_end(&job);
    for (int i = 0; i < 4; i++)
        close(go[i]);
}

/* ---- The same bits on every way ------------------------------------------------------- */

static void run(const char *name, enum hvd_dtype dtype, enum hvd_reduce reduce, int count,
                const void *in, void *out)
{
    struct hvd_error err;
    struct hvd_request req = {.size = sizeof req, .op = HVD_ALLREDUCE, .dtype = dtype,
                              .reduce = reduce, .device = -1, .name = name, .ndim = 1,
                              .shape = {count}, .prescale = 0.3, .postscale = 1.7,
                              .input = in, .output = out};

    CHECK_OK(hvd_run(&req, &err), err);
}

/* Numbers of very different size, so that every order of adding shows; no NaN. */
static void fill(uint16_t *x, int n, int rank, int kind)
{
    uint64_t random = (uint64_t)rank * 7919 + (uint64_t)kind + 1;

    for (int i = 0; i < n; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        x[i] = (uint16_t)(random >> 40 & 0xbbff);
    }
}

/* The first time a name is negotiated, then it is cached: three ways between hosts. */
static void compare_ways(int rank, int size, void *context)
{
    static const struct { enum hvd_dtype dtype; int bytes; } types[] = {
        {HVD_F16, 2}, {HVD_BF16, 2}, {HVD_F32, 4}, {HVD_F64, 8}};
    static const enum hvd_reduce ops[] = {HVD_SUM, HVD_AVERAGE, HVD_MAX};
    enum { UNITS = 256 };               /* of two bytes: small enough to travel at once */
    static uint16_t in[UNITS], first[UNITS], again[UNITS];

    (void)size;
    (void)context;
    job_init();
    for (int i = 0; i < 4 * 3; i++) {
        int count = UNITS * 2 / types[i / 3].bytes;
        char name[16];

        snprintf(name, sizeof name, "way%d", i);
        fill(in, UNITS, rank, i);
        run(name, types[i / 3].dtype, ops[i % 3], count, in, first);
        for (int k = 0; k < 4; k++) {
            run(name, types[i / 3].dtype, ops[i % 3], count, in, again);
            CHECK(memcmp(first, again, sizeof first) == 0);
        }
        memcpy(again, in, sizeof in);
        run(name, types[i / 3].dtype, ops[i % 3], count, again, again);
        CHECK(memcmp(first, again, sizeof first) == 0);
    }
    hvd_shutdown();
}

TEST(cached_results_have_the_same_bits, .limit_s = 120)
{
    job_run(&(struct job_options){.size = 2, .hosts = 2}, compare_ways, NULL);
    job_run(&(struct job_options){.size = 3, .hosts = 3}, compare_ways, NULL);
    job_run(&(struct job_options){.size = 4, .hosts = 2}, compare_ways, NULL);
    job_run(&(struct job_options){.size = 5, .hosts = 3}, compare_ways, NULL);
    job_run(&(struct job_options){.size = 10, .hosts = 10}, compare_ways, NULL);
}

/* Whoever is done leaves at once: what it has brought must have gone out before. */
static void sum_and_leave(int rank, int size, void *context)
{
    for (int round = 0; round < 5; round++) {
        job_init();
        for (int i = 0; i < 200; i++)
            CHECK_EQ(job_sum("x", 1), size);
        if (context != NULL)
            sum_many(rank, size, round);
        hvd_shutdown();
    }
}

TEST(the_last_operation_completes_on_all, .limit_s = 120)
{
    job_run(&(struct job_options){.size = 2, .hosts = 2, .limit_s = 30}, sum_and_leave, NULL);
    job_run(&(struct job_options){.size = 4, .hosts = 2, .limit_s = 30}, sum_and_leave, NULL);
    job_run(&(struct job_options){.size = 6, .hosts = 2, .limit_s = 30}, sum_and_leave,
            "larger ones, too");
    job_run(&(struct job_options){.size = 6, .hosts = 6, .limit_s = 30, .env = deep_tree},
            sum_and_leave, "larger ones, too");
}

/* While operations follow each other closely the engine's thread does not wait for sockets;
 * afterwards it does, without looking at the clock again and again. */
static void run_and_rest(int rank, int size, void *context)
{
    long before = -1, now;

    (void)rank;
    (void)context;
    job_init();
    for (int i = 0; i < 500; i++)
        CHECK_EQ(job_sum("x", 1), size);
    while ((now = stat_of("sleeps")) != before) {
        before = now;
        usleep(20000);
    }
    hvd_shutdown();
}

TEST(the_engine_sleeps_after_a_run_of_operations, .limit_s = 60)
{
    job_run(&(struct job_options){.size = 2, .hosts = 2, .limit_s = 50}, run_and_rest, NULL);
    job_run(&(struct job_options){.size = 4, .hosts = 2, .limit_s = 50}, run_and_rest, NULL);
}

/* ---- The engine's thread stays on the CPU that the user gives it ---------------------- */

static bool has_thread_on(int cpu)
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    bool found = false;

    CHECK(tasks != NULL);
    while ((task = readdir(tasks)) != NULL) {
        cpu_set_t set;
        int id = atoi(task->d_name);

        if (id > 0 && id != getpid() && sched_getaffinity(id, sizeof set, &set) == 0)
            found |= CPU_COUNT(&set) == 1 && CPU_ISSET(cpu, &set);
    }
    closedir(tasks);
    return found;
}

static void check_affinity(int rank, int size, void *context)
{
    cpu_set_t all;

    (void)size;
    (void)context;
    CHECK_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    job_init();
    if (CPU_ISSET(1 - rank, &all))
        CHECK(has_thread_on(1 - rank));
    CHECK_EQ(job_sum("x", 1), 2);
    hvd_shutdown();
}

TEST(the_engine_runs_where_the_user_wants_it)
{
    static const char *const env[] = {"HOROVOD_THREAD_AFFINITY=1,0", NULL};

    job_run(&(struct job_options){.size = 2, .env = env}, check_affinity, NULL);
}

static atomic_int asked;                /* times that the other thread has got an answer */
static atomic_bool is_over;

static void *ask_again(void *unused)
{
    char text[4096];

    while (!atomic_load(&is_over))
        if (hvd_stats_json(text, sizeof text) > 0)
            atomic_fetch_add(&asked, 1);
    return unused;
}

static void shut_down_beside_questions(int rank, int size, void *context)
{
    pthread_t thread;

    (void)rank;
    (void)size;
    (void)context;
    CHECK_EQ(pthread_create(&thread, NULL, ask_again, NULL), 0);
    for (int i = 0; i < 20; i++) {
        int before = atomic_load(&asked);

        job_init();
        while (atomic_load(&asked) == before)
            sched_yield();
        hvd_shutdown();
    }
    atomic_store(&is_over, true);
    pthread_join(thread, NULL);
}

/* As a viewer's question may come. */
TEST(one_thread_may_shut_down_while_another_asks)
{
    job_run(&(struct job_options){.size = 1}, shut_down_beside_questions, NULL);
}
