/*
 * model_net.c: see model_net.h.
 *
 * 1. Events are done in the order of their times.  A parcel arrives in the inbox of its
 *    rank, or at the receive that waits for it, and wakes the rank; a rank that is busy looks
 *    when it is free again.
 * 2. While a rank acts, every message that it sends or takes moves the clock on.
 * 3. Boards are real memory: a rank that looks sooner than its notice may see a change up to
 *    MODEL_NOTIFY_NS early.
 */
#include "support/model_net.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

const struct model_kind model_kinds[] = {
    {"10gbe", "10 Gb Ethernet, TCP, one switch", 15000, 3000, 1.17},
    {"ib100", "100 Gb InfiniBand", 2000, 500, 12.0},
    {"cloud", "cloud, 25 Gb, virtual machines", 40000, 4000, 2.9},
    {NULL, NULL, 0, 0, 0},
};

#define EAGER_SEND (64u << 10)          /* a shorter transfer is done when it is given away, as
                                         * one that fits into the buffer of a socket */
#define SLOTS (1u << 16)

/* A message, or a transfer: under way, come before it was asked for, or asked for. */
struct parcel {
    struct parcel *next;
    int from, to;
    bool post, asked;
    uint64_t tag;
    size_t bytes;
    struct mesh_xfer *x;                /* asked: the receive */
    bool has_data;
    char data[];
};

enum event_kind { WAKE, ARRIVE, SENT };

struct event {
    uint64_t at_ns, order;
    enum event_kind kind;
    int rank;
    struct parcel *parcel;
    struct mesh_xfer *x;                /* SENT */
    uint64_t serial;                    /* of x, while it is under way */
};

struct mesh {
    struct model_net *net;
    struct mesh_topology topology;
    mesh_message_fn handler;
    void *context;
    struct parcel *inbox, **inbox_end;
    uint64_t cost_ns;                   /* of what has come, paid when it looks */
    uint64_t busy_until_ns;
    uint64_t wake_ns;                   /* an event will wake it then; UINT64_MAX: none */
    struct model_counts counts;
    unsigned char *peers;               /* a bit per rank */
    int moved;                          /* transfers that have ended since it looked */
};

struct model_net {
    struct model_options opt;
    int hosts;
    struct mesh *meshes;
    int *host_of, *local_rank_of, *ranks;
    char (*names)[254];
    struct { uint64_t out_ns, in_ns; char *board; } *nics;      /* free from then on */
    size_t board_bytes;
    struct parcel *slots[SLOTS];        /* transfers that wait for their other half */
    struct event *heap;
    size_t count, capacity;
    uint64_t order, now_ns, serial;
    struct mesh *acting;
    struct hvd_error verdict;           /* HVD_OK: all is well */
};

static struct model_net *current;       /* whose collectives are charged for their work */

const struct model_kind *model_kind_of(const char *name)
{
    const struct model_kind *k = model_kinds;

    while (k->name != NULL && strcmp(k->name, name) != 0)
        k++;
    return k->name != NULL ? k : NULL;
}

/* ---- Events ---------------------------------------------------------------------------- */

static bool is_before(const struct event *a, const struct event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void push(struct model_net *n, struct event event)
{
    size_t i = n->count++;

    if (n->count > n->capacity) {
        n->capacity = n->capacity > 0 ? 2 * n->capacity : 4096;
        n->heap = realloc(n->heap, n->capacity * sizeof *n->heap);
        BUG_ON(n->heap == NULL);
    }
    event.order = n->order++;
    for (; i > 0 && is_before(&event, &n->heap[(i - 1) / 2]); i = (i - 1) / 2)
        n->heap[i] = n->heap[(i - 1) / 2];
    n->heap[i] = event;
}

static struct event pop(struct model_net *n)
{
    struct event first = n->heap[0], last = n->heap[--n->count];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < n->count) {
        if (child + 1 < n->count && is_before(&n->heap[child + 1], &n->heap[child]))
            child++;
        if (!is_before(&n->heap[child], &last))
            break;
        n->heap[i] = n->heap[child];
        i = child;
    }
    n->heap[i] = last;
    return first;
}

