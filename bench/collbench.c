/*
 * collbench.c: times collectives of one system (system.h), one process a rank.
 *
 *   collbench -B FILE [-o op,op] [-z bytes,bytes] [-t seconds] [-p] [-s]
 *
 *   -B  the board (scoreboard.h), an empty file
 *   -o  allreduce, allreduce_in (in place), allgather, broadcast, alltoall, reducescatter
 *   -z  sizes of the vector     -t  seconds per operation and size
 *   -p  private memory instead of the system's own allocator
 *   -s  stale: do not rewrite the inputs before each sample
 *
 * 1. Bytes are those of the full vector: what one rank holds at the widest point.
 * 2. A sample: every rank rewrites its input, as a backward pass does, barrier, call;
 *    latest end minus latest start over the ranks.
 * 3. Every size is checked before it is timed: sums of small integers are exact.
 * 4. Rank 0 prints a JSON line: op, ranks, bytes, samples, median_us, p99_us, min_us,
 *    loop_us (calls back to back, without barriers), ok.
 */
#include "scoreboard.h"
#include "system.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SAMPLES_MAX (BOARD_STAMPS / 2)
#define SAMPLES_MIN 3
#define SIZES_MAX 64
#define HUGE_BYTES ((size_t)2 << 20)
#define PERIOD 101                      /* of the values that are added for the check */

enum op { ALLREDUCE, ALLREDUCE_IN, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER, OPS };
static const char *const op_names[] = {"allreduce", "allreduce_in", "allgather",
                                       "broadcast", "alltoall", "reducescatter"};

static struct {
    const char *board, *ops;
    size_t sizes[SIZES_MAX];
    int size_count;
    double seconds;
    bool private_memory, stale;
} opt = {.ops = "allreduce_in", .sizes = {4, 65536}, .size_count = 2, .seconds = 0.1};

static int rank, size;
static float *in, *out;
static double samples[SAMPLES_MAX];

