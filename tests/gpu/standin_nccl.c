/*
 * standin_nccl.c: NCCL between the processes of this machine; see standin.h.
 *
 * An id names a memory file of the process that made it.  Members meet there: each operation
 * writes what this rank brings, waits for all, checks that all have called the same, takes what
 * it gets, and waits for all again.  That happens in the thread of the stream, as a kernel would,
 * and ends only when all have come or the communicator is aborted.
 * Communicators do not block: a group is at times "in progress", and is queued only when it has
 * been asked for.
 */
#include "standin.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };
enum { SUM, PROD, MAX, MIN, AVG, FACTORS };
enum kind { ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, REDUCESCATTER, EXCHANGE, SEND, RECEIVE };

#define RANKS_MAX 8
#define AREA (64ull << 20)
#define FACTORS_MAX 16

struct id {
    int pid, fd;
    char rest[120];
};

struct config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

struct said {
    int kind, type, op, root;
    uint64_t count, number;
    double factor;
    uint64_t to[RANKS_MAX];             /* EXCHANGE: bytes for each */
};

struct shared {
    atomic_uint joined, count, turn;
    struct said said[RANKS_MAX];
};

struct comm {
    struct shared *shared;
    char *areas;
    int rank, size;
    uint64_t number;                    /* operations queued */
    atomic_uint abort, running;
    atomic_int error;
    double factors[FACTORS_MAX];
    bool used[FACTORS_MAX];
    struct op *held;                    /* in progress: queued when asked for */
    int polls;
};

struct part {
    int peer;
    void *at;
    size_t bytes;
};

struct op {
    struct op *next;
    struct comm *comm;
    void *stream;
    const void *in;
    void *out;
    struct said said;
    struct part sends[RANKS_MAX], receives[RANKS_MAX];
    int send_count, receive_count;
};

static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

#define ENTER(name)                                                                    \
    do {                                                                               \
        int code_ = standin_fault(name);                                               \
        if (code_ != OK)                                                               \
            return code_;                                                              \
    } while (0)

/* ---- Arithmetic ----------------------------------------------------------------------------- */

