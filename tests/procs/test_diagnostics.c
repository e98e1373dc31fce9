/* test_diagnostics.c: timeline, stall report, flight recorder, statistics and autotune of
 * jobs of real processes. */
#include "../unit/engine/json.h"
#include "base/clock.h"
#include "check.h"
#include "job_harness.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[256];
static char *text;

/* A file of the job's own directory. */
static const char *file(const char *name, int rank)
{
    snprintf(path, sizeof path, "%s/%s%d", getenv("HOROVOD_RECORDER_DIR"), name, rank);
    return path;
}

static const char *read_file(const char *name)
{
    int fd = open(name, O_RDONLY);
    size_t used = 0, capacity = 1 << 16;
    ssize_t n;

    free(text);
    text = calloc(1, capacity);
    while (fd >= 0 && (n = read(fd, text + used, capacity - used - 1)) > 0) {
        used += (size_t)n;
        if (capacity - used < 2) {
            text = realloc(text, 2 * capacity);
            memset(text + capacity, 0, capacity);
            capacity *= 2;
        }
    }
    if (fd >= 0)
        close(fd);
    return text;
}

static int count(const char *part)
{
    int n = 0;

    for (const char *p = text; (p = strstr(p, part)) != NULL; p += strlen(part))
        n++;
    return n;
}

/* Waits until `part` is in the file. */
static void await(const char *name, const char *part)
{
    uint64_t end_us = clock_us() + 30000000;

    while (strstr(read_file(name), part) == NULL) {
        if (clock_us() > end_us)
            check_fail(__FILE__, __LINE__, "no '%s' in %s: %s", part, name, text);
        usleep(2000);
    }
}

