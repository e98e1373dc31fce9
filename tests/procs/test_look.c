/* test_look.c: a viewer asks the ranks of a job while they work, wait, form and end. */
#include "base/clock.h"
#include "base/hatch.h"
#include "check.h"
#include "job_harness.h"
#include "wire/look_message.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define NAMES 512

static char names[NAMES][HATCH_NAME];
static char bytes[1 << 20];

/* What the process says of itself; false: it is not there (any more), or has not answered. */
static bool ask(pid_t pid, uint32_t what, struct look_rank *r)
{
    int count = hatch_list("rank", names, NAMES);
    struct look_question q = {what, 0};
    uint8_t question[LOOK_QUESTION_BYTES];
    enum look_frame kind;
    size_t got = 0, body_n, used;
    struct hvd_error err;
    const char *body;

    put_look_question(&q, question);
    for (int i = 0; i < count && i < NAMES; i++) {
        pid_t owner = 0;
        int fd = hatch_connect(names[i], &owner);
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t n = -1;

        if (fd >= 0 && owner == pid &&
            send(fd, question, sizeof question, MSG_NOSIGNAL) == (ssize_t)sizeof question)
            while (poll(&p, 1, 20000) == 1 &&
                   (n = recv(fd, bytes + got, sizeof bytes - got, 0)) > 0)
                got += (size_t)n;
        if (fd >= 0)
            close(fd);
    }
    if (look_is_whole(bytes, got, &err) != HVD_OK)
        return false;
    CHECK_OK(get_look_frame(bytes, got, &kind, &body, &body_n, &used, &err), err);
    CHECK_EQ(kind, LOOK_RANK);
    CHECK_OK(get_look_rank(r, body, body_n, &err), err);
    return true;
}

/* Asks until `holds`. */
static void await(pid_t pid, uint32_t what, struct look_rank *r,
                  bool (*holds)(const struct look_rank *r))
{
    uint64_t until_us = clock_us() + 40000000;

    for (;;) {
        if (ask(pid, what, r)) {
            if (holds(r))
                return;
            look_rank_release(r);
        }
        CHECK(clock_us() < until_us);
        usleep(1000);
    }
}

/* Context: a pipe.  Rank 1 comes to the last sum when it is closed. */
static void work(int rank, int size, void *context)
{
    int *pipes = context;
    char byte;

    close(pipes[1]);
    job_init();
    for (int i = 0; i < 200; i++)
        CHECK_EQ(job_sum("step", 1), size);
    if (rank == 1)
        CHECK_EQ(read(pipes[0], &byte, 1), 0);
    CHECK_EQ(job_sum("last", 1), size);
    for (int i = 0; i < 200; i++)
        CHECK_EQ(job_sum("after", 1), size);
    hvd_shutdown();
}

static bool waits_in_last(const struct look_rank *r)
{
    return r->phase == LOOK_PHASE_RUNNING && r->open == 1 && strcmp(r->name, "last") == 0 &&
           r->wait_count == 1 && r->waits[0].missing_count == 1;
}

static bool has_records(const struct look_rank *r)
{
    return r->record_count > 200;
}

static void look_into(const struct job_options *opt)
{
    struct look_rank *r = calloc(1, sizeof *r);
    int pipes[2];
    struct job job;

    CHECK_EQ(pipe(pipes), 0);
    job_start(&job, opt, work, pipes);
    await(job.pids[0], 0, r, waits_in_last);
    CHECK_EQ(r->rank, 0);
    CHECK_EQ(r->size, opt->size);
    CHECK_EQ(r->pid, (uint32_t)job.pids[0]);
    CHECK_EQ(r->op, HVD_ALLREDUCE);
    CHECK_EQ(r->waits[0].missing_count, 1u);
    CHECK_EQ(r->waits[0].missing[0], 1);
    CHECK_EQ(r->kinds[HVD_ALLREDUCE].count, 200u);
    CHECK(r->rss_bytes > 0 && r->since_us <= r->now_us);
    CHECK_EQ(r->record_count, 0u);
    await(job.pids[0], LOOK_WITH_RECORDS, r, has_records);
    CHECK_STR(r->records[r->record_count - 1].name, "last");
    look_rank_release(r);
    close(pipes[1]);
    for (int i = 0; i < 20; i++)        /* while they work and end */
        if (ask(job.pids[i % opt->size], LOOK_WITH_RECORDS, r))
            look_rank_release(r);
    for (int i = 0; i < opt->size; i++)
        CHECK_EQ(job_wait(&job, i), 0);
    CHECK(!ask(job.pids[0], 0, r));
    job_end(&job);
    close(pipes[0]);
    free(r);
}

TEST(who_waits_is_told_within_a_host)
{
    look_into(&(struct job_options){.size = 3});
}

TEST(who_waits_is_told_between_hosts)
{
    look_into(&(struct job_options){.size = 4, .hosts = 2});
}

TEST(and_without_a_stall_check)
{
    const char *env[] = {"HOROVOD_STALL_CHECK_DISABLE=1", NULL};

    look_into(&(struct job_options){.size = 3, .env = env});
}

static void form_late(int rank, int size, void *context)
{
    int *pipes = context;
    char byte;

    close(pipes[1]);
    if (rank == 1)
        CHECK_EQ(read(pipes[0], &byte, 1), 0);
    job_init();
    hvd_shutdown();
}

static bool is_forming(const struct look_rank *r)
{
    return r->phase == LOOK_PHASE_FORMING;
}

TEST(a_rank_that_waits_in_init_says_so)
{
    struct look_rank *r = calloc(1, sizeof *r);
    int pipes[2];
    struct job job;

    CHECK_EQ(pipe(pipes), 0);
    job_start(&job, &(struct job_options){.size = 2}, form_late, pipes);
    await(job.pids[0], 0, r, is_forming);
    CHECK_EQ(r->rank, 0);
    CHECK_EQ(r->size, 2);
    close(pipes[1]);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(job_wait(&job, i), 0);
    job_end(&job);
    close(pipes[0]);
    free(r);
}
