/* test_meet.c: workers and server of the rendezvous, over real sockets. */
#include "rdv_support.h"

#include "base/fault.h"
#include "base/log.h"

#include <dirent.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define WORKERS 8

static void join_all(struct worker *w, int count)
{
    for (int i = 0; i < count; i++)
        worker_start(&w[i]);
    for (int i = 0; i < count; i++)
        worker_wait(&w[i]);
}

static void check_table(const struct worker *w, int count)
{
    CHECK_OK(w->status, w->err);
    CHECK_EQ(w->table.count, count);
    for (int i = 0; i < count; i++) {
        CHECK_EQ(w->table.entries[i].rank, i);
        CHECK_EQ(w->table.entries[i].pid, 1000 + i);
    }
}

TEST(eight_workers_meet_with_one_message_each)
{
    struct hvd_server *s = server_up(server_options(WORKERS));
    struct worker w[WORKERS];
    struct server_counters c;
    uint64_t start = clock_us();

    for (int i = 0; i < WORKERS; i++)
        w[i] = worker_of(hvd_server_port(s), i, WORKERS);
    join_all(w, WORKERS);
    printf("%d workers: %.1f ms\n", WORKERS, (double)(clock_us() - start) / 1000);
    c = counters_of(s);
    CHECK_EQ(c.accepted, (uint64_t)WORKERS);
    CHECK_EQ(c.entries, (uint64_t)WORKERS);
    CHECK_EQ(c.tables, (uint64_t)WORKERS);
    CHECK_EQ(c.verdicts + c.refused, 0u);
    for (int i = 0; i < WORKERS; i++) {
        check_table(&w[i], WORKERS);
        CHECK_EQ(rdv_poll(w[i].client, &w[i].err), HVD_AGAIN);
        worker_end(&w[i]);
    }
    hvd_server_free(s);
}

/* ---- Many at once ------------------------------------------------------------------------ */

