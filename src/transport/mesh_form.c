/*
 * mesh_form.c: from a table to a mesh, and back to nothing.
 *
 * 1. First the ranks of a host meet (shm_meet.c), then connections are made to everybody
 *    else (tcp_form.c), then links are opened on what was found, then the watch starts.
 * 2. The listeners are closed in any case when forming ends.
 * 3. Closing with a goodbye first sends what is queued, for FLUSH_US at most.
 */
#define LOG_COMPONENT "transport"
#include "transport_int.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>

#define FLUSH_US 1000000

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
    if (opt->key != NULL)
        memcpy(m->key, opt->key, HS_KEY);
    if (opt->job_id != NULL)
        strncpy(m->job_id, opt->job_id, sizeof m->job_id - 1);
    m->host.fd = m->doorbell = m->epoll_sockets = m->epoll_sleep = -1;
    list_init(&m->outgoing);
    verdict_init(&m->verdict);
    TRY(topology_build(&m->topology, table, rank, err));
    m->links = calloc(n, sizeof *m->links);
    m->rings = calloc(n, sizeof(struct link *));
    m->sockets = calloc(n, sizeof(struct link *));
    m->watch_connections = calloc(n, sizeof *m->watch_connections);
    m->alone = aligned_alloc(LINE, sizeof *m->alone);
    if (m->links == NULL || m->rings == NULL || m->sockets == NULL ||
        m->watch_connections == NULL || m->alone == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the mesh");
    memset(m->alone, 0, sizeof *m->alone);
    m->control = m->alone;
    for (int i = 0; i < table->count; i++) {
        link_init(&m->links[i], m, i);
        m->watch_connections[i].fd = -1;
    }
    return wait_init(m, err);
}

void mesh_free(struct mesh *m)
{
    if (m->gone != NULL)
        m->gone(m, m->tell_context);
    for (int i = 0; i < m->topology.size && m->links != NULL; i++)
        link_release(&m->links[i]);
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
    explicit_bzero(m, sizeof *m);
    free(m);
}

static enum link_level level_of(const struct config *conf)
{
    return strcmp(conf->security, "encrypt") == 0 ? LINK_ENCRYPT : LINK_AUTH;
}

static bool is_near(const struct mesh *m, int peer)
{
    return m->host.region != NULL &&
           m->topology.host_of[peer] == m->topology.host_of[m->topology.rank];
}

static enum hvd_status connect_far(struct mesh *m, struct mesh_listener *listener,
                                   const struct table *table, struct proved *data,
                                   bool *want, struct hvd_error *err)
{
    struct tcp_pairs pairs = {want, data, m->watch_connections};
    enum hvd_status status;

    for (int i = 0; i < table->count; i++)
        want[i] = i != m->topology.rank && !is_near(m, i);
    status = tcp_form(m, listener, table, &pairs, err);
    for (int i = 0; i < table->count && status == HVD_OK; i++) {
        if (!want[i])
            continue;
        status = link_seal(&m->links[i], level_of(m->conf), &data[i].keys, err);
        if (status == HVD_OK) {
            int fd = data[i].fd;

            data[i].fd = -1;
            status = tcp_open(&m->links[i], fd, err);
        }
    }
    return status;
}

static enum hvd_status connect_all(struct mesh *m, struct mesh_listener *listener,
                                   const struct table *table, struct hvd_error *err)
{
    size_t n = (size_t)table->count;
    struct proved *data = calloc(n, sizeof *data);
    bool *want = calloc(n, sizeof *want);
    enum hvd_status status;

    for (size_t i = 0; i < n && data != NULL; i++)
        data[i].fd = -1;
    if (data == NULL || want == NULL)
        status = error_set(err, HVD_NOMEM, -1, "no memory to connect");
    else
        status = connect_far(m, listener, table, data, want, err);
    for (size_t i = 0; i < n && data != NULL; i++)
        if (data[i].fd >= 0)
            fork_close(data[i].fd);
    if (data != NULL)
        explicit_bzero(data, n * sizeof *data);
    free(data);
    free(want);
    return status;
}

static enum hvd_status connect_near(struct mesh *m, struct hvd_error *err)
{
    if (m->host.region == NULL)
        return HVD_OK;
    m->control = &m->host.region->control[m->host.self];
    for (int i = 0; i < m->host.count; i++)
        if (i != m->host.self)
            TRY(ring_open(&m->links[m->topology.local_ranks[i]], err));
    return HVD_OK;
}

static enum hvd_status form(struct mesh *m, struct mesh_listener *listener,
                            const struct table *table, struct hvd_error *err)
{
    TRY(meet(m, listener, table, err));
    TRY(connect_near(m, err));
    TRY(connect_all(m, listener, table, err));
    return watch_start(m, err);
}

/* The others learn that we end, also those who share our memory and would see no end of
 * a connection. */
static void abandon(struct mesh *m, const char *what)
{
    struct hvd_error why;
    int us = m->topology.rank;

    if (m->topology.hosts != NULL && mesh_verdict(m) == NULL) {
        error_set(&why, HVD_PEER_LOST, us, "rank %d on %s: %s", us, m->topology.hosts[us],
                  what);
        mesh_fail(m, &why);
    }
    watch_stop(m, false);
}

enum hvd_status mesh_open(const struct mesh_options *opt, struct mesh_listener *listener,
                          const struct table *table, struct mesh **mesh_p,
                          struct hvd_error *err)
{
    struct mesh *m = NULL;
    enum hvd_status status = mesh_new(opt, table, (int)opt->conf->rank, &m, err);

    if (status == HVD_OK)
        status = form(m, listener, table, err);
    mesh_listener_free(listener);
    if (status != HVD_OK && m != NULL) {
        abandon(m, "could not form the mesh");
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

        if (l->ops == NULL || l->closed)
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

void mesh_close(struct mesh *m, bool goodbye)
{
    if (m == NULL || mesh_is_forked(m))
        return;                         /* nothing of it is ours in a child */
    if (goodbye) {
        flush(m);
        watch_stop(m, true);
    } else {
        abandon(m, "left without a goodbye");
    }
    mesh_free(m);
}
