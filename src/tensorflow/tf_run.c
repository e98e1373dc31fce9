/*
 * tf_run.c: one operation, from TensorFlow's inputs to its outputs.
 *
 *   kernel_run    takes the inputs, allocates the outputs whose shape is known, submits
 *   call_done     called by the engine: sets the other outputs, tells TensorFlow
 *
 * A call belongs to the engine from the submission on.  Two may use its handle: call_done, and
 * the thread of kernel_run, which makes the engine's progress for the time of a spin, since
 * in eager mode nothing else is to be done.  The one that is through last ends the handle.
 *
 * A rank whose arguments are wrong announces so, and fails with the reason once all ranks have
 * heard of it: nobody waits for it for ever, and the name is free for the next step.
 */
#include "tensorflow/tf_ops.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct call {
    const struct kernel *kernel;
    struct tf_context *ctx;
    struct tf_done *done;               /* NULL: kernel_run waits itself */
    struct hvd_error err;               /* not OK: what the call fails with in any case */
    hvd_handle handle;
    atomic_int users;                   /* of the handle */
    int count;                          /* tensors */
    struct tf_tensor **inputs, **outputs;
    struct tf_tensor *splits;
    int64_t *split_rows;
    char *names;                        /* made up for a group */
    struct hvd_request req[];
};

static void call_fail(struct call *c, enum hvd_status status, const char *text)
{
    c->err.status = status;
    c->err.rank = -1;
    snprintf(c->err.text, sizeof c->err.text, "%s", text);
}

static bool call_is_well(const struct call *c)
{
    return c->err.status == HVD_OK;
}

static void delete_all(struct tf_tensor **tensors, int count)
{
    for (int i = 0; i < count; i++)
        if (tensors[i] != NULL)
            tf.DeleteTensor(tensors[i]);
}

static void call_free(struct call *c)
{
    delete_all(c->inputs, c->count);
    delete_all(c->outputs, c->count);
    if (c->splits != NULL)
        tf.DeleteTensor(c->splits);
    free(c->split_rows);
    free(c->names);
    free(c->inputs);
    free(c);
}

/* Says how it ended; c is gone afterwards, TensorFlow's context may be. */
static void call_end(struct call *c)
{
    struct tf_done *done = c->done;

    if (!call_is_well(c))
        error_to_context(c->ctx, &c->err);
    call_free(c);
    if (done != NULL)
        done_run_kept(done);
}

static struct call *call_new(const struct kernel *k, struct tf_context *ctx)
{
    int count = k->op == HVD_JOIN ? 1 : tf.NumInputs(ctx) - k->guards - k->has_splits;
    struct call *c = calloc(1, sizeof *c + (size_t)count * sizeof c->req[0]);

    if (c == NULL)
        return NULL;
    c->inputs = calloc(2 * (size_t)count, sizeof *c->inputs);
    if (c->inputs == NULL) {
        free(c);
        return NULL;
    }
    c->outputs = c->inputs + count;
    c->kernel = k;
    c->ctx = ctx;
    c->count = count;
    c->users = 2;
    return c;
}

/* ---- What is submitted ---------------------------------------------------------------- */

static struct tf_tensor *get_input(struct call *c, int index)
{
    struct tf_status *status = tf.NewStatus();
    struct tf_tensor *tensor = NULL;

    tf.GetInput(c->ctx, index, &tensor, status);
    if (tf.GetCode(status) != TF_OK)
        error_internal(&c->err, status);
    tf.DeleteStatus(status);
    return tensor;
}

static void read_tensor(struct call *c, struct hvd_request *r, const struct tf_tensor *t)
{
    int dtype = dtype_to_hvd(tf.TensorType(t));

    r->ndim = tf.NumDims(t);
    if (dtype < 0 || r->ndim > HVD_DIMS_MAX) {
        call_fail(c, HVD_INVALID, dtype < 0 ? "tensors of this type are not supported"
                                            : "the tensor has too many dimensions");
        return;
    }
    r->dtype = (enum hvd_dtype)dtype;
    for (int i = 0; i < r->ndim; i++)
        r->shape[i] = tf.Dim(t, i);
    r->input = tf.TensorData(t);
}

static bool has_output_like_input(const struct kernel *k)
{
    return k->op == HVD_ALLREDUCE || k->op == HVD_BROADCAST;
}

static void allocate(struct call *c, int i)
{
    struct hvd_request *r = &c->req[i];
    struct tf_status *status = tf.NewStatus();

    c->outputs[i] = tf.AllocateOutput(c->ctx, i, tf.TensorType(c->inputs[i]), r->shape,
                                      r->ndim, tf.TensorByteSize(c->inputs[i]), status);
    if (tf.GetCode(status) == TF_OK)
        r->output = tf.TensorData(c->outputs[i]);
    else
        error_internal(&c->err, status);
    tf.DeleteStatus(status);
}