static double cpu_ms(pthread_t thread)
{
    struct timespec t;
    clockid_t id;

    CHECK_EQ(pthread_getcpuclockid(thread, &id), 0);
    CHECK_EQ(clock_gettime(id, &t), 0);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* As a real rank says them: its settings, two addresses. */
static void fill_entry(struct table_entry *e)
{
    memset(e->config_text, 'c', 200);
    e->config_text[200] = 0;
    e->addr_count = 2;
    strcpy(e->addrs[1], "192.168.100.100");
}

/* Its table is 2 KiB a rank: checked and dropped at once. */
static void *worker_come(void *context)
{
    struct worker *w = context;

    worker_run(w);
    if (w->status == HVD_OK) {
        CHECK_EQ(w->table.entries[w->table.count - 1].rank, w->table.count - 1);
        w->entry.pid = w->table.count;
    }
    table_release(&w->table);
    return NULL;
}

static void allow_descriptors(rlim_t count)
{
    struct rlimit limit;

    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max < count)
        check_skip("too few descriptors");
    limit.rlim_cur = limit.rlim_cur > count ? limit.rlim_cur : count;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* HVD_MANY_WORKERS=n; the long suite takes 1 024. */
TEST(hundreds_of_workers_come_at_once, .limit_s = 120)
{
    int count = getenv("HVD_MANY_WORKERS") != NULL ? atoi(getenv("HVD_MANY_WORKERS")) : 200;
    struct hvd_server_options opt = server_options(count);
    struct worker *w = calloc((size_t)count, sizeof *w);
    struct hvd_server *s;
    struct server_counters c;
    uint64_t start, slowest = 0;

    allow_descriptors((rlim_t)count * 3 + 64);
    opt.timeout_s = 100;
    s = server_up(opt);
    start = clock_us();
    for (int i = 0; i < count; i++) {
        w[i] = worker_of(hvd_server_port(s), i, count);
        w[i].opt.deadline_us = start + 100000000;
        fill_entry(&w[i].entry);
        CHECK_EQ(pthread_create(&w[i].thread, NULL, worker_come, &w[i]), 0);
    }
    for (int i = 0; i < count; i++) {
        worker_wait(&w[i]);
        CHECK_OK(w[i].status, w[i].err);
        CHECK_EQ(w[i].entry.pid, count);
        slowest = w[i].took_us > slowest ? w[i].took_us : slowest;
    }
    c = counters_of(s);
    printf("%d workers: %.0f ms, the slowest %.0f; server: %.0f ms of CPU, %llu connections, %llu "
           "refused\n", count, (double)(clock_us() - start) / 1e3, (double)slowest / 1e3,
           cpu_ms(s->thread), (unsigned long long)c.accepted, (unsigned long long)c.refused);
    CHECK_EQ(c.tables, (uint64_t)count);
    for (int i = 0; i < count; i++)
        worker_end(&w[i]);
    hvd_server_free(s);
    free(w);
}

/* The server lives in another process; workers are there before it, as forking beside
 * its thread would copy locks of libraries that nobody opens again. */
TEST(eight_processes_meet)
{
    struct hvd_server *s;
    uint64_t start;
    uint16_t port;
    int status, ports[2];

    CHECK_EQ(pipe(ports), 0);
    for (int i = 0; i < WORKERS; i++)
        if (fork() == 0) {
            struct worker w;

            CHECK_EQ(read(ports[0], &port, sizeof port), (ssize_t)sizeof port);
            w = worker_of(port, i, WORKERS);
            _exit(worker_join(&w) == HVD_OK && w.table.count == WORKERS ? 0 : 1);
        }
    s = server_up(server_options(WORKERS));
    port = hvd_server_port(s);
    start = clock_us();
    for (int i = 0; i < WORKERS; i++)
        CHECK_EQ(write(ports[1], &port, sizeof port), (ssize_t)sizeof port);
    for (int i = 0; i < WORKERS; i++) {
        CHECK(wait(&status) > 0);
        CHECK_EQ(status, 0);
    }
    printf("%d processes: %.1f ms\n", WORKERS, (double)(clock_us() - start) / 1000);
    CHECK_EQ(counters_of(s).tables, (uint64_t)WORKERS);
    hvd_server_free(s);
}

TEST(a_job_of_one_meets_itself)
{
    struct hvd_server *s = server_up(server_options(1));
    struct worker w = worker_of(hvd_server_port(s), 0, 1);

    CHECK_OK(worker_join(&w), w.err);
    check_table(&w, 1);
    worker_end(&w);
    await_status(s, "rank 0 host node0 pid 1000 gone");
    hvd_server_free(s);
}

TEST(the_same_workers_meet_again_in_the_same_generation)
{
    struct hvd_server *s = server_up(server_options(2));
    struct worker w[2];

    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 2; i++)
            w[i] = worker_of(hvd_server_port(s), i, 2);
        join_all(w, 2);
        for (int i = 0; i < 2; i++) {
            check_table(&w[i], 2);
            worker_end(&w[i]);
        }
    }
    hvd_server_free(s);
}

TEST(a_new_generation_refuses_the_old_one)
{
    struct hvd_server *s = server_up(server_options(2));
    struct worker w[2], late;

    for (int i = 0; i < 2; i++)
        w[i] = worker_of(hvd_server_port(s), i, 2);
    join_all(w, 2);
    check_table(&w[0], 2);
    hvd_server_next_generation(s, 1);
    late = worker_of(hvd_server_port(s), 1, 2);
    CHECK_EQ(worker_join(&late), HVD_MISMATCH);
    CHECK_HAS(late.err.text, "generation 0, the job is in generation 1");
    late = worker_of(hvd_server_port(s), 0, 1);
    late.opt.generation = late.entry.generation = 1;
    CHECK_OK(worker_join(&late), late.err);
    CHECK_EQ(late.table.generation, 1u);
    CHECK_EQ(late.table.count, 1);
    worker_end(&late);
    for (int i = 0; i < 2; i++)
        worker_end(&w[i]);
    hvd_server_free(s);
}

TEST(an_impossible_generation_is_the_end_of_the_job)
{
    struct hvd_server *s = server_up(server_options(1));
    struct worker w = worker_of(hvd_server_port(s), 0, 1);

    hvd_server_next_generation(s, 0);
    CHECK_EQ(worker_join(&w), HVD_ABORTED);
    CHECK_HAS(w.err.text, "a job of 0 workers");
    hvd_server_free(s);
}

TEST(who_waits_in_the_old_generation_is_told_of_the_new_one)
{
    struct hvd_server *s = server_up(server_options(2));
    struct worker w = worker_of(hvd_server_port(s), 0, 2);

    worker_start(&w);
    await_status(s, "rank 0 host node0 pid 1000 waiting");
    hvd_server_next_generation(s, 2);
    worker_wait(&w);
    CHECK_EQ(w.status, HVD_ABORTED);
    CHECK_HAS(w.err.text, "generation 1");
    hvd_server_free(s);
}

