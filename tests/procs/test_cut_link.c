/*
 * test_cut_link.c: two hosts (network namespaces, joined by a veth pair) lose each other.
 * The namespaces have no names: they vanish with the processes that live in them.
 * T + 0.5 s is promised, and must be kept in one round of several: a rank that is late
 * itself counts anew, so that a busy machine may take longer.
 */
#include "base/clock.h"
#include "check.h"
#include "support/mesh_harness.h"

#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { READY = 0, JOINED = 1, AT = 2, TEXT = 3 };       /* words; TEXT + host */
enum { ROUNDS = 8, PROMISED_US = 1500000 };

static _Atomic int *late;               /* ranks of this round, shared with them */

static void run(const char *format, ...)
{
    char command[512];
    va_list args;

    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    if (system(command) != 0)
        check_fail(__FILE__, __LINE__, "%s", command);
}

static void wait_for(struct harness_rank *r, int word, uint64_t value)
{
    while (atomic_load(harness_word(r, word)) < value)
        sched_yield();
}

static void enter(uint64_t pid)
{
    char path[64];
    int fd;

    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_EQ(setns(fd, CLONE_NEWNET), 0);
    close(fd);
}

/* Ranks 0 and 1 make the namespaces of their hosts, the others go into them. */
static void build_hosts(struct harness_rank *r)
{
    int host = r->rank % 2;

    if (r->rank < 2) {
        CHECK_EQ(unshare(CLONE_NEWNET), 0);
        atomic_store(harness_word(r, 8 + host), (uint64_t)getpid());
        atomic_fetch_add(harness_word(r, READY), 1);
    }
    wait_for(r, READY, 2);
    if (r->rank == 0)
        run("ip link add veth0 type veth peer name veth1 netns %d",
            (int)atomic_load(harness_word(r, 9)));
    if (r->rank == 0)
        atomic_store(harness_word(r, JOINED), 1);
    wait_for(r, JOINED, 1);
    if (r->rank < 2) {
        run("ip addr add 10.99.0.%d/24 dev veth%d && ip link set veth%d up", 1 + host, host,
            host);
        atomic_fetch_add(harness_word(r, JOINED), 1);
    }
    wait_for(r, JOINED, 3);
    if (r->rank >= 2)
        enter(atomic_load(harness_word(r, 8 + host)));
}

static uint64_t text_code(const char *text)
{
    uint64_t h = 14695981039346656037u;

    while (*text != 0)
        h = (h ^ (unsigned char)*text++) * 1099511628211u;
    return h;
}

/* Everybody knows; on one host in the same words. */
static void lose_each_other(struct harness_rank *r, const char *command)
{
    const struct hvd_error *verdict;
    uint64_t none = 0, code;
    int host = r->rank % 2;

    harness_barrier(r);
    if (r->rank == 1) {
        atomic_store(harness_word(r, AT), clock_us());
        run("%s", command);
    }
    harness_wait_verdict(r->mesh);
    *late += clock_us() - atomic_load(harness_word(r, AT)) > PROMISED_US;
    verdict = mesh_verdict(r->mesh);
    CHECK_EQ((int)verdict->status, HVD_PEER_LOST);
    /* One way: the side that hears nothing closes, the other one may hear that. */
    CHECK(strstr(verdict->text, "no heartbeat for 1.") != NULL ||
          strstr(verdict->text, "connection lost (closed by the other side)") != NULL);
    code = text_code(verdict->text);
    if (!atomic_compare_exchange_strong(harness_word(r, TEXT + host), &none, code))
        CHECK_EQ(none, code);
    r->mesh = (mesh_close(r->mesh, false), NULL);
}

static void pull_cable(struct harness_rank *r)
{
    lose_each_other(r, "ip link set veth1 down");
}

static void drop_one_way(struct harness_rank *r)
{
    lose_each_other(r, "nft 'add table ip f; add chain ip f i { type filter hook input "
                       "priority 0; }; add rule ip f i ip saddr 10.99.0.1 drop'");
}

static void known_in_time(harness_fn body)
{
    struct harness h = {.size = 4, .hosts = 2, .heartbeat_s = 1, .prepare = build_hosts};
    int rounds = 0;

    if (geteuid() != 0)
        check_skip("network namespaces need root");
    late = mmap(NULL, sizeof *late, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                0);
    CHECK(late != MAP_FAILED);
    do {
        CHECK(rounds++ < ROUNDS);
        *late = 0;
        harness_run_processes(&h, body, NULL);
    } while (*late > 0);
    munmap((void *)late, sizeof *late);
}

TEST(a_pulled_cable_is_known_to_both_sides, .limit_s = 60)
{
    known_in_time(pull_cable);
}

TEST(a_link_that_works_one_way_is_known_to_both_sides, .limit_s = 60)
{
    known_in_time(drop_one_way);
}
