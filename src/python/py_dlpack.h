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

#endif
