/*
 * limits_cma.c: process_vm_readv and writev, by chunk: one or two processes act on the
 * memory of a third; their own side is one chunk, which stays in the cache.
 */
#include "limits.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOTAL ((size_t)128 << 20)

struct meeting {
    _Atomic int target_ready, actors;
    double seconds[2];
};

static _Noreturn void be_target(struct meeting *m, char *memory)
{
    for (size_t i = 0; i < TOTAL; i += 4096)
        memory[i] = 1;
    atomic_store(&m->target_ready, 1);
    for (;;)
        pause();
}

static _Noreturn void be_actor(struct meeting *m, int number, int count, pid_t target,
                               char *memory, size_t chunk, bool writes)
{
    size_t share = TOTAL / (size_t)count;
    struct iovec own = {limits_map(chunk, PAGES_SMALL), chunk};
    double start;

    limits_pin(number);
    atomic_fetch_add(&m->actors, 1);
    while (atomic_load(&m->actors) < count)
        ;
    start = limits_now();
    for (size_t at = 0; at < share; at += chunk) {
        struct iovec other = {memory + share * (size_t)number + at, chunk};
        ssize_t n = writes ? process_vm_writev(target, &own, 1, &other, 1, 0)
                           : process_vm_readv(target, &own, 1, &other, 1, 0);

        if (n != (ssize_t)chunk) {
            perror(writes ? "process_vm_writev" : "process_vm_readv");
            _exit(1);
        }
    }
    m->seconds[number] = limits_now() - start;
    _exit(0);
}

static double run_gbps(char *memory, size_t chunk, int count, bool writes)
{
    struct meeting *m = limits_map(sizeof *m, PAGES_SHARED);
    pid_t target = limits_fork(), actors[2];
    double gbps;

    if (target == 0)
        be_target(m, memory);
    while (!atomic_load(&m->target_ready))
        usleep(100);
    for (int i = 0; i < count; i++) {
        actors[i] = limits_fork();
        if (actors[i] == 0)
            be_actor(m, i, count, target, memory, chunk, writes);
    }
    for (int i = 0; i < count; i++)
        limits_join(actors[i]);
    kill(target, SIGKILL);
    limits_join(target);
    gbps = (double)TOTAL / 1e9 /
           (m->seconds[0] > m->seconds[1] ? m->seconds[0] : m->seconds[1]);
    limits_unmap(m, sizeof *m);
    return gbps;
}

int limits_cma(int argc, char **argv)
{
    char *memory = limits_map(TOTAL, PAGES_SMALL), name[64];
    double values[RUNS];

    (void)argc, (void)argv;
    for (int count = 1; count <= 2; count++)
        for (int writes = 0; writes < 2; writes++)
            for (size_t chunk = 4096; chunk <= (4u << 20); chunk *= 4) {
                for (int i = 0; i < RUNS; i++)
                    values[i] = run_gbps(memory, chunk, count, writes);
                snprintf(name, sizeof name, "%s, %d process%s, %zu bytes a call",
                         writes ? "writev" : "readv", count, count > 1 ? "es" : "",
                         chunk);
                limits_report(name, values, RUNS, "GB/s");
            }
    limits_unmap(memory, TOTAL);
    return 0;
}
