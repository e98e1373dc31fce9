/* standin_cuda.c: the driver API of CUDA, as far as src/gpu/names.h has it; see standin.h. */
#include "standin.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, NO_MEMORY = 2, NOT_READY = 600, WRONG_CONTEXT = 201,
       ALREADY_PINNED = 712, NOT_PINNED = 713 };

#define DEVICES_MAX 16

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int open_count;
static atomic_long call_count;
static _Thread_local int contexts[8], depth;    /* current device of this thread, + 1 */

/* ---- Seed and faults ----------------------------------------------------------------------- */

static uint64_t number_of(const char *name, uint64_t initial)
{
    const char *text = getenv(name);

    return text != NULL ? strtoull(text, NULL, 10) : initial;
}

uint32_t standin_random(void)
{
    static uint64_t state;
    uint64_t x;

    pthread_mutex_lock(&lock);
    if (state == 0)
        state = number_of("STANDIN_SEED", 1) * 0x9e3779b97f4a7c15u + (uint64_t)getpid();
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    x = state;
    pthread_mutex_unlock(&lock);
    return (uint32_t)(x >> 32);
}

static void nap(unsigned us)
{
    struct timespec t = {.tv_nsec = (long)us * 1000};

    nanosleep(&t, NULL);
}

int standin_fault(const char *name)
{
    static atomic_int seen;
    const char *rule = getenv("STANDIN_FAULT"), *at;
    size_t n = strlen(name);

    if (rule == NULL || strncmp(rule, name, n) != 0 || rule[n] != ':')
        return OK;
    at = strstr(rule, "after=");
    if (atomic_fetch_add(&seen, 1) < (at != NULL ? atoi(at + 6) : 0))
        return OK;
    if (strstr(rule, "kill") != NULL)
        kill(getpid(), SIGKILL);
    while (strstr(rule, "hang") != NULL)
        pause();
    at = strstr(rule, "code=");
    return at != NULL ? atoi(at + 5) : 999;
}

#define ENTER(name)                                                                    \
    do {                                                                               \
        int code_ = standin_fault(name);                                               \
        atomic_fetch_add(&call_count, 1);                                              \
        if (code_ != OK)                                                               \
            return code_;                                                              \
    } while (0)
#define NEED_CONTEXT()                                                                 \
    do {                                                                               \
        if (depth == 0)                                                                \
            return WRONG_CONTEXT;                                                      \
    } while (0)

int standin_open_count(void)
{
    return atomic_load(&open_count);
}

long standin_call_count(void)
{
    return atomic_load(&call_count);
}

/* ---- Memory -------------------------------------------------------------------------------- */

struct block {
    struct block *next;
    char *device, *shadow;              /* the same pages */
    size_t bytes;
};

static struct block *blocks;

struct pinned {
    struct pinned *next;
    void *at;
};

static struct pinned *pins;

void *standin_reach(uintptr_t at, size_t bytes)
{
    void *found = NULL;
    bool inside = false;

    pthread_mutex_lock(&lock);
    for (struct block *b = blocks; b != NULL; b = b->next) {
        uintptr_t first = (uintptr_t)b->device;

        if (at < first || at >= first + b->bytes)
            continue;
        inside = true;
        if (at + bytes <= first + b->bytes)
            found = b->shadow + (at - first);
    }
    pthread_mutex_unlock(&lock);
    return inside ? found : (void *)at;
}

static struct block *block_new(size_t bytes)
{
    size_t size = (bytes + 4095) / 4096 * 4096;
    int fd = memfd_create("standin", MFD_CLOEXEC);
    struct block *b = calloc(1, sizeof *b);

    if (fd < 0 || b == NULL || ftruncate(fd, (off_t)size) != 0)
        abort();
    b->device = mmap(NULL, size, PROT_NONE, MAP_SHARED, fd, 0);
    b->shadow = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (b->device == MAP_FAILED || b->shadow == MAP_FAILED)
        abort();
    b->bytes = size;
    pthread_mutex_lock(&lock);
    b->next = blocks;
    blocks = b;
    pthread_mutex_unlock(&lock);
    return b;
}

STANDIN_PUBLIC int cuMemAlloc_v2(uintptr_t *at_p, size_t bytes)
{
    ENTER("cuMemAlloc");
    NEED_CONTEXT();
    *at_p = (uintptr_t)block_new(bytes)->device;
    atomic_fetch_add(&open_count, 1);
    return OK;
}

