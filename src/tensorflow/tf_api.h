/*
 * tf_api.h: the part of TensorFlow's C API that we use, declared here and looked up at run
 * time in the TensorFlow that the process has loaded.
 *
 * No header of TensorFlow is needed to build, and one library serves every version that has
 * these functions.  Names, arguments and numbers are those of TensorFlow's c/kernels.h,
 * c/ops.h, c/tf_tensor.h and c/tf_status.h, which are part of its ABI.
 */
#ifndef HVD_TENSORFLOW_TF_API_H
#define HVD_TENSORFLOW_TF_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tf_status;
struct tf_tensor;
struct tf_op_builder;
struct tf_kernel_builder;
struct tf_construction;                 /* while a kernel is made: its attributes */
struct tf_context;                      /* while it runs: inputs and outputs */
struct tf_shapes;
struct tf_shape;
struct tf_done;                         /* see tf_done.c */

struct tf_text {
    const char *data;                   /* not terminated */
    size_t length;
};

enum tf_code { TF_OK = 0, TF_UNKNOWN = 2, TF_INVALID_ARGUMENT = 3, TF_RESOURCE_EXHAUSTED = 8,
               TF_FAILED_PRECONDITION = 9, TF_ABORTED = 10, TF_UNIMPLEMENTED = 12,
               TF_INTERNAL = 13 };

enum tf_dtype { TF_FLOAT = 1, TF_DOUBLE = 2, TF_INT32 = 3, TF_UINT8 = 4, TF_INT16 = 5,
                TF_INT8 = 6, TF_INT64 = 9, TF_BOOL = 10, TF_BFLOAT16 = 14, TF_UINT16 = 17,
                TF_HALF = 19 };

typedef void *(*tf_create_fn)(struct tf_construction *c);
typedef void (*tf_compute_fn)(void *kernel, struct tf_context *ctx);
typedef void (*tf_compute_async_fn)(void *kernel, struct tf_context *ctx,
                                    struct tf_done *done);
typedef void (*tf_delete_fn)(void *kernel);
typedef void (*tf_shape_fn)(struct tf_shapes *ctx, struct tf_status *status);
typedef void (*tf_free_fn)(void *data, size_t length, void *context);

/* X(result, name, arguments) */
#define TF_CALLS(X)                                                                    \
    X(struct tf_status *, NewStatus, (void))                                           \
    X(void, DeleteStatus, (struct tf_status *))                                        \
    X(void, SetStatus, (struct tf_status *, enum tf_code, const char *))               \
    X(enum tf_code, GetCode, (const struct tf_status *))                               \
    X(const char *, Message, (const struct tf_status *))                               \
    X(struct tf_op_builder *, NewOpDefinitionBuilder, (const char *))                  \
    X(void, OpDefinitionBuilderAddAttr, (struct tf_op_builder *, const char *))        \
    X(void, OpDefinitionBuilderAddInput, (struct tf_op_builder *, const char *))       \
    X(void, OpDefinitionBuilderAddOutput, (struct tf_op_builder *, const char *))      \
    X(void, OpDefinitionBuilderSetIsStateful, (struct tf_op_builder *, bool))          \
    X(void, OpDefinitionBuilderSetShapeInferenceFunction,                              \
      (struct tf_op_builder *, tf_shape_fn))                                           \
    X(void, RegisterOpDefinition, (struct tf_op_builder *, struct tf_status *))        \
    X(struct tf_kernel_builder *, NewKernelBuilder,                                    \
      (const char *op, const char *device, tf_create_fn, tf_compute_fn, tf_delete_fn)) \
    X(struct tf_kernel_builder *, NewAsyncKernelBuilder,                               \
      (const char *op, const char *device, tf_create_fn, tf_compute_async_fn,          \
       tf_delete_fn))                                                                  \
    X(void, KernelBuilder_HostMemory, (struct tf_kernel_builder *, const char *))      \
    X(void, RegisterKernelBuilder,                                                     \
      (const char *, struct tf_kernel_builder *, struct tf_status *))                  \
    X(void, RunAsyncOpKernelDoneCallback, (struct tf_done *))                          \
    X(int, NumInputs, (struct tf_context *))                                           \
    X(void, GetInput,                                                                  \
      (struct tf_context *, int, struct tf_tensor **, struct tf_status *))             \
    X(void, SetOutput,                                                                 \
      (struct tf_context *, int, const struct tf_tensor *, struct tf_status *))        \
    X(struct tf_tensor *, AllocateOutput,                                              \
      (struct tf_context *, int index, enum tf_dtype, const int64_t *shape, int ndim,  \
       size_t bytes, struct tf_status *))                                              \
    X(void, OpKernelContext_Failure, (struct tf_context *, struct tf_status *))        \
    X(struct tf_tensor *, NewTensor,                                                   \
      (enum tf_dtype, const int64_t *shape, int ndim, void *data, size_t bytes,        \
       tf_free_fn, void *context))                                                     \
    X(void, DeleteTensor, (struct tf_tensor *))                                        \
    X(enum tf_dtype, TensorType, (const struct tf_tensor *))                           \
    X(int, NumDims, (const struct tf_tensor *))                                        \
    X(int64_t, Dim, (const struct tf_tensor *, int))                                   \
    X(size_t, TensorByteSize, (const struct tf_tensor *))                              \
    X(void *, TensorData, (const struct tf_tensor *))                                  \
    X(void, OpKernelConstruction_Failure,                                              \
      (struct tf_construction *, struct tf_status *))                                  \
    X(void, OpKernelConstruction_GetAttrSize,                                          \
      (struct tf_construction *, const char *, int32_t *list, int32_t *total,          \
       struct tf_status *))                                                            \
    X(void, OpKernelConstruction_GetAttrString,                                        \
      (struct tf_construction *, const char *, char *, size_t, struct tf_status *))    \
    X(void, OpKernelConstruction_GetAttrInt32,                                         \
      (struct tf_construction *, const char *, int32_t *, struct tf_status *))         \
    X(void, OpKernelConstruction_GetAttrInt64,                                         \
      (struct tf_construction *, const char *, int64_t *, struct tf_status *))         \
    X(void, OpKernelConstruction_GetAttrBool,                                          \
      (struct tf_construction *, const char *, unsigned char *, struct tf_status *))   \
    X(struct tf_text, OpKernelConstruction_GetName, (struct tf_construction *))        \
    X(int64_t, GetIterId, (struct tf_context *))                                       \
    X(struct tf_shape *, NewShapeHandle, (void))                                       \
    X(void, DeleteShapeHandle, (struct tf_shape *))                                    \
    X(int64_t, ShapeInferenceContextNumInputs, (struct tf_shapes *))                   \
    X(void, ShapeInferenceContextGetInput,                                             \
      (struct tf_shapes *, int, struct tf_shape *, struct tf_status *))                \
    X(void, ShapeInferenceContextSetOutput,                                            \
      (struct tf_shapes *, int, struct tf_shape *, struct tf_status *))                \
    X(struct tf_shape *, ShapeInferenceContextScalar, (struct tf_shapes *))            \
    X(void, ShapeInferenceContextSetUnknownShape,                                      \
      (struct tf_shapes *, struct tf_status *))

struct tf_api {
#define TF_CALL_FIELD(result, name, arguments) result(*name) arguments;
    TF_CALLS(TF_CALL_FIELD)
#undef TF_CALL_FIELD
};

/* Filled by tf_api_find, before any kernel exists. */
extern struct tf_api tf;

/* NULL, or the name of a function that is missing. */
const char *tf_api_find(void);

#endif