static float from_half(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
    uint32_t bits;
    float f;

    if (exponent == 0) {
        f = (float)mantissa / 16777216.0f;
        return sign != 0 ? -f : f;
    }
    bits = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Exact for what tests use: small whole numbers and halves of them. */
static uint16_t to_half(float f)
{
    uint32_t bits;
    int exponent;

    memcpy(&bits, &f, sizeof bits);
    exponent = (int)(bits >> 23 & 255) - 112;
    if (exponent <= 0)
        return (uint16_t)(bits >> 16 & 0x8000);
    return (uint16_t)((bits >> 16 & 0x8000) | (uint32_t)exponent << 10 | (bits >> 13 & 1023));
}

static double get(const void *at, size_t i, int type)
{
    uint32_t bits;
    float f;

    switch (type) {
    case 0: return ((const int8_t *)at)[i];
    case 1: return ((const uint8_t *)at)[i];
    case 2: return ((const int32_t *)at)[i];
    case 4: return (double)((const int64_t *)at)[i];
    case 6: return from_half(((const uint16_t *)at)[i]);
    case 7: return ((const float *)at)[i];
    case 8: return ((const double *)at)[i];
    default:
        bits = (uint32_t)((const uint16_t *)at)[i] << 16;
        memcpy(&f, &bits, sizeof f);
        return f;
    }
}

static void put(void *at, size_t i, int type, double x)
{
    uint32_t bits;
    float f = (float)x;

    switch (type) {
    case 0: ((int8_t *)at)[i] = (int8_t)x; break;
    case 1: ((uint8_t *)at)[i] = (uint8_t)x; break;
    case 2: ((int32_t *)at)[i] = (int32_t)x; break;
    case 4: ((int64_t *)at)[i] = (int64_t)x; break;
    case 6: ((uint16_t *)at)[i] = to_half(f); break;
    case 7: ((float *)at)[i] = f; break;
    case 8: ((double *)at)[i] = x; break;
    default:
        memcpy(&bits, &f, sizeof bits);
        ((uint16_t *)at)[i] = (uint16_t)(bits >> 16);
    }
}

static double combine(double a, double b, int op)
{
    switch (op) {
    case PROD: return a * b;
    case MAX: return a > b ? a : b;
    case MIN: return a < b ? a : b;
    default: return a + b;
    }
}

/* Elements [first, first + count) of what all have brought. */
static void reduce(const struct comm *c, const struct said *s, size_t first, size_t count,
                   void *out)
{
    for (size_t i = 0; i < count; i++) {
        double x = get(c->areas, first + i, s->type) * s->factor;

        for (int r = 1; r < c->size; r++)
            x = combine(x, get(c->areas + (size_t)r * AREA, first + i, s->type) * s->factor,
                        s->op);
        put(out, i, s->type, s->op == AVG ? x / c->size : x);
    }
}

/* ---- Meeting -------------------------------------------------------------------------------- */

/* False: aborted. */
static bool meet(struct comm *c)
{
    struct shared *s = c->shared;
    unsigned turn = atomic_load(&s->turn);
    struct timespec pause = {.tv_nsec = 2000000};

    if (atomic_fetch_add(&s->count, 1) + 1 == (unsigned)c->size) {
        atomic_store(&s->count, 0);
        atomic_fetch_add(&s->turn, 1);
        syscall(SYS_futex, &s->turn, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        return true;
    }
    while (atomic_load(&s->turn) == turn) {
        if (atomic_load(&c->abort))
            return false;
        syscall(SYS_futex, &s->turn, FUTEX_WAIT, turn, &pause, NULL, 0);
    }
    return true;
}

static bool is_same(const struct said *a, const struct said *b)
{
    return a->kind == b->kind && a->number == b->number &&
           (a->kind == EXCHANGE || (a->type == b->type && a->op == b->op &&
                                    a->root == b->root && a->count == b->count &&
                                    a->factor == b->factor));
}

static void check_same(struct comm *c)
{
    for (int r = 1; r < c->size; r++)
        if (!is_same(&c->shared->said[0], &c->shared->said[r])) {
            fprintf(stderr, "standin: rank 0 calls %d of %llu, rank %d calls %d of %llu\n",
                    c->shared->said[0].kind, (unsigned long long)c->shared->said[0].count, r,
                    c->shared->said[r].kind, (unsigned long long)c->shared->said[r].count);
            atomic_store(&c->error, INVALID_USAGE);
            abort();
        }
}

static void bring(struct op *o)
{
    struct comm *c = o->comm;
    char *area = c->areas + (size_t)c->rank * AREA;
    size_t bytes = o->said.count * sizes[o->said.type];

    if (o->said.kind == REDUCESCATTER)
        bytes *= (size_t)c->size;
    if (o->said.kind == EXCHANGE) {
        for (int i = 0; i < o->send_count; i++) {
            memcpy(area, standin_reach((uintptr_t)o->sends[i].at, o->sends[i].bytes),
                   o->sends[i].bytes);
            area += o->sends[i].bytes;
            o->said.to[o->sends[i].peer] = o->sends[i].bytes;
        }
    } else if (o->said.kind != BROADCAST || o->said.root == c->rank) {
        memcpy(area, standin_reach((uintptr_t)o->in, bytes), bytes);
    }
    c->shared->said[c->rank] = o->said;
}

static void take_exchange(struct op *o)
{
    struct comm *c = o->comm;

    for (int i = 0; i < o->receive_count; i++) {
        const struct part *p = &o->receives[i];
        const struct said *s = &c->shared->said[p->peer];
        const char *from = c->areas + (size_t)p->peer * AREA;

        for (int r = 0; r < c->rank; r++)
            from += s->to[r];
        if (s->to[c->rank] != p->bytes)
            abort();
        memcpy(standin_reach((uintptr_t)p->at, p->bytes), from, p->bytes);
    }
}

static void take(struct op *o)
{
    struct comm *c = o->comm;
    const struct said *s = &o->said;
    size_t bytes = s->count * sizes[s->type];
    char *out;

    if (s->kind == EXCHANGE) {
        take_exchange(o);
        return;
    }
    if (s->kind == REDUCE && s->root != c->rank)
        return;
    out = standin_reach((uintptr_t)o->out,
                        s->kind == ALLGATHER ? bytes * (size_t)c->size : bytes);
    if (s->kind == BROADCAST)
        memcpy(out, c->areas + (size_t)s->root * AREA, bytes);
    for (int r = 0; s->kind == ALLGATHER && r < c->size; r++)
        memcpy(out + (size_t)r * bytes, c->areas + (size_t)r * AREA, bytes);
    if (s->kind == ALLREDUCE || s->kind == REDUCE)
        reduce(c, s, 0, s->count, out);
    if (s->kind == REDUCESCATTER)
        reduce(c, s, (size_t)c->rank * s->count, s->count, out);
}

static void run(void *context)
{
    struct op *o = context;
    struct comm *c = o->comm;

    if (!atomic_load(&c->abort)) {
        bring(o);
        if (meet(c)) {
            check_same(c);
            take(o);
            meet(c);
        }
    }
    atomic_fetch_sub(&c->running, 1);
    free(o);
}

/* ---- Groups --------------------------------------------------------------------------------- */

static _Thread_local struct op *group;
static _Thread_local int level;

static void queue_all(struct op *o)
{
    while (o != NULL) {
        struct op *next = o->next;

        standin_queue(o->stream, run, o);
        o = next;
    }
}

static struct op **end_of(struct op **list)
{
    while (*list != NULL)
        list = &(*list)->next;
    return list;
}

/* Of one communicator, as all groups of ours. */
static int launch(void)
{
    struct comm *c = group != NULL ? group->comm : NULL;

    if (c == NULL)
        return OK;
    if (standin_random() % 3 == 0) {
        c->held = group;
        c->polls = (int)(standin_random() % 3);
        group = NULL;
        return IN_PROGRESS;
    }
    queue_all(group);
    group = NULL;
    return OK;
}

STANDIN_PUBLIC int ncclGroupStart(void)
{
    ENTER("ncclGroupStart");
    level++;
    return OK;
}

STANDIN_PUBLIC int ncclGroupEnd(void)
{
    ENTER("ncclGroupEnd");
    return --level == 0 ? launch() : OK;
}

static int add(struct comm *c, void *stream, struct said s, const void *in, void *out)
{
    struct op *o = calloc(1, sizeof *o);

    s.number = c->number++;
    s.factor = 1;
    if (s.op >= FACTORS) {
        s.factor = c->factors[s.op - FACTORS];
        s.op = SUM;
    }
    *o = (struct op){.comm = c, .stream = stream, .in = in, .out = out, .said = s};
    atomic_fetch_add(&c->running, 1);
    *end_of(&group) = o;
    return level == 0 ? launch() : OK;
}

/* The group's exchange on this communicator. */
static struct op *exchange_of(struct comm *c, void *stream)
{
    struct op *o;

    for (o = group; o != NULL; o = o->next)
        if (o->comm == c && o->said.kind == EXCHANGE)
            return o;
    add(c, stream, (struct said){.kind = EXCHANGE, .type = 1}, NULL, NULL);
    for (o = group; o->next != NULL; o = o->next)
        ;
    return o;
}

/* ---- NCCL's names --------------------------------------------------------------------------- */

STANDIN_PUBLIC int ncclAllReduce(const void *in, void *out, size_t count, int type, int op,
                                 struct comm *c, void *stream)
{
    ENTER("ncclAllReduce");
    return add(c, stream, (struct said){.kind = ALLREDUCE, .type = type, .op = op,
                                        .count = count}, in, out);
}

STANDIN_PUBLIC int ncclReduce(const void *in, void *out, size_t count, int type, int op,
                              int root, struct comm *c, void *stream)
{
    ENTER("ncclReduce");
    return add(c, stream, (struct said){.kind = REDUCE, .type = type, .op = op, .root = root,
                                        .count = count}, in, out);
}

STANDIN_PUBLIC int ncclBroadcast(const void *in, void *out, size_t count, int type, int root,
                                 struct comm *c, void *stream)
{
    ENTER("ncclBroadcast");
    return add(c, stream, (struct said){.kind = BROADCAST, .type = type, .root = root,
                                        .count = count}, in, out);
}

STANDIN_PUBLIC int ncclAllGather(const void *in, void *out, size_t count, int type,
                                 struct comm *c, void *stream)
{
    ENTER("ncclAllGather");
    return add(c, stream, (struct said){.kind = ALLGATHER, .type = type, .count = count}, in,
               out);
}

STANDIN_PUBLIC int ncclReduceScatter(const void *in, void *out, size_t count, int type, int op,
                                     struct comm *c, void *stream)
{
    ENTER("ncclReduceScatter");
    return add(c, stream, (struct said){.kind = REDUCESCATTER, .type = type, .op = op,
                                        .count = count}, in, out);
}

STANDIN_PUBLIC int ncclSend(const void *in, size_t count, int type, int peer, struct comm *c,
                            void *stream)
{
    struct op *o = exchange_of(c, stream);

    o->sends[o->send_count++] = (struct part){peer, (void *)in, count * sizes[type]};
    return OK;
}

STANDIN_PUBLIC int ncclRecv(void *out, size_t count, int type, int peer, struct comm *c,
                            void *stream)
{
    struct op *o = exchange_of(c, stream);

    o->receives[o->receive_count++] = (struct part){peer, out, count * sizes[type]};
    return OK;
}

STANDIN_PUBLIC int ncclRedOpCreatePreMulSum(int *op_p, void *factor, int type, int residence,
                                            struct comm *c)
{
    if (residence != 1)
        return INVALID_ARGUMENT;
    for (int i = 0; i < FACTORS_MAX; i++)
        if (!c->used[i]) {
            c->used[i] = true;
            c->factors[i] = get(factor, 0, type);
            *op_p = FACTORS + i;
            return OK;
        }
    return INVALID_USAGE;
}

STANDIN_PUBLIC int ncclRedOpDestroy(int op, struct comm *c)
{
    c->used[op - FACTORS] = false;
    return OK;
}

STANDIN_PUBLIC int ncclGetVersion(int *version_p)
{
    const char *text = getenv("STANDIN_NCCL_VERSION");

    *version_p = text != NULL ? atoi(text) : 22703;
    return OK;
}

STANDIN_PUBLIC const char *ncclGetErrorString(int code)
{
    return code == INVALID_USAGE ? "invalid usage" : "stand-in error";
}

STANDIN_PUBLIC int ncclGetUniqueId(struct id *id)
{
    ENTER("ncclGetUniqueId");
    memset(id, 0, sizeof *id);
    id->pid = getpid();
    id->fd = memfd_create("standin-nccl", MFD_CLOEXEC);
    return id->fd >= 0 && ftruncate(id->fd, (off_t)(4096 + RANKS_MAX * AREA)) == 0
               ? OK : SYSTEM_ERROR;
}

STANDIN_PUBLIC int ncclCommInitRankConfig(struct comm **comm_p, int size, struct id id,
                                          int rank, struct config *config)
{
    char path[64];
    struct comm *c;
    void *at;
    int fd;

    ENTER("ncclCommInitRankConfig");
    if (config->magic != 0xcafebeef || config->blocking != 0 || size > RANKS_MAX)
        return INVALID_ARGUMENT;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", id.pid, id.fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return SYSTEM_ERROR;
    at = mmap(NULL, 4096 + RANKS_MAX * AREA, PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    if (at == MAP_FAILED)
        return SYSTEM_ERROR;
    c = calloc(1, sizeof *c);
    c->shared = at;
    c->areas = (char *)at + 4096;
    c->rank = rank;
    c->size = size;
    atomic_fetch_add(&c->shared->joined, 1);
    *comm_p = c;
    return IN_PROGRESS;
}

STANDIN_PUBLIC int ncclCommGetAsyncError(struct comm *c, int *state_p)
{
    int code = standin_fault("ncclAsync");

    *state_p = code != OK ? code : atomic_load(&c->error);
    if (*state_p != OK)
        return OK;
    if (atomic_load(&c->shared->joined) < (unsigned)c->size) {
        *state_p = IN_PROGRESS;
    } else if (c->held != NULL && c->polls-- > 0) {
        *state_p = IN_PROGRESS;
    } else {
        queue_all(c->held);
        c->held = NULL;
    }
    return OK;
}

STANDIN_PUBLIC int ncclCommFinalize(struct comm *c)
{
    (void)c;
    ENTER("ncclCommFinalize");
    return OK;
}

/* What is queued comes to its end, since it waits for nobody any more. */
static void comm_end(struct comm *c)
{
    struct timespec pause = {.tv_nsec = 1000000};

    atomic_store(&c->abort, 1);
    while (c->held != NULL) {
        struct op *o = c->held;

        c->held = o->next;
        atomic_fetch_sub(&c->running, 1);
        free(o);
    }
    while (atomic_load(&c->running) > 0)
        nanosleep(&pause, NULL);
    munmap(c->shared, 4096 + RANKS_MAX * AREA);
    free(c);
}

STANDIN_PUBLIC int ncclCommDestroy(struct comm *c)
{
    ENTER("ncclCommDestroy");
    if (atomic_load(&c->running) > 0)
        abort();                        /* never with work queued */
    comm_end(c);
    return OK;
}

STANDIN_PUBLIC int ncclCommAbort(struct comm *c)
{
    ENTER("ncclCommAbort");
    comm_end(c);
    return OK;
}
