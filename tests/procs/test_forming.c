/*
 * test_forming.c: a mesh forms, or every rank says why not, in time: no memory, no
 * descriptors, strangers, wrong keys, missing ranks, and each system call failing once.
 */
#include "base/clock.h"
#include "check.h"
#include "support/mesh_harness.h"
#include "transport/transport_int.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static void swap_bytes(struct harness_rank *r)
{
    struct mesh_xfer x, y;
    int next = (r->rank + 1) % r->size, previous = (r->rank + r->size - 1) % r->size;
    char in = 0, out = (char)('a' + r->rank);

    mesh_recv(r->mesh, previous, 1, &in, 1, &x);
    mesh_send(r->mesh, next, 1, &out, 1, &y);
    CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
    CHECK_EQ((int)harness_wait(r->mesh, &y), HVD_OK);
    CHECK_EQ(in, (char)('a' + previous));
}

/* ---- No shared memory: TCP, for all of the host ---------------------------------- */

static void without_memory(struct harness_rank *r)
{
    CHECK(mesh_board(r->mesh, NULL) == NULL);
    CHECK_EQ(mesh_topology(r->mesh)->local_size, r->size);
    swap_bytes(r);
    harness_barrier(r);
}

TEST(a_full_memory_means_tcp_for_all)
{
    static const char *const faults[] = {
        "shm.create rank=0 nospc", "shm.reserve rank=0 nospc", "shm.map rank=0 nomem",
        "shm.map rank=2 nomem", "shm.map rank=1 after=2 nomem"};

    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        harness_run_processes(&(struct harness){.size = 3, .fault = faults[i]},
                              without_memory, NULL);
}