static void keep_stderr(int rank)
{
    int fd = open(file("err", rank), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);

    CHECK(fd >= 0);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

/* ---- Timeline ---------------------------------------------------------------------------- */

static void check_timeline(const char *name)
{
    CHECK(json_is_valid(read_file(name)));
    CHECK_EQ(count("\"ph\": \"B\""), count("\"ph\": \"E\""));
    CHECK_HAS(text, "start_time_since_epoch_in_micros");
}

static void record_static(int rank, int size, void *context)
{
    bool is_cached = context != NULL;

    setenv("HOROVOD_TIMELINE", file("timeline", 0), 1);
    setenv("HOROVOD_TIMELINE_MARK_CYCLES", "1", 1);
    job_init();
    CHECK_EQ(job_sum("allreduce.test_allreduce", rank), size * (size - 1) / 2.0);
    for (int i = 0; is_cached && i < 5; i++)
        job_sum("allreduce.test_allreduce", 1);
    if (rank == 0) {
        await(file("timeline", 0), "\"shape\"");        /* while it records */
        CHECK_HAS(text, "allreduce.test_allreduce");
        CHECK_HAS(text, "NEGOTIATE_ALLREDUCE");
        CHECK_HAS(text, "\"name\": \"ALLREDUCE\"");
        CHECK_HAS(text, "GLOO_ALLREDUCE");
        await(file("timeline", 0), "CYCLE_START");
    }
    job_sum("end", 0);
    hvd_shutdown();
    if (rank == 0) {
        check_timeline(file("timeline", 0));
        CHECK_EQ(count("GLOO_ALLREDUCE"), is_cached ? 7 : 2);
        CHECK_EQ(count("\"dtype\": \"float64\""), is_cached ? 7 : 2);
        CHECK_EQ(count("\"ph\": \"X\""), (is_cached ? 7 : 2) * size);
    } else {
        CHECK(access(file("timeline", rank), F_OK) != 0);
    }
}

TEST(timeline_by_environment)
{
    job_run(&(struct job_options){.size = 2}, record_static, NULL);
}

TEST(timeline_of_cached_operations)
{
    job_run(&(struct job_options){.size = 2}, record_static, "cached");
}

TEST(timeline_over_two_hosts)
{
    job_run(&(struct job_options){.size = 2, .hosts = 2}, record_static, "cached");
}

static void await_ticks(int expected)
{
    uint64_t end_us = clock_us() + 30000000;

    while (read_file(file("timeline", 0)), count("\"ph\": \"X\"") < expected) {
        if (clock_us() > end_us)
            check_fail(__FILE__, __LINE__, "no tick %d in %s", expected, text);
        usleep(2000);
    }
}

/* ticks > 0: nobody waits for the sum before the file has so many. */
static void sum_many(bool large, int ticks)
{
    static double x[1 << 14];
    struct hvd_request req = {.size = sizeof req, .op = HVD_ALLREDUCE, .dtype = HVD_F64,
                              .reduce = HVD_SUM, .device = -1, .name = "allreduce.y",
                              .ndim = 1, .shape = {large ? 1 << 14 : 1}, .input = x,
                              .output = x};
    struct hvd_error err;
    hvd_handle handle;

    if (ticks == 0) {
        CHECK_OK(hvd_run(&req, &err), err);
        return;
    }
    CHECK_OK(hvd_submit(&req, 1, &handle, &err), err);
    await_ticks(ticks);
    CHECK_OK(hvd_wait(handle, -1, &err), err);
    hvd_release(handle);
}

/* In the last step each comes when the file of rank 0 shows that the one before has come. */
static void come_one_by_one(int rank, int size, void *context)
{
    static const char *const order[] = {"\"X\", \"name\": \"0\"", "\"X\", \"name\": \"2\"",
                                        "\"X\", \"name\": \"1\""};
    int steps = 3, before = rank == 0 ? 0 : size - rank, number = *(int *)context;
    bool large = number & 1, asleep = number & 2;

    setenv("HOROVOD_TIMELINE", file("timeline", 0), 1);
    job_init();
    for (int i = 0; i < steps; i++)
        sum_many(large, 0);
    await_ticks(steps * size + before);
    sum_many(large, rank == 0 && !asleep ? (steps + 1) * size : 0);
    hvd_shutdown();
    if (rank == 0) {
        const char *at = read_file(file("timeline", 0));

        CHECK_EQ(count("\"ph\": \"X\""), (steps + 1) * size);
        for (int i = 0; i < (steps + 1) * size; i++) {
            at = strstr(at + 1, "\"X\"");
            CHECK(i < steps * size || strncmp(at, order[i - steps * size], 16) == 0);
        }
    }
}

static void show_who_is_late(int number)
{
    job_run(&(struct job_options){.size = 3, .hosts = number & 4 ? 3 : 1}, come_one_by_one,
            &number);
}

TEST(timeline_shows_who_is_late_to_cached_operations)
{
    check_side_by_side(show_who_is_late, 8);
}

static void record_dynamic(int rank, int size, void *context)
{
    struct hvd_error err;
    char first[256], second[256];

    (void)size;
    (void)context;
    strcpy(first, file("first", 0));
    strcpy(second, file("second", 0));
    CHECK_EQ(hvd_timeline_start(first, false, &err), HVD_NOT_INIT);
    setenv("HOROVOD_TIMELINE", "DYNAMIC", 1);
    job_init();
    job_sum("before", 1);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(hvd_timeline_start(first, false, &err), err);
        CHECK_OK(hvd_timeline_start(first, false, &err), err);  /* nothing happens */
        job_sum("one", 1);
        CHECK_OK(hvd_timeline_start(second, true, &err), err);  /* switches */
        job_sum("two", 1);
        job_sum("barrier", 1);
        CHECK_OK(hvd_timeline_stop(&err), err);
        CHECK_OK(hvd_timeline_stop(&err), err);
        job_sum("between", 1);
        if (rank != 0)
            continue;
        /* The other rank may announce the next operation before we switch. */
        check_timeline(first);
        CHECK_EQ(count("\"one\""), 1);
        CHECK_EQ(count("GLOO_ALLREDUCE"), 1);
        CHECK_EQ(count("before") + count("CYCLE_START"), 0);
        check_timeline(second);
        CHECK_EQ(count("\"two\""), 1);
        CHECK_EQ(count("GLOO_ALLREDUCE"), 2);
        CHECK_EQ(count("\"one\""), 0);
        CHECK(count("CYCLE_START") > 0);
    }
    hvd_shutdown();
}

TEST(timeline_starts_and_stops)
{
    job_run(&(struct job_options){.size = 2}, record_dynamic, NULL);
}

static void record_all(int rank, int size, void *context)
{
    char name[300];

    (void)size;
    (void)context;
    setenv("HOROVOD_TIMELINE", file("timeline", 0), 1);
    setenv("HOROVOD_TIMELINE_ALL_RANKS", "1", 1);
    job_init();
    job_sum("x", 1);
    job_sum("x", 1);
    hvd_shutdown();
    snprintf(name, sizeof name, rank > 0 ? "%s.%d" : "%s", file("timeline", 0), rank);
    check_timeline(name);
    CHECK_EQ(count("GLOO_ALLREDUCE"), 2);
}

