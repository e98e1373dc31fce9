/*
 * py_dlpack.c: DLPack capsules that own memory of the runtime.
 *
 * The layout of the two structs is DLPack's, version 0 ("dltensor"), which every consumer
 * understands.  A capsule that was consumed is renamed by the consumer, who then calls the
 * deleter; one that was not calls it from its destructor.
 */
#include "python/py_dlpack.h"

#include <stdlib.h>

enum { DLPACK_CPU = 1 };
enum { DLPACK_INT = 0, DLPACK_UINT = 1, DLPACK_FLOAT = 2, DLPACK_BFLOAT = 4 };

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

PyObject *dlpack_new(void *data, enum hvd_dtype dtype, int ndim, const int64_t *shape)
{
    struct dlpack_managed *m = calloc(1, sizeof(*m));
    int64_t stride = 1;
    PyObject *capsule;

    if (m == NULL) {
        hvd_free(data);
        return PyErr_NoMemory();
    }
    m->deleter = managed_delete;
    m->tensor = (struct dlpack_tensor){
        .data = data, .device_type = DLPACK_CPU, .ndim = ndim, .code = code_of(dtype),
        .bits = (uint8_t)(8 * hvd_dtype_bytes(dtype)), .lanes = 1, .shape = m->dims,
        .strides = m->dims + HVD_DIMS_MAX};
    for (int i = ndim - 1; i >= 0; i--) {
        m->tensor.shape[i] = shape[i];
        m->tensor.strides[i] = stride;
        stride *= shape[i] > 0 ? shape[i] : 1;
    }
    capsule = PyCapsule_New(m, "dltensor", capsule_end);
    if (capsule == NULL)
        managed_delete(m);
    return capsule;
}
