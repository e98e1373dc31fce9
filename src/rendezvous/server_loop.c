/*
 * server_loop.c: the thread of the rendezvous server.
 *
 * 1. It sleeps until a socket or a deadline needs it; no turn without a reason.
 * 2. One turn accepts a bounded number of connections, so that peers that are already
 *    known get their turn during a flood.
 * 3. Without descriptors (EMFILE) it stops listening for a while instead of spinning on a
 *    socket that stays readable.
 */
#include "rendezvous/server_int.h"

#define LOG_COMPONENT "rendezvous"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS 64
#define ACCEPT_BURST 64
#define LISTEN_PAUSE_US 100000

static void set_listening(struct hvd_server *s, bool on)
{
    s->listening = on;
    for (int i = 0; i < s->listener_count; i++) {
        struct epoll_event e = {.events = on ? EPOLLIN : 0u,
                                .data.ptr = &s->listeners[i]};

        epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listeners[i].fd, &e);
    }
}

/* Rule 3.  The oldest stranger gives its descriptor to the next one. */
static void pause_listening(struct hvd_server *s, int code)
{
    log_warn("cannot accept a connection: %s; trying again in %d ms", strerror(code),
             LISTEN_PAUSE_US / 1000);
    s->counters.accept_pauses++;
    s->listen_again_us = clock_us() + LISTEN_PAUSE_US;
    set_listening(s, false);
    peer_push_out_oldest(s);
}

static int accept_one(int listener, struct sockaddr_storage *from)
{
    socklen_t n = sizeof *from;

    if (FAULT("rendezvous.accept"))
        return -1;
    return accept4(listener, (struct sockaddr *)from, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

static bool is_shortage(int code)
{
    return code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM;
}

static void on_listener(struct hvd_server *s, const struct listener *l)
{
    for (int i = 0; i < ACCEPT_BURST && s->listening; i++) {
        struct sockaddr_storage from = {0};
        int fd = accept_one(l->fd, &from);

        if (fd >= 0) {
            peer_accepted(s, fd, &from);
        } else if (is_shortage(errno)) {
            pause_listening(s, errno);
        } else if (errno == EAGAIN) {
            return;
        }                               /* else: that one connection has gone */
    }
}

static void on_wake(struct hvd_server *s)
{
    uint64_t count;

    while (read(s->wake, &count, sizeof count) < 0 && errno == EINTR)
        ;
}

static bool is_listener(const struct hvd_server *s, const void *source)
{
    return (const char *)source >= (const char *)s->listeners &&
           (const char *)source < (const char *)(s->listeners + SERVER_LISTENERS);
}

static void handle(struct hvd_server *s, const struct epoll_event *e)
{
    if (e->data.ptr == NULL)
        on_wake(s);
    else if (is_listener(s, e->data.ptr))
        on_listener(s, e->data.ptr);
    else
        peer_handle(s, e->data.ptr, e->events);
}

/* Milliseconds until the next deadline, rounded up; -1: none. */
static int sleep_ms(const struct hvd_server *s, uint64_t now_us)
{
    uint64_t next = peer_next_deadline_us(s), ms;

    if (!s->listening && s->listen_again_us < next)
        next = s->listen_again_us;
    if (s->hooks.came != NULL && s->hooks_due_us < next)
        next = s->hooks_due_us;
    if (next == UINT64_MAX)
        return -1;
    ms = next > now_us ? (next - now_us + 999) / 1000 : 0;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

static void turn(struct hvd_server *s, const struct epoll_event *events, int count)
{
    uint64_t now;

    for (int i = 0; i < count; i++)
        handle(s, &events[i]);
    now = clock_us();
    peer_expire(s, now);
    peer_send_tables(s);
    if (!s->listening && s->listen_again_us <= now)
        set_listening(s, true);
    if (s->hooks.came != NULL)
        guest_turn(s, now);
    peer_free_dead(s);
}

void *loop_run(void *server)
{
    struct hvd_server *s = server;
    struct epoll_event events[EVENTS];
    int count = 0;

    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        int ms;

        turn(s, events, count);
        ms = sleep_ms(s, clock_us());
        pthread_mutex_unlock(&s->lock);
        count = epoll_wait(s->epoll, events, EVENTS, ms);
        if (count < 0)
            BUG_ON(errno != EINTR);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}
