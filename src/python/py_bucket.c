/*
 * py_bucket.c: gradients on their way through buckets, without Python in the steady state.
 *
 * A Reducer belongs to one optimizer.  It has a slot for each parameter; the Slot object is
 * the parameter's post-accumulate-grad hook, so that a backward pass costs one C call per
 * parameter.  A bucket is one piece of (shared) memory, cut into views; it is submitted as
 * one in-place allreduce when its last gradient is ready.
 *
 * Rules
 * 1. A slot counts `delay` down from `passes`; at 0 its gradient is ready.  One more pass
 *    before the step is an AssertionError.
 * 2. Ready means taken: the gradient is in the bucket's view, and p.grad is that view.
 *    Where this cannot be (other dtype, sparse) `fallback`, a Python function, brings it in,
 *    and the slot is `kept`: p.grad stays as it is, and the caller of wait() copies the
 *    result back.
 * 3. A slot without bucket is reduced on its own by `fallback` (sparse, custom compression).
 * 4. Before the first plan nothing is taken; collect() takes everything that is missing.
 * 5. The last element of a bucket is a flag: neutral unless a rank asks for a new plan.
 * 6. A bucket's memory is not touched between its submission and the end of wait().
 * 7. Whoever keeps a p.grad of an old step, after zero_grad made p.grad None, keeps its
 *    values: the view is moved out of the bucket before the bucket is written again.
 * 8. What is true of the plan and of the step are two states with legal changes (PLAN_STATES,
 *    STEP_STATES); Python asks for them and keeps no flags of its own.
 */
#include "python/py_core.h"

#include <stdlib.h>
#include <string.h>

#define COPY_ALONE_BYTES (64 << 10)     /* above, torch's copy_ may use several threads */

/* name, what is true, changes */
#define PLAN_STATES(X)                                                                 \
    X(NONE, "nothing is taken before collect()", TO(CURRENT))                          \
    X(CURRENT, "a ready gradient goes to its place at once", TO(EXPIRING) | TO(NONE))  \
    X(EXPIRING, "as CURRENT; it ends with this step: a rank asks for another, or there " \
                "are parameters that it does not know", TO(NONE))

#define STEP_STATES(X)                                                                 \
    X(IDLE, "no gradient has come", TO(FILLING))                                       \
    X(FILLING, "gradients come in; buckets that are full are under way",               \
      TO(REDUCED) | TO(IDLE))                                                          \
    X(REDUCED, "p.grad has the results; more can only come of new parameters",         \
      TO(IDLE) | TO(FILLING))

#define TO(name) (1u << STATE_##name)
#define STATE_ENUM(name, text, changes) STATE_##name,
enum plan_state { PLAN_STATES(STATE_ENUM) PLAN_STATE_COUNT };
enum step_state { STEP_STATES(STATE_ENUM) STEP_STATE_COUNT };

struct state_row {
    const char *name, *text;
    unsigned may_enter;
};

#define STATE_ROW(name, text, changes) [STATE_##name] = {#name, text, changes},
static const struct state_row plan_rows[] = {PLAN_STATES(STATE_ROW)};
static const struct state_row step_rows[] = {STEP_STATES(STATE_ROW)};

struct grad_slot {
    PyObject *view;                     /* NULL without bucket */
    PyObject *dtype;                    /* of view */
    char *data;
    size_t bytes;
    int bucket;                         /* -1: reduced on its own */
    int delay;
    bool fits;                          /* p.grad may be view: same dtype and device */
    bool plain;                         /* fits and is contiguous: memcpy will do */
    bool taken, kept;
};

struct bucket {
    struct hvd_request req;
    char *name;
    PyObject *memory;
    int member_count, missing;
    hvd_handle handle;                  /* 0: not submitted */
    unsigned char neutral[8];           /* bytes of the flag when nobody asks */
};

