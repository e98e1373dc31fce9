/*
 * library.c: finds the CUDA driver and NCCL, when the first GPU tensor comes, and fills the
 * table.  Order: the path that the user gives; what is in the process already (torch's own);
 * the directories next to torch; the system.
 */
#include "base/config.h"
#include "base/log.h"
#include "gpu/gpu_int.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOG_COMPONENT "gpu"
#define DRIVER_NAME "libcuda.so.1"
#define NCCL_NAME "libnccl.so.2"

struct gpu_table gpu;
atomic_bool gpu_is_loaded;              /* the table has a driver */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;        /* guards what follows */
static char *directories;
static struct hvd_gpu known;
static bool has_looked, has_nccl, is_forced;

struct symbol {
    const char *name;
    size_t offset;                      /* in struct gpu_table */
};

#define CUDA_SYMBOL(field, symbol, arguments) {symbol, offsetof(struct gpu_table, cuda.field)},
#define NCCL_SYMBOL(field, symbol, arguments) {symbol, offsetof(struct gpu_table, nccl.field)},
static const struct symbol cuda_symbols[] = {CUDA_MAP(CUDA_SYMBOL){NULL, 0}};
static const struct symbol nccl_symbols[] = {
    NCCL_MAP(NCCL_SYMBOL){"ncclGetErrorString", offsetof(struct gpu_table, nccl.error_text)},
    {NULL, 0}};

/* The first that is not there; NULL: the table has them all. */
static const char *fill(void *library, const struct symbol *symbols)
{
    for (const struct symbol *s = symbols; s->name != NULL; s++) {
        void *at = dlsym(library, s->name);

        if (at == NULL)
            return s->name;
        memcpy((char *)&gpu + s->offset, &at, sizeof at);
    }
    return NULL;
}

static void *open_path(const char *path, int flags, char *found)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | flags);

    if (library != NULL)
        snprintf(found, sizeof known.driver, "%.255s", path);
    return library;
}

static void *open_nearby(const char *name, char *found)
{
    char *list = directories != NULL ? strdup(directories) : NULL, *rest = list;
    char path[4096];
    void *library = NULL;

    while (library == NULL && rest != NULL) {
        const char *directory = strsep(&rest, ":");

        snprintf(path, sizeof path, "%s/%s", directory, name);
        if (*directory != '\0')
            library = open_path(path, 0, found);
    }
    free(list);
    return library;
}

/* given: the user's path, or "".  Then no other is looked for. */
static void *open_any(const char *given, const char *name, char *found)
{
    void *library;

    if (*given != '\0')
        return open_path(given, 0, found);
    library = open_path(name, RTLD_NOLOAD, found);
    if (library == NULL)
        library = open_nearby(name, found);
    return library != NULL ? library : open_path(name, 0, found);
}

static void load_nccl(const char *given, char *why, size_t room)
{
    void *library = open_any(given, NCCL_NAME, known.nccl);
    const char *missing = library != NULL ? fill(library, nccl_symbols) : NULL;

    if (library == NULL) {
        snprintf(why, room, "%s was not found", *given != '\0' ? given : NCCL_NAME);
        return;
    }
    if (gpu.nccl.version != NULL)
        gpu.nccl.version(&known.nccl_version);
    if (missing != NULL)
        snprintf(why, room, "NCCL %d of %.150s has no %s", known.nccl_version, known.nccl,
                 missing);
    else if (known.nccl_version < NCCL_OLDEST)
        snprintf(why, room, "NCCL %d of %.150s is older than %d", known.nccl_version, known.nccl,
                 NCCL_OLDEST);
    else
        has_nccl = true;
}

static bool load_driver(const char *given, char *why, size_t room)
{
    void *library = open_any(given, DRIVER_NAME, known.driver);
    const char *missing = library != NULL ? fill(library, cuda_symbols) : NULL;

    if (library == NULL)
        snprintf(why, room, "%s was not found", *given != '\0' ? given : DRIVER_NAME);
    else if (missing != NULL)
        snprintf(why, room, "%.150s has no %s", known.driver, missing);
    return library != NULL && missing == NULL;
}

