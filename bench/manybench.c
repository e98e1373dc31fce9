/*
 * manybench.c: what many cached tensors cost in a step, one process a rank.
 *
 *   manybench -B FILE [-o op] [-n tensors] [-z bytes] [-t seconds]
 *
 *   -B  the board (scoreboard.h), an empty file
 *   -o  allreduce, allgather, broadcast, alltoall or reducescatter
 *   -n  tensors of a step     -z  bytes of each     -t  seconds to measure
 *
 * 1. A step: barrier, all tensors are submitted in one order, then waited for: as the gradients
 *    of a model whose backward pass costs nothing.  Latest end minus latest start.
 * 2. Names are cached and results checked before anything is timed.
 * 3. Rank 0 prints a JSON line: us of a tensor (median and floor of the steps), messages of
 *    rank 0, of all ranks and between hosts, in a step.
 */
#include "scoreboard.h"

#include "horovod/horovod.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS_MAX (BOARD_STAMPS / 2)
#define STEPS_MIN 5
#define WARM_STEPS 3
#define HANDLES_MAX 65536

static const char *const ops[] = {"allreduce", "allgather", "broadcast", "alltoall",
                                  "reducescatter"};
static struct {
    const char *board;
    int op, tensors;
    size_t bytes;
    double seconds;
} opt = {.op = HVD_ALLREDUCE, .tensors = 1000, .bytes = 4096, .seconds = 1};

static int rank, size;
static float *in, *out;
static hvd_handle handles[HANDLES_MAX];
static double samples[STEPS_MAX];

static void check(enum hvd_status status, const struct hvd_error *err)
{
    if (status == HVD_OK)
        return;
    fprintf(stderr, "manybench: %s: %s\n", hvd_status_name(status), err->text);
    exit(1);
}

static size_t out_stride(void)
{
    return opt.bytes / sizeof(float) * (opt.op == HVD_ALLGATHER ? (size_t)size : 1);
}

static void submit(int i)
{
    size_t count = opt.bytes / sizeof(float);
    char name[32];
    struct hvd_request r = {
        .size = sizeof r, .op = (enum hvd_op)opt.op, .dtype = HVD_F32, .reduce = HVD_SUM,
        .device = -1, .name = name, .input = in + count * (size_t)i,
        .output = out + out_stride() * (size_t)i, .ndim = 1, .shape = {(int64_t)count},
    };
    struct hvd_error err;

    snprintf(name, sizeof name, "layer.%d.weight", i);
    check(hvd_submit(&r, 1, &handles[i], &err), &err);
}

static void step(void)
{
    struct hvd_error err;

    for (int i = 0; i < opt.tensors; i++)
        submit(i);
    for (int i = 0; i < opt.tensors; i++) {
        check(hvd_wait(handles[i], -1, &err), &err);
        hvd_release(handles[i]);
    }
}

/* Rank r brings r + 1 everywhere, so a sum is known, and every other result is one of them. */
static void check_results(void)
{
    size_t stride = out_stride(), n = opt.op == HVD_REDUCESCATTER
                                          ? opt.bytes / sizeof(float) / (size_t)size : stride;
    float sum = (float)(size * (size + 1) / 2);

    for (int i = 0; i < opt.tensors; i++)
        for (size_t k = 0; k < n; k++) {
            float expected = opt.op == HVD_ALLREDUCE || opt.op == HVD_REDUCESCATTER ? sum
                             : opt.op == HVD_BROADCAST ? 1
                                                       : (float)(k * (size_t)size / n + 1);

            if (out[stride * (size_t)i + k] != expected) {
                fprintf(stderr, "manybench: rank %d: tensor %d is wrong\n", rank, i);
                exit(1);
            }
        }
}

