/*
 * mesh_form.c: from a table to a mesh, and back to nothing.
 *
 * 1. First the ranks of a host meet (shm_meet.c), then watch connections are made (door.c),
 *    then the watch starts.  Data connections follow when they are used (mesh.c, rule 3).
 * 2. The listeners are closed when forming fails, when all ranks share memory, or with the
 *    mesh.
 * 3. Closing with a goodbye first sends what is queued, for FLUSH_US at most.
 * 4. The soft limit of descriptors is raised to what all connections could need; a hard limit
 *    below what forming and watching need is an error, before anything waits.
 */
#define LOG_COMPONENT "transport"
#include "transport_int.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>

#define FLUSH_US 1000000
#define FIXED_FDS 10                    /* epolls, eventfds, region, alarm, arena, agent */
#define SPARE_FDS 64                    /* handshakes, and what the user opens */

enum hvd_status mesh_new(const struct mesh_options *opt, const struct table *table,
                         int rank, struct mesh **mesh_p, struct hvd_error *err)
{
    size_t n = (size_t)table->count;
    struct mesh *m = calloc(1, sizeof *m);

    *mesh_p = m;
    if (m == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the mesh");
    fork_setup();
    m->born = fork_count();
    m->conf = opt->conf;
    m->generation = opt->generation;
    m->deadline_us = opt->deadline_us;
    m->board_bytes = opt->board_bytes;
    m->key = opt->key;
    if (opt->job_id != NULL)
        strncpy(m->job_id, opt->job_id, sizeof m->job_id - 1);
    m->host.fd = m->host.alarm = m->doorbell = m->epoll_sockets = m->epoll_sleep = -1;
    list_init(&m->outgoing);
    list_init(&m->arrivals);
    list_init(&m->news);
    pthread_mutex_init(&m->lock, NULL);
    verdict_init(&m->verdict);
    TRY(topology_build(&m->topology, table, rank, err));
    m->links = calloc(n, sizeof *m->links);
    m->rings = calloc(n, sizeof(struct link *));
    m->sockets = calloc(n, sizeof(struct link *));
    m->watch_connections = calloc(n, sizeof *m->watch_connections);
    m->alone = aligned_alloc(LINE, sizeof *m->alone);
    m->alone_left = calloc(left_words(table->count), sizeof *m->alone_left);
    if (m->links == NULL || m->rings == NULL || m->sockets == NULL ||
        m->watch_connections == NULL || m->alone == NULL || m->alone_left == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the mesh");
    memset(m->alone, 0, sizeof *m->alone);
    m->control = m->alone;
    m->left = m->alone_left;
    for (int i = 0; i < table->count; i++) {
        link_init(&m->links[i], m, i);
        m->watch_connections[i].fd = -1;
    }
    return wait_init(m, err);
}

static void mesh_free(struct mesh *m)
{
    if (m->gone != NULL)
        m->gone(m, m->tell_context);
    door_free(m->door);
    for (int i = 0; i < m->topology.size && m->links != NULL; i++)
        link_release(&m->links[i]);
    mesh_take_arrivals(m);              /* the links are closed: nothing is opened */
    m->on_message = NULL;
    mesh_deliver_news(m);
    for (int i = 0; i < m->topology.size && m->watch_connections != NULL; i++)
        if (m->watch_connections[i].fd >= 0)
            fork_close(m->watch_connections[i].fd);
    host_release(&m->host);
    wait_release(m);
    verdict_release(&m->verdict);
    topology_release(&m->topology);
    free(m->links);
    free(m->rings);
    free(m->sockets);
    free(m->watch_connections);
    free(m->alone);
    free(m->alone_left);
    pthread_mutex_destroy(&m->lock);
    explicit_bzero(m, sizeof *m);
    free(m);
}

bool mesh_is_near(const struct mesh *m, int peer)
{
    return m->host.region != NULL &&
           m->topology.host_of[peer] == m->topology.host_of[m->topology.rank];
}

/* Those of other hosts as the overlay says; where no memory is shared, all of this host. */
bool mesh_watches(const struct mesh *m, const bool *gone, bool *out)
{
    const struct mesh_topology *t = &m->topology;

    for (int i = 0; i < t->local_size && m->host.region == NULL; i++)
        out[t->local_ranks[i]] = t->local_ranks[i] != t->rank &&
                                 (gone == NULL || !gone[t->local_ranks[i]]);
    return overlay_neighbours(t, gone, out);
}

/* *listener_p is NULL when it has been taken over. */
static enum hvd_status connect_far(struct mesh *m, struct mesh_listener **listener_p,
                                   const struct table *table, struct hvd_error *err)
{
    bool *want = calloc((size_t)table->count, sizeof *want);
    enum hvd_status status;

    if (want == NULL || !mesh_watches(m, NULL, want)) {
        free(want);
        return error_set(err, HVD_NOMEM, -1, "no memory to connect");
    }
    for (int i = 0; i < table->count; i++) {
        bool far = i != m->topology.rank && !mesh_is_near(m, i);

        m->links[i].pending = far;
        m->links[i].ops = far ? &pending_ops : m->links[i].ops;
        m->far_count += far;
    }
    if (m->far_count == 0) {
        free(want);
        return HVD_OK;
    }
    status = door_new(m, *listener_p, table, err);
    *listener_p = m->door != NULL ? NULL : *listener_p;
    if (status == HVD_OK)
        status = door_form(m->door, want, err);
    free(want);
    return status;
}

static enum hvd_status connect_near(struct mesh *m, struct hvd_error *err)
{
    if (m->host.region == NULL)
        return HVD_OK;
    m->control = &m->host.region->control[m->host.self];
    m->left = (_Atomic uint64_t *)((char *)m->host.region + m->host.layout.left);
    for (int i = 0; i < m->host.count; i++)
        if (i != m->host.self)
            TRY(ring_open(&m->links[m->topology.local_ranks[i]], err));
    return HVD_OK;
}

/* Rule 4.  The doorbell was opened last, so about as many are in use as its number says. */
static enum hvd_status check_descriptors(const struct mesh *m, struct hvd_error *err)
{
    const struct mesh_topology *t = &m->topology;
    rlim_t used = (rlim_t)m->doorbell + 1, need = used + FIXED_FDS, want;
    struct rlimit limit;

    for (int n = 1; n < t->host_count; n *= 2)
        need += 2;
    need += t->local_size > 1 ? 3 * (rlim_t)t->local_size : 0;
    want = need + (rlim_t)(t->size - t->local_size) + SPARE_FDS;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= want)
        return HVD_OK;
    limit.rlim_cur = limit.rlim_max < want ? limit.rlim_max : want;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        log_debug("limit of descriptors: %s", strerror(errno));
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= need)
        return HVD_OK;
    return error_set(err, HVD_SYS, t->rank,
                     "rank %d on %s may open %llu descriptors, and a job of %d ranks on %d hosts "
                     "needs at least %llu here; raise the limit (ulimit -n)", t->rank,
                     t->hosts[t->rank], (unsigned long long)limit.rlim_cur, t->size,
                     t->host_count, (unsigned long long)need);
}

