/*
 * py_driver.c: the job side for Python: the rendezvous server, the job key, and the
 * interfaces of this host.
 */
#include "python/py_core.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>

struct server_object {
    PyObject_HEAD
    struct hvd_server *server;          /* NULL once closed */
};

static void server_end(struct server_object *self)
{
    struct hvd_server *server = self->server;

    self->server = NULL;
    if (server == NULL)
        return;
    Py_BEGIN_ALLOW_THREADS
    hvd_server_free(server);
    Py_END_ALLOW_THREADS
}

static void server_dealloc(PyObject *object)
{
    server_end((struct server_object *)object);
    core_free(object);
}

/* A new array that borrows from the texts of a list; NULL: raised. */
static const char **texts_new(PyObject *list)
{
    Py_ssize_t n = PyList_Size(list);
    const char **texts = calloc((size_t)n + 1, sizeof(*texts));

    for (Py_ssize_t i = 0; texts != NULL && i < n; i++) {
        texts[i] = PyUnicode_AsUTF8AndSize(PyList_GetItem(list, i), NULL);
        if (texts[i] == NULL) {
            free(texts);
            return NULL;
        }
    }
    return texts != NULL ? texts : (const char **)PyErr_NoMemory();
}

static bool key_is_whole(Py_ssize_t bytes)
{
    if (bytes == HVD_KEY_BYTES)
        return true;
    PyErr_Format(PyExc_ValueError, "the job key has %zd bytes, not %d", bytes,
                 HVD_KEY_BYTES);
    return false;
}

bool core_listen_read(struct core_listen *l, PyObject *addrs)
{
    if (!key_is_whole(l->key_bytes))
        return false;
    l->list = PySequence_List(addrs);
    l->addrs = l->list != NULL ? texts_new(l->list) : NULL;
    if (l->addrs == NULL)
        return false;
    l->addr_count = (int)PyList_Size(l->list);
    return true;
}

void core_listen_release(struct core_listen *l)
{
    free(l->addrs);
    Py_XDECREF(l->list);
}

int core_opened(enum hvd_status status, const struct hvd_error *err)
{
    if (status == HVD_OK)
        return 0;
    PyErr_SetString(status == HVD_INVALID ? PyExc_ValueError : PyExc_OSError, err->text);
    return -1;
}

static int server_start(struct server_object *self, const struct core_listen *l,
                        struct hvd_server_options *opt)
{
    struct hvd_error err;
    enum hvd_status status;

    opt->key = (const uint8_t *)l->key;
    opt->listen_addr_count = l->addr_count;
    opt->listen_addrs = l->addr_count > 0 ? l->addrs : NULL;
    Py_BEGIN_ALLOW_THREADS
    status = hvd_server_new(opt, &self->server, &err);
    Py_END_ALLOW_THREADS
    return core_opened(status, &err);
}

static int server_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key",     "job_id",  "addrs",      "port",
                            "workers", "timeout", "generation", NULL};
    struct server_object *self = (struct server_object *)object;
    struct hvd_server_options opt = {.size = sizeof(opt), .timeout_s = 30};
    struct core_listen listen = {0};
    PyObject *addrs;
    int result = -1;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#sOHi|dI", names, &listen.key,
                                     &listen.key_bytes, &opt.job_id, &addrs, &opt.port,
                                     &opt.worker_count, &opt.timeout_s,
                                     &opt.generation))
        return -1;
    if (core_listen_read(&listen, addrs)) {
        server_end(self);
        result = server_start(self, &listen, &opt);
    }
    core_listen_release(&listen);
    return result;
}

static struct hvd_server *server_of(PyObject *object)
{
    struct hvd_server *server = ((struct server_object *)object)->server;

    if (server == NULL)
        PyErr_SetString(PyExc_ValueError, "the server is closed");
    return server;
}

static PyObject *server_port(PyObject *object, void *unused)
{
    struct hvd_server *server = server_of(object);

    return server != NULL ? PyLong_FromLong(hvd_server_port(server)) : NULL;
}

static PyObject *server_next_generation(PyObject *object, PyObject *arg)
{
    struct hvd_server *server = server_of(object);
    long workers = PyLong_AsLong(arg);

    if (server == NULL || (workers == -1 && PyErr_Occurred()))
        return NULL;
    hvd_server_next_generation(server, (int)workers);
    Py_RETURN_NONE;
}

