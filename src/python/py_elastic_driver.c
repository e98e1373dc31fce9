/*
 * py_elastic_driver.c: `_core.Driver`, the driver of an elastic job (horovod/driver.h), for
 * those who start workers from Python (Ray, Spark).
 */
#include "python/py_core.h"

#include <stdlib.h>
#include <string.h>

struct driver_object {
    PyObject_HEAD
    struct hvd_driver *driver;          /* NULL once closed */
};

static void driver_end(struct driver_object *self)
{
    struct hvd_driver *driver = self->driver;

    self->driver = NULL;
    if (driver == NULL)
        return;
    Py_BEGIN_ALLOW_THREADS
    hvd_driver_free(driver);
    Py_END_ALLOW_THREADS
}

static void driver_dealloc(PyObject *object)
{
    driver_end((struct driver_object *)object);
    core_free(object);
}

static int driver_open(struct driver_object *self, const struct core_listen *l,
                       struct hvd_driver_options *opt)
{
    enum hvd_status status;
    struct hvd_error err;

    opt->key = (const uint8_t *)l->key;
    opt->listen_addr_count = l->addr_count;
    opt->listen_addrs = l->addr_count > 0 ? l->addrs : NULL;
    Py_BEGIN_ALLOW_THREADS
    status = hvd_driver_new(opt, &self->driver, &err);
    Py_END_ALLOW_THREADS
    return core_opened(status, &err);
}

static int driver_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key", "job_id", "addrs", "port", "np", "min_np", "max_np",
                            "reset_limit", "restarts_per_slot", "elastic_timeout",
                            "cooldown_low", "cooldown_high", "grace", "heartbeat",
                            "gone", NULL};
    struct driver_object *self = (struct driver_object *)object;
    struct hvd_driver_options opt = {.size = sizeof(opt), .reset_limit = -1, .grace_s = -1};
    struct core_listen listen = {0};
    PyObject *addrs;
    int result = -1;

    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "y#sOHi|iiiidddddd", names, &listen.key, &listen.key_bytes,
            &opt.job_id, &addrs, &opt.port, &opt.np, &opt.min_np, &opt.max_np,
            &opt.reset_limit, &opt.restarts_per_slot, &opt.elastic_timeout_s,
            &opt.cooldown_lo_s, &opt.cooldown_hi_s, &opt.grace_s, &opt.heartbeat_s,
            &opt.gone_s))
        return -1;
    if (core_listen_read(&listen, addrs)) {
        driver_end(self);
        result = driver_open(self, &listen, &opt);
    }
    core_listen_release(&listen);
    return result;
}

static struct hvd_driver *driver_of(PyObject *object)
{
    struct hvd_driver *driver = ((struct driver_object *)object)->driver;

    if (driver == NULL)
        PyErr_SetString(PyExc_ValueError, "the driver is closed");
    return driver;
}

static PyObject *driver_port(PyObject *object, void *unused)
{
    struct hvd_driver *driver = driver_of(object);

    return driver != NULL ? PyLong_FromLong(hvd_driver_port(driver)) : NULL;
}

static bool read_host(PyObject *item, struct hvd_host *host)
{
    const char *name;

    if (!PyArg_ParseTuple(item, "si", &name, &host->slots))
        return false;
    if (strlen(name) >= sizeof(host->name) || host->slots < 1) {
        PyErr_Format(PyExc_ValueError, "host %s with %d slots", name, host->slots);
        return false;
    }
    strcpy(host->name, name);
    return true;
}

