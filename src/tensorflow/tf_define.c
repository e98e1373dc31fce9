/*
 * tf_define.c: the ops as TensorFlow sees them, and their kernels.
 *
 *   op                    inputs             outputs              stateful
 *   HorovodAllreduce      tensors: T         results: T           no
 *   HorovodAllgather      tensors: T         results: T           no
 *   HorovodBroadcast      tensors: T         results: T           no
 *   HorovodReducescatter  tensors: T         results: T           no
 *   HorovodAlltoall       tensors: T,        results: T,          no
 *                         splits: 0 or 1     received: int32
 *   HorovodJoin                              last: int32          yes
 *   HorovodQuery                             value: int32         yes
 *   HorovodKeep           tensors: T                              yes
 *
 * T is a list of types, a group of several tensors is one op.  The first five also take
 * `guard`, up to one int32 that is waited for and not looked at (rule 2 of tf_ops.h).
 */
#include "tensorflow/tf_ops.h"

#include <stdio.h>

#define TYPES "{uint8,int8,uint16,int16,int32,int64,half,bfloat16,float,double,bool}"
#define GUARD "guard: guards * int32"
#define COMMON                                                                         \
    "T: list(" TYPES ") >= 1", "guards: int >= 0 = 0", "tensor_name: string = ''",     \
    "process_set: int = 0", "pass_by: bool = false"
#define SCALED "reduce: int", "prescale: int", "postscale: int"

struct op {
    const char *name;
    const char *attributes[12], *inputs[4], *outputs[3];
    bool stateful;
    tf_shape_fn shape;
    tf_create_fn create;
    tf_compute_async_fn run_async;      /* or run */
    tf_compute_fn run;
    tf_delete_fn delete;
    const char *in_host_memory[6];      /* of a GPU kernel: everything */
};

/* Every output has the shape of its input. */
static void shape_same(struct tf_shapes *ctx, struct tf_status *status)
{
    struct tf_shape *shape = tf.NewShapeHandle();
    int64_t count = tf.ShapeInferenceContextNumInputs(ctx);

    for (int i = 0; i < count && tf.GetCode(status) == TF_OK; i++) {
        tf.ShapeInferenceContextGetInput(ctx, i, shape, status);
        if (tf.GetCode(status) != TF_OK)
            break;
        tf.ShapeInferenceContextSetOutput(ctx, i, shape, status);
        /* The guard comes last and has no output. */
        if (tf.GetCode(status) != TF_OK) {
            tf.SetStatus(status, TF_OK, "");
            break;
        }
    }
    tf.DeleteShapeHandle(shape);
}

static void shape_scalar(struct tf_shapes *ctx, struct tf_status *status)
{
    struct tf_shape *shape = tf.ShapeInferenceContextScalar(ctx);

    tf.ShapeInferenceContextSetOutput(ctx, 0, shape, status);
    tf.DeleteShapeHandle(shape);
}

/* The first dimension depends on the other ranks; Python says what is known. */
static void shape_unknown(struct tf_shapes *ctx, struct tf_status *status)
{
    tf.ShapeInferenceContextSetUnknownShape(ctx, status);
}

static void shape_none(struct tf_shapes *ctx, struct tf_status *status)
{
}

/* HorovodKeep uses results that nobody else may use. */
static void *keep_create(struct tf_construction *c)
{
    return NULL;
}

static void keep_run(void *kernel, struct tf_context *ctx)
{
}

static void keep_delete(void *kernel)
{
}