TEST(timeline_of_every_rank)
{
    job_run(&(struct job_options){.size = 3}, record_all, NULL);
}

static void record_nowhere(int rank, int size, void *context)
{
    struct hvd_error err;

    (void)context;
    keep_stderr(rank);
    setenv("HOROVOD_TIMELINE", "/nowhere/at/all", 1);
    job_init();
    CHECK_EQ(job_sum("x", 1), size);
    hvd_shutdown();
    read_file(file("err", rank));
    CHECK_EQ(count("/nowhere/at/all"), rank == 0);
    unsetenv("HOROVOD_TIMELINE");
    if (size > 1)
        return;
    job_init();
    CHECK_EQ(hvd_timeline_start(file("t", 0), false, &err), HVD_INVALID);
    CHECK_HAS(err.text, "DYNAMIC");
    CHECK_EQ(hvd_timeline_stop(&err), HVD_INVALID);
    hvd_shutdown();
}

TEST(timeline_that_cannot_be_opened)
{
    job_run(&(struct job_options){.size = 2}, record_nowhere, NULL);
    job_run(&(struct job_options){.size = 1}, record_nowhere, NULL);
}

/* ---- Stall --------------------------------------------------------------------------------- */

static size_t here(char *buffer, size_t capacity)
{
    return (size_t)snprintf(buffer, capacity, "late.py:88 in sleep");
}

static const char is_idle[] = "is in no operation; main thread: late.py:88 in sleep";

/* Whether a report that users see is about this. */
static bool warns_of(const char *log, const char *what)
{
    while ((log = strstr(log, "W stall_watch.c")) != NULL) {
        const char *end = strstr(log + 1, "stall_watch.c"), *next = strstr(++end, "stall_watch.c");
        const char *found = strstr(log, what);

        if (found != NULL && (next == NULL || found < next))
            return true;
        log = end;
    }
    return false;
}

/* Rank `late` comes when the reports are out; all print it (rank 0 coordinates), within a host
 * each its own, but one only at the level that users see.  On a busy machine other things wait
 * long enough for a report, too, and an
 * answer may miss the first one: it is repeated until all is said. */
static void wait_for_late(int rank, int size, void *context)
{
    bool is_cached = context != NULL;
    int late = size - 1, warned = 0;
    char line[64];

    keep_stderr(rank);
    setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "0.5", 1);
    setenv("HOROVOD_LOG_LEVEL", "info", 1);             /* of all ranks */
    hvd_set_where(here);
    job_init();
    job_sum("x", 1);
    for (int i = 0; is_cached && i < 3; i++)
        job_sum("y", 1);
    snprintf(line, sizeof line, "\nMissing ranks:\n%d: [y]\nRank %d on ", late, late);
    for (int r = 0; rank == late && r < size; r++) {
        if (r == late && is_cached)     /* nobody tells it */
            continue;
        await(file("err", r), line);
        await(file("err", r), is_idle);
    }
    CHECK_EQ(job_sum("y", 1), size);
    if (rank == 0)
        await(file("err", 0), "flight recorder (stall) written to");
    for (int r = 0; rank == late && r < size; r++)
        warned += warns_of(read_file(file("err", r)), ": [y]");
    CHECK_EQ(warned, rank == late);     /* one rank warns, whoever waits */
    job_sum("end", 0);
    hvd_shutdown();
}

TEST(stall_names_the_missing_rank)
{
    job_run(&(struct job_options){.size = 3}, wait_for_late, NULL);
}

TEST(stall_of_a_cached_operation)
{
    job_run(&(struct job_options){.size = 3}, wait_for_late, "cached");
}

static void wait_for_coordinator(int rank, int size, void *context)
{
    (void)context;
    keep_stderr(rank);
    setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "0.5", 1);
    setenv("HOROVOD_LOG_LEVEL", "info", 1);             /* of all ranks */
    job_init();
    for (int i = 0; i < 3; i++)
        job_sum("y", 1);
    if (rank == 0)
        await(file("err", 0), "\nMissing ranks:\n0: [y]\nRank 0 on ");
    CHECK_EQ(job_sum("y", 1), size);
    await(file("err", rank), "Missing ranks:\n0: [y]");
    job_sum("end", 0);
    hvd_shutdown();
}