struct reducer {
    PyObject_HEAD
    PyObject *module;
    PyObject *fallback;                 /* fallback(index, gradient) -> kept */
    PyObject *renew;                    /* renew(index, view) -> new view, rule 7 */
    PyObject *complete;                 /* complete(): all slots have counted down */
    struct grad_slot *slots;
    struct bucket *buckets;
    int slot_count, bucket_count;
    int passes, silent;
    int counting;                       /* slots that have not counted down to 0 */
    int missing;                        /* slots that are not taken */
    enum plan_state plan;
    enum step_state step;
};

struct slot_object {
    PyObject_HEAD
    struct reducer *reducer;
    int index;
};

/* ---- states --------------------------------------------------------------------- */

/* -1: raised, since the change is not legal. */
static int may_change(const struct state_row *rows, int from, int to)
{
    if (from == to || (rows[from].may_enter & (1u << to)))
        return 0;
    PyErr_Format(PyExc_AssertionError, "the reducer is %s (%s) and cannot become %s",
                 rows[from].name, rows[from].text, rows[to].name);
    return -1;
}

static int step_enter(struct reducer *r, enum step_state to)
{
    if (may_change(step_rows, (int)r->step, (int)to) != 0)
        return -1;
    r->step = to;
    return 0;
}

/* {name: (names that may follow)} */
static PyObject *changes_dict(const struct state_row *rows, int count)
{
    PyObject *dict = PyDict_New();

    for (int from = 0; dict != NULL && from < count; from++) {
        PyObject *list = PyList_New(0), *tuple = NULL;

        for (int to = 0; list != NULL && to < count; to++) {
            PyObject *name = (rows[from].may_enter & (1u << to))
                                 ? PyUnicode_FromString(rows[to].name) : NULL;

            if (name != NULL && PyList_Append(list, name) != 0)
                Py_CLEAR(list);
            Py_XDECREF(name);
        }
        tuple = list != NULL ? PyList_AsTuple(list) : NULL;
        if (tuple == NULL || PyDict_SetItemString(dict, rows[from].name, tuple) != 0)
            Py_CLEAR(dict);
        Py_XDECREF(list);
        Py_XDECREF(tuple);
    }
    return dict;
}

/* ---- submission ----------------------------------------------------------------- */

static int bucket_submit(struct reducer *r, struct bucket *b)
{
    struct hvd_error err;

    if (core_submit(&b->req, 1, &b->handle, &err) == HVD_OK)
        return 0;
    b->handle = 0;
    core_raise(core_of(r->module), &err);
    return -1;
}

/* ---- taking a gradient ---------------------------------------------------------- */

/* Rule 7. */
static int view_renew(struct reducer *r, int index)
{
    struct grad_slot *slot = &r->slots[index];
    PyObject *view;

    if (slot->view == NULL || Py_REFCNT(slot->view) == 1)
        return 0;
    view = PyObject_CallFunction(r->renew, "iO", index, slot->view);
    if (view == NULL)
        return -1;
    Py_DECREF(slot->view);
    slot->view = view;
    return 0;
}

/* 1: an ordinary tensor that can be copied byte by byte, at *data_p; -1: raised.  Its shape
 * is that of the parameter: torch sees to it. */
static int grad_is_plain(struct core_state *s, const struct grad_slot *slot, PyObject *grad,
                         void **data_p)
{
    PyObject *value;
    int is;

    if (!slot->plain)
        return 0;
    if ((is = core_attr_is(grad, s->words.dtype, slot->dtype)) != 1)
        return is;
    if ((is = core_attr_is(grad, s->words.layout, s->strided)) != 1)
        return is;
    if ((is = core_attr_is(grad, s->words.is_cpu, Py_True)) != 1)
        return is;
    value = PyObject_CallMethodObjArgs(grad, s->words.is_contiguous, NULL);
    Py_XDECREF(value);
    if (value != Py_True)
        return value == NULL ? -1 : 0;
    value = PyObject_CallMethodObjArgs(grad, s->words.data_ptr, NULL);
    if (value == NULL)
        return -1;
    *data_p = PyLong_AsVoidPtr(value);
    Py_DECREF(value);
    return PyErr_Occurred() ? -1 : 1;
}

