/*
 * mesh.c: the interface of a formed mesh: messages, transfers, progress.
 *
 * 1. A transfer or message is tried at once when it is handed in; what does not fit
 *    stays on its link, and the link on `outgoing`, for mesh_progress.
 * 2. A verdict reaches transfers only through mesh_progress (and those handed in later
 *    at once), so that a status changes under the owner's hands only.
 * 3. A link by TCP has no connection until something is sent, or the peer has dialled.  What
 *    is handed in before waits on the link.  Who only receives waits for the sender to dial.
 */
#define LOG_COMPONENT "transport"
#include "transport_int.h"

#include "base/thread.h"

#include <sched.h>
#include <stdlib.h>

const struct mesh_topology *mesh_topology(const struct mesh *m)
{
    return &m->topology;
}

void mesh_on_message(struct mesh *m, mesh_message_fn handler, void *context)
{
    m->on_message = handler;
    m->on_message_context = context;
}

static enum hvd_status refuse(struct mesh *m, struct hvd_error *err)
{
    const struct hvd_error *verdict = mesh_verdict(m);

    if (verdict == NULL)
        return HVD_OK;
    if (err != NULL)
        *err = *verdict;
    return verdict->status;
}

/* Rule 3. */
static void want(struct link *l)
{
    if (!l->pending || l->wanted)
        return;
    l->wanted = true;
    watch_need(l->mesh, l->peer);
}

void mesh_warm(struct mesh *m, int peer)
{
    if (peer != m->topology.rank && !m->links[peer].closed)
        want(&m->links[peer]);
}

enum hvd_status mesh_post(struct mesh *m, int peer, const void *bytes, size_t n,
                          struct hvd_error *err)
{
    struct link *l = &m->links[peer];
    struct message *msg;

    TRY(refuse(m, err));
    if (n > MESH_MESSAGE_MAX)
        return error_set(err, HVD_INVALID, -1, "a message of %zu bytes is too long", n);
    if (atomic_load(&l->left))
        return error_set(err, HVD_SHUTDOWN, peer, "rank %d has left the job", peer);
    msg = malloc(sizeof *msg + n);
    if (msg == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a message of %zu bytes", n);
    msg->bytes = n;
    if (n > 0)
        memcpy(msg->data, bytes, n);
    list_append(&l->messages, &msg->node);
    if (l->ops == NULL)
        return HVD_OK;
    want(l);
    link_enqueue(l);
    link_send(l);
    return HVD_OK;
}

/* True: x is under way. */
static bool begin(struct mesh *m, int peer, uint64_t tag, const void *data, size_t bytes,
                  struct mesh_xfer *x)
{
    *x = (struct mesh_xfer){.peer = peer, .tag = tag, .at = (char *)data, .bytes = bytes};
    list_init(&x->node);
    x->status = refuse(m, NULL);
    if (x->status != HVD_OK)
        return false;
    x->status = HVD_AGAIN;
    return true;
}

void mesh_send(struct mesh *m, int peer, uint64_t tag, const void *data, size_t bytes,
               struct mesh_xfer *x)
{
    struct link *l = &m->links[peer];

    if (!begin(m, peer, tag, data, bytes, x))
        return;
    x->sending = true;
    if (atomic_load(&l->left)) {
        x->status = HVD_SHUTDOWN;
    } else if (l->ops == NULL) {
        self_send(l, x);
    } else {
        list_append(&l->sends, &x->node);
        want(l);
        link_enqueue(l);
        link_send(l);
    }
}

void mesh_recv(struct mesh *m, int peer, uint64_t tag, void *data, size_t bytes,
               struct mesh_xfer *x)
{
    struct link *l = &m->links[peer];

