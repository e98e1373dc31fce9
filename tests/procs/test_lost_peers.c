/*
 * test_lost_peers.c: processes are killed, stopped or leave; every survivor knows, in
 * time and in the same words.  One layout for each kind of pair: shared memory, TCP, both.
 *
 * What is promised in milliseconds must be kept in one round of several: on a machine that
 * is busy with other tests a round may take longer, a defect makes all of them take longer.
 * No round may take as long as it takes until the next beat (6 s), which would help whoever
 * has missed the news.
 */
#include "base/clock.h"
#include "check.h"
#include "support/mesh_harness.h"
#include "transport/transport_int.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { VICTIM = 1, AT = 0, TEXT = 1 };  /* words: when it happened, hash of the verdict */
enum { ROUNDS = 20, SOON_US = 100000, NEVER_US = 5000000 };

static const int hosts[] = {1, 4, 2};   /* of the layouts, all of four ranks */
enum { LAYOUTS = 3 };

/* The longest that a survivor of this round took; shared with the ranks. */
static _Atomic uint64_t *longest_us;

static void note_time(uint64_t us)
{
    uint64_t seen = atomic_load(longest_us);

    while (seen < us && !atomic_compare_exchange_weak(longest_us, &seen, us))
        ;
}

static void one_round(const struct harness *h, harness_fn body, int victims_end)
{
    int statuses[HARNESS_RANKS];

    atomic_store(longest_us, 0);
    harness_run_processes(h, body, statuses);
    for (int r = 0; r < h->size; r++)
        if (r == VICTIM && victims_end < 0
                ? !WIFSIGNALED(statuses[r])
                : statuses[r] != (r == VICTIM ? victims_end << 8 : 0))
            check_fail(__FILE__, __LINE__, "%d hosts, rank %d: status %x", h->hosts, r,
                       (unsigned)statuses[r]);
}

/* victims_end: the exit code of the victim; -1: a signal. */
static void until_in_time(int host_count, double heartbeat_s, harness_fn body,
                          uint64_t limit_us, int victims_end)
{
    struct harness h = {.size = 4, .hosts = host_count, .heartbeat_s = heartbeat_s};
    uint64_t best_us = UINT64_MAX;

    longest_us = mmap(NULL, sizeof *longest_us, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(longest_us != MAP_FAILED);
    for (int i = 0; i < ROUNDS && best_us > limit_us; i++) {
        uint64_t us;

        one_round(&h, body, victims_end);
        us = atomic_load(longest_us);
        best_us = us < best_us ? us : best_us;
    }
    munmap((void *)longest_us, sizeof *longest_us);
    if (best_us > limit_us)
        check_fail(__FILE__, __LINE__, "%d hosts: known after %llu us at best", host_count,
                   (unsigned long long)best_us);
}

static void known_soon(harness_fn body, int victims_end)
{
    for (int i = 0; i < LAYOUTS; i++)
        until_in_time(hosts[i], 60, body, SOON_US, victims_end);
}

static uint64_t text_code(const char *text)
{
    uint64_t h = 14695981039346656037u;

    while (*text != 0)
        h = (h ^ (unsigned char)*text++) * 1099511628211u;
    return h;
}

/* All ranks of a run see one text: the first that comes writes it down. */
static void check_same_text(struct harness_rank *r, const char *text)
{
    uint64_t none = 0, code = text_code(text);

    if (!atomic_compare_exchange_strong(harness_word(r, TEXT), &none, code) && none != code)
        check_fail(__FILE__, __LINE__, "rank %d has another verdict: %s", r->rank, text);
}

static void check_time(struct harness_rank *r, uint64_t now)
{
    uint64_t us = now - atomic_load(harness_word(r, AT));

    note_time(us);
    if (us > NEVER_US)
        check_fail(__FILE__, __LINE__, "rank %d: known after %llu us", r->rank,
                   (unsigned long long)us);
}

/* A transfer that can never end, and the verdict that ends it. */
static void survive(struct harness_rank *r, const char *cause)
{
    struct mesh_xfer x;
    char byte;
    const struct hvd_error *verdict;
    uint64_t now;

    mesh_recv(r->mesh, (r->rank + 2) % r->size == VICTIM ? 0 : (r->rank + 2) % r->size, 1,
              &byte, 1, &x);
    CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_PEER_LOST);
    now = clock_us();
    verdict = mesh_verdict(r->mesh);
    CHECK(verdict != NULL);
    CHECK_EQ(verdict->rank, VICTIM);
    CHECK_HAS(verdict->text, cause);
    CHECK_HAS(verdict->text, "rank 1 on host-");
    check_same_text(r, verdict->text);
    check_time(r, now);
    r->mesh = (mesh_close(r->mesh, false), NULL);
}

