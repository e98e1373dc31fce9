/*
 * shm_ring.c: the byte stream of one ordered pair of local ranks: a ring in the host
 * region with one writer and one reader.
 *
 *   0    u64 head, bytes ever written (writer)
 *   128  u64 tail, bytes ever read (reader)
 *   256  data, a power of two
 *
 * 1. The writer stores data, then head (release), then rings the reader's doorbell if it
 *    sleeps; the reader does the same with tail.
 * 2. An index of the other side is copied once and checked before use: a peer that
 *    writes nonsense can spoil its own stream, not our memory.
 */
#include "transport_int.h"

#include <stdlib.h>

#define RING_TOTAL (32u << 20)          /* all rings of a host together, about */
#define RING_SMALLEST (8u << 10)
#define RING_LARGEST (64u << 10)

struct ring {
    alignas(LINE) _Atomic uint64_t head;
    alignas(LINE) _Atomic uint64_t tail;
    alignas(LINE) char data[];
};

struct ring_stream {
    struct ring *out, *in;
    size_t capacity;
    uint64_t head, tail;                /* our own indices: out->head, in->tail */
    uint64_t out_tail;                  /* out->tail as we saw it last */
    int local_peer;
    bool took;                          /* tail moved since read_done */
};

size_t ring_bytes_for(int local_size)
{
    size_t pairs = (size_t)local_size * (size_t)local_size, bytes = RING_LARGEST;

    while (bytes > RING_SMALLEST && bytes * pairs > RING_TOTAL)
        bytes /= 2;
    return sizeof(struct ring) + bytes;
}

enum hvd_status ring_open(struct link *l, struct hvd_error *err)
{
    struct mesh *m = l->mesh;
    struct ring_stream *s = calloc(1, sizeof *s);
    int us = m->topology.local_rank, them = m->topology.local_rank_of[l->peer];

    if (s == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a ring");
    s->out = (struct ring *)host_ring(&m->host, us, them);
    s->in = (struct ring *)host_ring(&m->host, them, us);
    s->capacity = m->host.layout.ring_bytes - sizeof(struct ring);
    s->local_peer = them;
    l->stream = s;
    l->ops = &ring_ops;
    l->level = LINK_PLAIN;
    m->rings[m->ring_count++] = l;
    return HVD_OK;
}

static ssize_t broken(struct link *l, struct hvd_error *err)
{
    error_set(err, HVD_PROTO, l->peer, "rank %d broke the indices of its ring", l->peer);
    return -1;
}

static void copy_in(struct ring *r, size_t capacity, uint64_t at, const char *from,
                    size_t bytes)
{
    size_t offset = (size_t)(at & (capacity - 1));
    size_t first = bytes < capacity - offset ? bytes : capacity - offset;

    memcpy(r->data + offset, from, first);
    memcpy(r->data, from + first, bytes - first);
}

static void copy_out(const struct ring *r, size_t capacity, uint64_t at, char *to,
                     size_t bytes)
{
    size_t offset = (size_t)(at & (capacity - 1));
    size_t first = bytes < capacity - offset ? bytes : capacity - offset;

    memcpy(to, r->data + offset, first);
    memcpy(to + first, r->data, bytes - first);
}

static ssize_t ring_write(struct link *l, const struct iovec *iov, int count,
                          struct hvd_error *err)
{
    struct ring_stream *s = l->stream;
    uint64_t start = s->head;

    for (int i = 0; i < count; i++) {
        size_t room = s->capacity - (size_t)(s->head - s->out_tail), n = iov[i].iov_len;

        if (n > room) {
            s->out_tail = atomic_load_explicit(&s->out->tail, memory_order_acquire);
            if (s->head - s->out_tail > s->capacity)
                return broken(l, err);
            room = s->capacity - (size_t)(s->head - s->out_tail);
        }
        n = n < room ? n : room;
        copy_in(s->out, s->capacity, s->head, iov[i].iov_base, n);
        s->head += n;
        if (n < iov[i].iov_len)
            break;
    }
    if (s->head == start)
        return 0;
    atomic_store_explicit(&s->out->head, s->head, memory_order_release);
    doorbell_ring(l->mesh, s->local_peer, ASLEEP);
    return (ssize_t)(s->head - start);
}

static ssize_t ring_read(struct link *l, void *to, size_t bytes, struct hvd_error *err)
{
    struct ring_stream *s = l->stream;
    uint64_t ready = atomic_load_explicit(&s->in->head, memory_order_acquire) - s->tail;

    if (ready > s->capacity)
        return broken(l, err);
    if (bytes > ready)
        bytes = (size_t)ready;
    if (bytes == 0)
        return 0;
    copy_out(s->in, s->capacity, s->tail, to, bytes);
    s->tail += bytes;
    atomic_store_explicit(&s->in->tail, s->tail, memory_order_release);
    s->took = true;
    return (ssize_t)bytes;
}

static void ring_read_done(struct link *l)
{
    struct ring_stream *s = l->stream;

    if (s == NULL || !s->took)          /* the link may have closed on the way */
        return;
    s->took = false;
    doorbell_ring(l->mesh, s->local_peer, ASLEEP);
}

static bool ring_can_move(struct link *l, bool sending)
{
    struct ring_stream *s = l->stream;

    if (l->closed)
        return false;
    if (!sending)
        return atomic_load_explicit(&s->in->head, memory_order_acquire) != s->tail;
    s->out_tail = atomic_load_explicit(&s->out->tail, memory_order_acquire);
    return s->head - s->out_tail != s->capacity;
}

static void ring_close(struct link *l)
{
    free(l->stream);
    l->stream = NULL;
}

const struct link_ops ring_ops = {
    .name = "ring",
    .write = ring_write,
    .read = ring_read,
    .read_done = ring_read_done,
    .can_move = ring_can_move,
    .close = ring_close,
};