TEST(missing_ranks_are_named_at_the_servers_deadline)
{
    struct hvd_server_options opt = server_options(4);
    struct worker w[2], late;
    struct hvd_server *s;

    opt.timeout_s = 2;                  /* for both to come, on a busy machine */
    s = server_up(opt);
    w[0] = worker_of(hvd_server_port(s), 0, 4);
    w[1] = worker_of(hvd_server_port(s), 2, 4);
    join_all(w, 2);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(w[i].status, HVD_TIMEOUT);
        CHECK_EQ(w[i].err.rank, 1);
        CHECK_HAS(w[i].err.text, "2 of 4 ranks have not come within 2.");
        CHECK_HAS(w[i].err.text, "missing: ranks 1, 3");
        CHECK_HAS(w[i].err.text, "host node0: ranks 0");
        CHECK_HAS(w[i].err.text, "host node1: ranks 2");
    }
    /* A late one learns at once that the others have given up. */
    late = worker_of(hvd_server_port(s), 1, 4);
    CHECK_EQ(worker_join(&late), HVD_TIMEOUT);
    CHECK(late.took_us < 2000000);
    hvd_server_free(s);
}

TEST(missing_ranks_are_named_at_the_workers_own_deadline)
{
    struct hvd_server *s = server_up(server_options(3));
    struct worker w = worker_of(hvd_server_port(s), 1, 3);

    w.opt.deadline_us = clock_us() + 2000000;
    CHECK_EQ(worker_join(&w), HVD_TIMEOUT);
    CHECK_HAS(w.err.text, "missing: ranks 0, 2");
    CHECK(w.took_us < 10000000);        /* the server's deadline is at 15 s */
    await_gone(s, "waiting");
    hvd_server_free(s);
}

TEST(workers_with_different_deadlines_are_told_one_after_the_other)
{
    struct hvd_server *s = server_up(server_options(3));
    struct worker w[2];

    w[1] = worker_of(hvd_server_port(s), 1, 3);
    w[1].opt.deadline_us = clock_us() + 4000000;
    worker_start(&w[1]);
    await_status(s, "rank 1 host node0 pid 1001 waiting");
    w[0] = worker_of(hvd_server_port(s), 0, 3);
    w[0].opt.deadline_us = clock_us() + 1500000;
    worker_join(&w[0]);
    worker_wait(&w[1]);
    CHECK_EQ(w[0].status, HVD_TIMEOUT);
    CHECK_HAS(w[0].err.text, "missing: ranks 2;");
    CHECK_EQ(w[1].status, HVD_TIMEOUT);
    CHECK_HAS(w[1].err.text, "missing: ranks 0, 2;");
    hvd_server_free(s);
}

TEST(a_rank_is_taken_once)
{
    struct hvd_server *s = server_up(server_options(2));
    struct worker w[2], second;

    for (int i = 0; i < 2; i++)
        w[i] = worker_of(hvd_server_port(s), i, 2);
    worker_start(&w[1]);
    await_status(s, "rank 1 host node0 pid 1001 waiting");
    second = worker_of(hvd_server_port(s), 1, 2);
    second.entry.pid = 7;
    CHECK_EQ(worker_join(&second), HVD_INVALID);
    CHECK_EQ(second.err.rank, 1);
    CHECK_HAS(second.err.text, "rank 1 is already taken by the process 1001 on host node0");
    CHECK_OK(worker_join(&w[0]), w[0].err);
    worker_wait(&w[1]);
    check_table(&w[1], 2);
    CHECK_EQ(worker_join(&second), HVD_INVALID);        /* while it runs, too */
    worker_end(&w[0]);
    worker_end(&w[1]);
    hvd_server_free(s);
}

