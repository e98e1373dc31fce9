/*
 * py_module.c: the module `_core`: life cycle, process sets, diagnostics, errors.
 * Each function converts its arguments, releases the GIL, calls libhvd, converts back.
 */
#include "python/py_core.h"

#include "base/config.h"

#include <stdlib.h>
#include <string.h>

/* ---- errors --------------------------------------------------------------------- */

static const char *scope_name(enum hvd_scope scope)
{
    switch (scope) {
    case HVD_SCOPE_NONE: return "NONE";
    case HVD_SCOPE_OP: return "OP";
    case HVD_SCOPE_SET: return "SET";
    case HVD_SCOPE_JOB: return "JOB";
    case HVD_SCOPE_PROCESS: return "PROCESS";
    }
    return "NONE";
}

static bool set_text(PyObject *object, const char *attribute, const char *text)
{
    PyObject *value = PyUnicode_FromString(text);
    bool ok = value != NULL && PyObject_SetAttrString(object, attribute, value) == 0;

    Py_XDECREF(value);
    return ok;
}

PyObject *core_raise(struct core_state *s, const struct hvd_error *err)
{
    PyObject *type = err->status == HVD_INVALID                         ? PyExc_ValueError
                     : err->status == HVD_RETIRED && s->retired != NULL ? s->retired
                                                                        : s->error;
    char shown[HVD_ERROR_TEXT + 64];
    size_t bytes = hvd_error_show(err->text, shown, sizeof shown);
    PyObject *text = PyUnicode_DecodeUTF8(shown, (Py_ssize_t)bytes, "replace");
    PyObject *e, *rank;

    if (text == NULL)
        return NULL;
    e = PyObject_CallFunctionObjArgs(type, text, NULL);
    Py_DECREF(text);
    if (e == NULL)
        return NULL;
    rank = PyLong_FromLong(err->rank);
    if (rank != NULL && PyObject_SetAttrString(e, "rank", rank) == 0 &&
        set_text(e, "status", hvd_status_name(err->status)) &&
        set_text(e, "scope", scope_name(hvd_status_scope(err->status))))
        PyErr_SetObject(type, e);
    Py_XDECREF(rank);
    Py_DECREF(e);
    return NULL;
}

PyObject *core_done(struct core_state *s, enum hvd_status status,
                    const struct hvd_error *err)
{
    if (status != HVD_OK)
        return core_raise(s, err);
    Py_RETURN_NONE;
}

static PyObject *py_set_error(PyObject *mod, PyObject *type)
{
    struct core_state *s = core_of(mod);

    if (!PyExceptionClass_Check(type))
        return PyErr_Format(PyExc_TypeError, "an exception class is needed");
    Py_INCREF(type);
    Py_XDECREF(s->error);
    s->error = type;
    Py_RETURN_NONE;
}

/* ---- objects ------------------------------------------------------------------------ */

void core_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    release(object);
    Py_DECREF(type);
}

/* ---- life cycle ----------------------------------------------------------------- */

/* A new array of the ints of a sequence, or NULL with an exception. */
static int *ints_new(PyObject *sequence, int *count_p)
{
    PyObject *list = PySequence_List(sequence);
    Py_ssize_t n = list != NULL ? PyList_Size(list) : -1;
    int *values;

    if (n < 0)
        return NULL;
    values = malloc(((size_t)n + 1) * sizeof(*values));
    for (Py_ssize_t i = 0; values != NULL && i < n; i++) {
        long v = PyLong_AsLong(PyList_GetItem(list, i));

        values[i] = v > INT32_MAX || v < INT32_MIN ? -1 : (int)v;
        if (PyErr_Occurred()) {
            free(values);
            Py_DECREF(list);
            return NULL;
        }
    }
    Py_DECREF(list);
    *count_p = (int)n;
    return values != NULL ? values : (int *)PyErr_NoMemory();
}

static void sets_free(struct hvd_set_spec *specs, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; specs != NULL && i < count; i++)
        free((void *)specs[i].ranks);
    free(specs);
}

/* The specs of a list of lists of ranks; NULL with an exception. */
static struct hvd_set_spec *sets_new(PyObject *list)
{
    Py_ssize_t n = PyList_Size(list);
    struct hvd_set_spec *specs = calloc((size_t)n + 1, sizeof(*specs));

    if (specs == NULL)
        return (struct hvd_set_spec *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++) {
        specs[i].ranks = ints_new(PyList_GetItem(list, i), &specs[i].rank_count);
        if (specs[i].ranks == NULL) {
            sets_free(specs, i);
            return NULL;
        }
    }
    return specs;
}