    if (!begin(m, peer, tag, data, bytes, x))
        return;
    if (l->ops == NULL)
        self_receive(l, x);
    else
        link_post(l, x);
}

void mesh_cancel(struct mesh *m, struct mesh_xfer *x)
{
    struct link *l = &m->links[x->peer];

    if (x->status != HVD_AGAIN)
        return;
    if (l->ops == NULL)
        list_remove(&x->node);
    else if (x->sending)
        link_cancel_send(l, x);
    else
        link_cancel_receive(l, x);
    x->status = HVD_SHUTDOWN;
}

static int fail_all(struct mesh *m, const struct hvd_error *verdict)
{
    if (m->failed)
        return 0;
    m->failed = true;
    for (int i = 0; i < m->topology.size; i++)
        link_fail(&m->links[i], verdict->status);
    return 1;
}

/* Peers whose goodbye came on another way than the data connection. */
static int finish_departures(struct mesh *m)
{
    int count = 0;

    for (int i = 0; i < m->topology.size; i++) {
        struct link *l = &m->links[i];

        if (!atomic_load(&l->going) || atomic_load(&l->left))
            continue;
        if (l->closed || l->pending || (l->ops->can_move != NULL && !l->ops->can_move(l, false))) {
            link_peer_left(l);
            count++;
        }
    }
    return count;
}

/* ---- New connections ------------------------------------------------------------- */

struct arrival {
    struct list node;
    int peer;
    struct proved p;
};

void mesh_take_data(struct mesh *m, int peer, struct proved *p)
{
    struct arrival *a = malloc(sizeof *a);
    struct hvd_error why;

    if (a == NULL) {
        fork_close(p->fd);
        error_set(&why, HVD_NOMEM, -1, "no memory for a connection");
        mesh_fail(m, &why);
        return;
    }
    a->peer = peer;
    a->p = *p;
    pthread_mutex_lock(&m->lock);
    list_append(&m->arrivals, &a->node);
    pthread_mutex_unlock(&m->lock);
    atomic_store(&m->stirred, true);
    mesh_kick(m);
}

static enum link_level level_of(const struct config *conf)
{
    return strcmp(conf->security, "encrypt") == 0 ? LINK_ENCRYPT : LINK_AUTH;
}

static void open_link(struct link *l, struct proved *p)
{
    struct mesh *m = l->mesh;
    struct hvd_error err;
    enum hvd_status status;

    if (l->closed) {
        fork_close(p->fd);
        return;
    }
    status = link_seal(l, level_of(m->conf), &p->keys, &err);
    if (status == HVD_OK)
        status = tcp_open(l, p->fd, &err);
    else
        fork_close(p->fd);
    l->pending = false;
    if (status != HVD_OK)
        mesh_fail(m, &err);
    else if (link_has_output(l))
        link_send(l);
}

int mesh_take_arrivals(struct mesh *m)
{
    struct list *node;
    int count = 0;

    do {
        pthread_mutex_lock(&m->lock);
        node = list_pop(&m->arrivals);
        pthread_mutex_unlock(&m->lock);
        if (node != NULL) {
            struct arrival *a = list_entry(node, struct arrival, node);

            open_link(&m->links[a->peer], &a->p);
            explicit_bzero(a, sizeof *a);
            free(a);
            count++;
        }
    } while (node != NULL);
    return count;
}

/* ---- News ------------------------------------------------------------------------ */

enum hvd_status mesh_spread(struct mesh *m, const void *bytes, size_t n,
                            struct hvd_error *err)
{
    TRY(refuse(m, err));
    BUG_ON(n > MESH_NEWS_MAX);
    for (int i = 0; i < m->ring_count; i++)
        if (!atomic_load(&m->rings[i]->left))
            TRY(mesh_post(m, m->rings[i]->peer, bytes, n, err));
    return watch_spread(m, bytes, n, err);
}

void mesh_take_news(struct mesh *m, int peer, const void *bytes, size_t n)
{
    struct news *news = malloc(sizeof *news + n);

    if (news == NULL)
        return;                         /* others say it, too */
    news->peer = peer;
    news->bytes = n;
    memcpy(news->data, bytes, n);
    pthread_mutex_lock(&m->lock);
    list_append(&m->news, &news->node);
    pthread_mutex_unlock(&m->lock);
    atomic_store(&m->stirred, true);
    mesh_kick(m);
}

int mesh_deliver_news(struct mesh *m)
{
    struct list *node;
    int count = 0;

    do {
        pthread_mutex_lock(&m->lock);
        node = list_pop(&m->news);
        pthread_mutex_unlock(&m->lock);
        if (node != NULL) {
            struct news *news = list_entry(node, struct news, node);

            if (m->on_message != NULL)
                m->on_message(m->on_message_context, news->peer, news->data, news->bytes);
            free(news);
            count++;
        }
    } while (node != NULL);
    return count;
}

static int send_all(struct mesh *m)
{
    int count = 0;

    list_each_safe(node, &m->outgoing)
        count += link_send(list_entry(node, struct link, outgoing_node));
    return count;
}

int mesh_progress(struct mesh *m)
{
    const struct hvd_error *verdict = mesh_verdict(m);
    struct link *self = &m->links[m->topology.rank];
    int count = 0;

    if (verdict != NULL)
        return fail_all(m, verdict);
    m->more = false;
    if (!list_is_empty(&self->messages))
        count += self_deliver(self);
    for (int i = 0; i < m->ring_count; i++)
        if (m->rings[i]->ops->can_move(m->rings[i], false))
            count += link_receive(m->rings[i]);
    if (m->socket_count > 0)
        count += wait_poll_sockets(m);
    if (!list_is_empty(&m->outgoing))
        count += send_all(m);
    if (atomic_load_explicit(&m->stirred, memory_order_relaxed)) {
        atomic_store(&m->stirred, false);
        count += mesh_take_arrivals(m) + mesh_deliver_news(m) + finish_departures(m);
    }
    return count;
}

bool mesh_is_owed(const struct mesh *m, int peer)
{
    const struct link *l = &m->links[peer];

    return l->ops != NULL && (!list_is_empty(&l->posted) || !list_is_empty(&l->sends));
}

bool mesh_has_left(const struct mesh *m, int peer)
{
    return atomic_load(&m->links[peer].left);
}

bool mesh_has_sockets(const struct mesh *m)
{
    return m->far_count > 0;
}

/* CPUs that the ranks of this host have together: each may be bound to one of its own. */
static int host_cpu_count(const struct mesh *m)
{
    cpu_set_t all, one;

    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return thread_cpu_count();
    for (int i = 0; i < m->topology.local_size; i++) {
        pid_t pid = mesh_pid(m, i);

        if (pid > 0 && sched_getaffinity(pid, sizeof one, &one) == 0)
            CPU_OR(&all, &all, &one);
    }
    return CPU_COUNT(&all);
}

double mesh_spin_us(const struct mesh *m)
{
    return m->topology.local_size <= host_cpu_count(m) ? m->conf->spin_us : 0;
}

void mesh_count(const struct mesh *m, struct mesh_counters *counters)
{
    *counters = m->counters;
    counters->sleeps = atomic_load(&m->sleeps);
    counters->kicks = atomic_load(&m->kicks);
}
