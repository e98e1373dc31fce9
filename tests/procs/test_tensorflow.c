/*
 * test_tensorflow.c: the kernels of src/tensorflow in real jobs, under every sanitizer.
 *
 * TensorFlow itself is too large for that: the few functions the kernels call are played here,
 * with counted tensors, contexts that keep their outputs, and completions that are objects on
 * the stack of the caller, as its std::function is.  The real one runs in tests/python/tensorflow.
 */
#include "check.h"
#include "job_harness.h"
#include "tensorflow/tf_ops.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tf_api tf;
const struct hvd_calls *hvd;

/* ---- What TensorFlow does ------------------------------------------------------------- */

struct tf_status {
    enum tf_code code;
    char text[1200];
};

struct tf_tensor {
    atomic_int users;
    enum tf_dtype dtype;
    int ndim;
    int64_t shape[4];
    size_t bytes;
    void *data;
    tf_free_fn release;
};

struct tf_construction {
    const char *names;
    int32_t reduce, root, given, process_set;
};

struct tf_context {
    struct tf_tensor *inputs[2], *outputs[2];
    int count;
    struct tf_status failure;
    atomic_int ended;
};

/* As libstdc++ has it. */
struct tf_done {
    void *storage[2];
    bool (*manager)(struct tf_done *to, const struct tf_done *from, int operation);
    void (*invoker)(struct tf_done *self);
};

static atomic_int tensors;              /* alive */
static atomic_int copies;               /* of completions */

static struct tf_status *new_status(void)
{
    return calloc(1, sizeof(struct tf_status));
}

static void delete_status(struct tf_status *status)
{
    free(status);
}

static void set_status(struct tf_status *status, enum tf_code code, const char *text)
{
    status->code = code;
    snprintf(status->text, sizeof status->text, "%s", text);
}

static enum tf_code get_code(const struct tf_status *status)
{
    return status->code;
}

static const char *message(const struct tf_status *status)
{
    return status->text;
}

static struct tf_tensor *new_tensor(enum tf_dtype dtype, const int64_t *shape, int ndim,
                                    void *data, size_t bytes, tf_free_fn release,
                                    void *context)
{
    struct tf_tensor *t = calloc(1, sizeof *t);

    t->users = 1;
    t->dtype = dtype;
    t->ndim = ndim;
    if (ndim > 0)
        memcpy(t->shape, shape, (size_t)ndim * sizeof *shape);
    t->bytes = bytes;
    t->data = data;
    t->release = release;
    atomic_fetch_add(&tensors, 1);
    return t;
}

static void free_plain(void *data, size_t length, void *context)
{
    free(data);
}

static void delete_tensor(struct tf_tensor *t)
{
    if (atomic_fetch_sub(&t->users, 1) > 1)
        return;
    t->release(t->data, t->bytes, NULL);
    free(t);
    atomic_fetch_sub(&tensors, 1);
}

static enum tf_dtype tensor_type(const struct tf_tensor *t)
{
    return t->dtype;
}

static int num_dims(const struct tf_tensor *t)
{
    return t->ndim;
}

static int64_t dim(const struct tf_tensor *t, int i)
{
    return t->shape[i];
}

static size_t byte_size(const struct tf_tensor *t)
{
    return t->bytes;
}

static void *tensor_data(const struct tf_tensor *t)
{
    return t->data;
}

static int num_inputs(struct tf_context *ctx)
{
    return ctx->count;
}

static void get_input(struct tf_context *ctx, int i, struct tf_tensor **tensor,
                      struct tf_status *status)
{
    *tensor = ctx->inputs[i];
    atomic_fetch_add(&ctx->inputs[i]->users, 1);
}

static void set_output(struct tf_context *ctx, int i, const struct tf_tensor *tensor,
                       struct tf_status *status)
{
    ctx->outputs[i] = (struct tf_tensor *)tensor;
    atomic_fetch_add(&ctx->outputs[i]->users, 1);
}

