/*
 * collbench.c: times collectives of one system (coll.h), one process a rank.
 *
 *   collbench [-o op,op] [-b bytes] [-e bytes] [-f factor] [-t seconds] [-p] [-s]
 *
 *   -o  allreduce, allreduce_in (in place), allgather, broadcast, alltoall, reducescatter
 *   -b, -e, -f   smallest and largest vector, factor between sizes
 *   -t  seconds per size        -p  private memory instead of the system's allocator
 *   -s  stale: do not rewrite the inputs before each sample
 *
 * 1. Bytes are those of the full vector: what one rank holds at the widest point.
 * 2. A sample: every rank rewrites its input, as a backward pass does, barrier, call;
 *    latest end minus latest start over the ranks, on the clock all ranks of a host share.
 * 3. Every size is checked before it is timed: sums of small integers are exact.
 * 4. CSV on rank 0: system,op,ranks,bytes,samples,median_us,p99_us,min_us,loop_us,ok
 *    (loop: calls back to back, without barriers).
 */
#include "coll.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SAMPLES_MAX 20000
#define RANKS_MAX 512

enum op { ALLREDUCE, ALLREDUCE_IN, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER, OPS };
static const char *const op_names[] = {"allreduce", "allreduce_in", "allgather",
                                       "broadcast", "alltoall", "reducescatter"};

static struct {
    const char *ops;
    size_t low_bytes, high_bytes;
    int factor;
    double seconds;
    bool private_memory, stale;
} opt = {"allreduce", 4, 1 << 20, 4, 0.25, false, false};

static int rank, size;
static char *in, *out;
static double *mine, *all, *samples;    /* starts, then ends; of all ranks; results */

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int call(enum op op, size_t bytes)
{
    size_t count = bytes / sizeof(float), part = count / (size_t)size;

    switch (op) {
    case ALLREDUCE:
        return coll_allreduce((float *)in, (float *)out, count);
    case ALLREDUCE_IN:
        return coll_allreduce((float *)out, (float *)out, count);
    case ALLGATHER:
        return coll_allgather(in, out, part * sizeof(float));
    case BROADCAST:
        return coll_broadcast(out, bytes, 0);
    case ALLTOALL:
        return coll_alltoall(in, out, part * sizeof(float));
    default:
        return coll_reducescatter((float *)in, (float *)out, part);
    }
}

/* ---- Results -------------------------------------------------------------------- */

static float value(int of_rank, size_t i)
{
    return (float)((i * 7 + (size_t)of_rank * 13) % 101);
}

static float sum(size_t i)
{
    float total = 0;

    for (int r = 0; r < size; r++)
        total += value(r, i);
    return total;
}

static float expected(enum op op, size_t i, size_t part)
{
    switch (op) {
    case ALLREDUCE:
    case ALLREDUCE_IN:
        return sum(i);
    case REDUCESCATTER:
        return sum(i + part * (size_t)rank);
    case ALLGATHER:
        return value((int)(i / part), i % part);
    case BROADCAST:
        return value(0, i);
    default:
        return value((int)(i / part), i % part + part * (size_t)rank);
    }
}

static bool is_right(enum op op, size_t bytes)
{
    size_t count = bytes / sizeof(float), part = count / (size_t)size;
    size_t end = op == REDUCESCATTER ? part
                 : op == ALLGATHER || op == ALLTOALL ? part * (size_t)size : count;
    size_t step = end > 100000 ? 97 : 1;
    bool filled = op == ALLREDUCE_IN || (op == BROADCAST && rank == 0);

    for (size_t i = 0; i < count; i++) {
        ((float *)in)[i] = value(rank, i);
        ((float *)out)[i] = filled ? value(rank, i) : -1;
    }
    if (call(op, bytes) != 0)
        return false;
    for (size_t i = 0; i < end; i += step)
        if (((float *)out)[i] != expected(op, i, part)) {
            fprintf(stderr, "rank %d: %s of %zu bytes: element %zu is %g, not %g\n", rank,
                    op_names[op], bytes, i, (double)((float *)out)[i],
                    (double)expected(op, i, part));
            return false;
        }
    return true;
}

/* True if it is true on every rank. */
static bool agree(bool mine_is_right)
{
    int one = mine_is_right, each[RANKS_MAX];
    bool right = true;

    coll_allgather(&one, each, sizeof one);
    for (int r = 0; r < size; r++)
        right &= each[r];
    return right;
}

/* ---- Times ---------------------------------------------------------------------- */

static void prepare(enum op op, size_t bytes)
{
    if (!opt.stale)
        memset(op == ALLREDUCE_IN || op == BROADCAST ? out : in, 0, bytes);
    coll_barrier();
}