static PyObject *driver_hosts(PyObject *object, PyObject *arg)
{
    struct hvd_driver *driver = driver_of(object);
    PyObject *list = driver != NULL ? PySequence_List(arg) : NULL;
    Py_ssize_t n = list != NULL ? PyList_Size(list) : 0;
    struct hvd_host *hosts = calloc((size_t)n + 1, sizeof(*hosts));
    bool done = list != NULL && hosts != NULL;

    for (Py_ssize_t i = 0; done && i < n; i++)
        done = read_host(PyList_GetItem(list, i), &hosts[i]);
    if (done)
        hvd_driver_hosts(driver, hosts, (int)n);
    free(hosts);
    Py_XDECREF(list);
    if (!done)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *driver_discovery_failed(PyObject *object, PyObject *args)
{
    struct hvd_driver *driver = driver_of(object);
    const char *why;

    if (driver == NULL || !PyArg_ParseTuple(args, "s", &why))
        return NULL;
    hvd_driver_discovery_failed(driver, why);
    Py_RETURN_NONE;
}

static PyObject *driver_worker_ended(PyObject *object, PyObject *args)
{
    struct hvd_driver *driver = driver_of(object);
    const char *text = "";
    int worker, code, number = 0;

    if (driver == NULL || !PyArg_ParseTuple(args, "ii|is", &worker, &code, &number, &text))
        return NULL;
    hvd_driver_worker_ended(driver, worker, code, number, text);
    Py_RETURN_NONE;
}

static PyObject *driver_host_notice(PyObject *object, PyObject *args)
{
    struct hvd_driver *driver = driver_of(object);
    const char *host;

    if (driver == NULL || !PyArg_ParseTuple(args, "s", &host))
        return NULL;
    hvd_driver_host_notice(driver, host);
    Py_RETURN_NONE;
}

static PyObject *driver_abort(PyObject *object, PyObject *args)
{
    struct hvd_driver *driver = driver_of(object);
    const char *why;

    if (driver == NULL || !PyArg_ParseTuple(args, "s", &why))
        return NULL;
    hvd_driver_abort(driver, why);
    Py_RETURN_NONE;
}

/* START: the variables of its process as {name: value}. */
static PyObject *environment_of(struct hvd_driver *driver,
                                const struct hvd_driver_action *a, const char *addrs)
{
    PyObject *env = PyDict_New();
    char lines[4096], *rest = NULL;

    hvd_driver_environment(driver, a, addrs, lines, sizeof lines);
    for (char *line = strtok_r(lines, "\n", &rest); env != NULL && line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        char *equals = strchr(line, '=');
        PyObject *value = PyUnicode_FromString(equals + 1);

        *equals = '\0';
        if (value == NULL || PyDict_SetItemString(env, line, value) != 0)
            Py_CLEAR(env);
        Py_XDECREF(value);
    }
    return env;
}

static PyObject *driver_next(PyObject *object, PyObject *args)
{
    static const char *const kinds[] = {"start", "stop", "rank", "say", "end"};
    struct hvd_driver *driver = driver_of(object);
    struct hvd_driver_action a = {.size = sizeof(a)};
    const char *addrs = "127.0.0.1";
    PyObject *env;

    if (driver == NULL || !PyArg_ParseTuple(args, "|s", &addrs))
        return NULL;
    if (hvd_driver_next(driver, &a) != HVD_OK)
        Py_RETURN_NONE;
    env = a.kind == HVD_DRIVER_START ? environment_of(driver, &a, addrs) : PyDict_New();
    if (env == NULL)
        return NULL;
    return Py_BuildValue("{s:s,s:i,s:s,s:i,s:i,s:i,s:d,s:O,s:s,s:N}", "kind", kinds[a.kind],
                         "worker", a.worker, "host", a.host, "slot", a.slot, "rank", a.rank,
                         "size", a.job_size, "grace", a.grace_s, "ok",
                         a.ok ? Py_True : Py_False, "text", a.text, "env", env);
}

static PyObject *driver_fileno(PyObject *object, PyObject *unused)
{
    struct hvd_driver *driver = driver_of(object);

    return driver != NULL ? PyLong_FromLong(hvd_driver_fd(driver)) : NULL;
}

static PyObject *driver_status(PyObject *object, PyObject *unused)
{
    struct hvd_driver *driver = driver_of(object);
    char text[16384];

    if (driver == NULL)
        return NULL;
    hvd_driver_status(driver, text, sizeof text);
    return PyUnicode_FromString(text);
}

static PyObject *driver_close(PyObject *object, PyObject *unused)
{
    driver_end((struct driver_object *)object);
    Py_RETURN_NONE;
}

static PyMethodDef driver_methods[] = {
    {"hosts", driver_hosts, METH_O, "hosts([(name, slots)]): what discovery has found"},
    {"discovery_failed", driver_discovery_failed, METH_VARARGS, "discovery_failed(why)"},
    {"worker_ended", driver_worker_ended, METH_VARARGS,
     "worker_ended(worker, code, signal=0, text='')"},
    {"host_notice", driver_host_notice, METH_VARARGS, "host_notice(host): it will go"},
    {"abort", driver_abort, METH_VARARGS, "abort(why): tells all workers"},
    {"next", driver_next, METH_VARARGS,
     "next(addrs='127.0.0.1') -> the next action as a dict, or None"},
    {"fileno", driver_fileno, METH_NOARGS, "readable when there may be an action"},
    {"status", driver_status, METH_NOARGS, "a line per worker"},
    {"close", driver_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef driver_getset[] = {
    {"port", driver_port, NULL, "the port it listens at", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot driver_slots[] = {
    {Py_tp_doc, "The driver of an elastic job, in a thread of its own."},
    {Py_tp_init, driver_init},
    {Py_tp_dealloc, driver_dealloc},
    {Py_tp_methods, driver_methods},
    {Py_tp_getset, driver_getset},
    {0, NULL},
};

static PyType_Spec driver_spec = {
    .name = "horovod._core.Driver",
    .basicsize = sizeof(struct driver_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = driver_slots,
};

int py_elastic_driver_add(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &driver_spec, NULL);

    return type == NULL ? -1 : PyModule_AddObject(module, "Driver", type);
}
