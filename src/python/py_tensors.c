/*
 * py_tensors.c: tensors cross the border: read, submit, wait, output.
 *
 * A tensor is either a tuple (name, input, output, dtype, shape, splits) of plain numbers,
 * for any kind of array, or a torch tensor, which is asked for its pointer, shape and dtype
 * here, so that one call from Python does a whole operation.  Names of torch tensors get
 * the prefixes users know from timelines and stall reports: "allreduce.x",
 * "grouped_allreduce.x_1of5".
 */
#include "python/py_core.h"
#include "python/py_dlpack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_NAME 256

/* ---- submitting ----------------------------------------------------------------- */

enum hvd_status core_submit(const struct hvd_request *req, int count, hvd_handle *handle_p,
                            struct hvd_error *err)
{
    enum hvd_status status;

    /* The thread that has the engine may be at a piece of work, and may want the GIL next. */
    Py_BEGIN_ALLOW_THREADS
    status = hvd_submit(req, count, handle_p, err);
    Py_END_ALLOW_THREADS
    return status;
}

/* ---- waiting -------------------------------------------------------------------- */

bool core_wait(hvd_handle handle, int64_t timeout_us, enum hvd_status *status_p,
               struct hvd_error *err)
{
    for (;;) {
        int64_t slice = timeout_us < 0 || timeout_us > WAIT_SLICE_US ? WAIT_SLICE_US
                                                                     : timeout_us;

        Py_BEGIN_ALLOW_THREADS
        *status_p = hvd_wait(handle, slice, err);
        Py_END_ALLOW_THREADS
        if (*status_p != HVD_AGAIN)
            return true;
        if (PyErr_CheckSignals() != 0)
            return false;
        if (timeout_us >= 0 && (timeout_us -= slice) <= 0)
            return true;
    }
}

void core_sweep(struct core_state *s)
{
    PyObject *keys = PyDict_Size(s->orphans) > 0 ? PyDict_Keys(s->orphans) : NULL;
    Py_ssize_t n = keys != NULL ? PyList_Size(keys) : 0;

    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *key = PyList_GetItem(keys, i);
        hvd_handle handle = PyLong_AsLongLong(key);

        if (hvd_poll(handle, NULL) == HVD_AGAIN)
            continue;
        hvd_release(handle);
        if (PyDict_DelItem(s->orphans, key) != 0)
            PyErr_Clear();
    }
    Py_XDECREF(keys);
}

void core_orphan(struct core_state *s, hvd_handle handle, PyObject *borrowed)
{
    PyObject *type, *value, *trace, *key;

    PyErr_Fetch(&type, &value, &trace);
    core_sweep(s);
    key = PyLong_FromLongLong(handle);
    if (key == NULL || PyDict_SetItem(s->orphans, key, borrowed) != 0) {
        PyErr_Clear();
        Py_INCREF(borrowed);            /* better a leak than a write into freed memory */
    }
    Py_XDECREF(key);
    PyErr_Restore(type, value, trace);
}

/* ---- reading tensors ------------------------------------------------------------ */

int core_attr_is(PyObject *object, PyObject *name, PyObject *wanted)
{
    PyObject *value = PyObject_GetAttr(object, name);

    if (value == NULL)
        return -1;
    Py_DECREF(value);
    return value == wanted;
}

/* The code of a registered dtype object, or -1. */
static int dtype_code(struct core_state *s, PyObject *dtype)
{
    for (int i = 0; i < s->dtype_count; i++)
        if (s->dtype_objects[i] == dtype)
            return (int)s->dtype_codes[i];
    return -1;
}

