/* py_copies.c: copying beside the caller's work, for the commits of elastic states, and
 * comparing what the ranks have. */
#include "python/py_core.h"

#include <stdlib.h>

static bool read_piece(PyObject *item, struct hvd_copy *piece)
{
    unsigned long long dst, src;
    Py_ssize_t bytes;

    if (!PyArg_ParseTuple(item, "KKn", &dst, &src, &bytes))
        return false;
    if (bytes < 0 || (bytes > 0 && (dst == 0 || src == 0))) {
        PyErr_SetString(PyExc_ValueError, "a piece to copy has no memory");
        return false;
    }
    *piece = (struct hvd_copy){(void *)(uintptr_t)dst, (const void *)(uintptr_t)src,
                               (size_t)bytes};
    return true;
}

/* A new array of the pieces of a list, or NULL with an exception. */
static struct hvd_copy *pieces_new(PyObject *list, Py_ssize_t count)
{
    struct hvd_copy *pieces = calloc((size_t)count + 1, sizeof *pieces);

    if (pieces == NULL)
        return (struct hvd_copy *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++)
        if (!read_piece(PyList_GetItem(list, i), &pieces[i])) {
            free(pieces);
            return NULL;
        }
    return pieces;
}

PyObject *py_copy_start(PyObject *mod, PyObject *list)
{
    Py_ssize_t count = PyList_Size(list);
    struct hvd_copy *pieces = count >= 0 ? pieces_new(list, count) : NULL;
    struct hvd_error err;
    enum hvd_status status;

    if (pieces == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = hvd_copy_start(pieces, (size_t)count, &err);
    Py_END_ALLOW_THREADS
    free(pieces);
    return core_done(core_of(mod), status, &err);
}

PyObject *py_copy_wait(PyObject *mod, PyObject *unused)
{
    (void)mod;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    hvd_copy_wait();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject *py_digest(PyObject *mod, PyObject *args)
{
    unsigned long long address, seed;
    Py_ssize_t bytes;
    uint64_t result;

    (void)mod;
    if (!PyArg_ParseTuple(args, "KnK", &address, &bytes, &seed))
        return NULL;
    if (bytes < 0 || (bytes > 0 && address == 0)) {
        PyErr_SetString(PyExc_ValueError, "there is no memory to look at");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    result = hvd_digest((const void *)(uintptr_t)address, (size_t)bytes, seed);
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLongLong(result);
}