static void limit_files(struct harness_rank *r)
{
    struct rlimit limit = {64 << 10, 64 << 10};

    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

TEST(a_limit_on_file_sizes_means_tcp)
{
    harness_run_processes(&(struct harness){.size = 2, .prepare = limit_files},
                          without_memory, NULL);
}

static void one_says_no(struct harness_rank *r)
{
    r->conf.shm_disable = r->rank == 1;
}

TEST(one_rank_without_shared_memory_decides_for_its_host)
{
    harness_run_processes(&(struct harness){.size = 3, .prepare = one_says_no},
                          without_memory, NULL);
}

static void reserve_fails(struct harness_rank *r)
{
    if (r->rank == 0) {
        CHECK_EQ((int)mesh_board_reserve(r->mesh, 0, 4096, &r->err), HVD_NOMEM);
        CHECK_HAS(r->err.text, "No space left on device");
    }
    CHECK_OK(mesh_board_reserve(r->mesh, 0, 4096, &r->err), r->err);
    CHECK_EQ((int)mesh_board_reserve(r->mesh, 1 << 20, 1, &r->err), HVD_INVALID);
    swap_bytes(r);
}

TEST(a_full_memory_later_is_an_error_of_a_call)
{
    struct harness h = {.size = 2, .fault = "shm.reserve rank=0 after=1 times=1 nospc"};

    harness_run_processes(&h, reserve_fails, NULL);
}

/* ---- Who does not belong here ---------------------------------------------------- */

static void other_key(struct harness_rank *r)
{
    r->key[0] ^= (uint8_t)(r->rank == 1);
}

static void refused(struct harness_rank *r)
{
    CHECK(r->opened == HVD_TIMEOUT || r->opened == HVD_AUTH || r->opened == HVD_PEER_LOST);
    CHECK(r->err.rank == 1 - r->rank);
}

TEST(another_key_is_refused)
{
    struct harness h = {.size = 2, .hosts = 2, .prepare = other_key, .may_fail = true,
                        .timeout_s = 1};

    harness_run_processes(&h, refused, NULL);
    h.hosts = 1;
    harness_run_processes(&h, refused, NULL);
}

static int dial(const struct table_entry *e)
{
    struct sockaddr_storage to;
    int fd = -1;

    CHECK_EQ(addresses_resolve(e->addrs[0], e->port, &to, 1), 1);
    fd = socket(to.ss_family, SOCK_STREAM, 0);
    CHECK_EQ(connect(fd, (struct sockaddr *)&to, address_bytes(&to)), 0);
    return fd;
}

/* Strangers fill the queue of rank 0 before rank 1 dials: silent ones, and others with
 * nonsense of every length. */
static void pester(struct harness_rank *r)
{
    char noise[600];

    if (r->rank != 1)
        return;
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (char)(i * 31);
    while (harness_entry(r, 0)->port == 0)
        sched_yield();
    for (int i = 0; i < 200; i++) {
        int fd = dial(harness_entry(r, 0));

        if (i % 2 == 0)
            CHECK(send(fd, noise, (size_t)i * 3, MSG_NOSIGNAL) >= 0);
    }
}

static void swap_and_wait(struct harness_rank *r)
{
    swap_bytes(r);
    harness_barrier(r);
}

TEST(strangers_do_not_keep_a_rank_out)
{
    harness_run_processes(&(struct harness){.size = 2, .hosts = 2, .prepare = pester},
                          swap_and_wait, NULL);
}

static bool is_dropped(int fd)
{
    char byte;
    ssize_t n = recv(fd, &byte, 1, 0);

    return n == 0 || (n < 0 && errno == ECONNRESET);
}

/* Everybody on the machine can see the name of a host's meeting. */
static void send_another_user(struct harness_rank *r)
{
    const char *name = harness_entry(r, 0)->local_path;
    struct sockaddr_un at;
    socklen_t n;
    pid_t pid;
    int fd;

    if (r->rank != 1)
        return;
    while (*(volatile const char *)name == 0)
        sched_yield();
    n = local_address(name, &at);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pid = fork();
    if (pid == 0) {
        CHECK_EQ(setuid(65534), 0);
        CHECK_EQ(connect(fd, (struct sockaddr *)&at, n), 0);
        atomic_store(harness_word(r, 0), 1);
        _exit(is_dropped(fd) ? 0 : 1);
    }
    close(fd);
    while (atomic_load(harness_word(r, 0)) == 0)
        sched_yield();
    atomic_store(harness_word(r, 1), (uint64_t)pid);
}

static void was_dropped(struct harness_rank *r)
{
    int status;

    CHECK(mesh_board(r->mesh, NULL) != NULL);
    swap_and_wait(r);
    if (r->rank != 1)
        return;
    CHECK(waitpid((pid_t)atomic_load(harness_word(r, 1)), &status, 0) > 0);
    CHECK_EQ(status, 0);
}

TEST(another_user_does_not_come_to_the_meeting)
{
    if (geteuid() != 0)
        check_skip("only root can become another user");
    harness_run_processes(&(struct harness){.size = 2, .prepare = send_another_user},
                          was_dropped, NULL);
}

/* ---- Strangers at an address that a peer offers ------------------------------------ */

/* Answers every HELLO as another version would, without a proof. */
static void *claim_a_version(void *context)
{
    int listener = *(int *)context, fd;
    uint8_t hello[HS_HELLO], reply[HS_REPLY] = {'H', 'v', 'd', 'R', 9};

    while ((fd = accept(listener, NULL, NULL)) >= 0) {
        if (recv(fd, hello, sizeof hello, MSG_WAITALL) == sizeof hello)
            CHECK(send(fd, reply, sizeof reply, MSG_NOSIGNAL) == sizeof reply);
        close(fd);
    }
    return NULL;
}

/* At 127.0.0.2, which then is the first address of rank 0, or its only one. */
static void sit_at_an_address(struct harness_rank *r, bool alone)
{
    struct table_entry *e = (struct table_entry *)harness_entry(r, 0);
    struct sockaddr_in at = {.sin_family = AF_INET};
    static int listener;
    pthread_t thread;

    if (r->rank != 1)
        return;
    while (*(volatile uint16_t *)&e->port == 0)
        sched_yield();
    at.sin_port = htons(e->port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    CHECK_EQ(listen(listener, 64), 0);
    CHECK_EQ(pthread_create(&thread, NULL, claim_a_version, &listener), 0);
    pthread_detach(thread);
    memcpy(e->addrs[1], e->addrs[0], TABLE_ADDR_BYTES);
    strcpy(e->addrs[0], "127.0.0.2");
    e->addr_count = alone ? 1 : 2;
}

static void sit_beside(struct harness_rank *r)
{
    sit_at_an_address(r, false);
}

static void sit_alone(struct harness_rank *r)
{
    sit_at_an_address(r, true);
}

static void names_the_hint(struct harness_rank *r)
{
    if (r->rank != 1)
        return;
    CHECK_EQ((int)r->opened, HVD_AUTH);
    CHECK_HAS(r->err.text, "rank 0 on host-0");
    CHECK_HAS(r->err.text, "127.0.0.2");
    CHECK_HAS(r->err.text, "protocol 9");
    CHECK_HAS(r->err.text, "within the time limit");
}

TEST(an_unproved_version_at_one_address_ends_nothing)
{
    harness_run_processes(&(struct harness){.size = 2, .hosts = 2, .prepare = sit_beside},
                          swap_and_wait, NULL);
    harness_run_processes(&(struct harness){.size = 2, .hosts = 2, .prepare = sit_alone,
                                            .may_fail = true, .timeout_s = 1},
                          names_the_hint, NULL);
}

static void stays_away(struct harness_rank *r)
{
    if (r->rank == 2) {
        while (harness_entry(r, 0)->port == 0 || harness_entry(r, 1)->port == 0)
            sched_yield();
        /* mesh_listen fails, the barrier passes. */
        CHECK_OK(config_set(&r->conf, config_find("GLOO_IFACE"), "none0", CONFIG_OPTION,
                            &r->err), r->err);
    }
}

/* ---- Replays ----------------------------------------------------------------------- */

/* Rank 2 has no mesh, but the key: its HELLO is answered once, and it keeps its place
 * while more strangers come than rank 0 has room for. */
static void knocks_twice(struct harness_rank *r)
{
    struct hs_identity id = {HS_DATA, 2, 0, 1, "harness"};
    uint8_t hello[HS_HELLO], reply[HS_REPLY];
    struct hs_dialer d;
    int strangers[300], first, again;

    if (r->rank != 2)
        return;
    CHECK_OK(hs_dial(&d, r->key, &id, hello, &r->err), r->err);
    first = dial(harness_entry(r, 0));
    CHECK(send(first, hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello);
    CHECK(recv(first, reply, sizeof reply, MSG_WAITALL) == sizeof reply);
    again = dial(harness_entry(r, 0));
    CHECK(send(again, hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello);
    CHECK(is_dropped(again));
    for (int i = 0; i < 300; i++)
        strangers[i] = dial(harness_entry(r, 0));
    CHECK(is_dropped(strangers[0]));
    CHECK(recv(first, reply, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
    kill(harness_entry(r, 0)->pid, SIGKILL);
    kill(harness_entry(r, 1)->pid, SIGKILL);
}

TEST(a_hello_is_answered_once_and_keeps_its_place)
{
    int statuses[3];

    harness_run_processes(&(struct harness){.size = 3, .hosts = 3, .prepare = stays_away,
                                            .may_fail = true},
                          knocks_twice, statuses);
    CHECK_EQ(statuses[2], 0);
}

/* Ranks dial as long as the mesh lives; a stranger gets nothing, and was never asked in by
 * a wildcard address.  Where all share memory nobody listens. */
static void knocks_late(struct harness_rank *r)
{
    struct sockaddr_storage to;
    char noise[HS_HELLO] = "HvdH";
    int fd;

    harness_barrier(r);
    CHECK_EQ(addresses_resolve(harness_entry(r, 0)->addrs[0], harness_entry(r, 0)->port,
                               &to, 1), 1);
    fd = socket(to.ss_family, SOCK_STREAM, 0);
    if (mesh_has_sockets(r->mesh)) {
        CHECK_EQ(connect(fd, (struct sockaddr *)&to, address_bytes(&to)), 0);
        CHECK(send(fd, noise, sizeof noise, MSG_NOSIGNAL) == sizeof noise);
        CHECK(is_dropped(fd));
    } else {
        CHECK(connect(fd, (struct sockaddr *)&to, address_bytes(&to)) != 0);
        CHECK_EQ(errno, ECONNREFUSED);
    }
    close(fd);
    for (int i = 0; i < harness_entry(r, 0)->addr_count; i++) {
        CHECK(strcmp(harness_entry(r, 0)->addrs[i], "0.0.0.0") != 0);
        CHECK(strcmp(harness_entry(r, 0)->addrs[i], "::") != 0);
    }
    swap_and_wait(r);
}

TEST(a_stranger_gets_nothing_from_a_complete_mesh)
{
    harness_run_processes(&(struct harness){.size = 2, .hosts = 2}, knocks_late, NULL);
    harness_run_processes(&(struct harness){.size = 2}, knocks_late, NULL);
}

/* ---- Who does not come ----------------------------------------------------------- */

static void named(struct harness_rank *r)
{
    if (r->rank == 2)
        return;
    CHECK_EQ((int)r->opened, HVD_TIMEOUT);
    CHECK_EQ(r->err.rank, 2);
    CHECK_HAS(r->err.text, "rank 2 on host-2");
}

TEST(a_missing_rank_is_named)
{
    harness_run_processes(&(struct harness){.size = 3, .hosts = 3, .prepare = stays_away,
                                            .may_fail = true, .timeout_s = 3},
                          named, NULL);
}

/* ---- Everything fails once ------------------------------------------------------- */

static void few_descriptors(struct harness_rank *r)
{
    struct rlimit limit = {12, 12};

    if (r->rank == 1)
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void any_end(struct harness_rank *r)
{
    struct mesh_xfer x, y;
    char in = 0;

    if (r->opened != HVD_OK) {
        CHECK(r->err.text[0] != 0);
        return;
    }
    mesh_recv(r->mesh, 1 - r->rank, 1, &in, 1, &x);
    mesh_send(r->mesh, 1 - r->rank, 1, "x", 1, &y);
    harness_wait(r->mesh, &x);
    harness_wait(r->mesh, &y);
}

TEST(too_few_descriptors_are_an_error)
{
    struct harness h = {.size = 2, .prepare = few_descriptors, .may_fail = true,
                        .timeout_s = 1};

    harness_run_processes(&h, any_end, NULL);
    h.hosts = 2;
    harness_run_processes(&h, any_end, NULL);
}

static void low_soft_limit(struct harness_rank *r)
{
    struct rlimit limit = {24, 512};

    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void has_raised_it(struct harness_rank *r)
{
    struct rlimit limit;

    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    CHECK(limit.rlim_cur > 64 && limit.rlim_cur <= 512);
    swap_and_wait(r);
}

static void low_hard_limit(struct harness_rank *r)
{
    struct rlimit limit = {16, 16};

    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void names_the_limit(struct harness_rank *r)
{
    CHECK_EQ((int)r->opened, HVD_SYS);
    CHECK_HAS(r->err.text, "may open 16 descriptors");
}

TEST(the_limit_of_descriptors_is_raised_or_named)
{
    struct harness h = {.size = 2, .hosts = 2, .prepare = low_soft_limit};

    harness_run_processes(&h, has_raised_it, NULL);
    h.prepare = low_hard_limit;
    h.may_fail = true;
    harness_run_processes(&h, names_the_limit, NULL);
}

TEST(each_point_fails_once_and_nothing_hangs, .limit_s = 300)
{
    static const char *const points[] = {
        "tcp.listen", "tcp.connect", "tcp.accept", "tcp.send", "tcp.recv", "shm.create",
        "shm.map", "shm.reserve", "arena.create", "meet.connect", "meet.accept",
        "meet.send", "meet.receive", "watch.start", "watch.receive"};

    for (size_t i = 0; i < sizeof points / sizeof points[0]; i++)
        for (int k = 0; k < 8; k++) {
            char fault[64];
            struct harness h = {.size = 2, .hosts = 1 + k % 2, .may_fail = true,
                                .timeout_s = 0.5, .heartbeat_s = 0.5, .fault = fault};

            snprintf(fault, sizeof fault, "%s rank=%d after=%d times=1 mfile", points[i],
                     k / 2 % 2, k / 4 * 2);
            harness_run_processes(&h, any_end, NULL);
        }
}

/* ---- Again and again ------------------------------------------------------------- */

static int count_lines(const char *path)
{
    FILE *f = fopen(path, "r");
    int count = 0, c;

    CHECK(f != NULL);
    while ((c = fgetc(f)) != EOF)
        count += c == '\n';
    fclose(f);
    return count;
}

static int count_entries(const char *path)
{
    DIR *d = opendir(path);
    int count = 0;

    CHECK(d != NULL);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        count += e->d_name[0] != '.';
    closedir(d);
    return count;
}

/* A thread that was joined may still be on its way out of the list. */
static void await_threads(int most)
{
    while (count_entries("/proc/self/task") > most)
        sched_yield();
}

static int count_descriptors(void)
{
    int count = 0;

    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

TEST(a_thousand_meshes_leave_nothing_behind, .limit_s = 300)
{
    int descriptors = 0, maps = 0, threads = 0;

    for (int i = 0; i < 500; i++) {
        harness_run(&(struct harness){.size = 2}, swap_bytes);
        harness_run(&(struct harness){.size = 2, .hosts = 2}, swap_bytes);
        if (i == 100) {
            descriptors = count_descriptors();
            maps = count_lines("/proc/self/maps");
            threads = count_entries("/proc/self/task");     /* a sanitizer has its own */
        }
    }
    CHECK_EQ(count_descriptors(), descriptors);
    /* Heaps of threads come and go; so do more things of a sanitizer. */
    CHECK(CHECK_SANITIZED || count_lines("/proc/self/maps") <= maps + 8);
    await_threads(threads);
}