TEST(a_worker_that_died_is_forgotten_and_may_come_again)
{
    struct hvd_server *s;
    struct worker w[2];
    uint16_t port;
    int ports[2];
    pid_t pid;

    CHECK_EQ(pipe(ports), 0);
    pid = fork();
    if (pid == 0) {
        CHECK_EQ(read(ports[0], &port, sizeof port), (ssize_t)sizeof port);
        w[1] = worker_of(port, 1, 2);
        worker_join(&w[1]);
        _exit(1);
    }
    s = server_up(server_options(2));
    port = hvd_server_port(s);
    CHECK_EQ(write(ports[1], &port, sizeof port), (ssize_t)sizeof port);
    await_status(s, "rank 1 host node0 pid 1001 waiting");
    kill(pid, SIGKILL);
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
    await_gone(s, "waiting");
    for (int i = 0; i < 2; i++)
        w[i] = worker_of(port, i, 2);
    join_all(w, 2);
    check_table(&w[0], 2);
    check_table(&w[1], 2);
    worker_end(&w[0]);
    worker_end(&w[1]);
    hvd_server_free(s);
}

static void check_disagreement(struct worker *w, enum hvd_status status, const char *a,
                               const char *b)
{
    struct hvd_server *s = server_up(server_options(3));

    for (int i = 0; i < 3; i++)
        w[i].opt.port = hvd_server_port(s);
    worker_start(&w[0]);
    await_status(s, "rank 0 host node0 pid 1000 waiting");
    CHECK_EQ(worker_join(&w[2]), status);
    worker_wait(&w[0]);
    CHECK_EQ(w[0].status, status);
    CHECK_EQ(worker_join(&w[1]), status);       /* the late one hears it, too */
    for (int i = 0; i < 3; i++) {
        CHECK_HAS(w[i].err.text, a);
        CHECK_HAS(w[i].err.text, b);
    }
    /* Mended and tried again. */
    for (int i = 0; i < 3; i++)
        w[i] = worker_of(hvd_server_port(s), i, 3);
    join_all(w, 3);
    for (int i = 0; i < 3; i++) {
        check_table(&w[i], 3);
        worker_end(&w[i]);
    }
    hvd_server_free(s);
}

TEST(settings_that_differ_are_named_on_all_ranks)
{
    struct worker w[3];

    for (int i = 0; i < 3; i++)
        w[i] = worker_of(0, i, 3);
    strcpy(w[2].entry.config_text, "security=encrypt");
    w[2].entry.config_hash[0] = 1;
    check_disagreement(w, HVD_MISMATCH, "rank 0 (host node0) and rank 2 (host node1)",
                       "'security=auth' and 'security=encrypt'");
}

TEST(library_versions_that_differ_are_named_on_all_ranks)
{
    struct worker w[3];

    for (int i = 0; i < 3; i++)
        w[i] = worker_of(0, i, 3);
    strcpy(w[2].entry.version, "0.30.1");
    check_disagreement(w, HVD_VERSION, "rank 0 (host node0) runs horovod 0.29.0",
                       "rank 2 (host node1) runs horovod 0.30.1");
}

TEST(sizes_that_differ_are_named_on_all_ranks)
{
    struct worker w[3];

    for (int i = 0; i < 3; i++)
        w[i] = worker_of(0, i, 3);
    w[2].entry.size = w[2].entry.local_size = 4;
    check_disagreement(w, HVD_MISMATCH, "rank 2 (host node1, pid 1002)",
                       "the job has 4 ranks, but 3 are expected");
}

static enum hvd_status await_push(struct worker *w)
{
    struct pollfd p = {.fd = rdv_fd(w->client), .events = POLLIN};
    enum hvd_status status;

    while ((status = rdv_poll(w->client, &w->err)) == HVD_AGAIN)
        poll(&p, 1, -1);
    return status;
}

TEST(an_abort_reaches_those_who_run_those_who_wait_and_those_who_come)
{
    struct hvd_server *s = server_up(server_options(2));
    struct worker w[2], waiting;

    for (int i = 0; i < 2; i++)
        w[i] = worker_of(hvd_server_port(s), i, 2);
    join_all(w, 2);
    worker_end(&w[1]);
    await_status(s, "gone");
    waiting = worker_of(hvd_server_port(s), 1, 2);
    worker_start(&waiting);
    await_status(s, "waiting");
    hvd_server_abort(s, 1, "rank 1 exited with code 3");
    CHECK_EQ(await_push(&w[0]), HVD_ABORTED);
    CHECK_EQ(w[0].err.rank, 1);
    CHECK_STR(w[0].err.text, "rank 1 exited with code 3");
    CHECK_EQ(rdv_poll(w[0].client, &w[0].err), HVD_ABORTED);
    worker_wait(&waiting);
    CHECK_EQ(waiting.status, HVD_ABORTED);
    waiting = worker_of(hvd_server_port(s), 1, 2);
    CHECK_EQ(worker_join(&waiting), HVD_ABORTED);
    worker_end(&w[0]);
    hvd_server_free(s);
}