void *sys_alloc_private(size_t bytes)
{
    void *p = NULL;

    if (posix_memalign(&p, bytes >= HUGE_BYTES ? HUGE_BYTES : 4096, bytes) != 0) {
        fprintf(stderr, "collbench: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    if (bytes >= HUGE_BYTES)
        madvise(p, bytes, MADV_HUGEPAGE);
    return memset(p, 0, bytes);
}

static void call(enum op op, size_t bytes)
{
    size_t count = bytes / sizeof(float), part = count / (size_t)size;

    switch (op) {
    case ALLREDUCE:
        sys_allreduce(in, out, count);
        break;
    case ALLREDUCE_IN:
        sys_allreduce(out, out, count);
        break;
    case ALLGATHER:
        sys_allgather(in, out, part * sizeof(float));
        break;
    case BROADCAST:
        sys_broadcast(out, bytes, 0);
        break;
    case ALLTOALL:
        sys_alltoall(in, out, part * sizeof(float));
        break;
    default:
        sys_reducescatter(in, out, part);
    }
}

/* ---- Results -------------------------------------------------------------------- */

static float value(int of_rank, size_t i)
{
    return (float)((i * 7 + (size_t)of_rank * 13) % PERIOD);
}

static void fill(float *to, size_t count)
{
    size_t done = count < PERIOD ? count : PERIOD;

    for (size_t i = 0; i < done; i++)
        to[i] = value(rank, i);
    while (done < count) {
        size_t n = done < count - done ? done : count - done;

        memcpy(to + done, to, n * sizeof(float));
        done += n;
    }
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

    fill(in, count);
    if (op == ALLREDUCE_IN || (op == BROADCAST && rank == 0))
        fill(out, count);
    else
        memset(out, 0xff, bytes);
    call(op, bytes);
    for (size_t i = 0; i < end; i += step)
        if (out[i] != expected(op, i, part)) {
            fprintf(stderr, "rank %d: %s of %zu bytes: element %zu is %g, not %g\n", rank,
                    op_names[op], bytes, i, (double)out[i],
                    (double)expected(op, i, part));
            return false;
        }
    return true;
}

/* ---- Times ---------------------------------------------------------------------- */

static void prepare(enum op op, size_t bytes)
{
    if (!opt.stale)
        memset(op == ALLREDUCE_IN || op == BROADCAST ? out : in, 0, bytes);
    board_barrier();
}

/* As many samples as fit in the time; rank 0 decides, everybody obeys. */
static int sample_count(enum op op, size_t bytes)
{
    int probes = bytes <= 65536 ? 20 : 1;
    double start, count;

    prepare(op, bytes);
    call(op, bytes);
    start = board_now();
    for (int i = 0; i < probes; i++) {
        prepare(op, bytes);
        call(op, bytes);
    }
    count = opt.seconds * probes / (board_now() - start);
    count = count < SAMPLES_MIN ? SAMPLES_MIN : count > SAMPLES_MAX ? SAMPLES_MAX : count;
    return (int)board_agree(count);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static void take_samples(enum op op, size_t bytes, int count)
{
    double *mine = board_stamps(rank);

    for (int i = 0; i < count; i++) {
        prepare(op, bytes);
        mine[i] = board_now();
        call(op, bytes);
        mine[SAMPLES_MAX + i] = board_now();
    }
    board_barrier();
    for (int i = 0; rank == 0 && i < count; i++) {
        double start = 0, end = 0;

        for (int r = 0; r < size; r++) {
            const double *of = board_stamps(r);

            start = of[i] > start ? of[i] : start;
            end = of[SAMPLES_MAX + i] > end ? of[SAMPLES_MAX + i] : end;
        }
        samples[i] = end - start;
    }
    board_barrier();
    qsort(samples, (size_t)count, sizeof *samples, by_value);
}

static double loop_time(enum op op, size_t bytes, int count)
{
    double start;

    board_barrier();
    start = board_now();
    for (int i = 0; i < count; i++)
        call(op, bytes);
    board_barrier();
    return (board_now() - start) / count;
}

/* False: wrong result. */
static bool measure(enum op op, size_t bytes)
{
    bool right = board_all(is_right(op, bytes));
    int count = sample_count(op, bytes);
    double loop;

    take_samples(op, bytes, count);
    loop = loop_time(op, bytes, count < 10 ? count : count / 2);
    if (rank == 0) {
        printf("{\"op\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"samples\": %d, "
               "\"median_us\": %.3f, \"p99_us\": %.3f, \"min_us\": %.3f, "
               "\"loop_us\": %.3f, \"ok\": %s}\n",
               op_names[op], size, bytes, count, samples[count / 2] * 1e6,
               samples[(int)(count * 0.99)] * 1e6, samples[0] * 1e6, loop * 1e6,
               right ? "true" : "false");
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

static void parse_sizes(char *text)
{
    opt.size_count = 0;
    for (char *word = strtok(text, ","); word != NULL; word = strtok(NULL, ",")) {
        size_t bytes = strtoull(word, NULL, 0);

        if (bytes < sizeof(float) || opt.size_count == SIZES_MAX) {
            fprintf(stderr, "collbench: -z %s\n", word);
            exit(2);
        }
        opt.sizes[opt.size_count++] = bytes;
    }
}

static void parse(int argc, char **argv)
{
    int letter;

    while ((letter = getopt(argc, argv, "B:o:z:t:ps")) > 0)
        switch (letter) {
        case 'B': opt.board = optarg; break;
        case 'o': opt.ops = optarg; break;
        case 'z': parse_sizes(optarg); break;
        case 't': opt.seconds = atof(optarg); break;
        case 'p': opt.private_memory = true; break;
        case 's': opt.stale = true; break;
        default: exit(2);
        }
    if (opt.board == NULL || optind != argc) {
        fprintf(stderr, "collbench: see the first lines of collbench.c\n");
        exit(2);
    }
}

static bool measure_all(void)
{
    bool right = true;

    for (enum op op = 0; op < OPS; op++)
        for (int k = 0; is_chosen(op) && k < opt.size_count; k++)
            if (op < ALLGATHER || op == BROADCAST ||
                opt.sizes[k] >= sizeof(float) * (size_t)size)
                right &= measure(op, opt.sizes[k]);
    return right;
}

int main(int argc, char **argv)
{
    size_t room = 4096;
    bool right;

    sys_init(&argc, &argv, &rank, &size);
    parse(argc, argv);
    board_open(opt.board, rank, size);
    for (int k = 0; k < opt.size_count; k++)
        room = opt.sizes[k] > room ? opt.sizes[k] : room;
    in = sys_alloc(room, !opt.private_memory);
    out = sys_alloc(room, !opt.private_memory);
    right = measure_all();
    board_barrier();
    sys_finish();
    return !right;
}