static PyObject *py_init(PyObject *mod, PyObject *args)
{
    struct hvd_options opt = {.size = sizeof(opt)};
    struct hvd_set_spec *specs = NULL;
    struct hvd_error err;
    enum hvd_status status;
    PyObject *sets = Py_None, *list = NULL;
    int dynamic = 0;

    if (!PyArg_ParseTuple(args, "|Op", &sets, &dynamic))
        return NULL;
    if (sets != Py_None) {
        list = PySequence_List(sets);
        specs = list != NULL ? sets_new(list) : NULL;
        if (specs == NULL) {
            Py_XDECREF(list);
            return NULL;
        }
        opt.set_count = (int)PyList_Size(list);
    }
    opt.sets = specs;
    opt.dynamic_sets = dynamic != 0;
    Py_BEGIN_ALLOW_THREADS
    status = hvd_init(&opt, &err);
    Py_END_ALLOW_THREADS
    sets_free(specs, opt.set_count);
    Py_XDECREF(list);
    return core_done(core_of(mod), status, &err);
}

static PyObject *py_shutdown(PyObject *mod, PyObject *unused)
{
    Py_BEGIN_ALLOW_THREADS
    hvd_shutdown();
    Py_END_ALLOW_THREADS
    core_sweep(core_of(mod));
    Py_RETURN_NONE;
}

