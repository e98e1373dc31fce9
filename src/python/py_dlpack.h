/*
 * py_dlpack.h: memory of the runtime on its way to Python, as DLPack capsules.
 */
#ifndef HVD_PYTHON_PY_DLPACK_H
#define HVD_PYTHON_PY_DLPACK_H

#include "python/py_core.h"

/* A capsule "dltensor" that owns `data` (ended with hvd_free).  On failure the memory is
 * freed and an exception is set.  HVD_BOOL travels as uint8: not every consumer knows
 * DLPack's bool. */
PyObject *dlpack_new(void *data, enum hvd_dtype dtype, int ndim, const int64_t *shape);

/* The same for memory of a GPU; -1: of the host. */
PyObject *dlpack_new_on(int device, void *data, enum hvd_dtype dtype, int ndim,
                        const int64_t *shape);

/* The table of functions of a framework, from its capsule; NULL: none that we know. */
const struct dlpack_exchange *dlpack_exchange_of(PyObject *capsule);
/* Of a tensor of that framework.  1: done; 0: not dense, contiguous, on the CPU; -1: raised. */
int dlpack_read(const struct dlpack_exchange *x, PyObject *tensor, enum hvd_dtype *dtype_p,
                void **data_p, int *ndim_p, int64_t *shape);
/* As dlpack_new, but the framework's tensor itself. */
PyObject *dlpack_tensor(const struct dlpack_exchange *x, void *data, enum hvd_dtype dtype,
                        int ndim, const int64_t *shape);

#endif