TEST(stall_over_hosts_when_the_coordinator_is_late)
{
    job_run(&(struct job_options){.size = 2, .hosts = 2}, wait_for_coordinator, NULL);
}

static enum hvd_status sum_status(const char *name, struct hvd_error *err)
{
    double x = 1;
    struct hvd_request req = {.size = sizeof req, .op = HVD_ALLREDUCE, .dtype = HVD_F64,
                              .reduce = HVD_SUM, .device = -1, .name = name, .ndim = 1,
                              .shape = {1}, .input = &x, .output = &x};

    return hvd_run(&req, err);
}

/* Until then nobody may be 3 s late, also on a busy machine. */
static void wait_too_long(int rank, int size, void *context)
{
    struct hvd_error err;
    uint64_t start_us;

    (void)size;
    keep_stderr(rank);
    setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "1", 1);
    setenv("HOROVOD_LOG_LEVEL", "info", 1);             /* of all ranks */
    setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "3", 1);
    job_init();
    for (int i = 0; context != NULL && i < 3; i++)
        job_sum("y", 1);
    job_sum("x", 1);
    start_us = clock_us();
    /* Until rank 1 knows, too, that the job is over, its coming would complete y. */
    if (rank == 1)
        await(file("err", 1), "flight recorder (failure) written to");
    CHECK_EQ(sum_status("y", &err), HVD_STALLED);
    CHECK_HAS(err.text, "1");
    CHECK_HAS(err.text, "did not come to y within 3 seconds");
    CHECK_EQ(err.rank, 1);
    if (rank == 0) {
        CHECK(clock_us() - start_us >= 2900000);
        CHECK_HAS(read_file(file("err", 0)), "\n1!: [y]");
    }
    CHECK_EQ(sum_status("z", &err), HVD_STALLED);
    hvd_shutdown();
}

/* Rank 1 announces and then stands still: rank 0 has begun, and nothing moves. */
static void stand_still_in_a_batch(int rank, int size, void *context)
{
    enum { COUNT = 8 << 20 };
    float *x = calloc(COUNT, sizeof *x);
    struct hvd_request req = {.size = sizeof req, .op = HVD_ALLREDUCE, .dtype = HVD_F32,
                              .reduce = HVD_SUM, .device = -1, .name = "big", .ndim = 1,
                              .shape = {COUNT}, .input = x, .output = x};
    struct hvd_error err;
    hvd_handle handle;
    pid_t *other = context;

    (void)size;
    CHECK(x != NULL);
    keep_stderr(rank);
    setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "0.5", 1);
    setenv("HOROVOD_LOG_LEVEL", "info", 1);             /* of all ranks */
    setenv("HOROVOD_HEARTBEAT_SECONDS", "60", 1);
    job_init();
    if (rank == 1)
        *other = getpid();
    job_sum("x", 1);
    CHECK_OK(hvd_submit(&req, 1, &handle, &err), err);
    if (rank == 1) {
        hvd_poll(handle, &err);         /* the announcement is out */
        raise(SIGSTOP);
    } else {
        hvd_poll(handle, &err);
        await(file("err", 0), "\nMissing ranks:\n1: [big]\n");
        CHECK_EQ(kill(*other, SIGCONT), 0);
    }
    CHECK_OK(hvd_wait(handle, -1, &err), err);
    hvd_release(handle);
    hvd_shutdown();
    free(x);
}

TEST(stall_of_a_batch_that_has_begun)
{
    pid_t *other = mmap(NULL, sizeof *other, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(other != MAP_FAILED);
    job_run(&(struct job_options){.size = 2, .hosts = 2}, stand_still_in_a_batch, other);
    munmap(other, sizeof *other);
}

/* Ranks 2 and 3 share a host: only its leader can know which of them is late. */
static void wait_in_group(int rank, int size, void *context)
{
    (void)context;
    keep_stderr(rank);
    setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "0.5", 1);
    setenv("HOROVOD_LOG_LEVEL", "info", 1);             /* of all ranks */
    job_init();
    for (int i = 0; i < 3; i++)
        job_sum("y", 1);
    if (rank == 3)
        await(file("err", 0), "\nMissing ranks:\n3: [y]\nRank 3 on ");
    CHECK_EQ(job_sum("y", 1), size);
    await(file("err", rank), "Missing ranks:\n3: [y]");
    job_sum("end", 0);
    hvd_shutdown();
}

