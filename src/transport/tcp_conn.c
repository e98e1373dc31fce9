/*
 * tcp_conn.c: the byte stream of a pair of ranks over a data connection.
 *
 * 1. Small reads come from a buffer that is filled with whatever the kernel has, so that
 *    header and body of a small frame cost one system call; a large read goes straight to
 *    its destination, and what follows it into the buffer, in the same call.
 * 2. A read that gets less than it has room for has emptied the socket: the next one says so
 *    without asking the kernel.  The one after that asks again.
 * 3. Writes are handed to the kernel at once, header and body together.
 * 4. A write that fails is the end of the stream, but reading finds it: a peer that has left
 *    in order has closed its side, and what it sent before lies there, not yet read.
 */
#define LOG_COMPONENT "transport"
#include "transport_int.h"

#include "base/fault.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define BUFFER (16u << 10)
#define SMALL 2048                      /* a write up to here is put together first: for the
                                         * kernel one piece is cheaper than three */

struct tcp_stream {
    int fd;
    bool wants_room;                    /* EPOLLOUT is on */
    bool empty;                         /* rule 2 */
    size_t at, end;                     /* unread bytes of the buffer */
    char buffer[BUFFER];
};

static const struct link_ops tcp_ops;

enum hvd_status tcp_open(struct link *l, int fd, struct hvd_error *err)
{
    struct tcp_stream *s = malloc(sizeof *s);

    if (s == NULL) {
        fork_close(fd);
        return error_set(err, HVD_NOMEM, -1, "no memory for a connection");
    }
    s->fd = fd;
    s->wants_room = s->empty = false;
    s->at = s->end = 0;
    l->stream = s;
    l->ops = &tcp_ops;
    return wait_add_socket(l->mesh, l, fd, err);
}

int tcp_fd(const struct link *l)
{
    const struct tcp_stream *s = l->stream;

    return s->fd;
}

/* The watch puts rank and host before it. */
static ssize_t lost(struct link *l, struct hvd_error *err, const char *why)
{
    error_set(err, HVD_PEER_LOST, l->peer, "data connection lost (%s)", why);
    return -1;
}

static bool is_later(int code)
{
    return code == EAGAIN || code == EWOULDBLOCK || code == EINTR;
}