static void wake(struct model_net *n, struct mesh *m, uint64_t at_ns)
{
    at_ns = at_ns > m->busy_until_ns ? at_ns : m->busy_until_ns;
    if (m->wake_ns <= at_ns)
        return;
    m->wake_ns = at_ns;
    push(n, (struct event){.at_ns = at_ns, .kind = WAKE, .rank = m->topology.rank});
}

/* ---- Transfers that wait for their other half -------------------------------------------- */

static struct parcel **slot_of(struct model_net *n, int from, int to, uint64_t tag)
{
    uint64_t h = tag * 0x9e3779b97f4a7c15u;

    h ^= ((uint64_t)(unsigned)from << 32 | (unsigned)to) * 0xc2b2ae3d27d4eb4fu;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9u;
    return &n->slots[h >> 48];
}

static struct parcel **find(struct model_net *n, int from, int to, uint64_t tag, bool asked)
{
    struct parcel **p = slot_of(n, from, to, tag);

    while (*p != NULL && ((*p)->tag != tag || (*p)->from != from || (*p)->to != to ||
                          (*p)->asked != asked))
        p = &(*p)->next;
    return p;
}

static struct parcel *parcel_new(const struct model_net *n, int from, int to, uint64_t tag,
                                 const void *data, size_t bytes, bool post)
{
    bool has_data = post || !n->opt.phantom;
    struct parcel *p = malloc(sizeof *p + (has_data ? bytes : 0));

    BUG_ON(p == NULL);
    *p = (struct parcel){.from = from, .to = to, .tag = tag, .bytes = bytes, .post = post,
                         .has_data = has_data && data != NULL};
    if (p->has_data)
        memcpy(p->data, data, bytes);
    return p;
}

static void deliver(struct mesh *m, struct mesh_xfer *x, const struct parcel *p)
{
    BUG_ON(x->bytes != p->bytes);
    if (p->has_data)
        memcpy(x->at, p->data, p->bytes);
    x->status = HVD_OK;
    m->moved++;
}

static void arrive(struct model_net *n, struct parcel *p)
{
    struct mesh *m = &n->meshes[p->to];
    struct parcel **at;

    m->cost_ns += n->host_of[p->from] == n->host_of[p->to] ? MODEL_LOCAL_NS
                                                           : n->opt.kind->message_ns;
    if (p->post) {
        p->next = NULL;
        *m->inbox_end = p;
        m->inbox_end = &p->next;
        return;
    }
    at = find(n, p->from, p->to, p->tag, true);
    if (*at != NULL) {
        struct parcel *asked = *at;

        *at = asked->next;
        deliver(m, asked->x, p);
        free(asked);
        free(p);
        return;
    }
    at = slot_of(n, p->from, p->to, p->tag);
    p->next = *at;
    *at = p;
}

/* ---- Sending ----------------------------------------------------------------------------- */

static void note_peer(struct mesh *m, int peer)
{
    m->peers[peer / 8] |= (unsigned char)(1 << peer % 8);
}

/* When it arrives; *gone_p: when it has left. */
static uint64_t travel(struct model_net *n, struct mesh *m, const struct parcel *p,
                       uint64_t *gone_p)
{
    const struct model_kind *k = n->opt.kind;
    int from = n->host_of[p->from], to = n->host_of[p->to];
    uint64_t wire_ns = (uint64_t)((double)p->bytes / k->rate), start_ns, come_ns;

    if (from == to) {
        m->counts.near++;
        n->now_ns += MODEL_LOCAL_NS;
        *gone_p = n->now_ns + (uint64_t)((double)p->bytes / MODEL_MEMORY);
        return *gone_p + MODEL_NOTIFY_NS;
    }
    n->now_ns += k->message_ns;
    start_ns = n->now_ns > n->nics[from].out_ns ? n->now_ns : n->nics[from].out_ns;
    n->nics[from].out_ns = *gone_p = start_ns + wire_ns;
    come_ns = start_ns + k->latency_ns;
    come_ns = come_ns > n->nics[to].in_ns ? come_ns : n->nics[to].in_ns;
    n->nics[to].in_ns = come_ns + wire_ns;
    note_peer(m, p->to);
    note_peer(&n->meshes[p->to], p->from);
    m->counts.bytes_out += p->bytes;
    n->meshes[p->to].counts.bytes_in += p->bytes;
    *(p->post ? &m->counts.posts_out : &m->counts.sends_out) += 1;
    *(p->post ? &n->meshes[p->to].counts.posts_in
              : &n->meshes[p->to].counts.sends_in) += 1;
    return n->nics[to].in_ns;
}

