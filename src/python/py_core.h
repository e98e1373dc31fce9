/*
 * py_core.h: what the files of the extension `_core` share.
 *
 * Rules
 * 1. Only the limited API of CPython 3.10 is used, so that one `_core.abi3.so` serves
 *    every CPython from 3.10 on.
 * 2. No statics: everything that lives as long as the module is in struct core_state
 *    (but for py_where.c, whose callback has no context).
 * 3. The GIL is released around every call of libhvd that may block, and waiting goes in
 *    slices of WAIT_SLICE_US, between which Python's signal handlers run (Ctrl-C).
 * 4. No framework is imported: horovod.torch registers its dtype objects and its table of
 *    DLPack functions; where it has none, tensors are asked for pointer, shape and dtype by
 *    interned method names.
 */
#ifndef HVD_PYTHON_PY_CORE_H
#define HVD_PYTHON_PY_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "horovod/driver.h"
#include "horovod/horovod.h"

#define WAIT_SLICE_US 100000            /* Ctrl-C must act within 200 ms */
#define DTYPE_OBJECTS_MAX 32

/* X(word): attribute and method names that are looked up in tensors. */
#define CORE_WORDS(X)                                                                  \
    X(dtype) X(shape) X(layout) X(is_cpu) X(data_ptr) X(is_contiguous) X(grad)         \
    X(copy_) X(requires_grad)

struct dlpack_exchange;

struct core_state {
    PyObject *error;                    /* the class that is raised; rule in core_raise */
    PyObject *retired;                  /* the class for HVD_RETIRED, NULL: `error` */
    PyObject *orphans;                  /* handle -> what it borrows, see core_orphan */
    PyObject *strided;                  /* torch.strided, NULL before registration */
    PyObject *tensor_types[2];          /* torch.Tensor, torch.nn.Parameter */
    const struct dlpack_exchange *exchange;     /* of torch; NULL: it has none */
    PyObject *dtype_objects[DTYPE_OBJECTS_MAX];
    enum hvd_dtype dtype_codes[DTYPE_OBJECTS_MAX];
    int dtype_count;
    PyTypeObject *slot_type;
#define CORE_WORD(word) PyObject *word;
    struct { CORE_WORDS(CORE_WORD) } words;
#undef CORE_WORD
};

static inline struct core_state *core_of(PyObject *module)
{
    return PyModule_GetState(module);
}

/* Raises what `err` says: ValueError for HVD_INVALID, else the registered class; both get
 * the attributes status, scope and rank.  Returns NULL. */
PyObject *core_raise(struct core_state *s, const struct hvd_error *err);

/* None, or raises. */
PyObject *core_done(struct core_state *s, enum hvd_status status,
                    const struct hvd_error *err);

/* Waits with the GIL released.  timeout_us -1: for ever.  False: a Python exception is
 * set, by a signal handler; the handle is still under way. */
/* The end of an object of a heap type: its memory, and its type's reference. */
void core_free(PyObject *object);

/* hvd_submit without the GIL. */
enum hvd_status core_submit(const struct hvd_request *req, int count, hvd_handle *handle_p,
                            struct hvd_error *err);
bool core_wait(hvd_handle handle, int64_t timeout_us, enum hvd_status *status_p,
               struct hvd_error *err);

/* Keeps `borrowed` alive until the handle, which nobody will wait for, is done.  Steals
 * nothing; never raises. */
void core_orphan(struct core_state *s, hvd_handle handle, PyObject *borrowed);
void core_sweep(struct core_state *s);  /* releases the orphans that are done */

/* py_driver.c, for the objects of the job side (Server, Driver). */

/* What both listen with.  `list` holds the texts of `addrs`. */
struct core_listen {
    const char *key;
    Py_ssize_t key_bytes;
    PyObject *list;
    const char **addrs;                 /* NULL: all interfaces */
    int addr_count;
};

/* Checks the key and reads `addrs`, a sequence of texts.  Owns: the caller,
 * core_listen_release, also after a failure, which has raised. */
bool core_listen_read(struct core_listen *l, PyObject *addrs);
void core_listen_release(struct core_listen *l);
/* 0, or -1 with the exception for a server that could not be opened. */
int core_opened(enum hvd_status status, const struct hvd_error *err);

/* tensor.name, and whether it is the object `wanted`; -1: raised. */
int core_attr_is(PyObject *object, PyObject *name, PyObject *wanted);

extern PyMethodDef py_gpu_methods[];
extern PyMethodDef py_tensor_methods[];
PyObject *py_set_where(PyObject *mod, PyObject *args);
PyObject *py_copy_start(PyObject *mod, PyObject *list);
PyObject *py_copy_wait(PyObject *mod, PyObject *unused);
PyObject *py_digest(PyObject *mod, PyObject *args);
int py_driver_add(PyObject *module);
int py_bucket_add(PyObject *module);
int py_elastic_add(PyObject *module);
int py_elastic_driver_add(PyObject *module);

#endif