static int copy_in(struct core_state *s, const struct grad_slot *slot, PyObject *grad,
                   const void *data)
{
    PyObject *result;

    if (slot->bytes <= COPY_ALONE_BYTES) {
        memcpy(slot->data, data, slot->bytes);
        return 0;
    }
    result = PyObject_CallMethodObjArgs(slot->view, s->words.copy_, grad, NULL);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Rule 2's exception: Python brings the gradient in and says whether p.grad is kept. */
static int take_fallback(struct reducer *r, int index, PyObject *grad)
{
    struct grad_slot *slot = &r->slots[index];
    PyObject *result = PyObject_CallFunction(r->fallback, "iO", index, grad);
    int kept = result != NULL ? PyObject_IsTrue(result) : -1;

    Py_XDECREF(result);
    slot = &r->slots[index];
    slot->kept = kept == 1;
    return kept < 0 ? -1 : 0;
}

static int take_missing(struct reducer *r, int index, PyObject *param)
{
    struct grad_slot *slot = &r->slots[index];

    if (slot->bucket < 0 || !slot->fits)
        return take_fallback(r, index, Py_None);
    if (view_renew(r, index) != 0)
        return -1;
    memset(slot->data, 0, slot->bytes);
    return PyObject_SetAttr(param, core_of(r->module)->words.grad, slot->view);
}

static int take_grad(struct reducer *r, int index, PyObject *param, PyObject *grad)
{
    struct core_state *s = core_of(r->module);
    struct grad_slot *slot = &r->slots[index];
    void *data;
    int is = core_attr_is(grad, s->words.requires_grad, Py_True);

    if (is == 1)
        PyErr_SetString(PyExc_AssertionError,
                        "gradients that require a gradient themselves (backward with "
                        "create_graph=True) cannot be reduced in place");
    if (is != 0)
        return -1;
    if (slot->bucket < 0)
        return take_fallback(r, index, grad);
    if (grad == slot->view)
        return 0;
    if (view_renew(r, index) != 0)
        return -1;
    is = grad_is_plain(s, slot, grad, &data);
    if (is != 1)
        return is < 0 ? -1 : take_fallback(r, index, grad);
    if (copy_in(s, slot, grad, data) != 0)
        return -1;
    return PyObject_SetAttr(param, s->words.grad, slot->view);
}

static int slot_take(struct reducer *r, int index, PyObject *param)
{
    struct grad_slot *slot = &r->slots[index];
    PyObject *grad = PyObject_GetAttr(param, core_of(r->module)->words.grad);
    int result;

    if (grad == NULL)
        return -1;
    slot->kept = false;
    result = grad == Py_None ? take_missing(r, index, param)
                             : take_grad(r, index, param, grad);
    Py_DECREF(grad);
    if (result != 0)
        return -1;
    slot->taken = true;
    r->missing--;
    if (slot->bucket >= 0 && --r->buckets[slot->bucket].missing == 0)
        return bucket_submit(r, &r->buckets[slot->bucket]);
    return 0;
}

/* ---- the hook ------------------------------------------------------------------- */

static PyObject *slot_call(PyObject *object, PyObject *args, PyObject *kwargs)
{
    struct slot_object *self = (struct slot_object *)object;
    struct reducer *r = self->reducer;
    struct grad_slot *slot = &r->slots[self->index];
    PyObject *param = PyTuple_GetItem(args, 0);

    if (param == NULL)
        return NULL;
    if (r->silent > 0)
        Py_RETURN_NONE;
    if (slot->delay <= 0)
        return PyErr_Format(PyExc_AssertionError,
                            "gradients were computed more than backward_passes_per_step "
                            "(%d) times before a call to step(); accumulate with "
                            "backward_passes_per_step, or within no_sync()", r->passes);
    if (step_enter(r, STATE_FILLING) != 0)
        return NULL;
    if (--slot->delay > 0)
        Py_RETURN_NONE;
    r->counting--;
    if (r->plan != STATE_NONE && slot_take(r, self->index, param) != 0)
        return NULL;
    if (r->counting == 0)
        return PyObject_CallNoArgs(r->complete);
    Py_RETURN_NONE;
}

static void slot_dealloc(PyObject *object)
{
    Py_XDECREF((PyObject *)((struct slot_object *)object)->reducer);
    core_free(object);
}

static PyType_Slot slot_slots[] = {
    {Py_tp_doc, "The gradient hook of one parameter."},
    {Py_tp_call, slot_call},
    {Py_tp_dealloc, slot_dealloc},
    {0, NULL},
};

static PyType_Spec slot_spec = {
    .name = "horovod._core.Slot",
    .basicsize = sizeof(struct slot_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slot_slots,
};

/* ---- the reducer ---------------------------------------------------------------- */

static void reducer_rearm(struct reducer *r)
{
    for (int i = 0; i < r->slot_count; i++) {
        r->slots[i].delay = r->passes;
        r->slots[i].taken = r->slots[i].kept = false;
    }
    for (int i = 0; i < r->bucket_count; i++)
        r->buckets[i].missing = r->buckets[i].member_count;
    r->step = STATE_IDLE;               /* legal from everywhere */
    r->missing = r->counting = r->slot_count;
}

/* Drops what is in flight: the memory stays alive until the engine is done with it. */
static void reducer_drop(struct reducer *r)
{
    for (int i = 0; i < r->bucket_count; i++) {
        struct bucket *b = &r->buckets[i];

        if (b->handle != 0)
            core_orphan(core_of(r->module), b->handle, b->memory);
        b->handle = 0;
    }
}

static void reducer_unplan(struct reducer *r)
{
    reducer_drop(r);
    for (int i = 0; i < r->bucket_count; i++) {
        free(r->buckets[i].name);
        Py_CLEAR(r->buckets[i].memory);
    }
    free(r->buckets);
    r->buckets = NULL;
    r->bucket_count = 0;
    r->plan = STATE_NONE;               /* legal from everywhere */
    for (int i = 0; i < r->slot_count; i++) {
        r->slots[i].bucket = -1;
        Py_CLEAR(r->slots[i].view);
        Py_CLEAR(r->slots[i].dtype);
    }
}

static int reducer_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    struct reducer *r = (struct reducer *)object;
    PyObject *fallback, *renew, *complete;

    if (!PyArg_ParseTuple(args, "iOOO", &r->passes, &fallback, &renew, &complete))
        return -1;
    Py_INCREF(fallback);
    Py_INCREF(renew);
    Py_INCREF(complete);
    r->fallback = fallback;
    r->renew = renew;
    r->complete = complete;
    r->module = PyType_GetModule(Py_TYPE(object));
    Py_XINCREF(r->module);
    return r->module != NULL ? 0 : -1;
}

static void reducer_dealloc(PyObject *object)
{
    struct reducer *r = (struct reducer *)object;

    if (r->module != NULL)
        reducer_unplan(r);
    free(r->slots);
    Py_XDECREF(r->fallback);
    Py_XDECREF(r->renew);
    Py_XDECREF(r->complete);
    Py_XDECREF(r->module);
    core_free(object);
}

/* add() -> the hook of one more parameter, which the plan, if there is one, does not know */
static PyObject *reducer_add(PyObject *object, PyObject *unused)
{
    struct reducer *r = (struct reducer *)object;
    struct core_state *s = core_of(r->module);
    struct grad_slot *slots = realloc(r->slots, ((size_t)r->slot_count + 1) * sizeof(*slots));
    struct slot_object *hook;

    if (slots == NULL)
        return PyErr_NoMemory();
    r->slots = slots;
    hook = (struct slot_object *)PyType_GenericAlloc(s->slot_type, 0);
    if (hook == NULL)
        return NULL;
    Py_INCREF(object);
    hook->reducer = r;
    hook->index = r->slot_count;
    memset(&slots[r->slot_count], 0, sizeof(*slots));
    slots[r->slot_count].bucket = -1;
    slots[r->slot_count].delay = r->passes;
    r->slot_count++;
    r->missing++;
    r->counting++;
    if (r->plan == STATE_CURRENT)
        r->plan = STATE_EXPIRING;
    return (PyObject *)hook;
}

/* member: (index, view, dtype object, pointer, bytes, fits, plain) */
static int plan_member(struct reducer *r, int bucket, PyObject *tuple)
{
    PyObject *view, *dtype;
    unsigned long long data;
    Py_ssize_t bytes;
    int index, fits, plain;

    if (!PyArg_ParseTuple(tuple, "iOOKnpp", &index, &view, &dtype, &data, &bytes, &fits,
                          &plain))
        return -1;
    if (index < 0 || index >= r->slot_count || r->slots[index].bucket >= 0) {
        PyErr_Format(PyExc_ValueError, "slot %d is unknown or planned twice", index);
        return -1;
    }
    Py_INCREF(view);
    Py_INCREF(dtype);
    r->slots[index].view = view;
    r->slots[index].dtype = dtype;
    r->slots[index].data = (char *)(uintptr_t)data;
    r->slots[index].bytes = (size_t)bytes;
    r->slots[index].fits = fits != 0;
    r->slots[index].plain = fits != 0 && plain != 0;
    r->slots[index].bucket = bucket;
    return 0;
}

/* bucket: (name, memory, pointer, count, dtype code, [members]) */
static int plan_bucket(struct reducer *r, const struct hvd_request *common,
                       PyObject *tuple)
{
    struct bucket *b = &r->buckets[r->bucket_count];
    PyObject *memory, *members;
    unsigned long long data;
    size_t item;
    Py_ssize_t count;
    const char *name;
    int dtype;

    if (!PyArg_ParseTuple(tuple, "sOKniO!", &name, &memory, &data, &count, &dtype,
                          &PyList_Type, &members))
        return -1;
    b->req = *common;
    b->name = strdup(name);
    b->req.name = b->name;
    b->req.input = b->req.output = (void *)(uintptr_t)data;
    b->req.dtype = (enum hvd_dtype)dtype;
    b->req.ndim = 1;
    b->req.shape[0] = count;
    Py_INCREF(memory);
    b->memory = memory;
    item = hvd_dtype_bytes(b->req.dtype);
    memcpy(b->neutral, (char *)b->req.output + (size_t)(count - 1) * item, item);
    b->member_count = (int)PyList_Size(members);
    r->bucket_count++;
    for (int i = 0; i < b->member_count; i++)
        if (plan_member(r, r->bucket_count - 1, PyList_GetItem(members, i)) != 0)
            return -1;
    return 0;
}

/* plan(reduce, set, prescale, postscale, [buckets]); the flags hold their neutral value */
static PyObject *reducer_plan(PyObject *object, PyObject *args)
{
    struct reducer *r = (struct reducer *)object;
    struct hvd_request common = {.size = sizeof(common), .op = HVD_ALLREDUCE,
                                 .device = -1};
    PyObject *list;
    int reduce;
    Py_ssize_t n;

    if (!PyArg_ParseTuple(args, "iiddO!", &reduce, &common.process_set,
                          &common.prescale, &common.postscale, &PyList_Type, &list))
        return NULL;
    common.reduce = (enum hvd_reduce)reduce;
    reducer_unplan(r);
    n = PyList_Size(list);
    r->buckets = calloc((size_t)n + 1, sizeof(*r->buckets));
    if (r->buckets == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++)
        if (plan_bucket(r, &common, PyList_GetItem(list, i)) != 0) {
            reducer_unplan(r);
            return NULL;
        }
    for (int i = 0; i < r->bucket_count; i++)
        r->buckets[i].missing = r->buckets[i].member_count;
    for (int i = 0; i < r->slot_count; i++)
        r->slots[i].taken = r->slots[i].kept = false;
    r->missing = r->slot_count;
    r->plan = STATE_CURRENT;
    Py_RETURN_NONE;
}

/* collect(params): takes every gradient that is missing, as it is; zeros for None */
static PyObject *reducer_collect(PyObject *object, PyObject *params)
{
    struct reducer *r = (struct reducer *)object;

    if (!PyList_Check(params) || PyList_Size(params) != r->slot_count)
        return PyErr_Format(PyExc_ValueError, "a list of all parameters is needed");
    if (r->plan == STATE_NONE)
        return PyErr_Format(PyExc_AssertionError, "there is no plan to collect gradients for");
    if (step_enter(r, STATE_FILLING) != 0)
        return NULL;
    for (int i = 0; i < r->slot_count && r->missing > 0; i++)
        if (!r->slots[i].taken && slot_take(r, i, PyList_GetItem(params, i)) != 0)
            return NULL;
    Py_RETURN_NONE;
}

/* Waits for one bucket; 0: done, 1: failed, err says why; -1: raised by a signal. */
static int bucket_wait(struct bucket *b, struct hvd_error *err)
{
    enum hvd_status status;

    if (b->handle == 0)
        return 0;
    if (!core_wait(b->handle, -1, &status, err))
        return -1;
    hvd_release(b->handle);
    b->handle = 0;
    return status == HVD_OK ? 0 : 1;
}

static bool bucket_is_flagged(const struct bucket *b)
{
    size_t item = hvd_dtype_bytes(b->req.dtype);
    const char *flag = (const char *)b->req.output + (size_t)(b->req.shape[0] - 1) * item;

    return memcmp(flag, b->neutral, item) != 0;
}

/* Makes p.grad the view wherever the result belongs there and something else is. */
static int put_views(struct reducer *r, PyObject *params)
{
    PyObject *name = core_of(r->module)->words.grad;

    for (int i = 0; i < r->slot_count; i++) {
        PyObject *param = PyList_GetItem(params, i);
        int is;

        if (r->slots[i].bucket < 0 || r->slots[i].kept)
            continue;
        is = core_attr_is(param, name, r->slots[i].view);
        if (is < 0 || (is == 0 && PyObject_SetAttr(param, name, r->slots[i].view) != 0))
            return -1;
    }
    return 0;
}

static PyObject *kept_list(const struct reducer *r)
{
    PyObject *list = PyList_New(0);

    for (int i = 0; list != NULL && i < r->slot_count; i++) {
        PyObject *index;

        if (!r->slots[i].kept && r->slots[i].bucket >= 0)
            continue;
        index = PyLong_FromLong(i);
        if (index == NULL || PyList_Append(list, index) != 0)
            Py_CLEAR(list);
        Py_XDECREF(index);
    }
    return list;
}

/* wait(params) -> indices of those whose result is to be brought back.  Everything must have
 * been collected. */
static PyObject *reducer_wait(PyObject *object, PyObject *params)
{
    struct reducer *r = (struct reducer *)object;
    struct hvd_error err, other;
    bool failed = false, flagged = false;
    PyObject *kept;

    if (!PyList_Check(params) || PyList_Size(params) != r->slot_count)
        return PyErr_Format(PyExc_ValueError, "a list of all parameters is needed");
    if (r->missing > 0)
        return PyErr_Format(PyExc_AssertionError, "%d gradients are not collected",
                            r->missing);
    if (may_change(step_rows, (int)r->step, STATE_REDUCED) != 0)
        return NULL;
    for (int i = 0; i < r->bucket_count; i++) {
        int result = bucket_wait(&r->buckets[i], failed ? &other : &err);

        if (result < 0)
            return NULL;
        failed = failed || result == 1;
        flagged = flagged || bucket_is_flagged(&r->buckets[i]);
    }
    if (failed)
        return core_raise(core_of(r->module), &err);
    if (put_views(r, params) != 0)
        return NULL;
    kept = kept_list(r);
    if (kept == NULL)
        return NULL;
    if (flagged && r->plan == STATE_CURRENT)
        r->plan = STATE_EXPIRING;
    r->step = STATE_REDUCED;
    return kept;
}

/* The next step may begin; what is in flight is dropped, and a plan that expires. */
static PyObject *reducer_reset(PyObject *object, PyObject *unused)
{
    struct reducer *r = (struct reducer *)object;

    reducer_drop(r);
    reducer_rearm(r);
    if (r->plan == STATE_EXPIRING)
        reducer_unplan(r);
    Py_RETURN_NONE;
}

static PyObject *reducer_forget(PyObject *object, PyObject *unused)
{
    reducer_unplan((struct reducer *)object);
    reducer_rearm((struct reducer *)object);
    Py_RETURN_NONE;
}

/* view(index): the piece of the bucket that p.grad may be */
static PyObject *reducer_view(PyObject *object, PyObject *arg)
{
    struct reducer *r = (struct reducer *)object;
    long index = PyLong_AsLong(arg);

    if (PyErr_Occurred())
        return NULL;
    if (index < 0 || index >= r->slot_count || r->slots[index].view == NULL)
        return PyErr_Format(PyExc_IndexError, "slot %ld has no view", index);
    Py_INCREF(r->slots[index].view);
    return r->slots[index].view;
}

#define COUNTER_GET(name)                                                              \
    static PyObject *reducer_get_##name(PyObject *object, void *unused)                \
    {                                                                                  \
        return PyLong_FromLong(((struct reducer *)object)->name);                      \
    }
COUNTER_GET(missing)
COUNTER_GET(passes)
COUNTER_GET(silent)

static PyObject *reducer_get_plan_state(PyObject *object, void *unused)
{
    return PyUnicode_FromString(plan_rows[((struct reducer *)object)->plan].name);
}

static PyObject *reducer_get_step_state(PyObject *object, void *unused)
{
    return PyUnicode_FromString(step_rows[((struct reducer *)object)->step].name);
}

#define COUNTER_SET(name)                                                              \
    static int reducer_set_##name(PyObject *object, PyObject *value, void *unused)     \
    {                                                                                  \
        long v = value != NULL ? PyLong_AsLong(value) : 0;                             \
                                                                                       \
        if (PyErr_Occurred())                                                          \
            return -1;                                                                 \
        ((struct reducer *)object)->name = (int)v;                                     \
        return 0;                                                                      \
    }
COUNTER_SET(passes)
COUNTER_SET(silent)

static PyMethodDef reducer_methods[] = {
    {"add", reducer_add, METH_NOARGS, "a slot for one more parameter; its hook"},
    {"plan", reducer_plan, METH_VARARGS, NULL},
    {"view", reducer_view, METH_O, NULL},
    {"collect", reducer_collect, METH_O, NULL},
    {"wait", reducer_wait, METH_O, NULL},
    {"reset", reducer_reset, METH_NOARGS, "begins the next step; drops what is in flight"},
    {"forget", reducer_forget, METH_NOARGS, "drops what is in flight and the plan"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef reducer_getset[] = {
    {"missing", reducer_get_missing, NULL, "slots whose gradient is not taken", NULL},
    {"plan_state", reducer_get_plan_state, NULL, "PLAN_STATES of py_bucket.c", NULL},
    {"step_state", reducer_get_step_state, NULL, "STEP_STATES of py_bucket.c", NULL},
    {"passes", reducer_get_passes, reducer_set_passes, NULL, NULL},
    {"silent", reducer_get_silent, reducer_set_silent, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot reducer_slots[] = {
    {Py_tp_doc, "Reducer(passes, fallback, renew, complete): the gradients of one optimizer."},
    {Py_tp_init, reducer_init},
    {Py_tp_dealloc, reducer_dealloc},
    {Py_tp_methods, reducer_methods},
    {Py_tp_getset, reducer_getset},
    {0, NULL},
};

static PyType_Spec reducer_spec = {
    .name = "horovod._core.Reducer",
    .basicsize = sizeof(struct reducer),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = reducer_slots,
};

int py_bucket_add(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &reducer_spec, NULL);

    if (type == NULL || PyModule_AddObject(module, "Reducer", type) != 0)
        return -1;
    if (PyModule_AddObject(module, "PLAN_CHANGES",
                           changes_dict(plan_rows, PLAN_STATE_COUNT)) != 0 ||
        PyModule_AddObject(module, "STEP_CHANGES",
                           changes_dict(step_rows, STEP_STATE_COUNT)) != 0)
        return -1;
    core_of(module)->slot_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &slot_spec, NULL);
    return core_of(module)->slot_type != NULL ? 0 : -1;
}