static enum hvd_status form(struct mesh *m, struct mesh_listener **listener_p,
                            const struct table *table, struct hvd_error *err)
{
    TRY(check_descriptors(m, err));
    TRY(shm_meet(m, *listener_p, table, err));
    TRY(connect_near(m, err));
    TRY(connect_far(m, listener_p, table, err));
    return watch_start(m, err);
}

/* The others learn that we end, also those who share our memory and would see no end of
 * a connection. */
static void abandon(struct mesh *m, int rank, const char *what)
{
    struct hvd_error why;
    int us = m->topology.rank;

    if (m->topology.hosts != NULL && mesh_verdict(m) == NULL) {
        error_set(&why, HVD_PEER_LOST, rank, "rank %d on %s: %s", us, m->topology.hosts[us],
                  what);
        mesh_fail(m, &why);
    }
    watch_stop(m, false);
}

/* Those who are connected learn why it was in vain: they may have formed already. */
static void give_up(struct mesh *m, const struct hvd_error *why)
{
    struct hvd_error ignored, cause = *why;

    if (m->door != NULL && m->watch == NULL)
        watch_start(m, &ignored);
    error_prefix(&cause, "could not form the mesh");
    abandon(m, why->rank >= 0 ? why->rank : m->topology.rank, cause.text);
}

enum hvd_status mesh_open(const struct mesh_options *opt, struct mesh_listener *listener,
                          const struct table *table, struct mesh **mesh_p,
                          struct hvd_error *err)
{
    struct mesh *m = NULL;
    enum hvd_status status = mesh_new(opt, table, (int)opt->conf->rank, &m, err);

    if (status == HVD_OK)
        status = form(m, &listener, table, err);
    mesh_listener_free(listener);
    if (status != HVD_OK && m != NULL) {
        give_up(m, err);
        mesh_free(m);
        return status;
    }
    if (status == HVD_OK)
        *mesh_p = m;
    return status;
}

/* Rule 3. */
static void flush(struct mesh *m)
{
    uint64_t until = clock_us() + FLUSH_US, now = 0;

    for (int i = 0; i < m->topology.size; i++) {
        struct link *l = &m->links[i];

        if (l->ops == NULL || l->closed || (l->pending && !link_has_output(l)))
            continue;
        l->leaving = true;
        link_enqueue(l);
    }
    m->on_message = NULL;
    while (!list_is_empty(&m->outgoing) && now < until && mesh_verdict(m) == NULL) {
        mesh_progress(m);
        now = clock_us();
        if (!list_is_empty(&m->outgoing) && mesh_arm(m, false)) {
            mesh_sleep(m, (int64_t)(until > now ? until - now : 0));
            mesh_disarm(m);
        }
    }
}

/* Of those who have connected while we left: they are told that it was in order. */
static void take_leave(struct mesh *m)
{
    for (int i = 0; i < m->topology.size; i++)
        m->links[i].leaving = m->links[i].pending && !m->links[i].closed;
    mesh_take_arrivals(m);
}

void mesh_close(struct mesh *m, bool goodbye)
{
    if (m == NULL || mesh_is_forked(m))
        return;                         /* nothing of it is ours in a child */
    if (goodbye) {
        flush(m);
        watch_stop(m, true);
        take_leave(m);
    } else {
        abandon(m, m->topology.rank, "left without a goodbye");
    }
    mesh_free(m);
}