static void end_and_be_heard(struct hvd_server *s, struct worker *w, int rank)
{
    worker_end(w);
    while (hvd_server_hears(s, rank))
        sched_yield();
}

TEST(the_first_report_of_a_generation_stays)
{
    struct hvd_error first = {HVD_ABORTED, 1, "rank 1 aborted the job: a reason"};
    struct hvd_error second = {HVD_PEER_LOST, 0, "rank 0 has gone"};
    struct hvd_server *s = server_up(server_options(2));
    struct hvd_error report;
    struct worker w[2];

    for (int i = 0; i < 2; i++)
        w[i] = worker_of(hvd_server_port(s), i, 2);
    join_all(w, 2);
    CHECK(!hvd_server_report(s, &report));
    rdv_report(w[0].client, &first);
    end_and_be_heard(s, &w[0], 0);
    CHECK(hvd_server_report(s, &report));
    CHECK_EQ(report.rank, 1);
    CHECK_EQ(report.status, HVD_ABORTED);
    CHECK_STR(report.text, first.text);
    rdv_report(w[1].client, &second);
    end_and_be_heard(s, &w[1], 1);
    CHECK(hvd_server_report(s, &report));
    CHECK_EQ(report.rank, 1);
    hvd_server_next_generation(s, 2);
    CHECK(!hvd_server_report(s, &report));
    hvd_server_free(s);
}

static void count_heard(void *context)
{
    atomic_fetch_add((atomic_int *)context, 1);
}

TEST(who_left_in_order_is_named_by_those_who_needed_it)
{
    struct hvd_error left = {HVD_SHUTDOWN, 1, "rank 1 has left the job"};
    struct hvd_error echo = {HVD_PEER_LOST, 0, "rank 0 has gone"};
    struct hvd_server_options opt = server_options(3);
    struct hvd_error report;
    struct hvd_server *s;
    struct worker w[3];
    atomic_int heard = 0;

    opt.heard = count_heard;
    opt.context = &heard;
    s = server_up(opt);
    for (int i = 0; i < 3; i++)
        w[i] = worker_of(hvd_server_port(s), i, 3);
    join_all(w, 3);
    CHECK(hvd_server_hears(s, 0));
    rdv_report(w[0].client, &left);     /* quicker to end than the one that left */
    end_and_be_heard(s, &w[0], 0);
    CHECK_EQ(atomic_load(&heard), 2);   /* its report and its end */
    CHECK(hvd_server_report(s, &report));
    CHECK_EQ(report.status, HVD_SHUTDOWN);
    CHECK_EQ(report.rank, 1);
    rdv_report(w[2].client, &echo);     /* it has seen rank 0 die of it */
    end_and_be_heard(s, &w[2], 2);
    CHECK(hvd_server_report(s, &report));
    CHECK_EQ(report.rank, 1);
    worker_end(&w[1]);
    hvd_server_free(s);
}

TEST(a_report_of_an_older_generation_does_not_count)
{
    struct hvd_error why = {HVD_ABORTED, 1, "too early"};
    struct hvd_server *s = server_up(server_options(1));
    struct worker w = worker_of(hvd_server_port(s), 0, 1);
    struct hvd_error report;

    CHECK_OK(worker_join(&w), w.err);
    hvd_server_next_generation(s, 1);
    rdv_report(w.client, &why);         /* of a generation that is over */
    CHECK(!hvd_server_report(s, &report));
    worker_end(&w);
    hvd_server_free(s);
}

TEST(a_server_that_ends_does_not_disturb_a_formed_job)
{
    struct hvd_server *s = server_up(server_options(1));
    struct worker w = worker_of(hvd_server_port(s), 0, 1);

    CHECK_OK(worker_join(&w), w.err);
    hvd_server_free(s);
    CHECK_EQ(await_push(&w), HVD_PEER_LOST);
    CHECK_HAS(w.err.text, "127.0.0.1 port");
    CHECK_EQ(rdv_fd(w.client), -1);
    CHECK_EQ(rdv_poll(w.client, &w.err), HVD_PEER_LOST);
    worker_end(&w);
}

