/*
 * server_listen.c: the sockets on which the rendezvous server listens.
 *
 * 1. Only addresses that were given, in numbers; all with one port.
 * 2. A server may come back on its port while old connections linger: that needs
 *    SO_REUSEADDR on the new socket before bind, and on the old connections, which have
 *    it from their listener.  Two servers never share a port (no SO_REUSEPORT).
 */
#include "rendezvous/server_int.h"

#include "rendezvous/port_owner.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORT_TRIES 16                   /* of free ports until one is free everywhere */

static bool parse_v4(const char *text, struct listener *l)
{
    struct sockaddr_in *in = (struct sockaddr_in *)&l->address;

    if (inet_pton(AF_INET, text, &in->sin_addr) != 1)
        return false;
    in->sin_family = AF_INET;
    l->address_n = sizeof *in;
    return true;
}

/* With a zone, such as fe80::1%eth0. */
static bool parse_v6(const char *text, struct listener *l)
{
    struct sockaddr_in6 *in = (struct sockaddr_in6 *)&l->address;
    char plain[HVD_ADDR_MAX];
    char *zone;

    if (strlen(text) >= sizeof plain)
        return false;
    strcpy(plain, text);
    zone = strchr(plain, '%');
    if (zone != NULL) {
        *zone = '\0';
        in->sin6_scope_id = if_nametoindex(zone + 1);
        if (in->sin6_scope_id == 0)
            return false;
    }
    if (inet_pton(AF_INET6, plain, &in->sin6_addr) != 1)
        return false;
    in->sin6_family = AF_INET6;
    l->address_n = sizeof *in;
    return true;
}

static void set_port(struct listener *l, uint16_t port)
{
    if (l->address.ss_family == AF_INET)
        ((struct sockaddr_in *)&l->address)->sin_port = htons(port);
    else
        ((struct sockaddr_in6 *)&l->address)->sin6_port = htons(port);
}

static uint16_t get_port(const struct listener *l)
{
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;

    if (getsockname(l->fd, (struct sockaddr *)&bound, &n) != 0)
        return 0;
    return ntohs(bound.ss_family == AF_INET ? ((struct sockaddr_in *)&bound)->sin_port
                                            : ((struct sockaddr_in6 *)&bound)->sin6_port);
}

/* 0, or the error. */
static int open_one(struct listener *l, uint16_t port, bool given)
{
    const int on = 1;
    int code;

    l->fd = socket(l->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return errno;
    set_port(l, port);
    if (given)
        setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (l->address.ss_family == AF_INET6)
        setsockopt(l->fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(l->fd, (struct sockaddr *)&l->address, l->address_n) == 0 &&
        setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        listen(l->fd, SOMAXCONN) == 0)
        return 0;
    code = errno;
    close(l->fd);
    l->fd = -1;
    return code;
}

void listen_close(struct hvd_server *s)
{
    for (int i = 0; i < s->listener_count; i++) {
        if (s->listeners[i].fd < 0)
            continue;
        shutdown(s->listeners[i].fd, SHUT_RDWR);        /* a forked child may have it, too */
        close(s->listeners[i].fd);
    }
    s->listener_count = 0;
}

/* All addresses with one port; 0, or the error of address *failed_p. */
static int open_all(struct hvd_server *s, int count, uint16_t port, int *failed_p)
{
    bool given = port != 0;

    for (int i = 0; i < count; i++) {
        int code = open_one(&s->listeners[i], port, given);

        s->listener_count = i + 1;
        if (code != 0) {
            *failed_p = i;
            listen_close(s);
            return code;
        }
        if (port == 0)
            port = get_port(&s->listeners[i]);
    }
    s->port = port;
    return 0;
}

static enum hvd_status watch(struct hvd_server *s, struct hvd_error *err)
{
    for (int i = 0; i < s->listener_count; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &s->listeners[i]};

        if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->listeners[i].fd, &e) != 0)
            return error_sys(err, -1, "the rendezvous server cannot watch its socket");
    }
    s->listening = true;
    return HVD_OK;
}

static enum hvd_status cannot_listen(const char *address, uint16_t port, int code,
                                     struct hvd_error *err)
{
    char owner[PORT_OWNER_TEXT];

    if (code == EADDRINUSE && port != 0) {
        port_owner_find(port, owner);
        return error_set(err, HVD_SYS, -1,
                         "the rendezvous server cannot listen on %s port %u: in use by %s; "
                         "choose another port or 0 for any", address, port, owner);
    }
    errno = code;
    return error_sys(err, -1, "the rendezvous server cannot listen on %s port %u", address,
                     port);
}

enum hvd_status listen_open(struct hvd_server *s, const char *const *addresses, int count,
                            uint16_t port, struct hvd_error *err)
{
    int code = 0, failed = 0;

    if (count > SERVER_LISTENERS)
        return error_set(err, HVD_INVALID, -1, "%d addresses to listen on, at most %d",
                         count, SERVER_LISTENERS);
    for (int i = 0; i < count; i++)
        if (!parse_v4(addresses[i], &s->listeners[i]) &&
            !parse_v6(addresses[i], &s->listeners[i]))
            return error_set(err, HVD_INVALID, -1,
                             "'%.64s' is no numeric address to listen on", addresses[i]);
    for (int i = 0; i < PORT_TRIES; i++) {
        code = open_all(s, count, port, &failed);
        if (code != EADDRINUSE || port != 0)
            break;
    }
    if (code != 0)
        return cannot_listen(addresses[failed], port, code, err);
    return watch(s, err);
}
