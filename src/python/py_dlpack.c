/*
 * py_dlpack.c: tensors by DLPack: capsules that own memory of the runtime, and the table of C
 * functions that newer frameworks offer (`__dlpack_c_exchange_api__`), by which a tensor is
 * read or made in a tenth of the time that its Python attributes take.
 *
 * The layout of the structs is DLPack's: version 0 ("dltensor"), which every consumer
 * understands, for capsules; version 1 for the table.  A capsule that was consumed is renamed
 * by the consumer, who then calls the deleter; one that was not calls it from its destructor.
 */
#include "python/py_dlpack.h"

#include <stdlib.h>

enum { DLPACK_CPU = 1, DLPACK_CUDA = 2 };
enum { DLPACK_INT = 0, DLPACK_UINT = 1, DLPACK_FLOAT = 2, DLPACK_BFLOAT = 4, DLPACK_BOOL = 6 };

struct dlpack_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

struct dlpack_managed {
    struct dlpack_tensor tensor;
    void *context;
    void (*deleter)(struct dlpack_managed *);
    int64_t dims[2 * HVD_DIMS_MAX];     /* ours: shape, then strides */
};

/* DLManagedTensorVersioned */
struct dlpack_versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct dlpack_versioned *);
    uint64_t flags;
    struct dlpack_tensor tensor;
    int64_t dims[2 * HVD_DIMS_MAX];     /* ours: shape, then strides */
};

/* DLPackExchangeAPI; the first three members are the same in all versions. */
struct dlpack_exchange {
    uint32_t major, minor;
    const struct dlpack_exchange *previous;
    void *allocate;
    void *managed_from_object;
    int (*object_from_managed)(struct dlpack_versioned *tensor, void **object_p);
    int (*tensor_from_object)(void *object, struct dlpack_tensor *tensor);
    void *current_stream;
};

/* Thread: any, with or without the GIL. */
static void managed_delete(struct dlpack_managed *m)
{
    hvd_free(m->tensor.data);
    free(m);
}

static void capsule_end(PyObject *capsule)
{
    struct dlpack_managed *m;

    if (!PyCapsule_IsValid(capsule, "dltensor"))
        return;
    m = PyCapsule_GetPointer(capsule, "dltensor");
    m->deleter(m);
}

static uint8_t code_of(enum hvd_dtype dtype)
{
    switch (dtype) {
    case HVD_I8: case HVD_I16: case HVD_I32: case HVD_I64: return DLPACK_INT;
    case HVD_F16: case HVD_F32: case HVD_F64: return DLPACK_FLOAT;
    case HVD_BF16: return DLPACK_BFLOAT;
    default: return DLPACK_UINT;
    }
}

static void describe(struct dlpack_tensor *t, int64_t *dims, void *data,
                     enum hvd_dtype dtype, int ndim, const int64_t *shape)
{
    int64_t stride = 1;

    *t = (struct dlpack_tensor){
        .data = data, .device_type = DLPACK_CPU, .ndim = ndim, .code = code_of(dtype),
        .bits = (uint8_t)(8 * hvd_dtype_bytes(dtype)), .lanes = 1, .shape = dims,
        .strides = dims + HVD_DIMS_MAX};
    for (int i = ndim - 1; i >= 0; i--) {
        t->shape[i] = shape[i];
        t->strides[i] = stride;
        stride *= shape[i] > 0 ? shape[i] : 1;
    }
}

PyObject *dlpack_new(void *data, enum hvd_dtype dtype, int ndim, const int64_t *shape)
{
    return dlpack_new_on(-1, data, dtype, ndim, shape);
}

PyObject *dlpack_new_on(int device, void *data, enum hvd_dtype dtype, int ndim,
                        const int64_t *shape)
{
    struct dlpack_managed *m = calloc(1, sizeof(*m));
    PyObject *capsule;

    if (m == NULL) {
        hvd_free(data);
        return PyErr_NoMemory();
    }
    m->deleter = managed_delete;
    describe(&m->tensor, m->dims, data, dtype, ndim, shape);
    if (device >= 0) {
        m->tensor.device_type = DLPACK_CUDA;
        m->tensor.device_id = device;
    }
    capsule = PyCapsule_New(m, "dltensor", capsule_end);
    if (capsule == NULL)
        managed_delete(m);
    return capsule;
}

/* ---- The table of a framework ---------------------------------------------------- */

const struct dlpack_exchange *dlpack_exchange_of(PyObject *capsule)
{
    const struct dlpack_exchange *x = NULL;

    if (PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        x = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    while (x != NULL && x->major != 1)
        x = x->previous;
    if (x == NULL || x->object_from_managed == NULL || x->tensor_from_object == NULL)
        return NULL;
    return x;
}

static int dtype_of(const struct dlpack_tensor *t)
{
    static const int8_t ints[] = {[1] = HVD_I8, [2] = HVD_I16, [4] = HVD_I32, [8] = HVD_I64};
    static const int8_t floats[] = {[2] = HVD_F16, [4] = HVD_F32, [8] = HVD_F64};
    unsigned bytes = t->bits / 8u;

    if (t->lanes != 1 || (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8))
        return -1;
    switch (t->code) {
    case DLPACK_INT:
        return ints[bytes];
    case DLPACK_UINT:
        return bytes == 1 ? HVD_U8 : bytes == 2 ? HVD_U16 : -1;
    case DLPACK_FLOAT:
        return bytes >= 2 ? floats[bytes] : -1;
    case DLPACK_BFLOAT:
        return bytes == 2 ? HVD_BF16 : -1;
    case DLPACK_BOOL:
        return bytes == 1 ? HVD_BOOL : -1;
    default:
        return -1;
    }
}

static bool is_contiguous(const struct dlpack_tensor *t)
{
    int64_t stride = 1;

    if (t->strides == NULL)
        return true;
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0)
            return true;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->strides[i] != stride)
            return false;
        stride *= t->shape[i];
    }
    return true;
}

int dlpack_read(const struct dlpack_exchange *x, PyObject *tensor, enum hvd_dtype *dtype_p,
                void **data_p, int *ndim_p, int64_t *shape)
{
    struct dlpack_tensor t;
    int dtype;

    if (x->tensor_from_object(tensor, &t) != 0) {
        PyErr_Clear();                  /* sparse, on no device, ... */
        return 0;
    }
    dtype = dtype_of(&t);
    if (dtype < 0 || t.device_type != DLPACK_CPU || t.ndim > HVD_DIMS_MAX ||
        !is_contiguous(&t))
        return 0;
    *dtype_p = (enum hvd_dtype)dtype;
    *data_p = (char *)t.data + t.byte_offset;
    *ndim_p = t.ndim;
    for (int i = 0; i < t.ndim; i++)
        shape[i] = t.shape[i];
    return 1;
}

static void versioned_delete(struct dlpack_versioned *m)
{
    hvd_free(m->tensor.data);
    free(m);
}

PyObject *dlpack_tensor(const struct dlpack_exchange *x, void *data, enum hvd_dtype dtype,
                        int ndim, const int64_t *shape)
{
    struct dlpack_versioned *m = malloc(sizeof(*m));
    void *object = NULL;

    if (m == NULL) {
        hvd_free(data);
        return PyErr_NoMemory();
    }
    m->major = 1;
    m->minor = 0;
    m->context = NULL;
    m->deleter = versioned_delete;
    m->flags = 0;
    describe(&m->tensor, m->dims, data, dtype, ndim, shape);
    if (dtype == HVD_BOOL)
        m->tensor.code = DLPACK_BOOL;
    return x->object_from_managed(m, &object) == 0 ? object : NULL;     /* it has m */
}