static struct tf_tensor *allocate_output(struct tf_context *ctx, int i, enum tf_dtype dtype,
                                         const int64_t *shape, int ndim, size_t bytes,
                                         struct tf_status *status)
{
    ctx->outputs[i] = new_tensor(dtype, shape, ndim, malloc(bytes + 1), bytes, free_plain,
                                 NULL);
    atomic_fetch_add(&ctx->outputs[i]->users, 1);
    return ctx->outputs[i];
}

static void fail(struct tf_context *ctx, struct tf_status *status)
{
    ctx->failure = *status;
}

static void get_size(struct tf_construction *c, const char *name, int32_t *list,
                     int32_t *total, struct tf_status *status)
{
    *total = (int32_t)strlen(c->names);
}

static void get_string(struct tf_construction *c, const char *name, char *value,
                       size_t length, struct tf_status *status)
{
    memcpy(value, c->names, length);
}

static void get_int32(struct tf_construction *c, const char *name, int32_t *value,
                      struct tf_status *status)
{
    *value = strcmp(name, "reduce") == 0  ? c->reduce
             : strcmp(name, "root") == 0  ? c->root
             : strcmp(name, "given") == 0 ? c->given
                                          : 0;
}

static void get_int64(struct tf_construction *c, const char *name, int64_t *value,
                      struct tf_status *status)
{
    double one = 1.0;

    memcpy(value, &one, sizeof one);
}

static void get_bool(struct tf_construction *c, const char *name, unsigned char *value,
                     struct tf_status *status)
{
    *value = 0;
}

static struct tf_text get_name(struct tf_construction *c)
{
    return (struct tf_text){"outer/a", 7};
}

static void run_done(struct tf_done *done)
{
    done->invoker(done);
}

static void play_tensorflow(void)
{
    static struct hvd_calls calls = {.bytes = sizeof calls,
#define CALL(name) .name = hvd_##name,
                                     HVD_CALLS(CALL)
#undef CALL
    };

    hvd = &calls;
    tf = (struct tf_api){
        .NewStatus = new_status, .DeleteStatus = delete_status, .SetStatus = set_status,
        .GetCode = get_code, .Message = message, .NumInputs = num_inputs,
        .GetInput = get_input, .SetOutput = set_output, .AllocateOutput = allocate_output,
        .OpKernelContext_Failure = fail, .NewTensor = new_tensor,
        .DeleteTensor = delete_tensor, .TensorType = tensor_type, .NumDims = num_dims,
        .Dim = dim, .TensorByteSize = byte_size, .TensorData = tensor_data,
        .OpKernelConstruction_GetAttrSize = get_size,
        .OpKernelConstruction_GetAttrString = get_string,
        .OpKernelConstruction_GetAttrInt32 = get_int32,
        .OpKernelConstruction_GetAttrInt64 = get_int64,
        .OpKernelConstruction_GetAttrBool = get_bool,
        .OpKernelConstruction_GetName = get_name,
        .RunAsyncOpKernelDoneCallback = run_done,
    };
    CHECK(dlopen("libstdc++.so.6", RTLD_NOW) != NULL);
}

/* ---- Running kernels ------------------------------------------------------------------ */

static void end(struct tf_done *self)
{
    struct tf_context *ctx = self->storage[0];

    atomic_store(&ctx->ended, 1);
}

static bool manage(struct tf_done *to, const struct tf_done *from, int operation)
{
    if (operation == 2)
        to->storage[0] = from->storage[0];
    atomic_fetch_add(&copies, operation == 2 ? 1 : -1);
    return false;
}

/* The completion is gone when this returns. */
static void run(void *kernel, struct tf_context *ctx)
{
    struct tf_done done = {.storage = {ctx}, .manager = manage, .invoker = end};

    kernel_run(kernel, ctx, &done);
    memset(&done, 0xee, sizeof done);
}

static void wait_end(struct tf_context *ctx)
{
    while (!atomic_load(&ctx->ended))
        usleep(50);                     /* another thread ends it */
}

static struct tf_tensor *floats(int count, float value)
{
    int64_t shape[1] = {count};
    float *data = malloc((size_t)count * sizeof *data);