static void read_splits(struct call *c)
{
    int size = hvd->process_set_size(c->kernel->process_set);
    const int32_t *rows;

    c->splits = get_input(c, c->count);
    if (!call_is_well(c))
        return;
    if (tf.NumDims(c->splits) != 1 || tf.Dim(c->splits, 0) != size) {
        call_fail(c, HVD_INVALID, "alltoall needs as many splits as the process set has "
                                  "members");
        return;
    }
    c->split_rows = calloc((size_t)size, sizeof *c->split_rows);
    if (c->split_rows == NULL) {
        call_fail(c, HVD_NOMEM, "no memory for splits");
        return;
    }
    rows = tf.TensorData(c->splits);
    for (int i = 0; i < size; i++)
        c->split_rows[i] = rows[i];
    c->req[0].splits = c->split_rows;
}

/* A group with one name: name_1of3 and so on. */
static void set_group_names(struct call *c)
{
    const char *name = c->kernel->name[0];
    size_t room = strlen(name) + 32;

    c->names = malloc(room * (size_t)c->count);
    for (int i = 0; c->names != NULL && i < c->count; i++) {
        c->req[i].name = c->names + room * (size_t)i;
        snprintf(c->names + room * (size_t)i, room, "%s_%dof%d", name, i + 1, c->count);
    }
    if (c->names == NULL)
        call_fail(c, HVD_NOMEM, "no memory for names");
}

static void set_names(struct call *c)
{
    const struct kernel *k = c->kernel;

    if (k->name_count == c->count)
        for (int i = 0; i < c->count; i++)
            c->req[i].name = k->name[i];
    else if (k->name_count == 1)
        set_group_names(c);
    else if (k->name_count > 0)
        call_fail(c, HVD_INVALID, "not as many names as tensors");
}

static void fill(struct call *c)
{
    const struct kernel *k = c->kernel;

    for (int i = 0; i < c->count && call_is_well(c); i++) {
        struct hvd_request *r = &c->req[i];

        *r = (struct hvd_request){
            .size = sizeof *r, .op = k->op, .reduce = k->reduce, .root = k->root,
            .process_set = k->process_set, .device = -1, .prescale = k->prescale,
            .postscale = k->postscale};
        if (k->op == HVD_JOIN)
            return;
        c->inputs[i] = get_input(c, i);
        if (call_is_well(c))
            read_tensor(c, r, c->inputs[i]);
        if (call_is_well(c) && has_output_like_input(k))
            allocate(c, i);
    }
    if (call_is_well(c))
        set_names(c);
    if (call_is_well(c) && k->has_splits)
        read_splits(c);
}

/* ---- What comes back ------------------------------------------------------------------ */

static void free_data(void *data, size_t length, void *context)
{
    hvd->free(data);
}

/* The memory of the runtime becomes TensorFlow's, without a copy. */
static void set_output(struct call *c, int i, struct hvd_output *out)
{
    enum tf_dtype dtype = tf.TensorType(c->inputs[i]);
    struct tf_status *status = tf.NewStatus();
    struct tf_tensor *tensor;
    size_t bytes = hvd->dtype_bytes(c->req[i].dtype);

    for (int d = 0; d < out->ndim; d++)
        bytes *= (size_t)out->shape[d];
    if (bytes == 0) {
        hvd->free(out->data);
        tensor = tf.AllocateOutput(c->ctx, i, dtype, out->shape, out->ndim, 0, status);
    } else {
        tensor = tf.NewTensor(dtype, out->shape, out->ndim, out->data, bytes, free_data,
                              NULL);
        if (tensor != NULL)
            tf.SetOutput(c->ctx, i, tensor, status);
        else
            tf.SetStatus(status, TF_INTERNAL, "a tensor could not be made");
    }
    if (tf.GetCode(status) != TF_OK)
        error_internal(&c->err, status);
    if (tensor != NULL)
        tf.DeleteTensor(tensor);
    tf.DeleteStatus(status);
}

/* A small output of int32: a scalar if count is negative. */
static void set_numbers(struct call *c, int index, const int64_t *numbers, int count)
{
    int64_t shape[1] = {count};
    int length = count < 0 ? 1 : count;
    struct tf_status *status = tf.NewStatus();
    struct tf_tensor *tensor = tf.AllocateOutput(c->ctx, index, TF_INT32, shape, count >= 0,
                                                 (size_t)length * sizeof(int32_t), status);

    if (tf.GetCode(status) != TF_OK)
        error_internal(&c->err, status);
    for (int i = 0; i < length && call_is_well(c); i++)
        ((int32_t *)tf.TensorData(tensor))[i] = (int32_t)numbers[i];
    if (tensor != NULL)
        tf.DeleteTensor(tensor);
    tf.DeleteStatus(status);
}