static void mark(struct harness_rank *r)
{
    atomic_store(harness_word(r, AT), clock_us());
}

static void killed(struct harness_rank *r)
{
    harness_barrier(r);
    if (r->rank == VICTIM) {
        mark(r);
        kill(getpid(), SIGKILL);
    }
    survive(r, "process ended (killed?)");
}

TEST(a_killed_rank_is_known_within_100_ms, .limit_s = 60)
{
    known_soon(killed, -1);
}

/* The child holds copies of everything its parent had when it was forked. */
static void killed_with_child(struct harness_rank *r)
{
    harness_barrier(r);
    if (r->rank == VICTIM) {
        if (fork() == 0) {
            CHECK_EQ((int)mesh_verdict(r->mesh)->status, HVD_FORKED);
            CHECK_EQ((int)mesh_post(r->mesh, 0, "x", 1, &r->err), HVD_FORKED);
            for (;;)
                pause();                /* ends with the process group of the test */
        }
        mark(r);
        kill(getpid(), SIGKILL);
    }
    survive(r, "process ended (killed?)");
}

TEST(a_killed_rank_with_a_live_child_is_known_within_100_ms, .limit_s = 60)
{
    known_soon(killed_with_child, -1);
}

static void stopped(struct harness_rank *r)
{
    harness_barrier(r);
    if (r->rank == VICTIM) {
        const struct hvd_error *verdict;

        mark(r);
        kill(getpid(), SIGSTOP);
        harness_wait_verdict(r->mesh);          /* it learns that it was given up */
        verdict = mesh_verdict(r->mesh);
        CHECK_EQ(verdict->rank, VICTIM);
        CHECK_HAS(verdict->text, "no heartbeat for 1.");
        _exit(17);
    }
    survive(r, "s, which HOROVOD_HEARTBEAT_SECONDS sets (stopped");
    if (r->rank == 0)
        kill(harness_pid(r, VICTIM), SIGCONT);
}

/* T and half a second: a rank that is late itself counts anew, as long as it is late. */
static void stop_in(int layout)
{
    until_in_time(hosts[layout], 1, stopped, 1500000, 17);
}

TEST(a_stopped_rank_is_known_and_learns_it, .limit_s = 120)
{
    check_side_by_side(stop_in, LAYOUTS);
}

/* A pause of 0.6 T is slow, not dead; more than a second is left for a busy machine. */
static void paused(struct harness_rank *r)
{
    struct mesh_xfer x;
    char byte = 0;

    harness_barrier(r);
    if (r->rank == VICTIM) {
        if (fork() == 0) {
            struct timespec t = {1, 800000000};

            nanosleep(&t, NULL);
            kill(getppid(), SIGCONT);
            _exit(0);
        }
        kill(getpid(), SIGSTOP);
        for (int p = 0; p < r->size; p++)
            if (p != r->rank) {
                mesh_send(r->mesh, p, 5, "k", 1, &x);
                CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
            }
    } else {
        mesh_recv(r->mesh, VICTIM, 5, &byte, 1, &x);
        CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
        CHECK_EQ(byte, 'k');
    }
    harness_barrier(r);
    CHECK(mesh_verdict(r->mesh) == NULL);
}

static void pause_in(int layout)
{
    harness_run_processes(&(struct harness){.size = 4, .hosts = hosts[layout],
                                            .heartbeat_s = 3}, paused, NULL);
}

TEST(a_short_pause_is_no_death, .limit_s = 60)
{
    check_side_by_side(pause_in, LAYOUTS);
}

static void exits(struct harness_rank *r)
{
    harness_barrier(r);
    if (r->rank == VICTIM) {
        mark(r);
        _exit(3);
    }
    survive(r, "process ended");
}

TEST(a_rank_that_exits_without_goodbye_is_lost, .limit_s = 60)
{
    known_soon(exits, 3);
}

/* The process lives, but closes the mesh as after a failure. */
static void closes(struct harness_rank *r)
{
    harness_barrier(r);
    if (r->rank == VICTIM) {
        mark(r);
        r->mesh = (mesh_close(r->mesh, false), NULL);
        while (atomic_load(harness_word(r, 2)) < (uint64_t)r->size - 1)
            sched_yield();
        return;
    }
    survive(r, "left without a goodbye");
    atomic_fetch_add(harness_word(r, 2), 1);
}

TEST(a_rank_that_closes_without_goodbye_is_lost, .limit_s = 60)
{
    known_soon(closes, 0);
}

