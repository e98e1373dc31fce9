/*
 * test_cycles.c: forming, using and leaving a job again and again in the same processes.
 * Nothing may be left behind: descriptors, threads, mappings, memory.
 *   HVD_CYCLES=n   cycles of the leak test (default 1000; the long suite takes 10000)
 */
#include "check.h"
#include "job_harness.h"

#include <dirent.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int entries_of(const char *path)
{
    DIR *dir = opendir(path);
    int n = 0;

    CHECK(dir != NULL);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

static int lines_of(const char *path)
{
    FILE *file = fopen(path, "r");
    int n = 0, c;

    CHECK(file != NULL);
    while ((c = getc(file)) != EOF)
        n += c == '\n';
    fclose(file);
    return n;
}

static void one_cycle(int rank, int size)
{
    struct hvd_error err;
    struct hvd_request meet = {.size = sizeof meet, .op = HVD_BARRIER, .device = -1};

    job_init();
    CHECK_EQ(job_sum("x", rank), size * (size - 1) / 2.0);
    CHECK_OK(hvd_run(&meet, &err), err);
    hvd_shutdown();
    CHECK(!hvd_is_initialized());
}

/* ---- One process: what is left behind ------------------------------------------------ */

TEST(cycles_leave_nothing_behind, .limit_s = 600)
{
    const char *text = getenv("HVD_CYCLES");
    int cycles = text != NULL ? atoi(text) : 1000;
    int fds = 0, threads = 0, maps = 0;
    size_t used = 0;

    for (int i = 0; i < cycles; i++) {
        if (i == 20) {
            fds = entries_of("/proc/self/fd");
            threads = entries_of("/proc/self/task");
            maps = lines_of("/proc/self/maps");
            used = mallinfo2().uordblks;
        }
        one_cycle(0, 1);
    }
    CHECK_EQ(entries_of("/proc/self/fd"), fds);
    while (entries_of("/proc/self/task") > threads)
        sched_yield();                  /* who was joined may be on its way out */
    CHECK(CHECK_SANITIZED || lines_of("/proc/self/maps") <= maps + 2);
    CHECK(CHECK_SANITIZED || mallinfo2().uordblks <= used + 16384);
}

/* ---- Several processes under full load ------------------------------------------------ */

struct round {
    int rounds;
};

static void cycles_of_ranks(int rank, int size, void *context)
{
    const struct round *r = context;

    setenv("HOROVOD_GLOO_TIMEOUT_SECONDS", "60", 1);
    for (int i = 0; i < r->rounds; i++)
        one_cycle(rank, size);
}

static pid_t burn(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        alarm(300);
        for (;;)
            ;
    }
    return pid;
}

static void under_load(int size, int rounds)
{
    struct round r = {rounds};
    struct job_options opt = {.size = size, .limit_s = 250};
    struct job job;
    pid_t busy[8];

    for (int i = 0; i < 8; i++)
        busy[i] = burn();
    job_start(&job, &opt, cycles_of_ranks, &r);
    for (int rank = 0; rank < size; rank++)
        CHECK_EQ(job_wait(&job, rank), 0);
    job_end(&job);
    for (int i = 0; i < 8; i++) {
        kill(busy[i], SIGKILL);
        waitpid(busy[i], NULL, 0);
    }
}

TEST(two_ranks_come_and_go_under_load, .limit_s = 300)
{
    under_load(2, getenv("HVD_ROUNDS") != NULL ? atoi(getenv("HVD_ROUNDS")) : 30);
}

TEST(four_ranks_come_and_go_under_load, .limit_s = 300)
{
    under_load(4, getenv("HVD_ROUNDS") != NULL ? atoi(getenv("HVD_ROUNDS")) : 15);
}