TEST(a_server_may_start_after_its_workers)
{
    struct hvd_server *s = server_up_at_home(server_options(2));
    struct hvd_server_options opt = server_options(2);
    struct worker w[2];

    opt.port = hvd_server_port(s);
    hvd_server_free(s);
    for (int i = 0; i < 2; i++) {
        w[i] = worker_of(opt.port, i, 2);
        worker_start(&w[i]);
    }
    poll(NULL, 0, 60);                  /* some refused connections */
    s = server_up(opt);
    for (int i = 0; i < 2; i++) {
        worker_wait(&w[i]);
        check_table(&w[i], 2);
        worker_end(&w[i]);
    }
    hvd_server_free(s);
}

TEST(a_server_may_be_restarted_on_its_port_while_workers_wait)
{
    struct hvd_server *s = server_up_at_home(server_options(3));
    struct hvd_server_options opt = server_options(3);
    struct worker w[3];

    opt.port = hvd_server_port(s);
    for (int i = 0; i < 3; i++)
        w[i] = worker_of(opt.port, i, 3);
    worker_start(&w[0]);
    worker_start(&w[1]);
    await_status(s, "rank 0 host node0 pid 1000 waiting");
    await_status(s, "rank 1 host node0 pid 1001 waiting");
    hvd_server_free(s);
    s = server_up(opt);
    CHECK_OK(worker_join(&w[2]), w[2].err);
    for (int i = 0; i < 3; i++) {
        if (i < 2)
            worker_wait(&w[i]);
        check_table(&w[i], 3);
        worker_end(&w[i]);
    }
    hvd_server_free(s);
}

TEST(a_server_that_does_not_return_is_an_error_within_ten_seconds, .limit_s = 30)
{
    struct hvd_server *s = server_up_at_home(server_options(2));
    struct worker w = worker_of(hvd_server_port(s), 0, 2);

    w.opt.deadline_us = clock_us() + 60000000;
    worker_start(&w);
    await_status(s, "waiting");
    hvd_server_free(s);
    worker_wait(&w);
    CHECK_EQ(w.status, HVD_PEER_LOST);
    CHECK_HAS(w.err.text, "has gone before all ranks had come");
    CHECK(w.took_us < 10000000);
}

TEST(nobody_there_names_address_port_and_cause)
{
    struct hvd_server *s = server_up_at_home(server_options(2));
    struct worker w = worker_of(hvd_server_port(s), 0, 2);
    char where[64];

    snprintf(where, sizeof where, "127.0.0.1 port %u: cannot connect: Connection refused",
             hvd_server_port(s));
    hvd_server_free(s);
    w.opt.deadline_us = clock_us() + 300000;
    CHECK_EQ(worker_join(&w), HVD_TIMEOUT);
    CHECK_HAS(w.err.text, where);
    CHECK_HAS(w.err.text, "firewall");
}

TEST(a_broken_connection_is_tried_again)
{
    struct hvd_server *s = server_up(server_options(1));
    struct worker w = worker_of(hvd_server_port(s), 0, 1);

    CHECK(fault_setup("rendezvous.connect times=3 reset", 0));
    CHECK_OK(worker_join(&w), w.err);
    CHECK(fault_count("rendezvous.connect") >= 4);
    worker_end(&w);
    hvd_server_free(s);
}

TEST(the_first_address_that_answers_wins)
{
    struct hvd_server *s = server_up(server_options(1));
    struct worker w = worker_of(hvd_server_port(s), 0, 1);

    /* Nobody at the first, a black hole (TEST-NET-1), a name, and ours. */
    w.opt.addrs = "127.0.0.2, 192.0.2.1,[::1],127.0.0.1";
    CHECK_OK(worker_join(&w), w.err);
    worker_end(&w);
    await_status(s, "gone");
    w.opt.addrs = "localhost";
    CHECK_OK(worker_join(&w), w.err);
    worker_end(&w);
    hvd_server_free(s);
}

TEST(an_unknown_host_is_named)
{
    struct worker w = worker_of(4242, 0, 1);

    w.opt.addrs = "no-such-host.invalid";
    CHECK_EQ(worker_join(&w), HVD_SYS);
    CHECK_HAS(w.err.text, "'no-such-host.invalid'");
    CHECK(w.took_us < 10000000);        /* 5 s for the name server */
    w.opt.addrs = " , ";
    CHECK_EQ(worker_join(&w), HVD_INVALID);
    w.opt.addrs = "127.0.0.1";
    w.opt.port = 0;
    CHECK_EQ(worker_join(&w), HVD_INVALID);
    CHECK_HAS(w.err.text, "HOROVOD_GLOO_RENDEZVOUS_PORT");
}