    for (int i = 0; i < count; i++)
        data[i] = value;
    return new_tensor(TF_FLOAT, shape, 1, data, (size_t)count * sizeof *data, free_plain,
                      NULL);
}

static struct tf_tensor *splits_of(int first, int second)
{
    int64_t shape[1] = {2};
    int32_t *data = malloc(2 * sizeof *data);

    data[0] = first;
    data[1] = second;
    return new_tensor(TF_INT32, shape, 1, data, 2 * sizeof *data, free_plain, NULL);
}

static void forget(struct tf_context *ctx)
{
    for (int i = 0; i < 2; i++) {
        if (ctx->inputs[i] != NULL)
            delete_tensor(ctx->inputs[i]);
        if (ctx->outputs[i] != NULL)
            delete_tensor(ctx->outputs[i]);
    }
    *ctx = (struct tf_context){0};
}

static void check_nothing_left(void)
{
    CHECK_EQ(atomic_load(&tensors), 0);
    CHECK_EQ(atomic_load(&copies), 0);
}

/* ---- Tests ---------------------------------------------------------------------------- */

enum { THREADS = 4, IN_FLIGHT = 16, ROUNDS = 160 };

struct worker {
    pthread_t thread;
    int number, rank, rounds;
};

/* Sixteen at once: rank 1 begins with the last. */
static void *work(void *context)
{
    const struct worker *w = context;
    struct tf_context ctx[IN_FLIGHT] = {0};
    void *kernels[IN_FLIGHT];

    for (int i = 0; i < IN_FLIGHT; i++) {
        char name[32];
        struct tf_construction c = {.names = name, .reduce = HVD_SUM};

        snprintf(name, sizeof name, "\nt%d.%d", w->number, i);
        kernels[i] = i % 2 == 0 ? kernel_create_allreduce(&c) : kernel_create_allgather(&c);
    }
    for (int round = 0; round < w->rounds; round++) {
        for (int k = 0; k < IN_FLIGHT; k++) {
            int i = w->rank == 0 ? k : IN_FLIGHT - 1 - k;

            ctx[i] = (struct tf_context){.count = 1,
                                         .inputs = {floats(1 + 40 * i, (float)(i + w->rank))}};
            run(kernels[i], &ctx[i]);
        }
        for (int i = 0; i < IN_FLIGHT; i++) {
            const float *x;

            wait_end(&ctx[i]);
            if (ctx[i].failure.code != TF_OK)
                fprintf(stderr, "%s\n", ctx[i].failure.text);
            CHECK_EQ(ctx[i].failure.code, TF_OK);
            x = tf.TensorData(ctx[i].outputs[0]);
            CHECK_EQ(x[0], i % 2 == 0 ? (float)(2 * i + 1) : (float)i);
            CHECK_EQ(tf.Dim(ctx[i].outputs[0], 0), (i % 2 == 0 ? 1 : 2) * (1 + 40 * i));
            forget(&ctx[i]);
        }
    }
    for (int i = 0; i < IN_FLIGHT; i++)
        kernel_delete(kernels[i]);
    return NULL;
}

static void work_in_threads(int rank, int rounds)
{
    struct worker workers[THREADS];

    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.number = i, .rank = rank, .rounds = rounds};
        CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
}

static void ten_thousand(int rank, int size, void *context)
{
    play_tensorflow();
    job_init();
    work_in_threads(rank, ROUNDS);
    hvd_shutdown();
    check_nothing_left();
}

TEST(ten_thousand_in_opposite_orders, .limit_s = 200)
{
    job_run(&(struct job_options){.size = 2, .limit_s = 180}, ten_thousand, NULL);
}