static uint64_t dispatch(struct mesh *m, struct parcel *p)
{
    struct model_net *n = m->net;
    uint64_t gone_ns, at_ns = travel(n, m, p, &gone_ns);

    push(n, (struct event){.at_ns = at_ns, .kind = ARRIVE, .rank = p->to, .parcel = p});
    return gone_ns;
}

enum hvd_status mesh_post(struct mesh *m, int peer, const void *bytes, size_t n,
                          struct hvd_error *err)
{
    struct parcel *p = parcel_new(m->net, m->topology.rank, peer, 0, bytes, n, true);

    (void)err;
    if (peer != m->topology.rank) {
        dispatch(m, p);
        return HVD_OK;
    }
    *m->inbox_end = p;
    m->inbox_end = &p->next;
    wake(m->net, m, m->net->now_ns);
    return HVD_OK;
}

/* src/transport/overlay.c, which is a part of the model as it is. */
bool overlay_neighbours(const struct mesh_topology *t, const bool *gone, bool *out);

enum hvd_status mesh_spread(struct mesh *m, const void *bytes, size_t n,
                            struct hvd_error *err)
{
    const struct mesh_topology *t = &m->topology;
    bool *told = calloc((size_t)t->size, sizeof *told);

    if (told == NULL || !overlay_neighbours(t, NULL, told))
        abort();
    for (int r = 0; r < t->size; r++)
        if (r != t->rank && (told[r] || t->host_of[r] == t->host_of[t->rank]))
            mesh_post(m, r, bytes, n, err);
    free(told);
    return HVD_OK;
}

void mesh_send(struct mesh *m, int peer, uint64_t tag, const void *data, size_t bytes,
               struct mesh_xfer *x)
{
    struct parcel *p = parcel_new(m->net, m->topology.rank, peer, tag, data, bytes, false);
    uint64_t gone_ns = dispatch(m, p);

    x->status = HVD_OK;
    if (bytes <= EAGER_SEND)
        return;
    x->status = HVD_AGAIN;
    x->sending = true;
    x->tag = ++m->net->serial;
    x->peer = peer;
    push(m->net, (struct event){.at_ns = gone_ns, .kind = SENT, .rank = m->topology.rank,
                                .x = x, .serial = x->tag});
}

void mesh_recv(struct mesh *m, int peer, uint64_t tag, void *data, size_t bytes,
               struct mesh_xfer *x)
{
    struct model_net *n = m->net;
    int self = m->topology.rank;
    struct parcel **at = find(n, peer, self, tag, false), *p = *at;

    *x = (struct mesh_xfer){.status = HVD_AGAIN, .peer = peer, .tag = tag, .at = data,
                            .bytes = bytes};
    if (p != NULL) {
        *at = p->next;
        deliver(m, x, p);
        free(p);
        return;
    }
    p = parcel_new(n, peer, self, tag, NULL, 0, false);
    p->asked = true;
    p->x = x;
    at = slot_of(n, peer, self, tag);
    p->next = *at;
    *at = p;
}

/* Jobs of the model end well: what is cancelled is never waited for again, so an event of a
 * send that was cancelled must not touch it. */
void mesh_cancel(struct mesh *m, struct mesh_xfer *x)
{
    struct model_net *n = m->net;
    struct parcel **at, *p;

    if (x->sending) {
        for (size_t i = 0; i < n->count; i++)
            if (n->heap[i].x == x)
                n->heap[i].x = NULL;
        return;
    }
    at = find(n, x->peer, m->topology.rank, x->tag, true);
    p = *at;
    if (p != NULL) {
        *at = p->next;
        free(p);
    }
}

