/*
 * limits_allreduce.c: the limit every allreduce through memory is divided by.  The vectors
 * of all ranks are mapped; a thread on each CPU sums its share of the range of all of them
 * and stores it to all of them.  Before each repetition every vector is written by the
 * CPU of its rank, as a backward pass would.  Only the reduction is timed, no hand-over.
 */
#include "limits.h"
#include "limits_kernels.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 64
#define RANKS_MAX 64
#define LINE 16                         /* floats of a cache line */
#define CLOCK_S 23e-9                   /* one reading of the clock */

struct work {
    float *in[RANKS_MAX], *out[RANKS_MAX];
    int ranks, threads, repeats;
    size_t bytes;
    bool stream;
    _Atomic long arrived;
    double seconds[THREADS_MAX];
};

struct worker {
    struct work *work;
    int number;
    long turn;
    pthread_t thread;
};

static void meet(struct worker *w)
{
    w->turn += w->work->threads;
    atomic_fetch_add(&w->work->arrived, 1);
    while (atomic_load_explicit(&w->work->arrived, memory_order_acquire) < w->turn)
        ;
}

static void *worker_run(void *argument)
{
    struct worker *w = argument;
    struct work *k = w->work;
    size_t lines = k->bytes / sizeof(float) / LINE;
    size_t begin = lines * (size_t)w->number / (size_t)k->threads * LINE;
    size_t end = lines * (size_t)(w->number + 1) / (size_t)k->threads * LINE;

    limits_pin(w->number);
    for (int i = -1; i < k->repeats; i++) {
        double start;

        for (int r = w->number; r < k->ranks; r += k->threads)
            kernel_write(k->in[r], NULL, NULL, k->bytes);
        meet(w);
        start = limits_now();
        kernel_allreduce(k->in, k->out, k->ranks, begin, end, k->stream);
        if (i >= 0)
            k->seconds[w->number] += limits_now() - start - CLOCK_S;
        meet(w);
    }
    return NULL;
}

/* Microseconds of one reduction: of the slowest thread. */
static double run_us(struct work *k)
{
    struct worker workers[THREADS_MAX];
    double slowest = 0;

    atomic_store(&k->arrived, 0);
    memset(k->seconds, 0, sizeof k->seconds);
    for (int t = 0; t < k->threads; t++) {
        workers[t] = (struct worker){.work = k, .number = t};
        if (pthread_create(&workers[t].thread, NULL, worker_run, &workers[t]) != 0)
            exit(1);
    }
    for (int t = 0; t < k->threads; t++) {
        pthread_join(workers[t].thread, NULL);
        slowest = k->seconds[t] > slowest ? k->seconds[t] : slowest;
    }
    return slowest / k->repeats * 1e6;
}

/* The better of plain and streaming stores; the median of some runs of each. */
static double best_us(struct work *k)
{
    double best = 0, values[RUNS];

    for (int stream = 0; stream < 2; stream++) {
        double begin = limits_now(), median;
        int runs = 0;

        if (stream && k->bytes < (1 << 20))
            break;
        k->stream = stream;
        while (runs < RUNS && (runs < 3 || limits_now() - begin < 0.5))
            values[runs++] = run_us(k);
        median = limits_median(values, runs);
        best = best == 0 || median < best ? median : best;
    }
    return best;
}

static void measure(int ranks, size_t bytes, bool in_place)
{
    struct work k = {.ranks = ranks, .bytes = bytes};
    double repeats = 50e6 / (double)bytes / ranks;

    k.threads = limits_cpu_count() < THREADS_MAX ? limits_cpu_count() : THREADS_MAX;
    k.repeats = repeats < 1 ? 1 : repeats > 2000 ? 2000 : (int)repeats;
    for (int r = 0; r < ranks; r++) {
        k.in[r] = limits_map(bytes, PAGES_HUGE);
        k.out[r] = in_place ? k.in[r] : limits_map(bytes, PAGES_HUGE);
    }
    printf("{\"op\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"us\": %.3f}\n",
           in_place ? "allreduce_in" : "allreduce", ranks, bytes, best_us(&k));
    fflush(stdout);
    for (int r = 0; r < ranks; r++) {
        limits_unmap(k.in[r], bytes);
        if (!in_place)
            limits_unmap(k.out[r], bytes);
    }
}

int limits_allreduce(int argc, char **argv)
{
    int ranks = argc == 2 ? atoi(argv[0]) : 0;

    if (ranks < 1 || ranks > RANKS_MAX)
        return 2;
    for (char *word = strtok(argv[1], ","); word != NULL; word = strtok(NULL, ",")) {
        size_t bytes = strtoull(word, NULL, 0);

        /* Smaller than a line a CPU there is nothing to divide: hand-over decides. */
        if (bytes < 64 * (size_t)limits_cpu_count() || bytes % 64 != 0)
            continue;
        for (int in_place = 0; in_place < 2; in_place++)
            measure(ranks, bytes, in_place);
    }
    return 0;
}