static void take_output(struct call *c, hvd_handle handle, int i)
{
    struct hvd_output out = {.size = sizeof out};
    const struct kernel *k = c->kernel;

    if (k->op == HVD_JOIN) {
        if (hvd->output(handle, i, &out, &c->err) == HVD_OK)
            set_numbers(c, 0, &out.value, -1);
        return;
    }
    if (hvd->take_output(handle, i, &out, &c->err) != HVD_OK)
        return;
    if (k->op == HVD_ALLTOALL)
        set_numbers(c, c->count, out.splits, out.set_size);
    set_output(c, i, &out);
}

/* The last of the two users ends the handle. */
static void leave(struct call *c, hvd_handle handle)
{
    if (atomic_fetch_sub(&c->users, 1) == 2)
        return;
    hvd->release(handle);
    call_end(c);
}

static void call_done(void *context, hvd_handle handle, enum hvd_status status,
                      const struct hvd_error *why)
{
    struct call *c = context;

    if (status != HVD_OK && call_is_well(c))
        c->err = *why;
    for (int i = 0; i < c->count && call_is_well(c); i++)
        if (!has_output_like_input(c->kernel))
            take_output(c, handle, i);
    leave(c, handle);
}

/* ---- Submitting ----------------------------------------------------------------------- */

/* Whether the others would wait for us, and can be told. */
static bool is_missed(const struct call *c)
{
    return c->err.status != HVD_NOT_INIT && c->err.status != HVD_FORKED &&
           hvd->process_set_rank(c->kernel->process_set) >= 0;
}

static enum hvd_status submit(struct call *c, struct hvd_error *err)
{
    if (c->done == NULL)
        return hvd->submit(c->req, c->count, &c->handle, err);
    return hvd->submit_then(c->req, c->count, call_done, c, &c->handle, err);
}

/* This rank cannot take part: tells the others and fails when they know. */
static enum hvd_status announce_problem(struct call *c)
{
    struct hvd_error ignored;

    if (!is_missed(c))
        return c->err.status;
    for (int i = 0; i < c->count; i++) {
        c->req[i].size = sizeof c->req[i];
        c->req[i].op = c->kernel->op;
        c->req[i].process_set = c->kernel->process_set;
        c->req[i].device = -1;
        c->req[i].problem = c->err.text;
    }
    return submit(c, &ignored);
}

/* Not a member of the set, or alone in it with nothing to compute: what comes in goes out. */
static bool passes(const struct kernel *k)
{
    int size = hvd->process_set_size(k->process_set);

    if (k->pass && hvd->process_set_rank(k->process_set) == -2)
        return true;
    return k->op == HVD_ALLREDUCE && size == 1 && k->prescale == 1.0 && k->postscale == 1.0 &&
           hvd->process_set_rank(k->process_set) == 0;
}

static void pass(struct call *c)
{
    struct tf_status *status = tf.NewStatus();

    for (int i = 0; i < c->count && call_is_well(c); i++) {
        c->inputs[i] = get_input(c, i);
        if (call_is_well(c))
            tf.SetOutput(c->ctx, i, c->inputs[i], status);
        if (tf.GetCode(status) != TF_OK)
            error_internal(&c->err, status);
    }
    tf.DeleteStatus(status);
}

/* True: the engine has the call. */
static bool start(struct call *c)
{
    enum hvd_status status = HVD_OK;

    if (hvd == NULL) {
        call_fail(c, HVD_NOT_INIT, "horovod.tensorflow has not been imported");
        return false;
    }
    if (passes(c->kernel)) {
        pass(c);
        return false;
    }
    fill(c);
    if (call_is_well(c)) {
        status = submit(c, &c->err);
        if (status == HVD_OK)
            return true;
    }
    return announce_problem(c) == HVD_OK;
}

static void fail_without_call(struct tf_context *ctx)
{
    struct hvd_error err = {.status = HVD_NOMEM, .rank = -1,
                            .text = "no memory for an operation"};

    error_to_context(ctx, &err);
}

/* TensorFlow's completion cannot be kept: the operation ends here and now. */
static void finish_here(struct call *c)
{
    struct hvd_error err;
    enum hvd_status status = hvd->wait(c->handle, -1, &err);

    atomic_store(&c->users, 1);
    call_done(c, c->handle, status, &err);
}

void kernel_run(void *kernel, struct tf_context *ctx, struct tf_done *done)
{
    struct call *c = call_new(kernel, ctx);
    struct tf_done *kept = c != NULL ? done_keep(done) : NULL;

    if (c == NULL)
        fail_without_call(ctx);
    else if (c->done = kept, !start(c))
        call_end(c);
    else if (kept == NULL)
        finish_here(c);
    else {
        if (c->kernel->eager)
            hvd->wait(c->handle, 0, NULL);
        leave(c, c->handle);
    }
    if (kept == NULL)
        tf.RunAsyncOpKernelDoneCallback(done);
}