/* ---- Acting ------------------------------------------------------------------------------ */

uint64_t model_now(const struct model_net *n)
{
    return n->now_ns;
}

void model_begin(struct model_net *n, int rank, uint64_t at_ns)
{
    struct mesh *m = &n->meshes[rank];

    BUG_ON(n->acting != NULL);
    n->acting = m;
    n->now_ns = at_ns > m->busy_until_ns ? at_ns : m->busy_until_ns;
    n->now_ns += m->cost_ns;
    m->cost_ns = 0;
}

void model_end(struct model_net *n)
{
    n->acting->busy_until_ns = n->now_ns;
    n->acting = NULL;
}

int model_next(struct model_net *n)
{
    while (n->count > 0) {
        struct event e = pop(n);
        struct mesh *m = &n->meshes[e.rank];

        if (e.kind == WAKE) {
            if (e.at_ns != m->wake_ns)
                continue;               /* it was woken sooner */
            m->wake_ns = UINT64_MAX;
            model_begin(n, e.rank, e.at_ns);
            return e.rank;
        }
        if (e.kind == ARRIVE)
            arrive(n, e.parcel);
        else if (e.x != NULL && e.x->status == HVD_AGAIN && e.x->tag == e.serial) {
            e.x->status = HVD_OK;
            m->moved++;
        }
        wake(n, m, e.at_ns);
    }
    return -1;
}

int mesh_progress(struct mesh *m)
{
    struct parcel *p;
    int moved = m->moved;

    m->moved = 0;
    while ((p = m->inbox) != NULL) {
        m->inbox = p->next;
        if (m->inbox == NULL)
            m->inbox_end = &m->inbox;
        if (m->handler != NULL)
            m->handler(m->context, p->from, (const uint8_t *)p->data, p->bytes);
        free(p);
        moved++;
    }
    return moved;
}

/* ---- Counting ---------------------------------------------------------------------------- */

void model_reset(struct model_net *n)
{
    for (int i = 0; i < n->opt.size; i++)
        n->meshes[i].counts = (struct model_counts){0};
}

const struct model_counts *model_count(const struct model_net *n, int rank)
{
    return &n->meshes[rank].counts;
}

int model_peers(const struct model_net *n, int rank)
{
    int count = 0;

    for (int i = 0; i < (n->opt.size + 7) / 8; i++)
        count += __builtin_popcount(n->meshes[rank].peers[i]);
    return count;
}

void mesh_count(const struct mesh *m, struct mesh_counters *counters)
{
    *counters = (struct mesh_counters){.far_messages_sent = m->counts.posts_out};
}

/* ---- The rest of transport.h -------------------------------------------------------------- */

const struct mesh_topology *mesh_topology(const struct mesh *m)
{
    return &m->topology;
}

void mesh_on_message(struct mesh *m, mesh_message_fn handler, void *context)
{
    m->handler = handler;
    m->context = context;
}

bool mesh_arm(struct mesh *m, bool boards)
{
    (void)m, (void)boards;
    return true;
}

bool mesh_doze(struct mesh *m)
{
    (void)m;
    return false;
}

bool mesh_sleep(struct mesh *m, int64_t timeout_us)
{
    (void)m, (void)timeout_us;
    return false;
}

void mesh_disarm(struct mesh *m)
{
    (void)m;
}

void mesh_kick(struct mesh *m)
{
    (void)m;
}

bool mesh_has_sockets(const struct mesh *m)
{
    return m->net->hosts > 1;
}

double mesh_spin_us(const struct mesh *m)
{
    (void)m;
    return 0;
}

const struct hvd_error *mesh_verdict(const struct mesh *m)
{
    return m->net->verdict.status != HVD_OK ? &m->net->verdict : NULL;
}

void mesh_fail(struct mesh *m, const struct hvd_error *why)
{
    if (m->net->verdict.status != HVD_OK)
        return;
    m->net->verdict = *why;
    if (why->status != HVD_SHUTDOWN)
        fprintf(stderr, "model: rank %d: %s\n", m->topology.rank, why->text);
}