static PyObject *py_abort(PyObject *mod, PyObject *args)
{
    const char *why;

    if (!PyArg_ParseTuple(args, "s", &why))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    hvd_abort(why);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *py_is_initialized(PyObject *mod, PyObject *unused)
{
    return PyBool_FromLong(hvd_is_initialized());
}

#define QUERY(name)                                                                    \
    static PyObject *py_##name(PyObject *mod, PyObject *unused)                        \
    {                                                                                  \
        return PyLong_FromLong(hvd_##name());                                          \
    }
QUERY(rank)
QUERY(size)
QUERY(local_rank)
QUERY(local_size)
QUERY(cross_rank)
QUERY(cross_size)
QUERY(is_homogeneous)

static PyObject *py_version(PyObject *mod, PyObject *unused)
{
    return PyUnicode_FromString(hvd_version());
}

/* ---- process sets --------------------------------------------------------------- */

static PyObject *py_add_process_set(PyObject *mod, PyObject *ranks)
{
    struct hvd_error err;
    enum hvd_status status;
    int count, id = -1, *values = ints_new(ranks, &count);

    if (values == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = hvd_add_process_set(values, count, &id, &err);
    Py_END_ALLOW_THREADS
    free(values);
    return status == HVD_OK ? PyLong_FromLong(id) : core_raise(core_of(mod), &err);
}

static PyObject *py_remove_process_set(PyObject *mod, PyObject *arg)
{
    struct hvd_error err;
    enum hvd_status status;
    long id = PyLong_AsLong(arg);

    if (id == -1 && PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = hvd_remove_process_set((int)id, &err);
    Py_END_ALLOW_THREADS
    return core_done(core_of(mod), status, &err);
}

static PyObject *py_process_set_rank(PyObject *mod, PyObject *arg)
{
    long id = PyLong_AsLong(arg);

    return id == -1 && PyErr_Occurred() ? NULL
                                        : PyLong_FromLong(hvd_process_set_rank((int)id));
}

static PyObject *py_process_set_size(PyObject *mod, PyObject *arg)
{
    long id = PyLong_AsLong(arg);

    return id == -1 && PyErr_Occurred() ? NULL
                                        : PyLong_FromLong(hvd_process_set_size((int)id));
}

static PyObject *ints_list(const int *values, int count)
{
    PyObject *list = PyList_New(count);

    for (int i = 0; list != NULL && i < count; i++)
        if (PyList_SetItem(list, i, PyLong_FromLong(values[i])) != 0)
            Py_CLEAR(list);
    return list;
}

static bool put_set(PyObject *dict, int id)
{
    int count = hvd_process_set_size(id), *ranks;
    PyObject *key, *value = NULL;
    bool ok;

    if (count < 0)                      /* removed meanwhile */
        return true;
    ranks = calloc((size_t)count + 1, sizeof(*ranks));
    if (ranks == NULL)
        return PyErr_NoMemory() != NULL;
    hvd_process_set_ranks(id, ranks, count);
    key = PyLong_FromLong(id);
    value = ints_list(ranks, count);
    ok = key != NULL && value != NULL && PyDict_SetItem(dict, key, value) == 0;
    Py_XDECREF(key);
    Py_XDECREF(value);
    free(ranks);
    return ok;
}

static PyObject *py_warm_process_set(PyObject *mod, PyObject *arg)
{
    long id = PyLong_AsLong(arg);

    if (PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    hvd_warm_process_set((int)id);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *py_process_sets(PyObject *mod, PyObject *unused)
{
    PyObject *dict = PyDict_New();
    int count = hvd_process_set_count(), *ids;

    if (dict == NULL || count <= 0)
        return dict;
    ids = calloc((size_t)count, sizeof(*ids));
    if (ids == NULL) {
        Py_DECREF(dict);
        return PyErr_NoMemory();
    }
    count = hvd_process_set_ids(ids, count) < count ? hvd_process_set_ids(ids, count)
                                                    : count;
    for (int i = 0; dict != NULL && i < count; i++)
        if (!put_set(dict, ids[i]))
            Py_CLEAR(dict);
    free(ids);
    return dict;
}

/* ---- diagnostics ---------------------------------------------------------------- */

static PyObject *py_timeline_start(PyObject *mod, PyObject *args)
{
    struct hvd_error err;
    enum hvd_status status;
    const char *path;
    int mark = 0;

    if (!PyArg_ParseTuple(args, "s|p", &path, &mark))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = hvd_timeline_start(path, mark != 0, &err);
    Py_END_ALLOW_THREADS
    return core_done(core_of(mod), status, &err);
}

static PyObject *py_timeline_stop(PyObject *mod, PyObject *unused)
{
    struct hvd_error err;
    enum hvd_status status;

    Py_BEGIN_ALLOW_THREADS
    status = hvd_timeline_stop(&err);
    Py_END_ALLOW_THREADS
    return core_done(core_of(mod), status, &err);
}

/* The text of a function that fills a buffer as snprintf does. */
static PyObject *filled(size_t (*fill)(char *, size_t))
{
    size_t room = fill(NULL, 0) + 4096, length;
    char *buffer = malloc(room);
    PyObject *text;

    if (buffer == NULL)
        return PyErr_NoMemory();
    length = fill(buffer, room);
    text = PyUnicode_DecodeUTF8(buffer, (Py_ssize_t)(length < room ? length : room - 1),
                                "replace");
    free(buffer);
    return text;
}

static PyObject *py_stats(PyObject *mod, PyObject *unused)
{
    return filled(hvd_stats_json);
}

static PyObject *py_config(PyObject *mod, PyObject *unused)
{
    return filled(hvd_config_text);
}

/* The text as hvd_error_show shows it.  What is no plain text stays as it is: the caller has an
 * error to raise already. */
static PyObject *py_error_show(PyObject *mod, PyObject *object)
{
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(object, &length);
    PyObject *shown;
    size_t bytes;
    char *buffer;

    if (text == NULL || strlen(text) != (size_t)length) {
        PyErr_Clear();
        Py_INCREF(object);
        return object;
    }
    bytes = hvd_error_show(text, NULL, 0);
    buffer = malloc(bytes + 1);
    if (buffer == NULL)
        return PyErr_NoMemory();
    hvd_error_show(text, buffer, bytes + 1);
    shown = PyUnicode_DecodeUTF8(buffer, (Py_ssize_t)bytes, "replace");
    free(buffer);
    return shown;
}

static PyObject *py_recorder_dump(PyObject *mod, PyObject *args)
{
    struct hvd_error err;
    const char *path;

    if (!PyArg_ParseTuple(args, "s", &path))
        return NULL;
    return core_done(core_of(mod), hvd_recorder_dump(path, &err), &err);
}

/* ---- the module ----------------------------------------------------------------- */

static PyMethodDef module_methods[] = {
    {"set_error", py_set_error, METH_O, "The class raised for job errors."},
    {"set_where", py_set_where, METH_VARARGS, "see py_where.c"},
    {"init", py_init, METH_VARARGS, "init(sets=None, dynamic=False)"},
    {"shutdown", py_shutdown, METH_NOARGS, "Leaves the job."},
    {"abort", py_abort, METH_VARARGS, "abort(why): ends the job for all ranks."},
    {"is_initialized", py_is_initialized, METH_NOARGS, NULL},
    {"rank", py_rank, METH_NOARGS, NULL},
    {"size", py_size, METH_NOARGS, NULL},
    {"local_rank", py_local_rank, METH_NOARGS, NULL},
    {"local_size", py_local_size, METH_NOARGS, NULL},
    {"cross_rank", py_cross_rank, METH_NOARGS, NULL},
    {"cross_size", py_cross_size, METH_NOARGS, NULL},
    {"is_homogeneous", py_is_homogeneous, METH_NOARGS, NULL},
    {"version", py_version, METH_NOARGS, NULL},
    {"add_process_set", py_add_process_set, METH_O, "add_process_set(ranks) -> id"},
    {"remove_process_set", py_remove_process_set, METH_O, NULL},
    {"warm_process_set", py_warm_process_set, METH_O, NULL},
    {"process_set_rank", py_process_set_rank, METH_O, "-1 unknown, -2 no member"},
    {"process_set_size", py_process_set_size, METH_O, "-1 unknown"},
    {"process_sets", py_process_sets, METH_NOARGS, "{id: [ranks]}"},
    {"timeline_start", py_timeline_start, METH_VARARGS, NULL},
    {"timeline_stop", py_timeline_stop, METH_NOARGS, NULL},
    {"stats", py_stats, METH_NOARGS, "JSON text"},
    {"config", py_config, METH_NOARGS, "a line per configuration row"},
    {"error_show", py_error_show, METH_O, "A text with the number of its entry behind it."},
    {"recorder_dump", py_recorder_dump, METH_VARARGS, NULL},
    {"copy_start", py_copy_start, METH_O, "copy_start([(to, from, bytes)]): see py_copies.c"},
    {"copy_wait", py_copy_wait, METH_NOARGS, "Returns when the copies are made."},
    {"digest", py_digest, METH_VARARGS, "digest(address, bytes, seed): see hvd_digest"},
    {NULL, NULL, 0, NULL},
};

static int intern_words(struct core_state *s)
{
#define INTERN(word)                                                                   \
    s->words.word = PyUnicode_InternFromString(#word);                                 \
    if (s->words.word == NULL)                                                         \
        return -1;
    CORE_WORDS(INTERN)
#undef INTERN
    return 0;
}

/* A tuple of texts, one by one from `next` until it gives NULL. */
static int add_texts(PyObject *mod, const char *name, const char *(*next)(int index))
{
    PyObject *list = PyList_New(0), *tuple = NULL;
    const char *text;

    for (int i = 0; list != NULL && (text = next(i)) != NULL; i++) {
        PyObject *item = PyUnicode_FromString(text);

        if (item == NULL || PyList_Append(list, item) != 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    if (list != NULL)
        tuple = PyList_AsTuple(list);
    Py_XDECREF(list);
    return tuple != NULL ? PyModule_AddObject(mod, name, tuple) : -1;
}

static const char *op_text(int index)
{
    return index < HVD_OP_COUNT ? hvd_op_name((enum hvd_op)index) : NULL;
}

static const char *dtype_text(int index)
{
    return index < HVD_DTYPE_COUNT ? hvd_dtype_name((enum hvd_dtype)index) : NULL;
}

static const char *identity_text(int index)
{
    for (int i = 0; i < config_row_count; i++)
        if ((config_rows[i].flags & CONFIG_IDENTITY) && index-- == 0)
            return config_rows[i].name;
    return NULL;
}

static int module_exec(PyObject *mod)
{
    struct core_state *s = core_of(mod);

    s->error = PyErr_NewException("horovod._core.Error", PyExc_RuntimeError, NULL);
    s->orphans = PyDict_New();
    if (s->error == NULL || s->orphans == NULL || intern_words(s) != 0)
        return -1;
    Py_INCREF(s->error);
    if (PyModule_AddObject(mod, "Error", s->error) != 0)
        return -1;
    if (PyModule_AddFunctions(mod, py_tensor_methods) != 0 ||
        PyModule_AddFunctions(mod, py_gpu_methods) != 0)
        return -1;
    if (add_texts(mod, "OPS", op_text) != 0 || add_texts(mod, "DTYPES", dtype_text) != 0 ||
        add_texts(mod, "IDENTITY", identity_text) != 0)
        return -1;
    if (py_driver_add(mod) != 0 || py_bucket_add(mod) != 0)
        return -1;
    return py_elastic_add(mod);
}

static int module_traverse(PyObject *mod, visitproc visit, void *arg)
{
    struct core_state *s = core_of(mod);

    Py_VISIT(s->error);
    Py_VISIT(s->retired);
    Py_VISIT(s->orphans);
    Py_VISIT(s->slot_type);
    return 0;
}

static int module_clear(PyObject *mod)
{
    struct core_state *s = core_of(mod);

    Py_CLEAR(s->error);
    Py_CLEAR(s->retired);
    Py_CLEAR(s->orphans);
    Py_CLEAR(s->strided);
    Py_CLEAR(s->tensor_types[0]);
    Py_CLEAR(s->tensor_types[1]);
    Py_CLEAR(s->slot_type);
    for (int i = 0; i < s->dtype_count; i++)
        Py_CLEAR(s->dtype_objects[i]);
    s->dtype_count = 0;
#define FORGET(word) Py_CLEAR(s->words.word);
    CORE_WORDS(FORGET)
#undef FORGET
    return 0;
}

static void module_free(void *mod)
{
    module_clear(mod);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "horovod._core",
    .m_doc = "The compiled core: converts arguments, releases the GIL, calls libhvd.",
    .m_size = sizeof(struct core_state),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&module_def);
}
