/*
 * tf_done.c: keeping the completion of an asynchronous kernel until the engine is done.
 *
 * What TensorFlow hands to an asynchronous kernel is the address of a C++ std::function that
 * is gone when the kernel's function returns; its C API has no call to keep it.  So it is
 * copied as libstdc++ copies it: 16 bytes of storage, a manager that knows how to clone (2)
 * and destroy (3) what is stored, and the invoker.
 *
 * That is safe only if TensorFlow was built with libstdc++, so before a manager is trusted
 * for the first time it must lie in a file of TensorFlow, in a process that has loaded
 * libstdc++.  Otherwise done_keep says no, and the kernel waits in its own thread.
 */
#include "tensorflow/tf_ops.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define TRUSTED_MAX 16                  /* managers: one per place that runs kernels */

enum { MANAGER_CLONE = 2, MANAGER_DESTROY = 3 };

struct tf_done {
    void *storage[2];
    bool (*manager)(struct tf_done *to, const struct tf_done *from, int operation);
    void *invoker;
};

typedef bool (*manager_fn)(struct tf_done *, const struct tf_done *, int);

static _Atomic(manager_fn) trusted[TRUSTED_MAX];
static atomic_bool refused;             /* tests: as with an unknown TensorFlow */

static bool is_of_tensorflow(manager_fn manager)
{
    void *address, *libstdcxx = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
    Dl_info info;

    if (libstdcxx == NULL)
        return false;
    dlclose(libstdcxx);
    memcpy(&address, &manager, sizeof address);
    return dladdr(address, &info) != 0 && info.dli_fname != NULL &&
           strstr(info.dli_fname, "tensorflow") != NULL;
}

static bool is_trusted(manager_fn manager)
{
    manager_fn none = NULL;

    for (int i = 0; i < TRUSTED_MAX; i++)
        if (atomic_load_explicit(&trusted[i], memory_order_relaxed) == manager)
            return true;
    if (!is_of_tensorflow(manager))
        return false;
    for (int i = 0; i < TRUSTED_MAX; i++, none = NULL)
        if (atomic_compare_exchange_strong(&trusted[i], &none, manager))
            break;
    return true;
}

void done_refuse(bool all)
{
    atomic_store(&refused, all);
}

struct tf_done *done_keep(const struct tf_done *done)
{
    struct tf_done *copy;

    if (done->manager == NULL || atomic_load_explicit(&refused, memory_order_relaxed) ||
        !is_trusted(done->manager))
        return NULL;
    copy = calloc(1, sizeof *copy);
    if (copy == NULL)
        return NULL;
    done->manager(copy, done, MANAGER_CLONE);
    copy->manager = done->manager;
    copy->invoker = done->invoker;
    return copy;
}

void done_run_kept(struct tf_done *copy)
{
    tf.RunAsyncOpKernelDoneCallback(copy);
    copy->manager(copy, copy, MANAGER_DESTROY);
    free(copy);
}
