/*
 * wait.c: sleeping and waking.  Whoever is awake polls; system calls are made only to
 * sleep and to wake a sleeper.
 *
 * 1. A sleeper stores its sleep word, full fence, looks once more.  A writer stores its
 *    data, full fence, reads the sleep word.  So one of the two sees the other.
 * 2. Whoever finds a sleeper sets its word back to AWAKE and, if it was the one who did,
 *    writes to the eventfd: one system call per sleep, however many writers there are.
 * 3. epoll_sleep holds the doorbell and, one level below, epoll_sockets.  The sockets are
 *    switched on by mesh_arm and off by mesh_disarm, so that a thread that sleeps while
 *    another one polls is left alone.  Each switch is a system call: mesh_doze leaves them
 *    off, for a moment, between operations that follow each other closely.
 * 4. A kick is a flag first, and the doorbell only when somebody sleeps.
 */
#include "transport_int.h"

#include "base/clock.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define DIRECT_SOCKETS 4                /* up to so many, a read each is cheaper than asking
                                         * epoll first and reading then */
#define EVENTS 64

static int epoll_make(void)
{
    int fd = epoll_create1(EPOLL_CLOEXEC);

    if (fd >= 0)
        fork_add(fd);
    return fd;
}

static enum hvd_status watch_fd(int epoll, int fd, unsigned events, void *context,
                                struct hvd_error *err)
{
    struct epoll_event event = {.events = events, .data.ptr = context};

    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        return error_sys(err, -1, "epoll");
    return HVD_OK;
}

enum hvd_status wait_init(struct mesh *m, struct hvd_error *err)
{
    m->epoll_sockets = epoll_make();
    m->epoll_sleep = epoll_make();
    m->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (m->doorbell >= 0)
        fork_add(m->doorbell);
    if (m->epoll_sockets < 0 || m->epoll_sleep < 0 || m->doorbell < 0)
        return error_sys(err, -1, "descriptors to wait on");
    TRY(watch_fd(m->epoll_sleep, m->doorbell, EPOLLIN, &m->doorbell, err));
    return watch_fd(m->epoll_sleep, m->epoll_sockets, 0, &m->epoll_sockets, err);
}

void wait_release(struct mesh *m)
{
    int *fds[] = {&m->epoll_sockets, &m->epoll_sleep, &m->doorbell};

    for (int i = 0; i < 3; i++) {
        if (*fds[i] >= 0)
            fork_close(*fds[i]);
        *fds[i] = -1;
    }
}

enum hvd_status wait_add_socket(struct mesh *m, struct link *l, int fd,
                                struct hvd_error *err)
{
    TRY(watch_fd(m->epoll_sockets, fd, EPOLLIN, l, err));
    m->sockets[m->socket_count++] = l;
    return HVD_OK;
}

/* ---- Polling --------------------------------------------------------------------- */

int wait_poll_sockets(struct mesh *m)
{
    struct epoll_event events[EVENTS];
    int count = 0, n;

    if (m->socket_count <= DIRECT_SOCKETS) {
        for (int i = 0; i < m->socket_count; i++)
            if (!m->sockets[i]->closed)
                count += link_receive(m->sockets[i]);
        return count;
    }
    n = epoll_wait(m->epoll_sockets, events, EVENTS, 0);
    for (int i = 0; i < n; i++) {
        struct link *l = events[i].data.ptr;

        if (!l->closed)
            count += link_receive(l);
    }
    return count;
}

/* ---- Doorbells ------------------------------------------------------------------- */

static void ring(int fd)
{
    uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof one);

    (void)n;                            /* full: it is rung already */
}

/* Rules 1 and 2; the data has been stored. */
void doorbell_ring(struct mesh *m, int local_rank, enum sleep_state at_least)
{
    atomic_uint *word = &m->host.region->control[local_rank].sleep;

    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(word, memory_order_relaxed) < at_least)
        return;
    if (atomic_exchange(word, AWAKE) != AWAKE)
        ring(m->host.doorbells[local_rank]);
}