/* As many samples as fit in the time; rank 0 decides, everybody obeys. */
static int sample_count(enum op op, size_t bytes)
{
    int probes = bytes <= 65536 ? 20 : 1, count, counts[RANKS_MAX];
    double start;

    prepare(op, bytes);
    call(op, bytes);
    start = now_s();
    for (int i = 0; i < probes; i++) {
        prepare(op, bytes);
        call(op, bytes);
    }
    count = (int)(opt.seconds * probes / (now_s() - start));
    count = count < 3 ? 3 : count > SAMPLES_MAX ? SAMPLES_MAX : count;
    coll_allgather(&count, counts, sizeof count);
    return counts[0];
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static void take_samples(enum op op, size_t bytes, int count)
{
    for (int i = 0; i < count; i++) {
        prepare(op, bytes);
        mine[i] = now_s();
        call(op, bytes);
        mine[count + i] = now_s();
    }
    coll_allgather(mine, all, sizeof(double) * 2 * (size_t)count);
    for (int i = 0; i < count; i++) {
        double start = 0, end = 0;

        for (int r = 0; r < size; r++) {
            const double *of = all + (size_t)r * 2 * (size_t)count;

            start = of[i] > start ? of[i] : start;
            end = of[count + i] > end ? of[count + i] : end;
        }
        samples[i] = end - start;
    }
    qsort(samples, (size_t)count, sizeof *samples, by_value);
}

static double loop_time(enum op op, size_t bytes, int count)
{
    double start;

    coll_barrier();
    start = now_s();
    for (int i = 0; i < count; i++)
        call(op, bytes);
    coll_barrier();
    return (now_s() - start) / count;
}

/* False: wrong result. */
static bool measure(enum op op, size_t bytes)
{
    bool right = agree(is_right(op, bytes));
    int count = sample_count(op, bytes);
    double loop;

    take_samples(op, bytes, count);
    loop = loop_time(op, bytes, count);
    if (rank == 0) {
        printf("%s,%s,%d,%zu,%d,%.2f,%.2f,%.2f,%.2f,%s\n", coll_name(), op_names[op], size,
               bytes, count, samples[count / 2] * 1e6,
               samples[(int)(count * 0.99)] * 1e6, samples[0] * 1e6, loop * 1e6,
               right ? "ok" : "WRONG");
        fflush(stdout);
    }
    return right;
}

/* ---- Main ----------------------------------------------------------------------- */

static bool is_chosen(enum op op)
{
    char list[256], key[64];

    snprintf(list, sizeof list, ",%s,", opt.ops);
    snprintf(key, sizeof key, ",%s,", op_names[op]);
    return strstr(list, key) != NULL;
}

static void parse(int argc, char **argv)
{
    int letter;

    while ((letter = getopt(argc, argv, "o:b:e:f:t:ps")) > 0)
        switch (letter) {
        case 'o': opt.ops = optarg; break;
        case 'b': opt.low_bytes = strtoul(optarg, NULL, 0); break;
        case 'e': opt.high_bytes = strtoul(optarg, NULL, 0); break;
        case 'f': opt.factor = atoi(optarg); break;
        case 't': opt.seconds = atof(optarg); break;
        case 'p': opt.private_memory = true; break;
        case 's': opt.stale = true; break;
        default: exit(2);
        }
    if (opt.low_bytes < 4 || opt.factor < 2 || optind != argc) {
        fprintf(stderr, "collbench: see the first lines of collbench.c\n");
        exit(2);
    }
}

int main(int argc, char **argv)
{
    size_t room;
    bool right = true;

    coll_init(&argc, &argv, &rank, &size);
    parse(argc, argv);
    room = opt.high_bytes < 4096 ? 4096 : opt.high_bytes;
    in = coll_alloc(room, !opt.private_memory);
    out = coll_alloc(room, !opt.private_memory);
    mine = coll_alloc(sizeof(double) * 2 * SAMPLES_MAX, false);
    all = coll_alloc(sizeof(double) * 2 * SAMPLES_MAX * (size_t)size, false);
    samples = coll_alloc(sizeof(double) * SAMPLES_MAX, false);
    for (enum op op = 0; op < OPS; op++)
        for (size_t n = opt.low_bytes; is_chosen(op) && n <= opt.high_bytes;
             n *= (size_t)opt.factor)
            if (op < ALLGATHER || op == BROADCAST || n >= sizeof(float) * (size_t)size)
                right &= measure(op, n);
    coll_barrier();
    coll_finish();
    return !right;
}
