/*
 * tcp_listen.c: the listeners of a rank that is about to join a job.
 *
 * 1. One TCP socket per offered address, all with the same port; never on the wildcard
 *    address, so that nobody but those whom the addresses are for can reach it.
 * 2. The meeting of a host is a unix socket with an abstract name: it has no place in the
 *    file system and ends with its process, whatever ends that.  Every rank that might be
 *    the first of its host makes one; all but the first's are closed as soon as the table
 *    is known, that one when all have come.
 * 3. Anybody on the machine can see the name and connect; shm_meet.c says who gets in.
 */
#define LOG_COMPONENT "transport"
#include "transport_int.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"

#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/un.h>
#include <unistd.h>

#define PORT_TRIES 32

static int listen_on(struct sockaddr_storage at, uint16_t port)
{
    int one = 1;
    int fd = FAULT("tcp.listen")
                 ? -1
                 : socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    fork_add(fd);
    if (at.ss_family == AF_INET6) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
        ((struct sockaddr_in6 *)&at)->sin6_port = htons(port);
    } else {
        ((struct sockaddr_in *)&at)->sin_port = htons(port);
    }
    if (bind(fd, (struct sockaddr *)&at, address_bytes(&at)) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    port = (uint16_t)errno;
    fork_close(fd);
    errno = port;
    return -1;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage at;
    socklen_t n = sizeof at;

    if (getsockname(fd, (struct sockaddr *)&at, &n) != 0)
        return 0;
    return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                          : ((struct sockaddr_in *)&at)->sin_port);
}

static void close_sockets(struct mesh_listener *l)
{
    for (int i = 0; i < l->count; i++)
        fork_close(l->fds[i]);
    l->count = 0;
}

/* False: the port that the first address got is taken on another one.  An address that
 * cannot be bound at all (not usable yet) is left out. */
static bool try_port(struct mesh_listener *l, const struct address *addrs, int count,
                     struct table_entry *self)
{
    uint16_t port = 0;

    self->addr_count = 0;
    for (int i = 0; i < count; i++) {
        int fd = listen_on(addrs[i].at, port);

        if (fd < 0 && errno == EADDRINUSE && port != 0)
            return false;
        if (fd < 0)
            continue;
        port = port_of(fd);
        l->fds[l->count++] = fd;
        memcpy(self->addrs[self->addr_count++], addrs[i].text, TABLE_ADDR_BYTES);
    }
    self->port = port;
    return true;
}

static enum hvd_status listen_tcp(const struct config *conf, struct mesh_listener *l,
                                  struct table_entry *self, struct hvd_error *err)
{
    struct address addrs[TABLE_ADDRS];
    int count;

    TRY(addresses_find(conf->iface, addrs, &count, err));
    for (int i = 0; i < PORT_TRIES && !try_port(l, addrs, count, self); i++)
        close_sockets(l);
    if (l->count == 0)
        return error_sys(err, -1, "listening on %s", addrs[0].text);
    return HVD_OK;
}

/* ---- The meeting of the host ----------------------------------------------------- */

socklen_t local_address(const char *name, struct sockaddr_un *at)
{
    size_t n = strnlen(name, sizeof at->sun_path - 1);

    *at = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(at->sun_path, name, n);
    at->sun_path[0] = '\0';             /* instead of '@': a name, not a path */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
}

static void listen_local(struct mesh_listener *l)
{
    struct sockaddr_un at;
    uint64_t random[2];
    socklen_t n;

    if (getrandom(random, sizeof random, 0) != sizeof random)
        return;
    snprintf(l->local_path, sizeof l->local_path, "@horovod-meeting-%016llx%016llx",
             (unsigned long long)random[0], (unsigned long long)random[1]);
    n = local_address(l->local_path, &at);
    l->local_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (l->local_fd >= 0)
        fork_add(l->local_fd);
    if (l->local_fd < 0 || bind(l->local_fd, (struct sockaddr *)&at, n) != 0 ||
        listen(l->local_fd, 4096) != 0)
        listener_drop_local(l);
}

void listener_drop_local(struct mesh_listener *l)
{
    if (l->local_fd >= 0)
        fork_close(l->local_fd);
    l->local_fd = -1;
    l->local_path[0] = 0;
}

static bool may_lead_host(const struct config *conf)
{
    return !conf->shm_disable && conf->local_rank <= 0 && conf->local_size != 1;
}

/* ---- Life ------------------------------------------------------------------------ */

void mesh_listener_free(struct mesh_listener *l)
{
    if (l == NULL)
        return;
    if (l->born == fork_count()) {
        close_sockets(l);
        listener_drop_local(l);
    }
    free(l);
}

enum hvd_status mesh_listen(const struct mesh_options *opt, struct table_entry *self,
                            struct mesh_listener **listener_p, struct hvd_error *err)
{
    const struct config *conf = opt->conf;
    struct mesh_listener *l = calloc(1, sizeof *l);
    enum hvd_status status = HVD_OK;

    if (l == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for listeners");
    fork_setup();
    l->born = fork_count();
    l->local_fd = -1;
    machine_identify(conf, self->machine, self->host);
    self->pid = (int32_t)getpid();
    self->addr_count = 0;
    self->port = 0;
    if (conf->size > 1)
        status = listen_tcp(conf, l, self, err);
    if (status != HVD_OK) {
        mesh_listener_free(l);
        return status;
    }
    if (conf->size > 1 && may_lead_host(conf))
        listen_local(l);
    memcpy(self->local_path, l->local_path, sizeof self->local_path);
    *listener_p = l;
    return HVD_OK;
}
