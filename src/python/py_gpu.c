/* py_gpu.c: what is known of GPUs, and streams that wait. */
#include "python/py_core.h"

/* stream_wait(handle, stream): the stream waits for the end of an operation that is done */
static PyObject *py_stream_wait(PyObject *mod, PyObject *args)
{
    enum hvd_status status;
    struct hvd_error err;
    unsigned long long stream;
    long long handle;

    if (!PyArg_ParseTuple(args, "LK", &handle, &stream))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = hvd_stream_wait(handle, stream, &err);
    Py_END_ALLOW_THREADS
    return core_done(core_of(mod), status, &err);
}

/* gpu_info() -> (backend, NCCL's version, driver, NCCL, reason) */
static PyObject *py_gpu_info(PyObject *mod, PyObject *unused)
{
    static const char *const names[] = {"none", "host", "nccl"};
    struct hvd_gpu info = {.size = sizeof(info)};

    Py_BEGIN_ALLOW_THREADS
    hvd_gpu_info(&info);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(sisss)", names[info.backend], info.nccl_version, info.driver,
                         info.nccl, info.reason);
}

static PyObject *py_nccl_version(PyObject *mod, PyObject *unused)
{
    return PyLong_FromLong(hvd_nccl_version());
}

/* gpu_search("directory:directory") */
static PyObject *py_gpu_search(PyObject *mod, PyObject *arg)
{
    const char *text = PyUnicode_AsUTF8AndSize(arg, NULL);

    if (text == NULL)
        return NULL;
    hvd_gpu_search(text);
    Py_RETURN_NONE;
}

PyMethodDef py_gpu_methods[] = {
    {"stream_wait", py_stream_wait, METH_VARARGS, "stream_wait(handle, stream)"},
    {"gpu_info", py_gpu_info, METH_NOARGS,
     "(none | host | nccl, NCCL's version, driver, NCCL, why not more); loads them"},
    {"nccl_version", py_nccl_version, METH_NOARGS, "of the library, 0: not there"},
    {"gpu_search", py_gpu_search, METH_O, "directories to look in, with ':' between them"},
    {NULL, NULL, 0, NULL},
};