enum hvd_status mesh_follow(struct mesh *m, int fd, mesh_push_fn push_fn, void *context,
                            struct hvd_error *err)
{
    (void)m, (void)fd, (void)push_fn, (void)context, (void)err;
    return HVD_OK;
}

bool mesh_is_owed(const struct mesh *m, int peer)
{
    (void)m, (void)peer;
    return false;
}

bool mesh_has_left(const struct mesh *m, int peer)
{
    (void)m, (void)peer;
    return false;
}

void *mesh_board(const struct mesh *m, size_t *bytes_p)
{
    int host = m->net->host_of[m->topology.rank];

    *bytes_p = m->net->board_bytes;
    return m->net->nics[host].board;
}

enum hvd_status mesh_board_reserve(struct mesh *m, size_t offset, size_t bytes,
                                   struct hvd_error *err)
{
    (void)m, (void)offset, (void)bytes, (void)err;
    return HVD_OK;
}

void mesh_notify(struct mesh *m, int local_rank)
{
    for (int i = 0; i < m->topology.local_size; i++)
        if (i != m->topology.local_rank && (local_rank < 0 || local_rank == i))
            wake(m->net, &m->net->meshes[m->topology.local_ranks[i]],
                 m->net->now_ns + MODEL_NOTIFY_NS);
}

/* All memory is the arena, and everybody sees it at the same address. */
bool mesh_find(const struct mesh *m, const void *p, size_t bytes, uint64_t *offset_p)
{
    (void)m, (void)bytes;
    *offset_p = (uint64_t)(uintptr_t)p;
    return true;
}

void *mesh_address(const struct mesh *m, int local_rank, uint64_t offset, size_t bytes)
{
    (void)m, (void)local_rank, (void)bytes;
    return (void *)(uintptr_t)offset;
}

void mesh_touch(struct mesh *m, int local_rank, const void *buffer, size_t bytes, size_t at,
                size_t n)
{
    (void)m, (void)local_rank, (void)buffer, (void)bytes, (void)at, (void)n;
}

bool mesh_can_cma(const struct mesh *m)
{
    (void)m;
    return false;
}

pid_t mesh_pid(const struct mesh *m, int local_rank)
{
    (void)m, (void)local_rank;
    return 0;
}

void *arena_alloc(size_t bytes)
{
    size_t all = (bytes + 63) / 64 * 64;
    void *p = aligned_alloc(64, all > 0 ? all : 64);

    if (p != NULL && current != NULL && !current->opt.phantom)
        memset(p, 0, all);
    return p;
}

void *arena_alloc_dirty(size_t bytes)
{
    return arena_alloc(bytes);
}

void arena_free(void *p)
{
    free(p);
}

bool arena_owns(const void *p)
{
    (void)p;
    return true;
}

/* ---- Reductions and copies take time ------------------------------------------------------ */

#include "reduce/reduce.h"

static bool charge(double bytes)
{
    if (current == NULL || current->acting == NULL)
        return true;
    current->now_ns += (uint64_t)(bytes / MODEL_MEMORY);
    return !current->opt.phantom;
}

/* The linker gives calls of red_x to __wrap_red_x, and red_x itself the name __real_red_x. */
void __real_red_run(const struct red_job *job);
void __wrap_red_run(const struct red_job *job);
void __wrap_red_run(const struct red_job *job)
{
    double bytes = (double)job->count *
                   ((double)hvd_dtype_bytes(job->src_type) * job->nsrc +
                    (double)hvd_dtype_bytes(job->dst_type) * job->ndst);

    if (charge(bytes))
        __real_red_run(job);
}

void __real_red_copy(void *dst, const void *src, size_t bytes);
void __wrap_red_copy(void *dst, const void *src, size_t bytes);
void __wrap_red_copy(void *dst, const void *src, size_t bytes)
{
    if (charge(2.0 * (double)bytes))
        __real_red_copy(dst, src, bytes);
}