TEST(several_addresses_share_one_port)
{
    static const char *const addresses[] = {"127.0.0.1", "127.0.0.3", "::1"};
    struct hvd_server_options opt = server_options(1);
    struct hvd_server *s;

    opt.listen_addrs = addresses;
    opt.listen_addr_count = 3;
    s = server_up(opt);
    for (int i = 0; i < 3; i++) {
        struct worker w = worker_of(hvd_server_port(s), 0, 1);

        w.opt.addrs = addresses[i];
        CHECK_OK(worker_join(&w), w.err);
        worker_end(&w);
        await_status(s, "gone");
    }
    hvd_server_free(s);
}

TEST(a_port_in_use_is_named_with_its_owner)
{
    struct hvd_server *s = server_up(server_options(1)), *second = NULL;
    struct hvd_server_options opt = server_options(1);
    struct hvd_error err;
    char owner[64];

    opt.port = hvd_server_port(s);
    CHECK_EQ(hvd_server_new(&opt, &second, &err), HVD_SYS);
    snprintf(owner, sizeof owner, "127.0.0.1 port %u: in use by process %d (test_r",
             opt.port, (int)getpid());
    CHECK_HAS(err.text, owner);
    hvd_server_free(s);
}

static const char long_id[] = "a job id of more than sixty-four bytes, which has no place in "
                              "a hello";

TEST(bad_options_are_refused)
{
    static const char *const names[] = {"localhost"}, *const zones[] = {"fe80::1%nozone"};
    static const char *const foreign[] = {"192.0.2.1"};
    struct hvd_server_options opt = server_options(0);
    struct hvd_server *s;
    struct hvd_error err;

    CHECK_EQ(hvd_server_new(&opt, &s, &err), HVD_INVALID);
    opt = server_options(1), opt.listen_addrs = names, opt.listen_addr_count = 1;
    CHECK_EQ(hvd_server_new(&opt, &s, &err), HVD_INVALID);
    CHECK_HAS(err.text, "'localhost'");
    opt = server_options(1), opt.size = 8;
    CHECK_EQ(hvd_server_new(&opt, &s, &err), HVD_INVALID);
    opt = server_options(1), opt.key = NULL;
    CHECK_EQ(hvd_server_new(&opt, &s, &err), HVD_INVALID);
    opt = server_options(1), opt.timeout_s = -1;
    CHECK_EQ(hvd_server_new(&opt, &s, &err), HVD_INVALID);
    opt = server_options(1), opt.job_id = long_id;
    CHECK_EQ(hvd_server_new(&opt, &s, &err), HVD_INVALID);
    opt = server_options(1), opt.listen_addrs = zones, opt.listen_addr_count = 1;
    CHECK_EQ(hvd_server_new(&opt, &s, &err), HVD_INVALID);
    opt = server_options(1), opt.listen_addrs = foreign, opt.listen_addr_count = 1;
    CHECK_EQ(hvd_server_new(&opt, &s, &err), HVD_SYS);
    CHECK_HAS(err.text, "cannot listen on 192.0.2.1 port 0");
    opt = server_options(1), opt.listen_addrs = foreign, opt.listen_addr_count = 65;
    CHECK_EQ(hvd_server_new(&opt, &s, &err), HVD_INVALID);
}

TEST(bad_options_of_a_worker_are_refused)
{
    struct worker w = worker_of(4242, 0, 1);

    w.opt.job_id = long_id;
    CHECK_EQ(worker_join(&w), HVD_INVALID);
    w = worker_of(4242, 0, 1);
    w.opt.generation = 1;
    CHECK_EQ(worker_join(&w), HVD_INVALID);
}

TEST(a_status_that_does_not_fit_is_cut_and_measured)
{
    struct hvd_server *s = server_up(server_options(3));
    char text[20];
    size_t n = hvd_server_status(s, text, sizeof text);

    CHECK_EQ(n, strlen("rank 0 missing\nrank 1 missing\nrank 2 missing\n"));
    CHECK_STR(text, "rank 0 missing\nrank");
    CHECK_EQ(hvd_server_status(s, NULL, 0), n);
    hvd_server_free(s);
}