static const struct op ops[] = {
    {.name = "HorovodAllreduce", .attributes = {COMMON, SCALED},
     .inputs = {"tensors: T", GUARD}, .outputs = {"results: T"}, .shape = shape_same,
     .create = kernel_create_allreduce, .run_async = kernel_run, .delete = kernel_delete,
     .in_host_memory = {"tensors", "guard", "results"}},
    {.name = "HorovodAllgather", .attributes = {COMMON},
     .inputs = {"tensors: T", GUARD}, .outputs = {"results: T"}, .shape = shape_unknown,
     .create = kernel_create_allgather, .run_async = kernel_run, .delete = kernel_delete,
     .in_host_memory = {"tensors", "guard", "results"}},
    {.name = "HorovodBroadcast", .attributes = {COMMON, "root: int"},
     .inputs = {"tensors: T", GUARD}, .outputs = {"results: T"}, .shape = shape_same,
     .create = kernel_create_broadcast, .run_async = kernel_run, .delete = kernel_delete,
     .in_host_memory = {"tensors", "guard", "results"}},
    {.name = "HorovodReducescatter", .attributes = {COMMON, SCALED},
     .inputs = {"tensors: T", GUARD}, .outputs = {"results: T"}, .shape = shape_unknown,
     .create = kernel_create_reducescatter, .run_async = kernel_run,
     .delete = kernel_delete, .in_host_memory = {"tensors", "guard", "results"}},
    {.name = "HorovodAlltoall", .attributes = {COMMON, "given: int >= 0 = 0"},
     .inputs = {"tensors: T", "splits: given * int32", GUARD},
     .outputs = {"results: T", "received: int32"}, .shape = shape_unknown,
     .create = kernel_create_alltoall, .run_async = kernel_run, .delete = kernel_delete,
     .in_host_memory = {"tensors", "splits", "guard", "results", "received"}},
    {.name = "HorovodJoin", .outputs = {"last: int32"}, .stateful = true,
     .shape = shape_scalar, .create = kernel_create_join, .run_async = kernel_run,
     .delete = kernel_delete, .in_host_memory = {"last"}},
    {.name = "HorovodQuery", .attributes = {"what: int", "process_set: int = 0"},
     .outputs = {"value: int32"}, .stateful = true, .shape = shape_scalar,
     .create = query_create, .run = query_run, .delete = query_delete,
     .in_host_memory = {"value"}},
    {.name = "HorovodKeep", .attributes = {"T: list(" TYPES ") >= 1"},
     .inputs = {"tensors: T"}, .stateful = true, .shape = shape_none,
     .create = keep_create, .run = keep_run, .delete = keep_delete,
     .in_host_memory = {"tensors"}},
};

static void define(const struct op *op, struct tf_status *status)
{
    struct tf_op_builder *b = tf.NewOpDefinitionBuilder(op->name);

    for (int i = 0; op->attributes[i] != NULL; i++)
        tf.OpDefinitionBuilderAddAttr(b, op->attributes[i]);
    for (int i = 0; op->inputs[i] != NULL; i++)
        tf.OpDefinitionBuilderAddInput(b, op->inputs[i]);
    for (int i = 0; op->outputs[i] != NULL; i++)
        tf.OpDefinitionBuilderAddOutput(b, op->outputs[i]);
    if (op->stateful)                   /* the argument is not looked at */
        tf.OpDefinitionBuilderSetIsStateful(b, true);
    tf.OpDefinitionBuilderSetShapeInferenceFunction(b, op->shape);
    tf.RegisterOpDefinition(b, status); /* takes b */
}

static void add_kernel(const struct op *op, const char *device, struct tf_status *status)
{
    struct tf_kernel_builder *b =
        op->run_async != NULL
            ? tf.NewAsyncKernelBuilder(op->name, device, op->create, op->run_async,
                                       op->delete)
            : tf.NewKernelBuilder(op->name, device, op->create, op->run, op->delete);

    for (int i = 0; op->in_host_memory[i] != NULL; i++)
        tf.KernelBuilder_HostMemory(b, op->in_host_memory[i]);
    tf.RegisterKernelBuilder(op->name, b, status);      /* takes b */
}

const char *ops_define(char *text, size_t capacity)
{
    static const char *const devices[] = {"CPU", "GPU"};
    struct tf_status *status = tf.NewStatus();
    const char *problem = NULL;

    for (size_t i = 0; i < sizeof ops / sizeof ops[0] && problem == NULL; i++) {
        define(&ops[i], status);
        for (int d = 0; d < 2 && tf.GetCode(status) == TF_OK; d++)
            add_kernel(&ops[i], devices[d], status);
        if (tf.GetCode(status) == TF_OK)
            continue;
        snprintf(text, capacity, "%s: %s", ops[i].name, tf.Message(status));
        problem = text;
    }
    tf.DeleteStatus(status);
    return problem;
}
