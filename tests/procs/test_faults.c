/*
 * test_faults.c: what every survivor of a fault learns, in jobs of real processes through
 * the public API: who, where, in which operation, why, and soon.  HVD_ROUNDS repeats each.
 * How soon is measured by test_lost_peers.c and test_deaths.c; here a busy machine has
 * time, and only who has to wait for a heartbeat (the next one after 6 s) is too late.
 */
#include "check.h"
#include "job_harness.h"

#include "base/clock.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Shared by the test and its ranks. */
struct scene {
    _Atomic int ready;                  /* ranks that have done their first operation */
    _Atomic uint64_t struck_us;         /* when the fault was caused */
    _Atomic uint64_t known_us[8];       /* when each rank knew */
    int victim, variant;
};

static struct scene *scene_new(int victim, int variant)
{
    struct scene *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(s != MAP_FAILED);
    s->victim = victim;
    s->variant = variant;
    return s;
}

static int rounds(int usual)
{
    const char *text = getenv("HVD_ROUNDS");

    return text != NULL ? atoi(text) : usual;
}

static enum hvd_status run_op(const char *name, enum hvd_dtype dtype, int64_t count,
                              struct hvd_error *err)
{
    static double buffer[4096];
    struct hvd_request req = {.size = sizeof req, .op = HVD_ALLREDUCE, .dtype = dtype,
                              .reduce = HVD_SUM, .device = -1, .name = name, .ndim = 1,
                              .shape = {count}, .input = buffer, .output = buffer};

    return hvd_run(&req, err);
}

/* ---- A rank is killed or stopped while the others are in an operation ---------------- */

static void until_the_fault(int rank, int size, void *context)
{
    struct scene *s = context;
    struct hvd_error err = {0};
    enum hvd_status status = HVD_OK;
    char named[32];

    job_init();
    job_sum("first", 1);
    s->ready++;
    for (int i = 0; status == HVD_OK; i++) {
        char name[24];

        snprintf(name, sizeof name, "x%d", s->variant == 0 ? 0 : i % 50);
        status = run_op(name, HVD_F64, s->variant == 2 ? 4096 : 1, &err);
    }
    s->known_us[rank] = clock_us();
    if (rank == s->victim)
        _exit(9);                       /* a stopped rank learns it when it goes on */
    CHECK_EQ(status, HVD_PEER_LOST);
    CHECK_EQ(err.rank, s->victim);
    snprintf(named, sizeof named, "rank %d", s->victim);
    CHECK_HAS(err.text, named);
    CHECK_HAS(err.text, "allreduce x");
    if (strcmp(getenv("HOROVOD_HEARTBEAT_SECONDS"), "1") == 0)  /* stopped, not killed */
        CHECK_HAS(err.text, "HOROVOD_HEARTBEAT_SECONDS");
    /* Everything fails from here on, at once, and shutdown comes back. */
    CHECK_EQ(run_op("later", HVD_F64, 1, &err), HVD_PEER_LOST);
    CHECK_EQ(hvd_size(), size);
    hvd_shutdown();
}

static void strike(struct job *job, struct scene *s, int signal_number)
{
    while (s->ready < job->size)
        sched_yield();
    s->struck_us = clock_us();
    kill(job->pids[s->victim], signal_number);
}

static void check_survivors(struct job *job, struct scene *s, uint64_t limit_us)
{
    for (int rank = 0; rank < job->size; rank++) {
        if (rank == s->victim)
            continue;
        CHECK_EQ(job_wait(job, rank), 0);
        if (s->known_us[rank] > s->struck_us + limit_us)
            check_fail(__FILE__, __LINE__, "rank %d knew after %llu us", rank,
                       (unsigned long long)(s->known_us[rank] - s->struck_us));
    }
}

