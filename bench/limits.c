/*
 * limits.c: what this machine can do at most, with no collective library involved.
 *
 *   limits place                     one way between two CPUs; tells where the host put them
 *   limits sync RANKS                the shortest time in which RANKS can hear of each other
 *   limits wait                      hand-over by spinning, yielding, futex, pipe
 *   limits stream                    memory kernels, one thread and all, L1 to DRAM
 *   limits core                      reading what another core has just written
 *   limits cma                       process_vm_readv and writev by chunk
 *   limits allreduce RANKS SIZES     the reduction of all vectors, without synchronisation
 *   limits tcp                       loopback: round trips and bandwidth
 *
 * One JSON line per result.
 */
#include "limits.h"

#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)

static cpu_set_t allowed;

double limits_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int limits_cpu_count(void)
{
    return CPU_COUNT(&allowed);
}

void limits_pin(int nth)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    nth %= limits_cpu_count();
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && nth-- == 0)
            CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

pid_t limits_fork(void)
{
    pid_t child = fork();

    if (child < 0) {
        perror("fork");
        exit(1);
    }
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return child;
}

void limits_join(pid_t child)
{
    int status;

    waitpid(child, &status, 0);
    sched_setaffinity(0, sizeof allowed, &allowed);
}

static size_t round_up(size_t bytes)
{
    return (bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
}

void *limits_map(size_t bytes, enum limits_pages pages)
{
    size_t room = round_up(bytes);
    int kind = pages == PAGES_SHARED ? MAP_SHARED : MAP_PRIVATE;
    char *p = mmap(NULL, room + HUGE_PAGE, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS,
                   -1, 0);
    size_t skip;

    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    /* Aligned to a huge page; what lies beside it is given back. */
    skip = round_up((uintptr_t)p) - (uintptr_t)p;
    if (skip > 0)
        munmap(p, skip);
    munmap(p + skip + room, HUGE_PAGE - skip);
    p += skip;
    if (pages != PAGES_SHARED)
        madvise(p, room, pages == PAGES_HUGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return memset(p, 0, room);
}

void limits_unmap(void *p, size_t bytes)
{
    munmap(p, round_up(bytes));
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

double limits_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

void limits_report(const char *what, double *values, int count, const char *unit)
{
    double median = limits_median(values, count);

    printf("{\"limit\": \"%s\", \"value\": %.3f, \"low\": %.3f, \"high\": %.3f, "
           "\"unit\": \"%s\"}\n",
           what, median, values[0], values[count - 1], unit);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } parts[] = {
        {"place", limits_sync}, {"sync", limits_sync}, {"wait", limits_wait},
        {"stream", limits_stream}, {"core", limits_core}, {"cma", limits_cma},
        {"allreduce", limits_allreduce}, {"tcp", limits_tcp},
    };

    sched_getaffinity(0, sizeof allowed, &allowed);
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2")) {
        fprintf(stderr, "limits: this CPU has no AVX2\n");
        return 1;
    }
#endif
    for (size_t i = 0; argc > 1 && i < sizeof parts / sizeof parts[0]; i++)
        if (strcmp(argv[1], parts[i].name) == 0)
            return parts[i].run(argc - 2, argv + 2);
    fprintf(stderr, "usage: limits place|sync|wait|stream|core|cma|allreduce|tcp ...\n");
    return 2;
}