TEST(stall_of_a_small_cached_operation_between_hosts)
{
    job_run(&(struct job_options){.size = 4, .hosts = 2}, wait_in_group, NULL);
}

/* The same of a tensor that is announced through leaders. */
static void wait_for_a_mate(int rank, int size, void *context)
{
    enum { COUNT = 4096 };
    static float x[COUNT];
    struct hvd_request req = {.size = sizeof req, .op = HVD_ALLREDUCE, .dtype = HVD_F32,
                              .reduce = HVD_SUM, .device = -1, .name = "wide", .ndim = 1,
                              .shape = {COUNT}, .input = x, .output = x};
    struct hvd_error err;

    (void)size;
    (void)context;
    keep_stderr(rank);
    setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "0.5", 1);
    setenv("HOROVOD_LOG_LEVEL", "info", 1);             /* of all ranks */
    job_init();
    for (int i = 0; i < 3; i++)
        CHECK_OK(hvd_run(&req, &err), err);
    if (rank == 3)
        await(file("err", 0), "\nMissing ranks:\n3: [wide]\nRank 3 on ");
    CHECK_OK(hvd_run(&req, &err), err);
    await(file("err", rank), "Missing ranks:\n3: [wide]");
    job_sum("end", 0);
    hvd_shutdown();
}

TEST(stall_of_a_cached_operation_between_hosts)
{
    job_run(&(struct job_options){.size = 4, .hosts = 2}, wait_for_a_mate, NULL);
}

/* Each waits for the other; the verdict is about one of them. */
static void wait_crosswise(int rank, int size, void *context)
{
    struct hvd_error err;

    (void)size;
    (void)context;
    keep_stderr(rank);
    setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "1", 1);
    setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "3", 1);
    job_init();
    job_sum("x", 1);
    CHECK_EQ(sum_status(rank == 0 ? "a" : "b", &err), HVD_STALLED);
    CHECK(err.rank == 0 || err.rank == 1);
    CHECK_HAS(err.text, err.rank == 1 ? "ranks 1 did not come to a within"
                                      : "ranks 0 did not come to b within");
    hvd_shutdown();
}

/* One name for two kinds: the job ends at the time of the report, and says so on all ranks. */
static void use_one_name_twice(int rank, int size, void *context)
{
    double x = 1, out[3];
    struct hvd_request req = {.size = sizeof req, .dtype = HVD_F64, .reduce = HVD_SUM,
                              .op = rank == 1 ? HVD_ALLGATHER : HVD_ALLREDUCE,
                              .name = rank == 1 ? "allgather.x" : "allreduce.x",
                              .device = -1, .ndim = 1, .shape = {1}, .input = &x,
                              .output = out};
    struct hvd_error err;

    (void)context;
    keep_stderr(rank);
    setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "1", 1);
    setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "600", 1);
    job_init();
    CHECK_EQ(size, 3);
    CHECK_EQ(hvd_run(&req, &err), HVD_STALLED);
    CHECK_HAS(err.text, "the name x is used for different kinds of operation:");
    CHECK_HAS(err.text, " allreduce by ranks 0, 2");
    CHECK_HAS(err.text, " allgather by ranks 1");
    hvd_shutdown();
    if (rank == 0)
        CHECK_HAS(read_file(file("err", 0)), "\nThe cause: the name x is used for");
}

static void shut_down(int number)
{
    static const struct job_options jobs[] = {{.size = 2}, {.size = 2},
                                              {.size = 3, .hosts = 3}, {.size = 2},
                                              {.size = 3}};

    if (number >= 3) {
        job_run(&jobs[number], number == 3 ? wait_crosswise : use_one_name_twice, NULL);
        return;
    }

    job_run(&jobs[number], wait_too_long, number > 0 ? "cached" : NULL);
}

TEST(stall_shuts_the_job_down)
{
    check_side_by_side(shut_down, 5);
}

static void ignore_short_limit(int rank, int size, void *context)
{
    (void)size;
    (void)context;
    keep_stderr(rank);
    setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "1", 1);
    job_init();
    hvd_shutdown();
    read_file(file("err", rank));
    CHECK_EQ(count("is ignored"), 1);
}

