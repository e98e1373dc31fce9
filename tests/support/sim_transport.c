/*
 * sim_transport.c: see sim_transport.h.  One pipe per ordered pair, behind the same vtable
 * as rings and sockets.
 *
 * 1. A write is taken in part or not at all, as the dice say, up to PIPE_BYTES.
 * 2. What was written in one go can be read after a number of polls, counted by the reader.
 * 3. One lock for everything: ranks may be threads.
 */
#include "support/sim_transport.h"

#include "check.h"
#include "transport/transport_int.h"

#include <stdlib.h>
#include <unistd.h>

#define PIPE_BYTES (32u << 10)
#define CHUNKS 64

struct chunk {
    size_t bytes;
    uint64_t due;                       /* poll of the reader */
};

struct pipe_end {
    struct sim *sim;
    int from, to;
    bool cut;
    char data[PIPE_BYTES];
    size_t at, held;                    /* first unread byte, bytes held */
    uint64_t polls;
    struct chunk chunks[CHUNKS];
    int first, count;
};

struct sim {
    struct sim_options opt;
    pthread_mutex_t lock;               /* guards all pipes, seed and meshes */
    uint64_t seed;
    struct config *confs;
    struct mesh **meshes;               /* by rank; NULL: closed */
    struct pipe_end *pipes;             /* from * size + to */
};

static struct pipe_end *pipe_of(struct sim *s, int from, int to)
{
    return &s->pipes[from * s->opt.size + to];
}

/* xorshift64* */
static unsigned dice(struct sim *s, unsigned sides)
{
    s->seed ^= s->seed >> 12;
    s->seed ^= s->seed << 25;
    s->seed ^= s->seed >> 27;
    return (unsigned)((s->seed * 0x2545f4914f6cdd1du) >> 33) % sides;
}

static void wake(struct sim *s, int rank)
{
    if (s->meshes[rank] != NULL)
        mesh_kick(s->meshes[rank]);
}

static const struct hvd_error *peer_verdict(struct sim *s, int peer)
{
    return s->meshes[peer] != NULL ? verdict_get(s->meshes[peer]) : NULL;
}

/* -1 with *err when the pair is cut or the peer's mesh has failed. */
static int broken(struct pipe_end *p, int us, int peer, struct hvd_error *err)
{
    const struct hvd_error *verdict = peer_verdict(p->sim, peer);

    if (p->cut)
        error_set(err, HVD_PEER_LOST, peer, "rank %d: cut off from rank %d", peer, us);
    else if (verdict != NULL)
        *err = *verdict;
    return p->cut || verdict != NULL ? -1 : 0;
}

static size_t put(struct pipe_end *p, const char *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p->data[(p->at + p->held + i) % PIPE_BYTES] = from[i];
    p->held += n;
    return n;
}

static ssize_t sim_write(struct link *l, const struct iovec *iov, int count,
                         struct hvd_error *err)
{
    struct pipe_end *p = pipe_of(l->stream, l->mesh->topology.rank, l->peer);
    struct sim *s = p->sim;
    ssize_t n;

    pthread_mutex_lock(&s->lock);
    n = broken(p, p->from, p->to, err);
    if (n == 0 && p->count < CHUNKS) {
        size_t room = s->opt.one_byte ? 1 : 1 + dice(s, PIPE_BYTES);

        room = room < PIPE_BYTES - p->held ? room : PIPE_BYTES - p->held;
        for (int i = 0; i < count; i++)
            n += (ssize_t)put(p, iov[i].iov_base, iov[i].iov_len < room - (size_t)n
                                                       ? iov[i].iov_len
                                                       : room - (size_t)n);
        if (n > 0)
            p->chunks[(p->first + p->count++) % CHUNKS] = (struct chunk){
                (size_t)n, p->polls + dice(s, (unsigned)s->opt.delay + 1)};
        wake(s, p->to);
    }
    pthread_mutex_unlock(&s->lock);
    return n;
}

