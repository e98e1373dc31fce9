/* py_elastic.c: elastic jobs for Python: the worker's side (hvd_elastic_* of horovod.h). */
#include "python/py_core.h"

static PyObject *py_set_retired(PyObject *mod, PyObject *type)
{
    struct core_state *s = core_of(mod);

    if (!PyExceptionClass_Check(type))
        return PyErr_Format(PyExc_TypeError, "an exception class is needed");
    Py_INCREF(type);
    Py_XDECREF(s->retired);
    s->retired = type;
    Py_RETURN_NONE;
}

static PyObject *py_elastic_info(PyObject *mod, PyObject *unused)
{
    struct hvd_elastic info;

    hvd_elastic_info(&info);
    return Py_BuildValue("{s:O,s:i,s:I,s:O}", "is_elastic",
                         info.is_elastic ? Py_True : Py_False, "worker", info.worker,
                         "generation", info.generation, "sync",
                         info.sync ? Py_True : Py_False);
}

static PyObject *py_elastic_pending(PyObject *mod, PyObject *unused)
{
    uint32_t version;
    unsigned kind = hvd_elastic_pending(&version);

    return Py_BuildValue("(II)", version, kind);
}

static PyObject *py_elastic_committed(PyObject *mod, PyObject *arg)
{
    unsigned long long count = PyLong_AsUnsignedLongLong(arg);

    if (PyErr_Occurred())
        return NULL;
    hvd_elastic_committed(count);
    Py_RETURN_NONE;
}

static PyObject *py_elastic_leave(PyObject *mod, PyObject *unused)
{
    hvd_elastic_leave();
    Py_RETURN_NONE;
}

static PyMethodDef elastic_methods[] = {
    {"set_retired", py_set_retired, METH_O, "The class raised for RETIRED."},
    {"elastic_info", py_elastic_info, METH_NOARGS,
     "{is_elastic, worker, generation, sync}"},
    {"elastic_pending", py_elastic_pending, METH_NOARGS,
     "(version, kind) of the newest update; kind 1 removed, 2 added, 4 this worker leaves"},
    {"elastic_committed", py_elastic_committed, METH_O, "elastic_committed(count)"},
    {"elastic_leave", py_elastic_leave, METH_NOARGS, "This process was told to leave."},
    {NULL, NULL, 0, NULL},
};

int py_elastic_add(PyObject *module)
{
    if (py_elastic_driver_add(module) != 0)
        return -1;
    return PyModule_AddFunctions(module, elastic_methods);
}