TEST(a_limit_below_the_warning_time_is_ignored)
{
    job_run(&(struct job_options){.size = 1}, ignore_short_limit, NULL);
}

/* ---- Flight recorder ----------------------------------------------------------------------- */

static const char *dump_file(int rank)
{
    const char *job = getenv("HOROVOD_JOB_ID");
    int n = snprintf(path, sizeof path, "%s/horovod-recorder-",
                     getenv("HOROVOD_RECORDER_DIR"));

    n += job != NULL ? snprintf(path + n, sizeof path - (size_t)n, "%s", job)
                     : snprintf(path + n, sizeof path - (size_t)n, "parent%d", getppid());
    snprintf(path + n, sizeof path - (size_t)n, "/rank%d-%d.txt", rank, getpid());
    return path;
}

static void dump_by_signal(int rank, int size, void *context)
{
    struct sigaction now;
    struct stat info;

    (void)context;
    keep_stderr(rank);
    job_init();
    for (int i = 0; i < 10; i++)
        CHECK_EQ(job_sum("grad/7", 1), size);
    kill(getpid(), SIGUSR2);
    await(dump_file(rank), "done allreduce set 0 8 bytes OK grad/7\n");
    kill(getpid(), SIGUSR2);
    while (read_file(dump_file(rank)), count("why SIGUSR2") < 2)
        usleep(2000);
    CHECK_EQ(count("why SIGUSR2"), 2);
    CHECK_EQ(stat(dump_file(rank), &info), 0);
    CHECK_EQ(info.st_mode & 07777, 0600);
    CHECK_HAS(read_file(file("err", rank)), "flight recorder written to ");
    job_sum("end", 0);
    hvd_shutdown();
    CHECK_EQ(sigaction(SIGUSR2, NULL, &now), 0);
    CHECK(now.sa_handler == SIG_DFL);
}

TEST(sigusr2_writes_the_recorder)
{
    job_run(&(struct job_options){.size = 2}, dump_by_signal, NULL);
}

static volatile sig_atomic_t seen;

static void users_own(int number)
{
    seen = number;
}

static void leave_signal_alone(int rank, int size, void *context)
{
    struct sigaction now;

    (void)size;
    (void)context;
    signal(SIGUSR2, users_own);
    job_init();
    kill(getpid(), SIGUSR2);
    CHECK_EQ(seen, SIGUSR2);
    CHECK(access(dump_file(rank), F_OK) != 0);
    hvd_shutdown();
    CHECK_EQ(sigaction(SIGUSR2, NULL, &now), 0);
    CHECK(now.sa_handler == users_own);
}

TEST(a_handler_of_the_user_stays)
{
    job_run(&(struct job_options){.size = 1}, leave_signal_alone, NULL);
}

/* Somebody has put a link where the folder will be. */
static void refuse_links(int rank, int size, void *context)
{
    (void)size;
    (void)context;
    keep_stderr(rank);
    dump_file(rank);
    *strrchr(path, '/') = '\0';
    CHECK_EQ(symlink(".", path), 0);
    job_init();
    job_sum("x", 1);
    kill(getpid(), SIGUSR2);
    await(file("err", rank), "flight recorder not written to ");
    hvd_shutdown();
}

TEST(a_link_is_not_followed)
{
    job_run(&(struct job_options){.size = 1}, refuse_links, NULL);
}

static const char *old_dump(int number, const char *name)
{
    snprintf(path, sizeof path, "%s/horovod-recorder-old%d%s",
             getenv("HOROVOD_RECORDER_DIR"), number, name);
    return path;
}

static void make_old_dump(int number)
{
    struct timespec times[2] = {{.tv_sec = 1000 + number}, {.tv_sec = 1000 + number}};
    int fd;

    CHECK_EQ(mkdir(old_dump(number, ""), 0700), 0);
    fd = open(old_dump(number, "/rank0-1.txt"), O_WRONLY | O_CREAT, 0600);
    CHECK(fd >= 0);
    close(fd);
    CHECK_EQ(utimensat(AT_FDCWD, old_dump(number, ""), times, 0), 0);
}