STANDIN_PUBLIC int cuMemFree_v2(uintptr_t at)
{
    struct block **place, *b;

    ENTER("cuMemFree");
    pthread_mutex_lock(&lock);
    for (place = &blocks; *place != NULL && (uintptr_t)(*place)->device != at;
         place = &(*place)->next)
        ;
    b = *place;
    if (b != NULL)
        *place = b->next;
    pthread_mutex_unlock(&lock);
    if (b == NULL)
        return INVALID_VALUE;
    munmap(b->device, b->bytes);
    munmap(b->shadow, b->bytes);
    free(b);
    atomic_fetch_sub(&open_count, 1);
    return OK;
}

STANDIN_PUBLIC int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    struct pinned *p;

    (void)bytes;
    (void)flags;
    ENTER("cuMemHostRegister");
    p = calloc(1, sizeof *p);
    p->at = at;
    pthread_mutex_lock(&lock);
    p->next = pins;
    pins = p;
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&open_count, 1);
    return OK;
}

STANDIN_PUBLIC int cuMemHostUnregister(void *at)
{
    struct pinned **place, *p;

    ENTER("cuMemHostUnregister");
    pthread_mutex_lock(&lock);
    for (place = &pins; *place != NULL && (*place)->at != at; place = &(*place)->next)
        ;
    p = *place;
    if (p != NULL)
        *place = p->next;
    pthread_mutex_unlock(&lock);
    if (p == NULL)
        return NOT_PINNED;
    free(p);
    atomic_fetch_sub(&open_count, 1);
    return OK;
}

/* ---- Streams ------------------------------------------------------------------------------- */

struct item {
    struct item *next;
    void (*run)(void *);
    void *context;
};

struct stream {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct item *first, **last;
    bool busy, stop;
};

static struct stream *defaults[DEVICES_MAX];

static struct item *next_item(struct stream *s)
{
    struct item *i;

    pthread_mutex_lock(&s->mutex);
    s->busy = false;
    pthread_cond_broadcast(&s->changed);
    while (s->first == NULL && !s->stop)
        pthread_cond_wait(&s->changed, &s->mutex);
    i = s->first;
    if (i != NULL) {
        s->first = i->next;
        s->busy = true;
        if (s->first == NULL)
            s->last = &s->first;
    }
    pthread_mutex_unlock(&s->mutex);
    return i;
}

/* Mostly at once, often a little late, sometimes very. */
static void be_late(void)
{
    uint32_t x = standin_random();

    if (x % 4 == 0)
        nap(x / 4 % 200);
    else if (x % 64 == 1)
        nap(x / 64 % 3000);
}

static void *stream_main(void *context)
{
    struct stream *s = context;
    struct item *i;

    while ((i = next_item(s)) != NULL) {
        be_late();
        i->run(i->context);
        free(i);
    }
    return NULL;
}

static struct stream *stream_new(void)
{
    struct stream *s = calloc(1, sizeof *s);

    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->last = &s->first;
    if (pthread_create(&s->thread, NULL, stream_main, s) != 0)
        abort();
    return s;
}

static struct stream *stream_of(void *handle)
{
    struct stream *s = handle;
    int device = depth > 0 ? contexts[depth - 1] - 1 : 0;

    if (s != NULL)
        return s;
    pthread_mutex_lock(&lock);
    s = defaults[device];
    if (s == NULL)
        s = defaults[device] = stream_new();
    pthread_mutex_unlock(&lock);
    return s;
}

void standin_queue(void *stream, void (*run)(void *), void *context)
{
    struct stream *s = stream_of(stream);
    struct item *i = calloc(1, sizeof *i);

    i->run = run;
    i->context = context;
    pthread_mutex_lock(&s->mutex);
    *s->last = i;
    s->last = &i->next;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

void standin_stream_sync(void *stream)
{
    struct stream *s = stream_of(stream);

    pthread_mutex_lock(&s->mutex);
    while (s->first != NULL || s->busy)
        pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
}

STANDIN_PUBLIC int cuStreamCreateWithPriority(void **stream_p, unsigned flags, int priority)
{
    (void)priority;
    ENTER("cuStreamCreate");
    NEED_CONTEXT();
    if (flags != 1)
        return INVALID_VALUE;
    *stream_p = stream_new();
    atomic_fetch_add(&open_count, 1);
    return OK;
}

static void stream_end(struct stream *s)
{
    pthread_mutex_lock(&s->mutex);
    s->stop = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->changed);
    free(s);
}