/* Of the object "transport" of the statistics. */
static double counter(const char *name)
{
    static char text[65536];
    char key[64];
    const char *at;

    hvd_stats_json(text, sizeof text);
    snprintf(key, sizeof key, "\"%s\": ", name);
    at = strstr(text, "\"transport\"");
    at = at != NULL ? strstr(at, key) : NULL;
    return at != NULL ? atof(at + strlen(key)) : 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static int step_count(void)
{
    double start = board_now(), count;

    board_barrier();
    step();
    board_barrier();
    count = opt.seconds / (board_now() - start);
    count = count < STEPS_MIN ? STEPS_MIN : count > STEPS_MAX ? STEPS_MAX : count;
    return (int)board_agree(count);
}

static void take_samples(int count)
{
    double *mine = board_stamps(rank);

    for (int i = 0; i < count; i++) {
        board_barrier();
        mine[i] = board_now();
        step();
        mine[STEPS_MAX + i] = board_now();
    }
    board_barrier();
    for (int i = 0; i < count; i++) {
        double start = 0, end = 0;

        for (int r = 0; r < size; r++) {
            const double *of = board_stamps(r);

            start = of[i] > start ? of[i] : start;
            end = of[STEPS_MAX + i] > end ? of[STEPS_MAX + i] : end;
        }
        samples[i] = (end - start) / opt.tensors * 1e6;
    }
    board_barrier();
    qsort(samples, (size_t)count, sizeof *samples, by_value);
}

/* The sum over the ranks; board stamps are free by now. */
static double sum_of(double mine)
{
    double sum = 0;

    board_stamps(rank)[0] = mine;
    board_barrier();
    for (int r = 0; r < size; r++)
        sum += board_stamps(r)[0];
    board_barrier();
    return sum;
}

static void measure(void)
{
    double messages, far, all, all_far;
    int count;

    for (int i = 0; i < WARM_STEPS; i++)
        step();
    check_results();
    count = step_count();
    messages = counter("messages");
    far = counter("messages_between_hosts");
    take_samples(count);
    messages = (counter("messages") - messages) / count;
    far = (counter("messages_between_hosts") - far) / count;
    all = sum_of(messages);
    all_far = sum_of(far);
    if (rank != 0)
        return;
    printf("{\"op\": \"%s\", \"ranks\": %d, \"hosts\": %d, \"tensors\": %d, \"bytes\": %zu, "
           "\"steps\": %d, \"us\": %.3f, \"floor_us\": %.3f, \"messages_0\": %.1f, "
           "\"messages\": %.1f, \"messages_between_hosts\": %.1f}\n",
           ops[opt.op], size, hvd_cross_size(), opt.tensors, opt.bytes, count,
           samples[count / 2], samples[0], messages, all, all_far);
    fflush(stdout);
}

static int op_of(const char *name)
{
    for (int i = 0; i < (int)(sizeof ops / sizeof ops[0]); i++)
        if (strcmp(ops[i], name) == 0)
            return i;
    fprintf(stderr, "manybench: -o %s\n", name);
    exit(2);
}

static void parse(int argc, char **argv)
{
    int letter;

    while ((letter = getopt(argc, argv, "B:o:n:z:t:")) > 0)
        switch (letter) {
        case 'B': opt.board = optarg; break;
        case 'o': opt.op = op_of(optarg); break;
        case 'n': opt.tensors = atoi(optarg); break;
        case 'z': opt.bytes = strtoull(optarg, NULL, 0); break;
        case 't': opt.seconds = atof(optarg); break;
        default: exit(2);
        }
    if (opt.board == NULL || optind != argc || opt.tensors < 1 ||
        opt.tensors > HANDLES_MAX || opt.bytes < sizeof(float)) {
        fprintf(stderr, "manybench: see the first lines of manybench.c\n");
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct hvd_error err;
    size_t count;

    parse(argc, argv);
    check(hvd_init(NULL, &err), &err);
    rank = hvd_rank();
    size = hvd_size();
    /* Divided among the ranks where an operation does that. */
    opt.bytes = opt.bytes / sizeof(float) / (size_t)size * (size_t)size * sizeof(float);
    count = opt.bytes / sizeof(float) * (size_t)opt.tensors;
    board_open(opt.board, rank, size);
    in = hvd_alloc(count * sizeof(float));
    out = hvd_alloc(out_stride() * (size_t)opt.tensors * sizeof(float));
    if (in == NULL || out == NULL || count == 0) {
        fprintf(stderr, "manybench: no memory, or nothing to do\n");
        return 1;
    }
    for (size_t i = 0; i < count; i++)
        in[i] = (float)(rank + 1);
    measure();
    board_barrier();
    hvd_shutdown();
    return 0;
}