/* One data connection is cut under a peer that is well otherwise. */
static void cut(struct harness_rank *r)
{
    struct mesh_xfer x;
    char byte = 0;

    if (r->rank == 0) {
        mesh_send(r->mesh, VICTIM, 7, &byte, 1, &x);
        CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
    }
    harness_barrier(r);
    if (r->rank == 0) {
        mark(r);
        shutdown(tcp_fd(&r->mesh->links[VICTIM]), SHUT_RDWR);
    }
    harness_wait_verdict(r->mesh);
    CHECK_EQ((int)mesh_verdict(r->mesh)->status, HVD_PEER_LOST);
    CHECK_HAS(mesh_verdict(r->mesh)->text, "closed by the other side");
    CHECK(clock_us() - atomic_load(harness_word(r, AT)) < NEVER_US);
    r->mesh = (mesh_close(r->mesh, false), NULL);
}

TEST(a_cut_connection_is_known_to_all)
{
    harness_run_processes(&(struct harness){.size = 4, .hosts = 4, .heartbeat_s = 60}, cut,
                          NULL);
}

static void leaves(struct harness_rank *r)
{
    struct mesh_xfer x;
    char byte;

    harness_barrier(r);
    if (r->rank == VICTIM)
        return;                         /* the harness closes with a goodbye */
    mesh_recv(r->mesh, VICTIM, 9, &byte, 1, &x);
    CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_SHUTDOWN);
    CHECK(mesh_has_left(r->mesh, VICTIM));
    CHECK_EQ((int)mesh_post(r->mesh, VICTIM, "x", 1, &r->err), HVD_SHUTDOWN);
    /* The others go on. */
    mesh_send(r->mesh, r->rank == 0 ? 2 : 0, 10, "a", r->rank == 3 ? 0 : 1, &x);
    if (r->rank == 0) {
        struct mesh_xfer from[2];
        char bytes[2];

        mesh_recv(r->mesh, 2, 10, &bytes[0], 1, &from[0]);
        mesh_recv(r->mesh, 3, 10, &bytes[1], 0, &from[1]);
        CHECK_EQ((int)harness_wait(r->mesh, &from[0]), HVD_OK);
        CHECK_EQ((int)harness_wait(r->mesh, &from[1]), HVD_OK);
    } else if (r->rank == 2) {
        struct mesh_xfer from;

        mesh_recv(r->mesh, 0, 10, &byte, 1, &from);
        CHECK_EQ((int)harness_wait(r->mesh, &from), HVD_OK);
    }
    CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
    CHECK(mesh_verdict(r->mesh) == NULL);
}

TEST(a_rank_that_says_goodbye_is_not_lost)
{
    for (int i = 0; i < LAYOUTS; i++)
        harness_run_processes(&(struct harness){.size = 4, .hosts = hosts[i]}, leaves,
                              NULL);
}

static void fails(struct harness_rank *r)
{
    harness_barrier(r);
    if (r->rank == VICTIM) {
        struct hvd_error why;

        error_set(&why, HVD_ABORTED, VICTIM, "rank 1 on host-x: enough of it");
        mark(r);
        mesh_fail(r->mesh, &why);
    }
    harness_wait_verdict(r->mesh);
    CHECK_EQ((int)mesh_verdict(r->mesh)->status, HVD_ABORTED);
    CHECK_HAS(mesh_verdict(r->mesh)->text, "enough of it");
    check_time(r, clock_us());
    r->mesh = (mesh_close(r->mesh, false), NULL);
}

TEST(a_failure_is_told_to_all, .limit_s = 60)
{
    known_soon(fails, 0);
}

/* ---- Many hosts: who is not connected to the victim hears of it -------------------- */

static void hears_of_the_death(struct harness_rank *r)
{
    struct mesh_xfer x;
    const struct hvd_error *verdict;
    char byte;

    harness_barrier(r);
    if (r->rank == VICTIM) {
        mark(r);
        kill(getpid(), SIGKILL);
    }
    mesh_recv(r->mesh, (r->rank + r->size / 2) % r->size, 1, &byte, 1, &x);
    CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_PEER_LOST);
    check_time(r, clock_us());
    verdict = mesh_verdict(r->mesh);
    CHECK_EQ(verdict->rank, VICTIM);
    CHECK_HAS(verdict->text, "process ended (killed?)");
    check_same_text(r, verdict->text);
    r->mesh = (mesh_close(r->mesh, false), NULL);
}