static void no_dump_on_abort(int rank, int size, void *context)
{
    struct hvd_error err;

    (void)size;
    (void)context;
    keep_stderr(rank);
    job_init();
    job_sum("x", 1);
    if (rank == 1)
        hvd_abort("enough");
    CHECK_EQ(sum_status("y", &err), HVD_ABORTED);
    CHECK(access(dump_file(rank), F_OK) != 0);          /* who aborts has said why */
    hvd_shutdown();
}

TEST(an_abort_writes_no_recorder)
{
    job_run(&(struct job_options){.size = 2}, no_dump_on_abort, NULL);
}

/* Ten jobs of before have left their folders; of them the newest stay. */
static void dump_on_failure(int rank, int size, void *context)
{
    struct hvd_error err;
    int left = 0;

    (void)size;
    (void)context;
    keep_stderr(rank);
    for (int i = 0; rank == 0 && i < 10; i++)
        make_old_dump(i);
    job_init();
    job_sum("x", 1);
    if (rank == 1)
        _exit(0);
    CHECK_EQ(sum_status("y", &err), HVD_PEER_LOST);
    await(dump_file(rank), "why failure");
    await(dump_file(rank), "done allreduce set 0 8 bytes OK x\n");
    CHECK_HAS(text, "note - set 0 0 bytes PEER_LOST ");
    await(file("err", rank), "read those of all ranks with");
    hvd_shutdown();
    for (int i = 0; i < 10; i++)
        left += access(old_dump(i, ""), F_OK) == 0;
    CHECK_EQ(left, 7);
    CHECK(access(old_dump(2, ""), F_OK) != 0);
    CHECK(access(old_dump(3, "/rank0-1.txt"), F_OK) == 0);
}

TEST(a_failure_writes_the_recorder)
{
    job_run(&(struct job_options){.size = 2}, dump_on_failure, NULL);
}

/* ---- Forming --------------------------------------------------------------------------------- */

static void form_loudly(int rank, int size, void *context)
{
    (void)size;
    (void)context;
    keep_stderr(rank);
    setenv("HOROVOD_LOG_LEVEL", "info", 1);
    job_init();
    hvd_shutdown();
    read_file(file("err", rank));
    CHECK_HAS(text, " of 3 on ");
    CHECK_HAS(text, rank == 2 ? "0 ranks of this host by " : "1 ranks of this host by shared");
    CHECK_HAS(text, "of others by TCP; formed in ");
    if (rank == 0)
        CHECK_HAS(text, "3 ranks on 2 hosts: ");
    CHECK_EQ(count("(ranks 0-1; "), rank == 0);
}

TEST(info_tells_hosts_addresses_and_time)
{
    job_run(&(struct job_options){.size = 3, .hosts = 2}, form_loudly, NULL);
}

/* ---- Statistics ---------------------------------------------------------------------------- */

static void look_at_stats(int rank, int size, void *context)
{
    static char stats[8192];
    _Atomic int *waiting = context;

    job_init();
    for (int i = 0; i < 100; i++)
        job_sum("x", 1);
    if (rank == size - 1) {             /* the straggler */
        while (*waiting < size - 1)
            sched_yield();
        usleep(1000000);
    }
    ++*waiting;
    job_sum("x", 1);
    CHECK(hvd_stats_json(stats, sizeof stats) < sizeof stats);
    CHECK(json_is_valid(stats));
    CHECK_HAS(stats, "\"allreduce\": {\"count\": 101");
    CHECK_HAS(stats, "\"recorder\": {\"records\": ");
    CHECK_HAS(stats, "\"timeline\": {\"active\": false");
    if (rank != size - 1) {
        double seconds = 0;
        char peer[32];
        const char *at;

        snprintf(peer, sizeof peer, "\"%d\": {", size - 1);
        at = strstr(strstr(stats, "\"peers\""), peer);
        CHECK(at != NULL);
        CHECK_EQ(sscanf(strstr(at, "wait_seconds"), "wait_seconds\": %lf", &seconds), 1);
        CHECK(seconds > 0.2 && seconds < 30);
    }
    hvd_shutdown();
}

static double number_of(const char *json, const char *object, const char *key)
{
    const char *at = strstr(json, object);

    at = at != NULL ? strstr(at, key) : NULL;
    CHECK(at != NULL);
    return atof(at + strlen(key));
}