void mesh_notify(struct mesh *m, int local_rank)
{
    const struct host_share *h = &m->host;

    atomic_thread_fence(memory_order_seq_cst);
    if (h->region == NULL)
        return;
    for (int i = 0; i < h->count; i++) {
        atomic_uint *word = &h->region->control[i].sleep;

        if (i == h->self || (local_rank >= 0 && i != local_rank) ||
            atomic_load_explicit(word, memory_order_relaxed) != ASLEEP_BOARDS)
            continue;
        if (atomic_exchange(word, AWAKE) != AWAKE)
            ring(h->doorbells[i]);
    }
}

void mesh_kick(struct mesh *m)
{
    atomic_store(&m->kicked, true);
    if (atomic_load(&m->sleeping)) {
        atomic_fetch_add_explicit(&m->kicks, 1, memory_order_relaxed);
        ring(m->doorbell);
    }
}

/* ---- Sleeping -------------------------------------------------------------------- */

static void switch_sockets(struct mesh *m, bool on)
{
    struct epoll_event event = {.events = on ? EPOLLIN : 0,
                                .data.ptr = &m->epoll_sockets};

    if (m->far_count > 0)
        epoll_ctl(m->epoll_sleep, EPOLL_CTL_MOD, m->epoll_sockets, &event);
}

static bool can_move(struct mesh *m)
{
    if (m->more || !list_is_empty(&m->links[m->topology.rank].messages))
        return true;
    for (int i = 0; i < m->ring_count; i++)
        if (m->rings[i]->ops->can_move(m->rings[i], false))
            return true;
    list_each(node, &m->outgoing) {
        struct link *l = list_entry(node, struct link, outgoing_node);

        if (l->ops->can_move != NULL && l->ops->can_move(l, true))
            return true;
        if (l->ops->want_room != NULL)
            l->ops->want_room(l, true);
    }
    return (mesh_verdict(m) != NULL && !m->failed) || atomic_load(&m->stirred);
}

/* Rule 1. */
static bool fall_asleep(struct mesh *m, enum sleep_state state)
{
    m->armed = true;
    atomic_store_explicit(&m->control->sleep, state, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (!can_move(m))
        return true;
    mesh_disarm(m);
    return false;
}

bool mesh_arm(struct mesh *m, bool boards)
{
    if (!m->sockets_on)
        switch_sockets(m, true);
    m->sockets_on = true;
    return fall_asleep(m, boards ? ASLEEP_BOARDS : ASLEEP);
}

bool mesh_doze(struct mesh *m)
{
    return m->far_count > 0 && list_is_empty(&m->outgoing) && fall_asleep(m, ASLEEP);
}

void mesh_disarm(struct mesh *m)
{
    if (!m->armed)
        return;
    m->armed = false;
    atomic_store_explicit(&m->control->sleep, AWAKE, memory_order_relaxed);
    if (m->sockets_on)
        switch_sockets(m, false);
    m->sockets_on = false;
}

static int sleep_until(int epoll, struct epoll_event *events, int64_t timeout_us)
{
    int64_t ms = timeout_us < 0 ? -1 : (timeout_us + 999) / 1000;
#ifdef SYS_epoll_pwait2
    struct timespec t = {timeout_us / 1000000, timeout_us % 1000000 * 1000};
    int n = (int)syscall(SYS_epoll_pwait2, epoll, events, 2,
                         timeout_us < 0 ? NULL : &t, NULL, 0);

    if (n >= 0 || errno != ENOSYS)
        return n;
#endif
    return epoll_wait(epoll, events, 2, ms > INT32_MAX ? INT32_MAX : (int)ms);
}

bool mesh_sleep(struct mesh *m, int64_t timeout_us)
{
    struct epoll_event events[2];
    uint64_t rung;
    int n = 1;

    atomic_store(&m->sleeping, true);
    if (!atomic_exchange(&m->kicked, false)) {
        atomic_fetch_add_explicit(&m->sleeps, 1, memory_order_relaxed);
        n = sleep_until(m->epoll_sleep, events, timeout_us);
        for (int i = 0; i < n; i++)
            if (events[i].data.ptr == &m->doorbell &&
                read(m->doorbell, &rung, sizeof rung) < 0)
                continue;               /* somebody else has read it */
        atomic_store(&m->kicked, false);
    }
    atomic_store(&m->sleeping, false);
    return n != 0;
}