static ssize_t send_parts(int fd, const struct iovec *iov, int count)
{
    struct msghdr msg = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)count};
    char whole[SMALL];
    size_t bytes = 0;

    for (int i = 0; i < count; i++) {
        if (iov[i].iov_len > sizeof whole - bytes)
            return sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        memcpy(whole + bytes, iov[i].iov_base, iov[i].iov_len);
        bytes += iov[i].iov_len;
    }
    return send(fd, whole, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ssize_t tcp_write(struct link *l, const struct iovec *iov, int count,
                         struct hvd_error *err)
{
    struct tcp_stream *s = l->stream;
    ssize_t n = FAULT("tcp.send") ? -1 : send_parts(s->fd, iov, count);

    (void)err;
    if (n >= 0)
        return n;
    if (!is_later(errno)) {
        log_debug("rank %d: %s", l->peer, strerror(errno));
        shutdown(s->fd, SHUT_RDWR);     /* rule 4 */
    }
    return 0;
}

static ssize_t from_buffer(struct tcp_stream *s, void *to, size_t bytes)
{
    size_t n = s->end - s->at;

    n = n < bytes ? n : bytes;
    memcpy(to, s->buffer + s->at, n);
    s->at += n;
    return (ssize_t)n;
}

/* Into the destination and then the buffer, or into the buffer alone. */
static ssize_t receive(struct tcp_stream *s, void *to, size_t bytes)
{
    struct iovec iov[2] = {{to, bytes}, {s->buffer, BUFFER}};
    ssize_t n = bytes > 0 ? readv(s->fd, iov, 2)
                          : recv(s->fd, s->buffer, BUFFER, MSG_DONTWAIT);

    s->empty = n > 0 && (size_t)n < bytes + BUFFER;
    return n;
}

static ssize_t tcp_read(struct link *l, void *to, size_t bytes, struct hvd_error *err)
{
    struct tcp_stream *s = l->stream;
    bool direct = bytes >= BUFFER / 4;
    ssize_t n;

    if (s->at < s->end)
        return from_buffer(s, to, bytes);
    if (s->empty) {
        s->empty = false;
        return 0;
    }
    n = FAULT("tcp.recv") ? -1 : receive(s, to, direct ? bytes : 0);
    if (n < 0)
        return is_later(errno) ? 0 : lost(l, err, strerror(errno));
    if (n == 0)
        return lost(l, err, "closed by the other side");
    s->at = s->end = 0;
    if (!direct) {
        s->end = (size_t)n;
        return from_buffer(s, to, bytes);
    }
    if ((size_t)n > bytes) {
        s->end = (size_t)n - bytes;
        n = (ssize_t)bytes;
    }
    return n;
}

static void tcp_want_room(struct link *l, bool want)
{
    struct tcp_stream *s = l->stream;
    struct epoll_event event = {.events = want ? EPOLLIN | EPOLLOUT : EPOLLIN,
                                .data.ptr = l};

    if (l->closed || s->wants_room == want)
        return;
    s->wants_room = want;
    epoll_ctl(l->mesh->epoll_sockets, EPOLL_CTL_MOD, s->fd, &event);
}

/* What the peer has sent and nobody wants is read away first: closing a socket with
 * unread bytes makes the kernel throw away what the peer has not read yet. */
static void tcp_close(struct link *l)
{
    struct tcp_stream *s = l->stream;

    if (s == NULL)
        return;
    shutdown(s->fd, SHUT_WR);
    for (int i = 0; i < 64 && recv(s->fd, s->buffer, BUFFER, MSG_DONTWAIT) > 0; i++)
        ;
    fork_close(s->fd);
    free(s);
    l->stream = NULL;
}

static const struct link_ops tcp_ops = {
    .name = "tcp",
    .write = tcp_write,
    .read = tcp_read,
    .want_room = tcp_want_room,
    .close = tcp_close,
};

/* Of a link that has no connection yet. */
const struct link_ops pending_ops = {.name = "tcp"};

/* ---- Options --------------------------------------------------------------------- */

/* On loopback and between namespaces of one machine bbr, which paces by its model of a
 * path, halves the rate; reno may be chosen by everybody. */
static bool is_own_machine(int fd)
{
    struct sockaddr_storage us, them;
    socklen_t a = sizeof us, b = sizeof them;

    if (getsockname(fd, (struct sockaddr *)&us, &a) != 0 ||
        getpeername(fd, (struct sockaddr *)&them, &b) != 0 ||
        us.ss_family != them.ss_family)
        return false;
    if (us.ss_family == AF_INET)
        return ((struct sockaddr_in *)&us)->sin_addr.s_addr ==
                   ((struct sockaddr_in *)&them)->sin_addr.s_addr ||
               ntohl(((struct sockaddr_in *)&them)->sin_addr.s_addr) >> 24 == 127;
    return memcmp(&((struct sockaddr_in6 *)&us)->sin6_addr,
                  &((struct sockaddr_in6 *)&them)->sin6_addr, 16) == 0;
}

/* A path that carries nothing any more ends, also between ranks that do not watch each
 * other.  It has much longer than a heartbeat: a peer that takes nothing is only slow. */
static void guard(int fd, double heartbeat_s)
{
    int one = 1, idle_s = (int)(heartbeat_s + 1), limit_ms = (int)(heartbeat_s * 20e3);

    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
}

void tcp_tune(int fd, const struct config *conf, bool same_machine)
{
    static _Atomic bool warned;
    const char *name = conf->tcp_congestion;
    char now[16] = "";
    socklen_t n = sizeof now;
    int one = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    guard(fd, conf->heartbeat_s);
    if (strcmp(name, "keep") == 0)
        return;
    if (strcmp(name, "auto") == 0) {
        if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, now, &n) != 0 ||
            strncmp(now, "bbr", 3) != 0 || !(same_machine || is_own_machine(fd)))
            return;
        name = "reno";
    }
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) != 0 &&
        strcmp(conf->tcp_congestion, "auto") != 0 && !atomic_exchange(&warned, true))
        log_warn("HOROVOD_TCP_CONGESTION is %s, which cannot be used here: %s", name,
                 strerror(errno));
}