static size_t readable(struct pipe_end *p)
{
    return p->count > 0 && p->chunks[p->first].due <= p->polls
               ? p->chunks[p->first].bytes
               : 0;
}

static ssize_t sim_read(struct link *l, void *to, size_t bytes, struct hvd_error *err)
{
    struct pipe_end *p = pipe_of(l->stream, l->peer, l->mesh->topology.rank);
    struct sim *s = p->sim;
    size_t n = 0;
    ssize_t result;

    pthread_mutex_lock(&s->lock);
    p->polls++;
    result = broken(p, p->to, p->from, err);
    if (result == 0) {
        n = readable(p);
        n = n < bytes ? n : bytes;
        n = n > 1 && s->opt.one_byte ? 1 : n;
        for (size_t i = 0; i < n; i++)
            ((char *)to)[i] = p->data[(p->at + i) % PIPE_BYTES];
        p->at = (p->at + n) % PIPE_BYTES;
        p->held -= n;
        result = (ssize_t)n;
    }
    if (n > 0) {
        p->chunks[p->first].bytes -= n;
        if (p->chunks[p->first].bytes == 0) {
            p->first = (p->first + 1) % CHUNKS;
            p->count--;
        }
        wake(s, p->from);
    }
    pthread_mutex_unlock(&s->lock);
    return result;
}

static bool sim_can_move(struct link *l, bool sending)
{
    struct sim *s = l->stream;
    int us = l->mesh->topology.rank;
    struct pipe_end *in, *out;
    bool can;

    if (l->closed)
        return false;
    in = pipe_of(s, l->peer, us);
    out = pipe_of(s, us, l->peer);
    pthread_mutex_lock(&s->lock);
    can = in->cut || peer_verdict(s, l->peer) != NULL ||
          (sending ? out->held < PIPE_BYTES && out->count < CHUNKS : in->held > 0);
    pthread_mutex_unlock(&s->lock);
    return can;
}

static void sim_close(struct link *l)
{
    l->stream = NULL;
}

static const struct link_ops sim_ops = {
    .name = "sim",
    .write = sim_write,
    .read = sim_read,
    .can_move = sim_can_move,
    .close = sim_close,
};

/* ---- Making ---------------------------------------------------------------------- */

static void tell(struct mesh *m, void *context)
{
    struct sim *s = context;

    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->opt.size; i++)
        if (s->meshes[i] != m)
            wake(s, i);
    pthread_mutex_unlock(&s->lock);
}

static void gone(struct mesh *m, void *context)
{
    struct sim *s = context;

    pthread_mutex_lock(&s->lock);
    s->meshes[m->topology.rank] = NULL;
    pthread_mutex_unlock(&s->lock);
}

static void make_mesh(struct sim *s, int rank, const struct table *table)
{
    struct mesh_options opt = {.conf = &s->confs[rank],
                               .board_bytes = s->opt.board_bytes > 0 ? s->opt.board_bytes
                                                                     : 1 << 20};
    struct hvd_error err;
    struct mesh *m;

    CHECK_OK(config_read(&s->confs[rank], &err), err);
    s->confs[rank].rank = rank;
    s->confs[rank].size = s->opt.size;
    CHECK_OK(mesh_new(&opt, table, rank, &m, &err), err);
    for (int p = 0; p < s->opt.size; p++) {
        if (p == rank)
            continue;
        m->links[p].ops = &sim_ops;
        m->links[p].stream = s;
        m->rings[m->ring_count++] = &m->links[p];
    }
    m->tell = tell;
    m->gone = gone;
    m->tell_context = s;
    s->meshes[rank] = m;
}