TEST(without_descriptors_it_pauses_and_goes_on)
{
    struct hvd_server *s = server_up(server_options(1));
    struct worker w = worker_of(hvd_server_port(s), 0, 1);

    CHECK(fault_setup("rendezvous.accept times=3 mfile", 0));
    CHECK_OK(worker_join(&w), w.err);
    CHECK_EQ(fault_count("rendezvous.accept") >= 3, true);
    CHECK_EQ(counters_of(s).accept_pauses, 3u);
    worker_end(&w);
    hvd_server_free(s);
}

/* Its window is as small as it gets, and it does not read. */
static int slow_connect(uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), few = 4096, small = 536;

    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &few, sizeof few);
    setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &small, sizeof small);
    CHECK_EQ(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void send_large_entry(struct channel *c, int rank, int size)
{
    struct table_entry e = worker_entry(rank, size, 0);
    struct hvd_error err;
    uint8_t *body;
    size_t n;

    memset(e.host, 'h', sizeof e.host - 1);
    memset(e.config_text, 'c', sizeof e.config_text - 1);
    CHECK_OK(put_rdv_entry(&e, 100000, &body, &n, &err), err);
    CHECK_OK(channel_send(c, RDV_ENTRY, body, n, &err), err);
    free(body);
}

static void check_large_table(struct channel *c, int size)
{
    struct channel_message m;
    struct hvd_error err;
    struct table t;

    CHECK_OK(channel_receive(c, &m, &err), err);
    CHECK_EQ(m.kind, RDV_TABLE);
    CHECK_OK(get_table(&t, m.body, m.n, &err), err);
    CHECK_EQ(t.count, size);
    table_release(&t);
}

TEST(a_slow_reader_gets_its_table_and_delays_nobody, .limit_s = 120)
{
    enum { MANY = 400 };
    static struct channel c[MANY];
    struct hvd_server_options opt = server_options(MANY);
    const int enough = 1 << 20;
    struct hvd_server *s;
    struct hvd_error err;

    opt.timeout_s = 100;
    s = server_up(opt);
    for (int i = 0; i < MANY; i++) {
        raw_prove(i == 0 ? slow_connect(hvd_server_port(s))
                         : raw_connect(hvd_server_port(s)), i, 0, &c[i]);
        send_large_entry(&c[i], i, MANY);
    }
    for (int i = MANY - 1; i > 0; i--)
        check_large_table(&c[i], MANY);
    hvd_server_abort(s, 7, "behind the table");
    setsockopt(c[0].fd, SOL_SOCKET, SO_RCVBUF, &enough, sizeof enough);
    check_large_table(&c[0], MANY);
    for (int i = 0; i < MANY; i++) {
        struct channel_message m;

        CHECK_OK(channel_receive(&c[i], &m, &err), err);
        CHECK_EQ(m.kind, RDV_VERDICT);
        channel_release(&c[i]);
    }
    hvd_server_free(s);
}

/* A data loader forked from a worker or from the process of the server holds copies of
 * all sockets; the ends must be seen, and the port be free, all the same. */
TEST(a_forked_child_does_not_keep_anything_alive)
{
    struct hvd_server *s = server_up_at_home(server_options(1));
    struct hvd_server_options opt = server_options(1);
    struct worker w = worker_of(hvd_server_port(s), 0, 1), again = w;
    pid_t child;

    opt.port = hvd_server_port(s);
    CHECK_OK(worker_join(&w), w.err);
    child = fork();
    if (child == 0)
        for (;;)
            pause();
    worker_end(&w);
    await_status(s, "rank 0 host node0 pid 1000 gone");
    CHECK_OK(worker_join(&again), again.err);
    hvd_server_free(s);
    CHECK_EQ(await_push(&again), HVD_PEER_LOST);
    worker_end(&again);
    s = server_up(opt);
    w = worker_of(opt.port, 0, 1);
    CHECK_OK(worker_join(&w), w.err);
    worker_end(&w);
    hvd_server_free(s);
    kill(child, SIGKILL);
    CHECK_EQ(waitpid(child, NULL, 0), child);
}

static int count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

TEST(nothing_is_left_behind)
{
    int before = count_fds();

    for (int i = 0; i < 3; i++) {
        struct hvd_server *s = server_up(server_options(1));
        struct worker w = worker_of(hvd_server_port(s), 0, 1);

        CHECK_OK(worker_join(&w), w.err);
        worker_end(&w);
        hvd_server_free(s);
    }
    CHECK_EQ(count_fds(), before);
}