STANDIN_PUBLIC int cuStreamDestroy_v2(void *stream)
{
    ENTER("cuStreamDestroy");
    stream_end(stream);
    atomic_fetch_sub(&open_count, 1);
    return OK;
}

STANDIN_PUBLIC int cuStreamIsCapturing(void *stream, int *status_p)
{
    ENTER("cuStreamIsCapturing");
    (void)stream;
    *status_p = getenv("STANDIN_CAPTURING") != NULL;
    return OK;
}

/* ---- Events -------------------------------------------------------------------------------- */

struct event {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t recorded, complete;        /* counted */
    int users;                          /* queued, or the caller's */
};

struct mark {
    struct event *event;
    uint64_t number;
};

static void event_drop(struct event *v)
{
    bool last;

    pthread_mutex_lock(&v->mutex);
    last = --v->users == 0;
    pthread_mutex_unlock(&v->mutex);
    if (!last)
        return;
    pthread_mutex_destroy(&v->mutex);
    pthread_cond_destroy(&v->changed);
    free(v);
}

static void do_complete(void *context)
{
    struct mark *m = context;

    pthread_mutex_lock(&m->event->mutex);
    m->event->complete = m->number;
    pthread_cond_broadcast(&m->event->changed);
    pthread_mutex_unlock(&m->event->mutex);
    event_drop(m->event);
    free(m);
}

static void do_wait(void *context)
{
    struct mark *m = context;

    pthread_mutex_lock(&m->event->mutex);
    while (m->event->complete < m->number)
        pthread_cond_wait(&m->event->changed, &m->event->mutex);
    pthread_mutex_unlock(&m->event->mutex);
    event_drop(m->event);
    free(m);
}

static struct mark *mark_new(struct event *v, bool record)
{
    struct mark *m = calloc(1, sizeof *m);

    pthread_mutex_lock(&v->mutex);
    v->recorded += record;
    v->users++;
    m->event = v;
    m->number = v->recorded;
    pthread_mutex_unlock(&v->mutex);
    return m;
}

STANDIN_PUBLIC int cuEventCreate(void **event_p, unsigned flags)
{
    struct event *v = calloc(1, sizeof *v);

    ENTER("cuEventCreate");
    NEED_CONTEXT();
    (void)flags;
    pthread_mutex_init(&v->mutex, NULL);
    pthread_cond_init(&v->changed, NULL);
    v->users = 1;
    *event_p = v;
    atomic_fetch_add(&open_count, 1);
    return OK;
}

STANDIN_PUBLIC int cuEventDestroy_v2(void *event)
{
    ENTER("cuEventDestroy");
    event_drop(event);
    atomic_fetch_sub(&open_count, 1);
    return OK;
}

STANDIN_PUBLIC int cuEventRecord(void *event, void *stream)
{
    ENTER("cuEventRecord");
    NEED_CONTEXT();
    standin_queue(stream, do_complete, mark_new(event, true));
    return OK;
}

STANDIN_PUBLIC int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    ENTER("cuStreamWaitEvent");
    (void)flags;
    standin_queue(stream, do_wait, mark_new(event, false));
    return OK;
}

STANDIN_PUBLIC int cuEventQuery(void *event)
{
    struct event *v = event;
    bool complete;

    ENTER("cuEventQuery");
    pthread_mutex_lock(&v->mutex);
    complete = v->complete >= v->recorded;
    pthread_mutex_unlock(&v->mutex);
    return complete ? OK : NOT_READY;
}

/* ---- Copies and calls ---------------------------------------------------------------------- */

struct copy {
    uintptr_t to, from;
    size_t bytes;
    char data[];                        /* of standin_stream_write: what `from` had */
};

static void do_copy(void *context)
{
    struct copy *c = context;
    void *to = standin_reach(c->to, c->bytes);
    void *from = c->from != 0 ? standin_reach(c->from, c->bytes) : c->data;

    if (to == NULL || from == NULL) {
        fprintf(stderr, "standin: copy of %zu bytes leaves its memory\n", c->bytes);
        abort();
    }
    memmove(to, from, c->bytes);
    free(c);
}