/* One region for the ranks of a host, each with its own mapping of it. */
static void share_memory(struct sim *s, struct mesh *m, int *region_fds)
{
    const struct mesh_topology *t = &m->topology;
    struct host_share *h = &m->host;
    size_t n = (size_t)t->local_size, arena_bytes;
    int arena = arena_descriptor(64 << 20, &arena_bytes);
    int *fd = &region_fds[t->host_of[t->rank]];
    struct hvd_error err;

    h->count = t->local_size;
    h->self = t->local_rank;
    region_layout(&h->layout, h->count, t->size, m->board_bytes);
    h->doorbells = calloc(n, sizeof *h->doorbells);
    h->arenas = calloc(n, sizeof *h->arenas);
    h->arena_bytes = calloc(n, sizeof *h->arena_bytes);
    h->pids = calloc(n, sizeof *h->pids);
    if (*fd < 0)
        CHECK_OK(region_create(&h->layout, fd, &err), err);
    h->fd = dup(*fd);
    fork_add(h->fd);
    CHECK_OK(region_map(h, *fd, &err), err);
    for (int i = 0; i < h->count; i++) {
        h->doorbells[i] = dup(s->meshes[t->local_ranks[i]]->doorbell);
        fork_add(h->doorbells[i]);
        h->pids[i] = getpid();
        if (i == h->self) {
            h->arenas[i] = arena_base(&arena_bytes);
            h->arena_bytes[i] = arena_bytes;
        } else {
            CHECK_OK(region_map_arena(h, i, arena, arena_bytes, &err), err);
        }
    }
    m->control = &h->region->control[h->self];
}

struct sim *sim_new(const struct sim_options *opt)
{
    size_t n = (size_t)opt->size;
    int hosts = opt->hosts > 0 ? opt->hosts : 1;
    struct sim *s = calloc(1, sizeof *s);
    struct table table = {0, opt->size, calloc(n, sizeof *table.entries)};
    int region_fds[64];

    CHECK(s != NULL && table.entries != NULL && hosts <= 64);
    s->opt = *opt;
    s->seed = opt->seed * 2 + 0x9e3779b97f4a7c15u;
    pthread_mutex_init(&s->lock, NULL);
    s->confs = calloc(n, sizeof *s->confs);
    s->meshes = calloc(n, sizeof(struct mesh *));
    s->pipes = calloc(n * n, sizeof *s->pipes);
    CHECK(s->confs != NULL && s->meshes != NULL && s->pipes != NULL);
    for (int i = 0; i < opt->size; i++) {
        struct table_entry *e = &table.entries[i];
        int host = opt->host_of != NULL ? opt->host_of[i] : i % hosts;

        *e = (struct table_entry){.rank = i, .size = opt->size, .local_rank = -1,
                                  .local_size = -1, .cross_rank = -1, .cross_size = -1};
        e->machine[0] = (uint8_t)host;
        snprintf(e->host, sizeof e->host, "sim-%d", host);
        for (int k = 0; k < opt->size; k++) {
            struct pipe_end *p = pipe_of(s, i, k);

            p->sim = s;
            p->from = i;
            p->to = k;
        }
    }
    for (int i = 0; i < opt->size; i++)
        make_mesh(s, i, &table);
    for (int i = 0; i < hosts; i++)
        region_fds[i] = -1;
    for (int i = 0; i < opt->size && !opt->no_memory; i++)
        share_memory(s, s->meshes[i], region_fds);
    for (int i = 0; i < hosts; i++)
        if (region_fds[i] >= 0)
            close(region_fds[i]);
    free(table.entries);
    return s;
}

struct mesh *sim_mesh(struct sim *s, int rank)
{
    return s->meshes[rank];
}

void sim_cut(struct sim *s, int a, int b)
{
    pthread_mutex_lock(&s->lock);
    pipe_of(s, a, b)->cut = pipe_of(s, b, a)->cut = true;
    wake(s, a);
    wake(s, b);
    pthread_mutex_unlock(&s->lock);
}

void sim_free(struct sim *s)
{
    for (int i = 0; i < s->opt.size; i++) {
        CHECK(s->meshes[i] == NULL);
        config_release(&s->confs[i]);
    }
    pthread_mutex_destroy(&s->lock);
    free(s->confs);
    free(s->meshes);
    free(s->pipes);
    free(s);
}