/* Counts and bytes of the short way are exact; times are taken of some and scaled. */
static void count_short_runs(int rank, int size, void *context)
{
    enum { RUNS = 1000, COUNT = 1024 };
    static char before[65536], after[65536];
    static float in[COUNT], out[COUNT];
    struct hvd_request req = {.size = sizeof req, .op = HVD_ALLREDUCE, .dtype = HVD_F32,
                              .reduce = HVD_SUM, .device = -1, .name = "x", .ndim = 1,
                              .shape = {COUNT}, .input = in, .output = out};
    struct hvd_error err;
    double mean_us;

    (void)rank;
    (void)size;
    (void)context;
    job_init();
    CHECK_OK(hvd_run(&req, &err), err);
    hvd_stats_json(before, sizeof before);
    for (int i = 0; i < RUNS; i++)
        CHECK_OK(hvd_run(&req, &err), err);
    hvd_stats_json(after, sizeof after);
    CHECK_EQ(number_of(after, "\"allreduce\"", "\"count\": ") -
                 number_of(before, "\"allreduce\"", "\"count\": "), RUNS);
    CHECK_EQ(number_of(after, "\"allreduce\"", "\"bytes\": ") -
                 number_of(before, "\"allreduce\"", "\"bytes\": "), RUNS * 4.0 * COUNT);
    CHECK_EQ(number_of(after, "\"cache\"", "\"hits\": ") -
                 number_of(before, "\"cache\"", "\"hits\": "), RUNS);
    CHECK(number_of(after, "\"recorder\"", "\"records\": ") -
              number_of(before, "\"recorder\"", "\"records\": ") >= RUNS);
    mean_us = number_of(after, "\"allreduce\"", "\"mean_us\": ");
    CHECK(mean_us > 0.05 && mean_us < 1e6);
    CHECK(fabs(number_of(after, "\"allreduce\"", "\"seconds\": ") -
               mean_us * (RUNS + 1) / 1e6) < 1e-4);
    hvd_shutdown();
}

TEST(short_runs_are_counted_exactly)
{
    job_run(&(struct job_options){.size = 2}, count_short_runs, NULL);
}

static void straggle(int number)
{
    _Atomic int *waiting = mmap(NULL, sizeof *waiting, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(waiting != MAP_FAILED);
    job_run(&(struct job_options){.size = 2 + 2 * number}, look_at_stats, (void *)waiting);
}

TEST(stats_name_the_straggler)
{
    check_side_by_side(straggle, 2);
}

/* ---- Autotune ------------------------------------------------------------------------------ */

static void tune(int rank, int size, void *context)
{
    static char config[1 << 16];
    double ms = -1, mb = -1, score;
    char *row;

    (void)size;
    (void)context;
    keep_stderr(rank);
    setenv("HOROVOD_AUTOTUNE", "1", 1);
    setenv("HOROVOD_AUTOTUNE_LOG", file("log", 0), 1);
    setenv("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "1", 1);
    setenv("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "2", 1);
    setenv("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "6", 1);
    job_init();
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(job_sum("a", i), (double)size * i);
        CHECK_EQ(job_sum("b", i), (double)size * i);
    }
    read_file(file("log", 0));
    CHECK(count("\n") >= 3);
    text[strlen(text) - 1] = '\0';
    row = strrchr(text, '\n') + 1;
    CHECK_EQ(sscanf(row, "0,0,0,1,%lf,%lf,%lf", &ms, &mb, &score), 3);
    hvd_config_text(config, sizeof config);
    row = strstr(config, "HOROVOD_CYCLE_TIME=");
    CHECK_EQ(strtod(row + strlen("HOROVOD_CYCLE_TIME="), NULL), ms);
    CHECK(hvd_stats_json(config, sizeof config) < sizeof config);
    CHECK(json_is_valid(config));
    if (rank == 0) {
        row = strstr(config, "\"result\": {\"cycle_time_ms\": ");
        CHECK(row != NULL && strstr(config, "\"active\": false, \"done\": true") != NULL);
        CHECK_EQ(strtod(strchr(row, '{') + strlen("{\"cycle_time_ms\": "), NULL), ms);
        CHECK_HAS(read_file(file("err", 0)), "autotune is done: ");
    }
    hvd_shutdown();
}

TEST(autotune_ends_with_its_last_row_everywhere, .limit_s = 60)
{
    job_run(&(struct job_options){.size = 2, .hosts = 2, .limit_s = 50}, tune, NULL);
    job_run(&(struct job_options){.size = 2, .limit_s = 50}, tune, NULL);
}