static void kill_one(int size, int hosts, int victim, int variant)
{
    struct scene *s = scene_new(victim, variant);
    static const char *const env[] = {"HOROVOD_HEARTBEAT_SECONDS=60", NULL};
    struct job job;

    job_start(&job, &(struct job_options){.size = size, .hosts = hosts, .env = env},
              until_the_fault, s);
    strike(&job, s, SIGKILL);
    check_survivors(&job, s, 5000000);
    CHECK_EQ(job_wait(&job, victim), -SIGKILL);
    job_end(&job);
    munmap(s, sizeof *s);
}

TEST(a_killed_rank_is_named, .limit_s = 120)
{
    for (int i = 0; i < rounds(2); i++)
        for (int victim = 0; victim < 3; victim++)
            kill_one(3, 1, victim, i % 3);
}

TEST(a_killed_rank_of_another_host_is_named, .limit_s = 120)
{
    for (int i = 0; i < rounds(2); i++)
        kill_one(4, 2, (i + 1) % 4, i % 3);
}

TEST(a_stopped_rank_is_named, .limit_s = 60)
{
    static const char *const env[] = {"HOROVOD_HEARTBEAT_SECONDS=1", NULL};

    for (int i = 0; i < rounds(1); i++) {
        struct scene *s = scene_new(i % 3, 1);
        struct job job;

        job_start(&job, &(struct job_options){.size = 3, .env = env}, until_the_fault, s);
        strike(&job, s, SIGSTOP);
        check_survivors(&job, s, 10000000);
        kill(job.pids[s->victim], SIGCONT);
        CHECK_EQ(job_wait(&job, s->victim), 9);
        job_end(&job);
        munmap(s, sizeof *s);
    }
}

/* ---- A rank leaves without a word ----------------------------------------------------- */

static void leaves_early(int rank, int size, void *context)
{
    struct scene *s = context;
    struct hvd_error err = {0};
    enum hvd_status status;

    job_init();
    job_sum("first", 1);
    s->ready++;
    if (rank == s->victim) {
        while (s->ready < size)         /* what is done here may be under way elsewhere */
            sched_yield();
        if (s->variant == 0)
            _exit(0);                   /* no shutdown, no atexit */
        if (s->variant == 1) {
            hvd_shutdown();
            exit(0);
        }
        abort();
    }
    while ((status = run_op("y", HVD_F64, 1, &err)) == HVD_OK)
        ;
    CHECK_EQ(status, s->variant == 1 ? HVD_SHUTDOWN : HVD_PEER_LOST);
    CHECK_EQ(err.rank, s->victim);
    hvd_shutdown();
}

TEST(a_rank_that_leaves_fails_the_others, .limit_s = 60)
{
    for (int i = 0; i < 9; i++) {
        int variant = i % 3;
        struct scene *s = scene_new(variant % 2, variant);
        struct job job;

        job_start(&job, &(struct job_options){.size = 3, .hosts = 1 + i / 3}, leaves_early,
                  s);
        for (int rank = 0; rank < 3; rank++)
            if (rank != s->victim)
                CHECK_EQ(job_wait(&job, rank), 0);
        CHECK_EQ(job_wait(&job, s->victim), variant == 2 ? -SIGABRT : 0);
        job_end(&job);
        munmap(s, sizeof *s);
    }
}

/* ---- Disagreement: an error on all, and the job goes on ------------------------------- */

static void disagrees(int rank, int size, void *context)
{
    struct hvd_error err;

    (void)context;
    job_init();
    for (int i = 0; i < 20; i++) {
        bool odd = rank == i % size;

        CHECK_EQ(run_op("shape", HVD_F64, odd ? 3 : 4, &err), HVD_MISMATCH);
        CHECK_HAS(err.text, "[3]");
        CHECK_HAS(err.text, "[4]");
        CHECK_EQ(run_op("type", odd ? HVD_F32 : HVD_F64, 4, &err), HVD_MISMATCH);
        CHECK_HAS(err.text, "float32");
        CHECK_HAS(err.text, "float64");
        CHECK_OK(run_op("shape", HVD_F64, 4, &err), err);
        CHECK_OK(run_op("shape", HVD_F64, 4, &err), err);
        CHECK_EQ(job_sum("sum", rank), size * (size - 1) / 2.0);
    }
    hvd_shutdown();
}

