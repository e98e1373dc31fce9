/*
 * limits_memory.c: bandwidth of the memory kernels from L1 to DRAM, with one thread and
 * with two; and of reading what another core has just written.  GB/s (1e9) of bytes that
 * the program loads and stores; what the caches read in order to write is not counted.
 */
#include "limits.h"
#include "limits_kernels.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const struct kernel {
    const char *name;
    kernel_fn run;
    int arrays, streams;                /* buffers in use; loads and stores per element */
} kernels[] = {
    {"read", kernel_read, 1, 1},
    {"write", kernel_write, 1, 1},
    {"write, streaming", kernel_write_stream, 1, 1},
    {"copy", kernel_copy, 2, 2},
    {"copy, streaming", kernel_copy_stream, 2, 2},
    {"copy, libc", kernel_copy_libc, 2, 2},
    {"a += b", kernel_add_to, 2, 3},
    {"a = b + c", kernel_add, 3, 3},
    {"a = b + c, streaming", kernel_add_stream, 3, 3},
};

struct thread {
    const struct kernel *kernel;
    float *buffer[3];
    size_t bytes;
    int number, repeats;
    pthread_barrier_t *barrier;
    pthread_t id;
    double start, end;
};

static void *thread_run(void *argument)
{
    struct thread *t = argument;
    kernel_fn run = t->kernel->run;

    limits_pin(t->number);
    run(t->buffer[0], t->buffer[1], t->buffer[2], t->bytes);
    pthread_barrier_wait(t->barrier);
    t->start = limits_now();
    for (int i = 0; i < t->repeats; i++)
        run(t->buffer[0], t->buffer[1], t->buffer[2], t->bytes);
    t->end = limits_now();
    return NULL;
}

static double bandwidth(const struct kernel *kernel, float *buffers[2][3], int threads,
                        size_t bytes)
{
    struct thread all[2];
    pthread_barrier_t barrier;
    double repeats = (bytes <= (8u << 20) ? 400e6 : 200e6) / (double)bytes;
    double start = 1e300, end = 0;

    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (int t = 0; t < threads; t++) {
        all[t] = (struct thread){
            .kernel = kernel, .buffer = {buffers[t][0], buffers[t][1], buffers[t][2]},
            .bytes = bytes, .number = t, .repeats = repeats < 1 ? 1 : (int)repeats,
            .barrier = &barrier,
        };
        if (pthread_create(&all[t].id, NULL, thread_run, &all[t]) != 0)
            exit(1);
    }
    for (int t = 0; t < threads; t++) {
        pthread_join(all[t].id, NULL);
        start = all[t].start < start ? all[t].start : start;
        end = all[t].end > end ? all[t].end : end;
    }
    pthread_barrier_destroy(&barrier);
    return (double)bytes * kernel->streams * all[0].repeats * threads / (end - start) / 1e9;
}

static void measure(const char *place, size_t total, enum limits_pages pages)
{
    float *buffers[2][3];
    double values[RUNS];
    char name[96];

    for (int i = 0; i < 6; i++)
        buffers[i / 3][i % 3] = limits_map(total, pages);
    for (size_t k = 0; k < sizeof kernels / sizeof kernels[0]; k++)
        for (int threads = 1; threads <= 2; threads++) {
            size_t bytes = total / (size_t)kernels[k].arrays / 4096 * 4096;

            for (int i = 0; i < RUNS; i++)
                values[i] = bandwidth(&kernels[k], buffers, threads, bytes);
            snprintf(name, sizeof name, "%s, %s, %d thread%s", place, kernels[k].name,
                     threads, threads > 1 ? "s" : "");
            limits_report(name, values, RUNS, "GB/s");
        }
    for (int i = 0; i < 6; i++)
        limits_unmap(buffers[i / 3][i % 3], total);
}

int limits_stream(int argc, char **argv)
{
    (void)argc, (void)argv;
    measure("L1", 24 << 10, PAGES_HUGE);
    measure("L2", 384 << 10, PAGES_HUGE);
    measure("L3", 6 << 20, PAGES_HUGE);
    measure("DRAM, huge pages", 384 << 20, PAGES_HUGE);
    measure("DRAM, small pages", 384 << 20, PAGES_SMALL);
    measure("DRAM, shared", 384 << 20, PAGES_SHARED);
    return 0;
}

/* ---- Between cores ---------------------------------------------------------------- */

struct turns {
    _Alignas(128) _Atomic uint32_t written;
    _Alignas(128) _Atomic uint32_t taken;
};

static void await_turn(_Atomic uint32_t *at, uint32_t turn)
{
    while (atomic_load_explicit(at, memory_order_acquire) != turn)
        ;
}

static void write_in_turns(struct turns *t, float *shared, size_t bytes, uint32_t turns)
{
    limits_pin(0);
    for (uint32_t i = 1; i <= turns; i++) {
        kernel_write(shared, NULL, NULL, bytes);
        atomic_store(&t->written, i);
        await_turn(&t->taken, i);
    }
    _exit(0);
}

static double take_in_turns(struct turns *t, float *shared, float *own, size_t bytes,
                            uint32_t turns, bool add)
{
    double seconds = 0;

    limits_pin(1);
    kernel_write(own, NULL, NULL, bytes);
    for (uint32_t i = 1; i <= turns; i++) {
        double start;

        await_turn(&t->written, i);
        start = limits_now();
        if (add)
            kernel_add_to(own, shared, NULL, bytes);
        else
            kernel_read(NULL, shared, NULL, bytes);
        seconds += limits_now() - start;
        atomic_store(&t->taken, i);
    }
    return (double)bytes * turns / seconds / 1e9;
}

static double core_to_core(float *shared, float *own, size_t bytes, bool add)
{
    struct turns *t = limits_map(sizeof *t, PAGES_SHARED);
    uint32_t turns = bytes > (8u << 20) ? 8 : (uint32_t)((64u << 20) / bytes);
    double gbps;
    pid_t child = limits_fork();

    if (child == 0)
        write_in_turns(t, shared, bytes, turns);
    gbps = take_in_turns(t, shared, own, bytes, turns, add);
    limits_join(child);
    limits_unmap(t, sizeof *t);
    return gbps;
}

int limits_core(int argc, char **argv)
{
    double values[RUNS];
    char name[64];

    (void)argc, (void)argv;
    for (size_t bytes = 4096; bytes <= (16u << 20); bytes *= 4) {
        float *shared = limits_map(bytes, PAGES_SHARED);
        float *own = limits_map(bytes, PAGES_HUGE);

        for (int add = 0; add < 2; add++) {
            for (int i = 0; i < RUNS; i++)
                values[i] = core_to_core(shared, own, bytes, add);
            snprintf(name, sizeof name, "%s %zu bytes of another core",
                     add ? "add" : "read", bytes);
            limits_report(name, values, RUNS, "GB/s");
        }
        limits_unmap(shared, bytes);
        limits_unmap(own, bytes);
    }
    return 0;
}