STANDIN_PUBLIC int cuMemcpyAsync(uintptr_t to, uintptr_t from, size_t bytes, void *stream)
{
    struct copy *c;

    ENTER("cuMemcpyAsync");
    NEED_CONTEXT();
    if (standin_reach(to, bytes) == NULL || standin_reach(from, bytes) == NULL)
        return INVALID_VALUE;
    c = calloc(1, sizeof *c);
    *c = (struct copy){to, from, bytes};
    standin_queue(stream, do_copy, c);
    return OK;
}

struct called {
    void (*function)(void *);
    void *context;
};

static void do_call(void *context)
{
    struct called *c = context;

    c->function(c->context);
    free(c);
}

STANDIN_PUBLIC int cuLaunchHostFunc(void *stream, void (*function)(void *), void *context)
{
    struct called *c = calloc(1, sizeof *c);

    ENTER("cuLaunchHostFunc");
    *c = (struct called){function, context};
    standin_queue(stream, do_call, c);
    return OK;
}

/* ---- Devices ------------------------------------------------------------------------------- */

static int device_count(void)
{
    return (int)number_of("STANDIN_DEVICES", 4);
}

STANDIN_PUBLIC int cuInit(unsigned flags)
{
    (void)flags;
    ENTER("cuInit");
    return OK;
}

STANDIN_PUBLIC int cuDriverGetVersion(int *version_p)
{
    *version_p = 12090;
    return OK;
}

STANDIN_PUBLIC int cuGetErrorString(int code, const char **text_p)
{
    *text_p = code == 700 ? "an illegal memory access was encountered" : "stand-in error";
    return OK;
}

STANDIN_PUBLIC int cuDeviceGetCount(int *count_p)
{
    ENTER("cuDeviceGetCount");
    *count_p = device_count();
    return OK;
}

STANDIN_PUBLIC int cuDeviceGetUuid(uint8_t *uuid, int device)
{
    int pid = number_of("STANDIN_SAME", 0) ? 0 : getpid();

    ENTER("cuDeviceGetUuid");
    memset(uuid, 0, 16);
    memcpy(uuid, &device, sizeof device);
    memcpy(uuid + 8, &pid, sizeof pid);
    return OK;
}

STANDIN_PUBLIC int cuDevicePrimaryCtxRetain(void **context_p, int device)
{
    ENTER("cuDevicePrimaryCtxRetain");
    *context_p = (void *)(uintptr_t)(device + 1);
    return OK;
}

STANDIN_PUBLIC int cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    return OK;
}

STANDIN_PUBLIC int cuCtxPushCurrent_v2(void *context)
{
    ENTER("cuCtxPushCurrent");
    contexts[depth++] = (int)(uintptr_t)context;
    return OK;
}

STANDIN_PUBLIC int cuCtxPopCurrent_v2(void **context_p)
{
    NEED_CONTEXT();
    *context_p = (void *)(uintptr_t)contexts[--depth];
    return OK;
}

STANDIN_PUBLIC int cuCtxGetStreamPriorityRange(int *least_p, int *greatest_p)
{
    *least_p = 0;
    *greatest_p = -5;
    return OK;
}

/* ---- For tests ------------------------------------------------------------------------------ */

uintptr_t standin_alloc(int device, size_t bytes)
{
    (void)device;
    return (uintptr_t)block_new(bytes > 0 ? bytes : 1)->device;
}

void standin_free(uintptr_t at)
{
    cuMemFree_v2(at);
    atomic_fetch_add(&open_count, 1);   /* was never counted */
}

void standin_write(uintptr_t at, const void *from, size_t bytes)
{
    memcpy(standin_reach(at, bytes), from, bytes);
}

void standin_read(void *to, uintptr_t at, size_t bytes)
{
    memcpy(to, standin_reach(at, bytes), bytes);
}

void *standin_stream_new(int device)
{
    (void)device;
    return stream_new();
}

void standin_stream_end(void *stream)
{
    stream_end(stream);
}

void standin_stream_write(void *stream, uintptr_t at, const void *from, size_t bytes)
{
    struct copy *c = calloc(1, sizeof *c + bytes);

    c->to = at;
    c->bytes = bytes;
    memcpy(c->data, from, bytes);
    standin_queue(stream, do_copy, c);
}

void standin_stream_read(void *stream, void *to, uintptr_t at, size_t bytes)
{
    struct copy *c = calloc(1, sizeof *c);

    *c = (struct copy){(uintptr_t)to, at, bytes};
    standin_queue(stream, do_copy, c);
}