TEST(a_disagreement_names_both_values, .limit_s = 60)
{
    job_run(&(struct job_options){.size = 3}, disagrees, NULL);
    job_run(&(struct job_options){.size = 3, .hosts = 2}, disagrees, NULL);
}

/* ---- abort from another thread while an operation is blocked -------------------------- */

static void *abort_soon(void *context)
{
    struct scene *s = context;

    while (s->ready < 3)                /* all of them */
        sched_yield();
    hvd_abort("the evaluation has diverged");
    return NULL;
}

static void is_aborted(int rank, int size, void *context)
{
    struct scene *s = context;
    struct hvd_error err = {0};
    pthread_t thread;
    hvd_handle handle;
    double x = 1;
    struct hvd_request req = {.size = sizeof req, .op = HVD_ALLREDUCE, .dtype = HVD_F64,
                              .reduce = HVD_SUM, .device = -1, .ndim = 1, .shape = {1},
                              .name = "never", .input = &x, .output = &x};

    job_init();
    job_sum("first", 1);
    if (rank == 0) {
        CHECK_EQ(pthread_create(&thread, NULL, abort_soon, s), 0);
    } else if (rank == size - 1) {
        s->ready++;                     /* never takes part, only hears of it */
        while (run_op("other", HVD_F64, 1, &err) == HVD_OK)
            ;
        CHECK_EQ(err.status, HVD_ABORTED);
        hvd_shutdown();
        return;
    }
    CHECK_OK(hvd_submit(&req, 1, &handle, &err), err);
    s->ready++;
    CHECK_EQ(hvd_wait(handle, -1, &err), HVD_ABORTED);
    CHECK_HAS(err.text, "the evaluation has diverged");
    CHECK_EQ(err.rank, 0);
    hvd_release(handle);
    if (rank == 0)
        pthread_join(thread, NULL);
    hvd_shutdown();
}

TEST(abort_ends_a_blocked_operation, .limit_s = 30)
{
    struct scene *s = scene_new(-1, 0);

    job_run(&(struct job_options){.size = 3}, is_aborted, s);
}

/* ---- fork ------------------------------------------------------------------------------ */

static void forks(int rank, int size, void *context)
{
    struct hvd_error err;
    int status;
    pid_t child;

    (void)context;
    job_init();
    job_sum("first", rank);
    child = fork();
    if (child == 0) {
        bool right = run_op("child", HVD_F64, 1, &err) == HVD_FORKED && hvd_rank() == -1;

        hvd_shutdown();
        _exit(right ? 0 : 1);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK_EQ(job_sum("second", rank), size * (size - 1) / 2.0);
    hvd_shutdown();
}

TEST(a_forked_child_has_no_job, .limit_s = 30)
{
    job_run(&(struct job_options){.size = 2}, forks, NULL);
    job_run(&(struct job_options){.size = 2, .hosts = 2}, forks, NULL);
}

/* ---- A rank that is only slow is not dead ----------------------------------------------- */

static void is_slow(int rank, int size, void *context)
{
    uint64_t end_us;

    (void)context;
    job_init();
    job_sum("first", rank);
    end_us = clock_us() + 2500000;
    while (rank == 0 && clock_us() < end_us)
        ;                               /* holds its main thread for more than T */
    CHECK_EQ(job_sum("second", rank), size * (size - 1) / 2.0);
    hvd_shutdown();
}

TEST(a_slow_rank_is_not_dead, .limit_s = 30)
{
    static const char *const env[] = {"HOROVOD_HEARTBEAT_SECONDS=1", NULL};

    job_run(&(struct job_options){.size = 3, .env = env}, is_slow, NULL);
    job_run(&(struct job_options){.size = 3, .hosts = 2, .env = env}, is_slow, NULL);
}