static PyObject *server_status(PyObject *object, PyObject *unused)
{
    struct hvd_server *server = server_of(object);
    size_t room, length;
    PyObject *text;
    char *buffer;

    if (server == NULL)
        return NULL;
    room = hvd_server_status(server, NULL, 0) + 1024;
    buffer = malloc(room);
    if (buffer == NULL)
        return PyErr_NoMemory();
    length = hvd_server_status(server, buffer, room);
    text = PyUnicode_DecodeUTF8(buffer, (Py_ssize_t)(length < room ? length : room - 1),
                                "replace");
    free(buffer);
    return text;
}

static PyObject *server_abort(PyObject *object, PyObject *args)
{
    struct hvd_server *server = server_of(object);
    const char *why;
    int rank;

    if (server == NULL || !PyArg_ParseTuple(args, "is", &rank, &why))
        return NULL;
    hvd_server_abort(server, rank, why);
    Py_RETURN_NONE;
}

static PyObject *server_close(PyObject *object, PyObject *unused)
{
    server_end((struct server_object *)object);
    Py_RETURN_NONE;
}

static PyMethodDef server_methods[] = {
    {"next_generation", server_next_generation, METH_O, "next_generation(workers)"},
    {"status", server_status, METH_NOARGS, "a line per rank: rank, host, pid, state"},
    {"abort", server_abort, METH_VARARGS, "abort(rank, why)"},
    {"close", server_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef server_getset[] = {
    {"port", server_port, NULL, "the port it listens at", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot server_slots[] = {
    {Py_tp_doc, "The rendezvous server of a job, in a thread of its own."},
    {Py_tp_init, server_init},
    {Py_tp_dealloc, server_dealloc},
    {Py_tp_methods, server_methods},
    {Py_tp_getset, server_getset},
    {0, NULL},
};

static PyType_Spec server_spec = {
    .name = "horovod._core.Server",
    .basicsize = sizeof(struct server_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = server_slots,
};

static PyObject *py_generate_key(PyObject *mod, PyObject *unused)
{
    uint8_t key[HVD_KEY_BYTES];
    struct hvd_error err;
    PyObject *bytes;

    if (hvd_key_generate(key, &err) != HVD_OK)
        return core_raise(core_of(mod), &err);
    bytes = PyBytes_FromStringAndSize((const char *)key, sizeof(key));
    explicit_bzero(key, sizeof key);
    return bytes;
}

static PyObject *py_set_key(PyObject *mod, PyObject *arg)
{
    struct hvd_error err;
    Py_ssize_t bytes;
    char *key;

    if (PyBytes_AsStringAndSize(arg, &key, &bytes) != 0 || !key_is_whole(bytes))
        return NULL;
    return core_done(core_of(mod), hvd_key_set((const uint8_t *)key, &err), &err);
}

/* (name, address), or nothing if the interface has no IP address or is down. */
static bool interface_append(PyObject *list, const struct ifaddrs *i)
{
    const struct sockaddr *a = i->ifa_addr;
    char text[INET6_ADDRSTRLEN];
    const void *bytes;
    PyObject *item;
    bool done;

    if (a == NULL || !(i->ifa_flags & IFF_UP) ||
        (a->sa_family != AF_INET && a->sa_family != AF_INET6))
        return true;
    bytes = a->sa_family == AF_INET
                ? (const void *)&((const struct sockaddr_in *)a)->sin_addr
                : (const void *)&((const struct sockaddr_in6 *)a)->sin6_addr;
    inet_ntop(a->sa_family, bytes, text, sizeof text);
    item = Py_BuildValue("(ss)", i->ifa_name, text);
    done = item != NULL && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return done;
}

static PyObject *py_interfaces(PyObject *mod, PyObject *unused)
{
    PyObject *list = PyList_New(0);
    struct ifaddrs *all = NULL;
    bool done = true;

    if (list == NULL)
        return NULL;
    if (getifaddrs(&all) != 0) {
        Py_DECREF(list);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    for (const struct ifaddrs *i = all; done && i != NULL; i = i->ifa_next)
        done = interface_append(list, i);
    freeifaddrs(all);
    if (!done)
        Py_CLEAR(list);
    return list;
}

static PyMethodDef driver_methods[] = {
    {"generate_key", py_generate_key, METH_NOARGS, "32 random bytes"},
    {"set_key", py_set_key, METH_O, "set_key(key): the job key of later inits"},
    {"interfaces", py_interfaces, METH_NOARGS, "[(name, address)] of this host"},
    {NULL, NULL, 0, NULL},
};

int py_driver_add(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &server_spec, NULL);

    if (type == NULL || PyModule_AddObject(module, "Server", type) != 0)
        return -1;
    return PyModule_AddFunctions(module, driver_methods);
}