static bool is_one_of(const char *word, const char *const *words)
{
    while (*words != NULL && strcmp(word, *words) != 0)
        words++;
    return *words != NULL;
}

/* With the lock. */
static void look(void)
{
    static const char *const backends[] = {"auto", "nccl", "host", "off", "", NULL};
    struct hvd_error err;
    struct config conf;
    char why[sizeof known.reason] = "";

    has_looked = true;
    if (config_read(&conf, &err) != HVD_OK) {
        snprintf(known.reason, sizeof known.reason, "%.250s", err.text);
        config_release(&conf);
        return;
    }
    is_forced = strcmp(conf.gpu_backend, "nccl") == 0;
    if (!is_one_of(conf.gpu_backend, backends)) {
        snprintf(known.reason, sizeof known.reason,
                 "HOROVOD_GPU_BACKEND is %s; auto, nccl, host and off are possible",
                 conf.gpu_backend);
    } else if (strcmp(conf.gpu_backend, "off") == 0) {
        snprintf(known.reason, sizeof known.reason, "HOROVOD_GPU_BACKEND is off");
    } else if (load_driver(conf.cudart_library, known.reason, sizeof known.reason)) {
        known.backend = HVD_GPU_HOST;
        atomic_store(&gpu_is_loaded, true);
        if (strcmp(conf.gpu_backend, "host") == 0)
            snprintf(why, sizeof why, "HOROVOD_GPU_BACKEND is host");
        else
            load_nccl(conf.nccl_library, why, sizeof why);
        known.backend = has_nccl ? HVD_GPU_NCCL : HVD_GPU_HOST;
        memcpy(known.reason, why, sizeof why);
    }
    config_release(&conf);
    log_info("GPU: driver %s, NCCL %s (%d) %s", known.driver, known.nccl, known.nccl_version,
             known.reason);
}

void gpu_search(const char *list)
{
    pthread_mutex_lock(&lock);
    free(directories);
    directories = strdup(list);
    pthread_mutex_unlock(&lock);
}

void gpu_find(struct hvd_gpu *found)
{
    uint32_t size = found->size;

    pthread_mutex_lock(&lock);
    if (!has_looked)
        look();
    *found = known;
    pthread_mutex_unlock(&lock);
    found->size = size;
}

bool gpu_is_forced(void)
{
    return is_forced;
}

int gpu_nccl_version(void)
{
    int version = 0, (*ask)(int *) = NULL;
    char found[sizeof known.nccl];
    struct hvd_error err;
    struct config conf;
    void *library = NULL, *at;

    pthread_mutex_lock(&lock);
    if (config_read(&conf, &err) == HVD_OK)
        library = open_any(conf.nccl_library, NCCL_NAME, found);
    config_release(&conf);
    pthread_mutex_unlock(&lock);
    at = library != NULL ? dlsym(library, "ncclGetVersion") : NULL;
    memcpy(&ask, &at, sizeof at);
    if (ask != NULL)
        ask(&version);
    return version;
}

enum hvd_status gpu_load(struct hvd_error *err)
{
    struct hvd_gpu found = {.size = sizeof found};

    if (atomic_load(&gpu_is_loaded) && !is_forced)
        return HVD_OK;
    gpu_find(&found);
    if (found.backend == HVD_GPU_NONE)
        return error_set(err, HVD_UNSUPPORTED, -1, "tensors on a GPU are not possible: %s",
                         found.reason);
    if (found.backend != HVD_GPU_NCCL && is_forced)
        return error_set(err, HVD_UNSUPPORTED, -1,
                         "HOROVOD_GPU_BACKEND is nccl, but %s", found.reason);
    return HVD_OK;
}