/* Two of each host, and one: by pidfd and alarm, and by the end of a connection. */
TEST(a_killed_rank_is_known_on_many_hosts, .limit_s = 120)
{
    static const struct harness many[] = {{.size = 48, .hosts = 24, .heartbeat_s = 60},
                                          {.size = 24, .hosts = 24, .heartbeat_s = 60}};

    longest_us = mmap(NULL, sizeof *longest_us, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(longest_us != MAP_FAILED);
    one_round(&many[0], hears_of_the_death, -1);
    one_round(&many[1], hears_of_the_death, -1);
    munmap((void *)longest_us, sizeof *longest_us);
}

/* A rank leaves in order; everybody hears of it, and nobody takes it for dead. */
static void hears_of_the_departure(struct harness_rank *r)
{
    struct mesh_xfer x;
    char byte;

    harness_barrier(r);
    if (r->rank == VICTIM)
        return;
    mesh_recv(r->mesh, VICTIM, 9, &byte, 1, &x);
    CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_SHUTDOWN);
    CHECK(mesh_has_left(r->mesh, VICTIM));
    CHECK(mesh_verdict(r->mesh) == NULL);
    atomic_fetch_add(harness_word(r, 2), 1);
    while (atomic_load(harness_word(r, 2)) < (uint64_t)r->size - 1) {
        CHECK(mesh_verdict(r->mesh) == NULL);
        mesh_progress(r->mesh);
        sched_yield();
    }
}

TEST(a_departure_is_known_on_many_hosts, .limit_s = 60)
{
    harness_run_processes(&(struct harness){.size = 40, .hosts = 20, .heartbeat_s = 2},
                          hears_of_the_departure, NULL);
}

/* ---- Forks ------------------------------------------------------------------------- */

static void *fork_often(void *context)
{
    for (int i = 0; i < 200; i++) {
        pid_t pid = fork();

        if (pid == 0)
            _exit(0);
        waitpid(pid, NULL, 0);
    }
    atomic_store((_Atomic uint64_t *)context, 1);
    return NULL;
}

/* Transfers go on while another thread forks all the time. */
static void exchange_and_fork(struct harness_rank *r)
{
    struct mesh_xfer x, y;
    _Atomic uint64_t done = 0;
    char in[3000], out[3000] = {0};
    uint64_t turn = 0;
    pthread_t id;

    CHECK_EQ(pthread_create(&id, NULL, fork_often, (void *)&done), 0);
    do {
        in[2999] = 1;
        out[0] = (char)(atomic_load(&done) != 0);
        mesh_recv(r->mesh, 1 - r->rank, turn, in, sizeof in, &x);
        mesh_send(r->mesh, 1 - r->rank, turn++, out, sizeof out, &y);
        CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
        CHECK_EQ((int)harness_wait(r->mesh, &y), HVD_OK);
        CHECK_EQ(in[2999], 0);
    } while (!(in[0] && out[0]));
    pthread_join(id, NULL);
    harness_barrier(r);
    CHECK(mesh_verdict(r->mesh) == NULL);
}

TEST(forks_disturb_nobody)
{
    harness_run_processes(&(struct harness){.size = 2}, exchange_and_fork, NULL);
    harness_run_processes(&(struct harness){.size = 2, .hosts = 2}, exchange_and_fork, NULL);
}

/* ---- Residue --------------------------------------------------------------------- */

static int count_left(const char *directory)
{
    DIR *d = opendir(directory);
    int count = 0;

    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        count += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (d != NULL)
        closedir(d);
    return count;
}

static void killed_while_meeting(struct harness_rank *r)
{
    if (r->rank == VICTIM)
        return;
    CHECK_EQ((int)r->opened, HVD_PEER_LOST);
    CHECK(r->err.rank == VICTIM || (r->rank == 2 && r->err.rank == 0));
}

/* The one who holds the meeting ends in it and cannot clean up: there is nothing to. */
static void die(struct harness_rank *r)
{
    kill(getpid(), SIGKILL);
}

TEST(nothing_is_left_in_the_file_system)
{
    char directory[] = "/tmp/hvd_test_XXXXXX";
    struct harness one = {.size = 2, .fault = "meet.accept kill", .timeout_s = 1,
                          .may_fail = true};
    struct harness h = {.size = 3, .may_fail = true, .timeout_s = 20,
                        .fault = "meet.connect rank=1 kill"};
    int statuses[HARNESS_RANKS];

    CHECK(mkdtemp(directory) != NULL);
    setenv("XDG_RUNTIME_DIR", directory, 1);
    setenv("TMPDIR", directory, 1);
    harness_run_processes(&(struct harness){.size = 3}, (harness_fn)harness_barrier, NULL);
    CHECK_EQ(count_left(directory), 0);
    harness_run_processes(&one, die, statuses);
    CHECK(WIFSIGNALED(statuses[0]));
    CHECK_EQ(count_left(directory), 0);
    harness_run_processes(&h, killed_while_meeting, statuses);
    CHECK(WIFSIGNALED(statuses[VICTIM]));
    CHECK_EQ(statuses[0], 0);
    CHECK_EQ(statuses[2], 0);
    CHECK_EQ(count_left(directory), 0);
    CHECK_EQ(rmdir(directory), 0);
}