/* Wrong on rank 0 alone: rank 1 hears of it, and the next one works. */
static void wrong_splits(int rank, int size, void *context)
{
    struct tf_construction c = {.names = "\nwrong", .given = 1};
    struct tf_context ctx = {.count = 2, .inputs = {floats(2, 1), splits_of(1, 1)}};
    void *kernel;

    play_tensorflow();
    job_init();
    kernel = kernel_create_alltoall(&c);
    if (rank == 0)
        *(int32_t *)tf.TensorData(ctx.inputs[1]) = 7;
    run(kernel, &ctx);
    wait_end(&ctx);
    CHECK_EQ(ctx.failure.code, rank == 0 ? TF_INVALID_ARGUMENT : TF_FAILED_PRECONDITION);
    CHECK(strncmp(ctx.failure.text, "[horovod ", 9) == 0);
    forget(&ctx);
    ctx = (struct tf_context){.count = 2, .inputs = {floats(2, 1), splits_of(1, 1)}};
    run(kernel, &ctx);
    wait_end(&ctx);
    CHECK_EQ(ctx.failure.code, TF_OK);
    CHECK_EQ(((int32_t *)tf.TensorData(ctx.outputs[1]))[1], 1);
    forget(&ctx);
    kernel_delete(kernel);
    hvd_shutdown();
    check_nothing_left();
}

TEST(wrong_arguments_are_told_to_the_others)
{
    job_run(&(struct job_options){.size = 2}, wrong_splits, NULL);
}

static void without_copies(int rank, int size, void *context)
{
    struct tf_construction c = {.names = "\nblocking", .reduce = HVD_SUM};
    struct tf_context ctx = {.count = 1, .inputs = {floats(3, 1)}};
    void *kernel;

    play_tensorflow();
    job_init();
    done_refuse(true);
    kernel = kernel_create_allreduce(&c);
    run(kernel, &ctx);
    CHECK_EQ(atomic_load(&ctx.ended), 1);
    CHECK_EQ(*(float *)tf.TensorData(ctx.outputs[0]), 2);
    forget(&ctx);
    kernel_delete(kernel);
    hvd_shutdown();
    check_nothing_left();
}

TEST(a_completion_that_cannot_be_kept_is_waited_for)
{
    job_run(&(struct job_options){.size = 2}, without_copies, NULL);
}

static void orphan(int rank, int size, void *context)
{
    struct tf_construction c = {.names = "\nnever", .reduce = HVD_SUM};
    struct tf_context ctx = {.count = 1, .inputs = {floats(3, 1)}};
    void *kernel;

    play_tensorflow();
    job_init();
    job_sum("together", 1);
    if (rank == 1)
        raise(SIGKILL);
    kernel = kernel_create_allreduce(&c);
    run(kernel, &ctx);
    wait_end(&ctx);
    CHECK_EQ(ctx.failure.code, TF_UNKNOWN);
    CHECK(strstr(ctx.failure.text, "[horovod PEER_LOST 1]") != NULL);
    forget(&ctx);
    kernel_delete(kernel);
    hvd_shutdown();
    check_nothing_left();
}

TEST(who_waits_for_a_dead_rank_is_told)
{
    struct job job;

    job_start(&job, &(struct job_options){.size = 2}, orphan, NULL);
    CHECK_EQ(job_wait(&job, 1), -SIGKILL);
    CHECK_EQ(job_wait(&job, 0), 0);
    job_end(&job);
}

/* What comes before the name that the node was made with comes before its wire names, too. */
TEST(names_of_kernels)
{
    struct tf_construction inlined = {.names = "a\na\nb"}, other = {.names = "c\nd"};
    struct tf_construction counted = {.names = ""};
    struct kernel *k;

    play_tensorflow();
    k = kernel_create_allgather(&inlined);
    CHECK_EQ(k->name_count, 2);
    CHECK(strcmp(k->name[0], "outer/a") == 0 && strcmp(k->name[1], "outer/b") == 0);
    kernel_delete(k);
    k = kernel_create_allgather(&other);
    CHECK_EQ(k->name_count, 1);
    CHECK(strcmp(k->name[0], "d") == 0);
    kernel_delete(k);
    k = kernel_create_allgather(&counted);
    CHECK_EQ(k->name_count, 0);
    kernel_delete(k);
}
