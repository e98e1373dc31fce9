/*
 * limits_sync.c: how fast two processes can hand over to each other: a flag in shared
 * memory each, and several ways to wait for it.
 */
#include "limits.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum way { SPIN, YIELD, FUTEX, SPIN_FUTEX, PIPE };

struct flags {
    _Alignas(128) _Atomic uint32_t ping;
    _Alignas(128) _Atomic uint32_t pong;
    int pipes[2][2];
};

static void futex(_Atomic uint32_t *at, int op, uint32_t value)
{
    syscall(SYS_futex, at, op, value, NULL, NULL, 0);
}

static void await_flag(_Atomic uint32_t *at, uint32_t wanted, enum way way)
{
    int spins = way == SPIN_FUTEX ? 2000 : 0;
    uint32_t seen;

    while ((seen = atomic_load_explicit(at, memory_order_acquire)) != wanted) {
        if (way == SPIN || (way == SPIN_FUTEX && spins-- > 0))
            continue;
        if (way == YIELD)
            sched_yield();
        else
            futex(at, FUTEX_WAIT, seen);
    }
}

static void raise_flag(_Atomic uint32_t *at, uint32_t value, enum way way)
{
    atomic_store_explicit(at, value, memory_order_release);
    if (way == FUTEX || way == SPIN_FUTEX)
        futex(at, FUTEX_WAKE, 1);
}

static void through_pipe(int from, int to, bool first)
{
    char byte = 0;

    if ((first && write(to, &byte, 1) != 1) || read(from, &byte, 1) != 1 ||
        (!first && write(to, &byte, 1) != 1))
        _exit(1);
}

static void answer(struct flags *f, enum way way, uint32_t turns)
{
    for (uint32_t i = 1; i <= turns; i++) {
        if (way == PIPE) {
            through_pipe(f->pipes[0][0], f->pipes[1][1], false);
            continue;
        }
        await_flag(&f->ping, i, way);
        raise_flag(&f->pong, i, way);
    }
}

static void ask(struct flags *f, enum way way, uint32_t turns)
{
    for (uint32_t i = 1; i <= turns; i++) {
        if (way == PIPE) {
            through_pipe(f->pipes[1][0], f->pipes[0][1], true);
            continue;
        }
        raise_flag(&f->ping, i, way);
        await_flag(&f->pong, i, way);
    }
}

/* Nanoseconds one way, after a few turns for warming up. */
static double one_way_ns(enum way way, int cpu_a, int cpu_b, uint32_t turns)
{
    struct flags *f = limits_map(sizeof *f, PAGES_SHARED);
    double start, ns;
    pid_t child;

    if (way == PIPE && (pipe(f->pipes[0]) != 0 || pipe(f->pipes[1]) != 0))
        exit(1);
    child = limits_fork();
    if (child == 0) {
        limits_pin(cpu_b);
        answer(f, way, turns);
        _exit(0);
    }
    limits_pin(cpu_a);
    start = limits_now();
    ask(f, way, turns);
    ns = (limits_now() - start) / turns / 2 * 1e9;
    limits_join(child);
    for (int i = 0; way == PIPE && i < 4; i++)
        close(f->pipes[i / 2][i % 2]);
    limits_unmap(f, sizeof *f);
    return ns;
}

/* The median of some runs, and the best of them. */
static double median_ns(enum way way, int cpu_b, double *best_p)
{
    double values[RUNS], median;

    for (int i = 0; i < RUNS; i++)
        values[i] = one_way_ns(way, 0, cpu_b, 2000);
    median = limits_median(values, RUNS);
    *best_p = values[0];
    return median;
}

/*
 * place: spinning between two CPUs.  sync: with a CPU for every rank that time; with more
 * ranks, the others of a CPU have to be switched to once each, by yielding.
 */
int limits_sync(int argc, char **argv)
{
    int cpus = limits_cpu_count(), ranks = argc > 0 ? atoi(argv[0]) : 0;
    double usual, best;

    if (cpus < 2) {
        fprintf(stderr, "one CPU only\n");
        return 1;
    }
    usual = median_ns(SPIN, 1, &best);
    if (ranks > cpus) {
        median_ns(YIELD, 0, &best);
        best *= (ranks + cpus - 1) / cpus - 1;
    }
    if (ranks > 0)
        printf("{\"ranks\": %d, \"sync_us\": %.3f}\n", ranks, best * 1e-3);
    else
        printf("{\"spin_ns\": %.0f}\n", usual);
    return 0;
}

int limits_wait(int argc, char **argv)
{
    static const struct {
        const char *name;
        enum way way;
        int cpu_b;
        uint32_t turns;
    } rows[] = {
        {"spin, 2 CPUs", SPIN, 1, 100000},
        {"yield, 2 CPUs", YIELD, 1, 50000},
        {"spin, then futex, 2 CPUs", SPIN_FUTEX, 1, 50000},
        {"futex, 2 CPUs", FUTEX, 1, 10000},
        {"pipe, 2 CPUs", PIPE, 1, 10000},
        {"yield, same CPU", YIELD, 0, 20000},
        {"futex, same CPU", FUTEX, 0, 20000},
        {"pipe, same CPU", PIPE, 0, 20000},
        {"spin, same CPU", SPIN, 0, 10},
    };
    double values[RUNS];

    (void)argc, (void)argv;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        for (int i = 0; i < RUNS; i++)
            values[i] = one_way_ns(rows[k].way, 0, rows[k].cpu_b, rows[k].turns);
        limits_report(rows[k].name, values, RUNS, "ns one way");
    }
    return 0;
}