static int read_shape(struct core_state *s, PyObject *tensor, int *ndim_p,
                      int64_t *shape)
{
    PyObject *dims = PyObject_GetAttr(tensor, s->words.shape);
    Py_ssize_t n = dims != NULL ? PyTuple_Size(dims) : -1;

    if (n < 0 || n > HVD_DIMS_MAX) {
        Py_XDECREF(dims);
        return n < 0 ? -1 : 0;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        shape[i] = PyLong_AsLongLong(PyTuple_GetItem(dims, i));
    Py_DECREF(dims);
    *ndim_p = (int)n;
    return PyErr_Occurred() ? -1 : 1;
}

/* Reads a dense, contiguous CPU tensor.  1: done; 0: not such a tensor; -1: raised. */
static int read_tensor(struct core_state *s, PyObject *tensor, enum hvd_dtype *dtype_p,
                       void **data_p, int *ndim_p, int64_t *shape)
{
    PyObject *value, *type = (PyObject *)Py_TYPE(tensor);
    int code, is;

    /* Subclasses may mean something else by their memory. */
    if (s->exchange != NULL && (type == s->tensor_types[0] || type == s->tensor_types[1]))
        return dlpack_read(s->exchange, tensor, dtype_p, data_p, ndim_p, shape);
    value = PyObject_GetAttr(tensor, s->words.dtype);
    code = value != NULL ? dtype_code(s, value) : -1;
    Py_XDECREF(value);
    if (code < 0)
        return value == NULL ? -1 : 0;
    if ((is = core_attr_is(tensor, s->words.layout, s->strided)) != 1)
        return is;
    if ((is = core_attr_is(tensor, s->words.is_cpu, Py_True)) != 1)
        return is;
    value = PyObject_CallMethodObjArgs(tensor, s->words.is_contiguous, NULL);
    Py_XDECREF(value);
    if (value != Py_True)
        return value == NULL ? -1 : 0;
    if ((is = read_shape(s, tensor, ndim_p, shape)) != 1)
        return is;
    value = PyObject_CallMethodObjArgs(tensor, s->words.data_ptr, NULL);
    if (value == NULL)
        return -1;
    *data_p = PyLong_AsVoidPtr(value);
    Py_DECREF(value);
    *dtype_p = (enum hvd_dtype)code;
    return PyErr_Occurred() ? -1 : 1;
}

/* register_torch({dtype: code}, strided, Tensor, Parameter, table or None) */
static PyObject *py_register_torch(PyObject *mod, PyObject *args)
{
    struct core_state *s = core_of(mod);
    PyObject *dtypes, *strided, *types[2], *table, *key, *value;
    Py_ssize_t at = 0;

    if (!PyArg_ParseTuple(args, "O!OOOO", &PyDict_Type, &dtypes, &strided, &types[0],
                          &types[1], &table))
        return NULL;
    for (int i = 0; i < 2; i++) {
        Py_INCREF(types[i]);
        Py_XDECREF(s->tensor_types[i]);
        s->tensor_types[i] = types[i];
    }
    s->exchange = dlpack_exchange_of(table);
    for (int i = 0; i < s->dtype_count; i++)
        Py_CLEAR(s->dtype_objects[i]);
    s->dtype_count = 0;
    while (PyDict_Next(dtypes, &at, &key, &value)) {
        long code = PyLong_AsLong(value);

        if (PyErr_Occurred())
            return NULL;
        if (code < 0 || code >= HVD_DTYPE_COUNT || s->dtype_count == DTYPE_OBJECTS_MAX)
            return PyErr_Format(PyExc_ValueError, "%ld is no dtype code", code);
        Py_INCREF(key);
        s->dtype_codes[s->dtype_count] = (enum hvd_dtype)code;
        s->dtype_objects[s->dtype_count++] = key;
    }
    Py_INCREF(strided);
    Py_XDECREF(s->strided);
    s->strided = strided;
    Py_RETURN_NONE;
}

/* ---- requests ------------------------------------------------------------------- */

/* The first six arguments of every operation: op, reduce, set, root, prescale, postscale. */
#define COMMON_ARGS 6

static bool read_common(PyObject *const *args, struct hvd_request *req)
{
    long values[4];

    if (args[2] == Py_None) {
        PyErr_SetString(PyExc_ValueError, "this process set is not registered: it was "
                        "removed, or hvd.add_process_set was not called yet");
        return false;
    }
    for (int i = 0; i < 4; i++) {
        values[i] = PyLong_AsLong(args[i]);
        if (values[i] == -1 && PyErr_Occurred())
            return false;
    }
    memset(req, 0, sizeof(*req));
    req->size = sizeof(*req);
    req->op = (enum hvd_op)values[0];
    req->reduce = (enum hvd_reduce)values[1];
    req->process_set = (int)values[2];
    req->root = (int)values[3];
    req->device = -1;
    req->prescale = PyFloat_AsDouble(args[4]);
    req->postscale = PyFloat_AsDouble(args[5]);
    if (PyErr_Occurred())
        return false;
    if (values[0] >= 0 && values[0] < HVD_OP_COUNT)
        return true;
    PyErr_Format(PyExc_ValueError, "%ld is no operation", values[0]);
    return false;
}

static bool wrong_count(Py_ssize_t given, Py_ssize_t wanted)
{
    if (given == wanted)
        return false;
    PyErr_Format(PyExc_TypeError, "%zd arguments instead of %zd", given, wanted);
    return true;
}

/* NULL for None; an exception is set if ok_p becomes false. */
static const char *read_text(PyObject *object, bool *ok_p)
{
    const char *text = object == Py_None ? NULL : PyUnicode_AsUTF8AndSize(object, NULL);

    *ok_p = text != NULL || object == Py_None;
    return text;
}

/* A new array of the values of a sequence of ints, or NULL with an exception. */
static int64_t *int64s_new(PyObject *sequence, Py_ssize_t *count_p)
{
    PyObject *list = PySequence_List(sequence);
    Py_ssize_t n = list != NULL ? PyList_Size(list) : -1;
    int64_t *values = n >= 0 ? malloc(((size_t)n + 1) * sizeof(*values)) : NULL;

    for (Py_ssize_t i = 0; values != NULL && i < n; i++)
        values[i] = PyLong_AsLongLong(PyList_GetItem(list, i));
    Py_XDECREF(list);
    if (values == NULL)
        return n >= 0 ? (int64_t *)PyErr_NoMemory() : NULL;
    if (PyErr_Occurred()) {
        free(values);
        return NULL;
    }
    *count_p = n;
    return values;
}

/* ---- one torch tensor, start to end --------------------------------------------- */

/* Runs it, without a handle if it is done at once.  A signal handler that raises leaves the
 * operation under way; its buffers are then kept alive. */
static PyObject *run_request(struct core_state *s, const struct hvd_request *req,
                             PyObject *input, PyObject *output)
{
    struct hvd_error err;
    enum hvd_status status;
    hvd_handle handle;
    PyObject *both;

    Py_BEGIN_ALLOW_THREADS
    status = hvd_run_start(req, &handle, &err);
    Py_END_ALLOW_THREADS
    if (status != HVD_AGAIN)
        return core_done(s, status, &err);
    if (core_wait(handle, -1, &status, &err)) {
        hvd_release(handle);
        return core_done(s, status, &err);
    }
    both = Py_BuildValue("(OO)", input, output);
    if (both != NULL)
        core_orphan(s, handle, both);
    Py_XDECREF(both);
    return NULL;
}

static PyObject *not_simple(void)
{
    Py_INCREF(Py_NotImplemented);
    return Py_NotImplemented;
}

/* run_tensor(op, reduce, set, root, prescale, postscale, name, input, output) */
static PyObject *py_run_tensor(PyObject *mod, PyObject *const *args, Py_ssize_t count)
{
    struct core_state *s = core_of(mod);
    PyObject *input = args[COMMON_ARGS + 1], *output = args[COMMON_ARGS + 2];
    int64_t out_shape[HVD_DIMS_MAX];
    char small[SMALL_NAME];
    struct hvd_request req;
    enum hvd_dtype out_dtype;
    const char *name;
    int is, out_ndim;
    bool ok;

    if (wrong_count(count, COMMON_ARGS + 3) || !read_common(args, &req))
        return NULL;
    name = read_text(args[COMMON_ARGS], &ok);
    if (!ok)
        return NULL;
    is = read_tensor(s, input, &req.dtype, (void **)&req.input, &req.ndim, req.shape);
    req.output = (void *)req.input;
    if (is == 1 && output != input)
        is = read_tensor(s, output, &out_dtype, &req.output, &out_ndim, out_shape);
    if (is != 1)
        return is < 0 ? NULL : not_simple();
    if (name != NULL) {
        if (snprintf(small, sizeof(small), "%s.%s", hvd_op_name(req.op), name) >=
            (int)sizeof(small))
            return not_simple();
        req.name = small;
    }
    return run_request(s, &req, input, output);
}

/* ---- one torch tensor into a new one -------------------------------------------- */

#define SPLITS_MAX 256                  /* ranks; with more of them, the longer way */

/* The output of a handle; `splits` as hvd_run_take fills them. */
static enum hvd_status take_output(hvd_handle handle, struct hvd_output *out,
                                   int64_t *splits, struct hvd_error *err)
{
    enum hvd_status status = hvd_take_output(handle, 0, out, err);

    if (status == HVD_OK && out->splits != NULL)
        out->splits = memcpy(splits, out->splits, (size_t)out->set_size * sizeof(*splits));
    hvd_release(handle);
    return status;
}

/* False: raised. */
static bool run_new(struct core_state *s, const struct hvd_request *req, PyObject *input,
                    struct hvd_output *out, int64_t *splits)
{
    struct hvd_error err;
    enum hvd_status status;
    hvd_handle handle;

    Py_BEGIN_ALLOW_THREADS
    status = hvd_run_take(req, out, splits, SPLITS_MAX, &handle, &err);
    Py_END_ALLOW_THREADS
    if (status == HVD_AGAIN) {
        if (!core_wait(handle, -1, &status, &err)) {
            core_orphan(s, handle, input);
            return false;
        }
        if (status == HVD_OK)
            status = take_output(handle, out, splits, &err);
        else
            hvd_release(handle);
    }
    return status == HVD_OK || core_raise(s, &err) != NULL;
}

/* 1: read, 0: not simple, -1: raised.  Splits are a torch tensor or a sequence of ints. */
static int read_splits(struct core_state *s, PyObject *object, int64_t *splits, int count)
{
    int64_t shape[HVD_DIMS_MAX];
    enum hvd_dtype dtype;
    Py_ssize_t n;
    int64_t *list;
    void *data;
    int is, ndim;

    if (count < 1 || count > SPLITS_MAX)
        return 0;
    if (PyList_Check(object) || PyTuple_Check(object)) {
        list = int64s_new(object, &n);
        is = list == NULL ? -1 : n == count;
        if (is == 1)
            memcpy(splits, list, (size_t)n * sizeof(*splits));
        free(list);
        return is;
    }
    is = read_tensor(s, object, &dtype, &data, &ndim, shape);
    if (is != 1)
        return is;
    if (ndim != 1 || shape[0] != count || (dtype != HVD_I32 && dtype != HVD_I64))
        return 0;
    for (int i = 0; i < count; i++)
        splits[i] = dtype == HVD_I32 ? ((int32_t *)data)[i] : ((int64_t *)data)[i];
    return 1;
}

/* Whether an alltoall can go this way; what cannot is refused where the others are told. */
static int check_rows(struct core_state *s, struct hvd_request *req, PyObject *object,
                      int64_t *splits)
{
    int count = hvd_process_set_size(req->process_set), is = 1;
    int64_t sum = 0;

    if (count < 1)
        return 0;
    if (object == Py_None)
        return req->shape[0] % count == 0;
    is = read_splits(s, object, splits, count);
    req->splits = splits;
    for (int i = 0; i < count && is == 1; i++)
        if (splits[i] < 0 || __builtin_add_overflow(sum, splits[i], &sum))
            is = 0;
    return is == 1 ? sum <= req->shape[0] : is;
}

static PyObject *rows_tensor(struct core_state *s, const struct hvd_output *out)
{
    int64_t count = out->set_size;
    int32_t *rows = malloc((size_t)count * sizeof(*rows));

    if (rows == NULL)
        return PyErr_NoMemory();
    for (int i = 0; i < count; i++)
        rows[i] = (int32_t)out->splits[i];
    return dlpack_tensor(s->exchange, rows, HVD_I32, 1, &count);
}

/* run_new(op, reduce, set, root, prescale, postscale, name, input, splits): splits are for
 * an alltoall only, which then gives the pair (output, rows received) */
static PyObject *py_run_new(PyObject *mod, PyObject *const *args, Py_ssize_t count)
{
    struct core_state *s = core_of(mod);
    struct hvd_output out = {.size = sizeof(out)};
    int64_t splits[SPLITS_MAX], received[SPLITS_MAX];
    PyObject *input, *tensor, *rows;
    char small[SMALL_NAME];
    struct hvd_request req;
    const char *name;
    bool ok;
    int is;

    if (wrong_count(count, COMMON_ARGS + 3) || !read_common(args, &req))
        return NULL;
    name = read_text(args[COMMON_ARGS], &ok);
    if (!ok)
        return NULL;
    input = args[COMMON_ARGS + 1];
    if (s->exchange == NULL)
        return not_simple();
    is = read_tensor(s, input, &req.dtype, (void **)&req.input, &req.ndim, req.shape);
    if (is == 1 && req.ndim == 0)
        is = 0;
    if (is == 1 && req.op == HVD_ALLTOALL)
        is = check_rows(s, &req, args[COMMON_ARGS + 2], splits);
    if (is == 1 && name != NULL) {
        is = snprintf(small, sizeof(small), "%s.%s", hvd_op_name(req.op), name) <
             (int)sizeof(small);
        req.name = small;
    }
    if (is != 1)
        return is < 0 ? NULL : not_simple();
    if (!run_new(s, &req, input, &out, received))
        return NULL;
    tensor = dlpack_tensor(s->exchange, out.data, req.dtype, out.ndim, out.shape);
    if (tensor == NULL || req.splits == NULL)
        return tensor;
    rows = rows_tensor(s, &out);
    if (rows != NULL)
        return Py_BuildValue("(NN)", tensor, rows);
    Py_DECREF(tensor);
    return NULL;
}

/* ---- submission ----------------------------------------------------------------- */

/* Requests under construction; everything but the tensors' memory belongs to it. */
struct requests {
    struct hvd_request *req;
    int64_t **splits;                   /* per request, may hold NULLs */
    char *names;
    int count;
};

static bool batch_init(struct requests *b, Py_ssize_t count,
                       const struct hvd_request *common)
{
    memset(b, 0, sizeof(*b));
    b->req = calloc((size_t)count + 1, sizeof(*b->req));
    b->splits = calloc((size_t)count + 1, sizeof(*b->splits));
    if (b->req == NULL || b->splits == NULL)
        return PyErr_NoMemory() != NULL;
    b->count = (int)count;
    for (int i = 0; i < b->count; i++)
        b->req[i] = *common;
    return true;
}

static void batch_release(struct requests *b)
{
    for (int i = 0; b->splits != NULL && i < b->count; i++)
        free(b->splits[i]);
    free(b->splits);
    free(b->names);
    free(b->req);
}

static bool batch_splits(struct requests *b, int i, PyObject *splits)
{
    Py_ssize_t count;

    if (splits == Py_None)
        return true;
    b->splits[i] = int64s_new(splits, &count);
    b->req[i].splits = b->splits[i];
    return b->splits[i] != NULL;
}

static PyObject *batch_submit(struct core_state *s, struct requests *b)
{
    struct hvd_error err;
    hvd_handle handle;

    if (core_submit(b->req, b->count, &handle, &err) != HVD_OK)
        return core_raise(s, &err);
    return PyLong_FromLongLong(handle);
}

/* "allreduce.x", or for a group "grouped_allreduce.x_1of5" */
static bool batch_names(struct requests *b, const char *name, bool grouped)
{
    const char *word = hvd_op_name(b->req[0].op);
    size_t room = name != NULL ? strlen(name) + 64 : 0;

    if (name == NULL)
        return true;
    b->names = malloc(room * (size_t)b->count);
    if (b->names == NULL)
        return PyErr_NoMemory() != NULL;
    for (int i = 0; i < b->count; i++) {
        char *at = b->names + room * (size_t)i;

        if (grouped)
            snprintf(at, room, "grouped_%s.%s_%dof%d", word, name, i + 1, b->count);
        else
            snprintf(at, room, "%s.%s", word, name);
        b->req[i].name = at;
    }
    return true;
}

/* 1: read, 0: not simple, -1: raised. */
static int batch_read(struct core_state *s, struct requests *b, PyObject *inputs,
                      PyObject *outputs)
{
    int64_t shape[HVD_DIMS_MAX];
    enum hvd_dtype dtype;
    int ndim, is = 1;

    for (int i = 0; i < b->count && is == 1; i++) {
        struct hvd_request *r = &b->req[i];
        PyObject *input = PyList_GetItem(inputs, i), *output;

        is = read_tensor(s, input, &r->dtype, (void **)&r->input, &r->ndim, r->shape);
        output = outputs == Py_None ? NULL : PyList_GetItem(outputs, i);
        if (output == input)
            r->output = (void *)r->input;
        else if (is == 1 && output != NULL)
            is = read_tensor(s, output, &dtype, &r->output, &ndim, shape);
    }
    return is;
}

/* submit_tensors(op, reduce, set, root, prescale, postscale, name, inputs, outputs,
 *                splits, grouped) */
static PyObject *py_submit_tensors(PyObject *mod, PyObject *const *args,
                                   Py_ssize_t count)
{
    struct core_state *s = core_of(mod);
    PyObject *inputs, *outputs, *result = NULL;
    struct hvd_request common;
    struct requests b;
    const char *name;
    int is = -1;
    bool ok;

    if (wrong_count(count, COMMON_ARGS + 5) || !read_common(args, &common))
        return NULL;
    inputs = args[COMMON_ARGS + 1];
    outputs = args[COMMON_ARGS + 2];
    name = read_text(args[COMMON_ARGS], &ok);
    if (!ok)
        return NULL;
    if (!PyList_Check(inputs) || (outputs != Py_None && !PyList_Check(outputs)) ||
        PyList_Size(inputs) == 0)
        return PyErr_Format(PyExc_TypeError, "lists of tensors are needed");
    if (outputs != Py_None && PyList_Size(outputs) != PyList_Size(inputs))
        return PyErr_Format(PyExc_ValueError, "as many outputs as inputs are needed");
    if (batch_init(&b, PyList_Size(inputs), &common) &&
        batch_splits(&b, 0, args[COMMON_ARGS + 3]) &&
        batch_names(&b, name, args[COMMON_ARGS + 4] == Py_True))
        is = batch_read(s, &b, inputs, outputs);
    if (is >= 0)
        result = is == 1 ? batch_submit(s, &b) : not_simple();
    batch_release(&b);
    return result;
}

static bool read_tuple(PyObject *tuple, struct requests *b, int i)
{
    struct hvd_request *r = &b->req[i];
    unsigned long long input, output;
    PyObject *shape, *splits = Py_None;
    Py_ssize_t ndim;
    int64_t *dims;
    int dtype;

    if (!PyArg_ParseTuple(tuple, "zKKiO|O", &r->name, &input, &output, &dtype, &shape,
                          &splits))
        return false;
    dims = int64s_new(shape, &ndim);
    if (dims == NULL)
        return false;
    r->input = (const void *)(uintptr_t)input;
    r->output = (void *)(uintptr_t)output;
    r->dtype = (enum hvd_dtype)dtype;
    r->ndim = (int)ndim;
    if (ndim <= HVD_DIMS_MAX)
        memcpy(r->shape, dims, (size_t)ndim * sizeof(*dims));
    free(dims);
    return batch_splits(b, i, splits);
}

/* Submits the tensors and the problem that follow the first arguments. */
static PyObject *submit_tuples(PyObject *mod, PyObject *const *args, struct hvd_request common)
{
    PyObject *list, *result = NULL;
    struct requests b;
    bool ok;

    common.problem = read_text(args[COMMON_ARGS + 1], &ok);
    list = ok ? PySequence_List(args[COMMON_ARGS]) : NULL;
    if (list == NULL)
        return NULL;
    ok = batch_init(&b, PyList_Size(list), &common);
    for (int i = 0; ok && i < b.count; i++)
        ok = read_tuple(PyList_GetItem(list, i), &b, i);
    if (ok)
        result = batch_submit(core_of(mod), &b);
    batch_release(&b);
    Py_DECREF(list);
    return result;
}

/* submit(op, reduce, set, root, prescale, postscale, tensors, problem) */
static PyObject *py_submit(PyObject *mod, PyObject *const *args, Py_ssize_t count)
{
    struct hvd_request common;

    if (wrong_count(count, COMMON_ARGS + 2) || !read_common(args, &common))
        return NULL;
    return submit_tuples(mod, args, common);
}

/* submit_device(op, reduce, set, root, prescale, postscale, tensors, problem, device, stream) */
static PyObject *py_submit_device(PyObject *mod, PyObject *const *args, Py_ssize_t count)
{
    struct hvd_request common;

    if (wrong_count(count, COMMON_ARGS + 4) || !read_common(args, &common))
        return NULL;
    common.device = (int)PyLong_AsLong(args[COMMON_ARGS + 2]);
    common.stream = PyLong_AsUnsignedLongLong(args[COMMON_ARGS + 3]);
    return PyErr_Occurred() ? NULL : submit_tuples(mod, args, common);
}

/* ---- handles -------------------------------------------------------------------- */

static PyObject *py_poll(PyObject *mod, PyObject *arg)
{
    hvd_handle handle = PyLong_AsLongLong(arg);

    if (handle == -1 && PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(hvd_poll(handle, NULL) != HVD_AGAIN);
}

/* wait(handle, timeout=-1.0): False when the time is over; raises the operation's error */
static PyObject *py_wait(PyObject *mod, PyObject *args)
{
    enum hvd_status status;
    struct hvd_error err;
    long long handle;
    double timeout_s = -1;

    if (!PyArg_ParseTuple(args, "L|d", &handle, &timeout_s))
        return NULL;
    if (!core_wait(handle, timeout_s < 0 ? -1 : (int64_t)(timeout_s * 1e6), &status,
                   &err))
        return NULL;
    if (status != HVD_OK && status != HVD_AGAIN)
        return core_raise(core_of(mod), &err);
    return PyBool_FromLong(status == HVD_OK);
}

static PyObject *py_release(PyObject *mod, PyObject *arg)
{
    hvd_handle handle = PyLong_AsLongLong(arg);

    if (handle == -1 && PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    hvd_release(handle);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* orphan(handle, borrowed): forgets a handle without waiting for it */
static PyObject *py_orphan(PyObject *mod, PyObject *args)
{
    long long handle;
    PyObject *borrowed;

    if (!PyArg_ParseTuple(args, "LO", &handle, &borrowed))
        return NULL;
    core_orphan(core_of(mod), handle, borrowed);
    Py_RETURN_NONE;
}

static PyObject *splits_list(const struct hvd_output *out)
{
    PyObject *list;

    if (out->splits == NULL)
        Py_RETURN_NONE;
    list = PyList_New(out->set_size);
    for (int i = 0; list != NULL && i < out->set_size; i++)
        if (PyList_SetItem(list, i, PyLong_FromLongLong(out->splits[i])) != 0)
            Py_CLEAR(list);
    return list;
}

/* output(handle, index, dtype) -> (capsule, received splits or None) */
static PyObject *py_output(PyObject *mod, PyObject *args)
{
    struct hvd_output out = {.size = sizeof(out)};
    PyObject *capsule, *splits;
    struct hvd_error err;
    long long handle;
    int index, dtype;

    if (!PyArg_ParseTuple(args, "Lii", &handle, &index, &dtype))
        return NULL;
    if (hvd_take_output(handle, index, &out, &err) != HVD_OK)
        return core_raise(core_of(mod), &err);
    splits = splits_list(&out);
    capsule = dlpack_new_on(out.device, out.data, (enum hvd_dtype)dtype, out.ndim,
                            out.shape);
    if (splits == NULL || capsule == NULL) {
        Py_XDECREF(splits);
        Py_XDECREF(capsule);
        return NULL;
    }
    return Py_BuildValue("(NN)", capsule, splits);
}

/* value(handle): of a finished join, the rank that joined last */
static PyObject *py_value(PyObject *mod, PyObject *arg)
{
    struct hvd_output out = {.size = sizeof(out)};
    hvd_handle handle = PyLong_AsLongLong(arg);
    struct hvd_error err;

    if (handle == -1 && PyErr_Occurred())
        return NULL;
    if (hvd_output(handle, 0, &out, &err) != HVD_OK)
        return core_raise(core_of(mod), &err);
    return PyLong_FromLongLong(out.value);
}

static PyObject *py_alloc(PyObject *mod, PyObject *arg)
{
    int64_t bytes = PyLong_AsLongLong(arg);
    void *data;

    if (bytes == -1 && PyErr_Occurred())
        return NULL;
    data = bytes > 0 ? hvd_alloc((size_t)bytes) : NULL;
    if (data == NULL)
        Py_RETURN_NONE;
    return dlpack_new(data, HVD_U8, 1, &bytes);
}

PyMethodDef py_tensor_methods[] = {
    {"register_torch", py_register_torch, METH_VARARGS,
     "register_torch({dtype: code}, strided, Tensor, Parameter, table or None)"},
    {"run_tensor", (PyCFunction)(void (*)(void))py_run_tensor, METH_FASTCALL,
     "run_tensor(op, reduce, set, root, prescale, postscale, name, input, output): a "
     "whole operation; NotImplemented when a tensor is not dense, contiguous, on the CPU"},
    {"run_new", (PyCFunction)(void (*)(void))py_run_new, METH_FASTCALL,
     "run_new(op, reduce, set, root, prescale, postscale, name, input, splits): a whole "
     "operation into a new tensor; NotImplemented as above, or where torch has no table"},
    {"submit_tensors", (PyCFunction)(void (*)(void))py_submit_tensors, METH_FASTCALL,
     "submit_tensors(op, reduce, set, root, prescale, postscale, name, inputs, outputs, "
     "splits, grouped) -> handle, or NotImplemented as above"},
    {"submit", (PyCFunction)(void (*)(void))py_submit, METH_FASTCALL,
     "submit(op, reduce, set, root, prescale, postscale, tensors, problem) -> handle"},
    {"submit_device", (PyCFunction)(void (*)(void))py_submit_device, METH_FASTCALL,
     "submit_device(op, reduce, set, root, prescale, postscale, tensors, problem, device, "
     "stream) -> handle: as submit, of tensors on a GPU"},
    {"poll", py_poll, METH_O, NULL},
    {"wait", py_wait, METH_VARARGS, "wait(handle, timeout=-1.0) -> bool"},
    {"release", py_release, METH_O, NULL},
    {"orphan", py_orphan, METH_VARARGS, "orphan(handle, borrowed)"},
    {"output", py_output, METH_VARARGS, "output(handle, index, dtype)"},
    {"value", py_value, METH_O, NULL},
    {"alloc", py_alloc, METH_O, "shared memory as a DLPack capsule of uint8, or None"},
    {NULL, NULL, 0, NULL},
};