void __real_red_copy_part(void *dst, const void *src, size_t bytes, size_t all);
void __wrap_red_copy_part(void *dst, const void *src, size_t bytes, size_t all);
void __wrap_red_copy_part(void *dst, const void *src, size_t bytes, size_t all)
{
    if (charge(2.0 * (double)bytes))
        __real_red_copy_part(dst, src, bytes, all);
}

/* ---- Making ------------------------------------------------------------------------------ */

static void make_mesh(struct model_net *n, int rank)
{
    struct mesh *m = &n->meshes[rank];
    int host = n->host_of[rank], first = host * n->opt.per_host;
    int last = first + n->opt.per_host < n->opt.size ? first + n->opt.per_host : n->opt.size;

    m->net = n;
    m->inbox_end = &m->inbox;
    m->wake_ns = UINT64_MAX;
    m->peers = calloc((size_t)n->opt.size / 8 + 1, 1);
    BUG_ON(m->peers == NULL);
    m->topology = (struct mesh_topology){
        .rank = rank, .size = n->opt.size, .host_count = n->hosts, .host_of = n->host_of,
        .local_rank_of = n->local_rank_of, .local_rank = rank - first,
        .local_size = last - first, .local_ranks = n->ranks + first, .cross_rank = host,
        .cross_size = n->hosts, .homogeneous = n->opt.size % n->opt.per_host == 0,
        .hosts = n->names};
}

size_t coll_board_bytes(void);

struct model_net *model_new(const struct model_options *opt)
{
    size_t size = (size_t)opt->size;
    struct model_net *n = calloc(1, sizeof *n);

    BUG_ON(n == NULL);
    n->opt = *opt;
    n->hosts = (opt->size + opt->per_host - 1) / opt->per_host;
    n->now_ns = 1000000000;
    n->meshes = calloc(size, sizeof *n->meshes);
    n->host_of = calloc(size, sizeof *n->host_of);
    n->local_rank_of = calloc(size, sizeof *n->local_rank_of);
    n->ranks = calloc(size, sizeof *n->ranks);
    n->names = calloc(size, sizeof *n->names);
    n->nics = calloc((size_t)n->hosts, sizeof *n->nics);
    BUG_ON(n->meshes == NULL || n->host_of == NULL || n->local_rank_of == NULL ||
           n->ranks == NULL || n->names == NULL || n->nics == NULL);
    n->board_bytes = coll_board_bytes();
    for (int h = 0; h < n->hosts; h++) {
        n->nics[h].board = mmap(NULL, n->board_bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        BUG_ON(n->nics[h].board == MAP_FAILED);
    }
    for (int i = 0; i < opt->size; i++) {
        n->host_of[i] = i / opt->per_host;
        n->local_rank_of[i] = i % opt->per_host;
        n->ranks[i] = i;
        snprintf(n->names[i], sizeof n->names[i], "host-%d", i / opt->per_host);
    }
    for (int i = 0; i < opt->size; i++)
        make_mesh(n, i);
    clock_simulated_ns = &n->now_ns;
    current = n;
    return n;
}

struct mesh *model_mesh(struct model_net *n, int rank)
{
    return &n->meshes[rank];
}

void mesh_close(struct mesh *m, bool goodbye)
{
    struct parcel *p;

    (void)goodbye;
    while ((p = m->inbox) != NULL) {
        m->inbox = p->next;
        free(p);
    }
    free(m->peers);
}

void model_free(struct model_net *n)
{
    for (size_t i = 0; i < n->count; i++)
        free(n->heap[i].parcel);
    for (size_t i = 0; i < SLOTS; i++)
        while (n->slots[i] != NULL) {
            struct parcel *p = n->slots[i];

            n->slots[i] = p->next;
            free(p);
        }
    for (int h = 0; h < n->hosts; h++)
        munmap(n->nics[h].board, n->board_bytes);
    clock_simulated_ns = NULL;
    current = NULL;
    free(n->heap);
    free(n->meshes);
    free(n->host_of);
    free(n->local_rank_of);
    free(n->ranks);
    free(n->names);
    free(n->nics);
    free(n);
}
