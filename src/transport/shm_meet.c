/*
 * shm_meet.c: the ranks of a host meet once, to share memory.  The lowest one leads.
 *
 *   member                                    leader
 *   HS_LOCAL handshake
 *   card + doorbell, arena       ->           (from all members)
 *                                <-           plan + region, alarm; card + descriptors of each
 *   answer                       ->           (from all members)
 *                                <-           result
 *
 * 1. The socket has an abstract, random name.  The kernel tells whose process the other
 *    side is: another user's is dropped unread.  Then the handshake proves the job key.
 *    The leader sees by pidfd when a member ends before it has come.
 * 2. Whether memory is shared is one decision for the host: if one member does not want it
 *    or cannot (no memory, no mapping), all talk by TCP, and the leader warns once.
 * 3. Messages are structs in memory order: both ends run on one machine, and the handshake
 *    has compared the protocol versions.
 */
#define LOG_COMPONENT "transport"
#include "transport_int.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/strbuf.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { ABLE = 1, CAN_CMA = 2 };

struct card {                           /* what a rank shows of itself */
    uint32_t flags;
    int32_t pid;
    uint64_t board_bytes, arena_bytes;
    uint64_t probe;                     /* address of `probe` */
};

struct area_plan {
    uint32_t flags;
    struct hvd_error failed;            /* not HVD_OK: there will be no mesh */
};

static const uint64_t probe = 0x1d9e7a03c5b8f264u;

/* ---- Bytes and descriptors, up to the deadline ----------------------------------- */

static enum hvd_status wait_for(int fd, short events, uint64_t deadline_us, int peer,
                                struct hvd_error *err)
{
    struct pollfd p = {fd, events, 0};
    uint64_t now = clock_us();
    int n;

    do
        n = now >= deadline_us ? 0 : poll(&p, 1, (int)((deadline_us - now) / 1000 + 1));
    while (n < 0 && errno == EINTR && (now = clock_us()) < deadline_us);
    if (n > 0)
        return HVD_OK;
    return error_set(err, HVD_TIMEOUT, peer, "rank %d did not answer in the meeting of "
                                             "this host", peer);
}

static enum hvd_status send_fds(int fd, const void *bytes, size_t n, const int *fds,
                                int count, int peer, struct hvd_error *err)
{
    struct iovec iov = {(void *)bytes, n};
    union { char bytes[CMSG_SPACE(2 * sizeof(int))]; struct cmsghdr align; } control;
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t sent;

    memset(&control, 0, sizeof control);
    if (count > 0) {
        struct cmsghdr *c;

        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
        memcpy(CMSG_DATA(c), fds, (size_t)count * sizeof(int));
    }
    /* A blocking socket: a unix socket takes these few bytes whole. */
    do
        sent = FAULT("meet.send") ? -1 : sendmsg(fd, &msg, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent != (ssize_t)n)
        return error_sys(err, peer, "meeting of this host, sending to rank %d", peer);
    return HVD_OK;
}

static int take_fds(struct msghdr *msg, int *fds, int room)
{
    int count = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
            if (count == room) {
                close(fd);
                continue;
            }
            fork_add(fd);
            fds[count++] = fd;
        }
    }
    return count;
}

/* fds[i] is -1 where none came. */
static enum hvd_status receive_fds(int fd, void *bytes, size_t n, int *fds, int room,
                                   uint64_t deadline_us, int peer, struct hvd_error *err)
{
    union { char bytes[CMSG_SPACE(2 * sizeof(int))]; struct cmsghdr align; } control;
    int count = 0;
    size_t got = 0;

    for (int i = 0; i < room; i++)
        fds[i] = -1;
    while (got < n) {
        struct iovec iov = {(char *)bytes + got, n - got};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
        ssize_t k;

        TRY(wait_for(fd, POLLIN, deadline_us, peer, err));
        k = FAULT("meet.receive") ? -1 : recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return error_sys(err, peer, "meeting of this host");
        if (k == 0)
            return error_set(err, HVD_PEER_LOST, peer,
                             "rank %d left the meeting of this host", peer);
        count += take_fds(&msg, fds + count, room - count);
        got += (size_t)k;
    }
    return HVD_OK;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        fork_close(fd);
}

/* Rule 1. */
static bool is_same_user(int fd)
{
    struct ucred who;
    socklen_t n = sizeof who;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && who.uid == geteuid();
}

/* ---- Both sides ------------------------------------------------------------------ */

struct shm_meeting {
    struct mesh *m;
    struct host_share *h;
    int *fds;                           /* leader: connection by local rank */
    int *arena_fds;                     /* by local rank, until all are mapped */
    struct card *cards;
    const struct table *table;
    struct hvd_error why;               /* not able, and why */
};

static enum hvd_status meeting_init(struct shm_meeting *g, struct mesh *m,
                                    const struct table *table, struct hvd_error *err)
{
    size_t n = (size_t)m->topology.local_size;
    struct host_share *h = &m->host;

    *g = (struct shm_meeting){.m = m, .h = h, .table = table};
    h->count = (int)n;
    h->self = m->topology.local_rank;
    region_layout(&h->layout, h->count, m->topology.size, m->board_bytes);
    g->fds = malloc(n * sizeof *g->fds);
    g->arena_fds = malloc(n * sizeof *g->arena_fds);
    g->cards = calloc(n, sizeof *g->cards);
    h->doorbells = malloc(n * sizeof *h->doorbells);
    h->arenas = calloc(n, sizeof *h->arenas);
    h->arena_bytes = calloc(n, sizeof *h->arena_bytes);
    h->pids = calloc(n, sizeof *h->pids);
    for (size_t i = 0; i < n && g->fds != NULL; i++)
        g->fds[i] = -1;
    for (size_t i = 0; i < n && g->arena_fds != NULL; i++)
        g->arena_fds[i] = -1;
    for (size_t i = 0; i < n && h->doorbells != NULL; i++)
        h->doorbells[i] = -1;
    if (g->fds == NULL || g->arena_fds == NULL || g->cards == NULL ||
        h->doorbells == NULL || h->arenas == NULL || h->arena_bytes == NULL ||
        h->pids == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the meeting of this host");
    return HVD_OK;
}

static void meeting_release(struct shm_meeting *g)
{
    for (int i = 0; i < g->h->count && g->fds != NULL; i++)
        close_fd(g->fds[i]);
    for (int i = 0; i < g->h->count && g->arena_fds != NULL; i++)
        if (i != g->h->self)
            close_fd(g->arena_fds[i]);
    free(g->fds);
    free(g->arena_fds);
    free(g->cards);
}

static int rank_at(const struct shm_meeting *g, int local_rank)
{
    return g->m->topology.local_ranks[local_rank];
}

/* Our own card; a second descriptor of the doorbell, so that the host can be released
 * apart from the mesh. */
static void card_make(struct shm_meeting *g)
{
    struct mesh *m = g->m;
    struct card *c = &g->cards[g->h->self];
    size_t bytes = 0;

    g->h->doorbells[g->h->self] = fcntl(m->doorbell, F_DUPFD_CLOEXEC, 0);
    if (g->h->doorbells[g->h->self] >= 0)
        fork_add(g->h->doorbells[g->h->self]);
    g->arena_fds[g->h->self] = arena_descriptor(m->conf->shm_limit, &bytes);
    *c = (struct card){.pid = (int32_t)getpid(), .board_bytes = m->board_bytes,
                       .probe = (uint64_t)(uintptr_t)&probe};
    if (g->arena_fds[g->h->self] >= 0)
        c->arena_bytes = bytes;
    if (!m->conf->shm_disable && g->h->doorbells[g->h->self] >= 0)
        c->flags |= ABLE;
    if (!m->conf->cma_disable)
        c->flags |= CAN_CMA;
}

static enum hvd_status card_send(struct shm_meeting *g, int fd, int local_rank, int peer,
                                 struct hvd_error *err)
{
    int fds[2] = {g->h->doorbells[local_rank], g->arena_fds[local_rank]};
    int count = fds[0] < 0 ? 0 : fds[1] < 0 ? 1 : 2;

    return send_fds(fd, &g->cards[local_rank], sizeof(struct card), fds, count, peer, err);
}

static enum hvd_status card_receive(struct shm_meeting *g, int fd, int local_rank,
                                    struct hvd_error *err)
{
    struct card *c = &g->cards[local_rank];
    int fds[2];
    enum hvd_status status = receive_fds(fd, c, sizeof *c, fds, 2, g->m->deadline_us,
                                         rank_at(g, local_rank), err);

    g->h->doorbells[local_rank] = fds[0];
    g->arena_fds[local_rank] = fds[1];
    if (status != HVD_OK)
        return status;
    if (c->flags & ABLE && (fds[0] < 0 || (c->arena_bytes > 0 && fds[1] < 0) ||
                            c->board_bytes != g->m->board_bytes))
        return error_set(err, HVD_PROTO, rank_at(g, local_rank),
                         "rank %d came to the meeting of this host with other things "
                         "than expected", rank_at(g, local_rank));
    g->h->pids[local_rank] = c->pid;
    return HVD_OK;
}

static bool can_read_memory(pid_t pid, uint64_t address)
{
    uint64_t word = 0;
    struct iovec here = {&word, sizeof word};
    struct iovec there = {(void *)(uintptr_t)address, sizeof word};

    return process_vm_readv(pid, &here, 1, &there, 1, 0) == (ssize_t)sizeof word &&
           word == probe;
}

/* Maps what all have brought.  The flags of our answer; 0: not able, g->why is set. */
static uint32_t map_all(struct shm_meeting *g)
{
    struct host_share *h = g->h;
    uint32_t flags = ABLE | CAN_CMA;
    size_t own;

    if (region_map(h, h->fd, &g->why) != HVD_OK)
        return 0;
    for (int i = 0; i < h->count; i++) {
        const struct card *c = &g->cards[i];

        if (i == h->self) {
            h->arenas[i] = arena_base(&own);
            h->arena_bytes[i] = c->arena_bytes;
            if (c->arena_bytes == 0)
                h->arenas[i] = NULL;
        } else if (c->arena_bytes > 0 &&
                   region_map_arena(h, i, g->arena_fds[i], c->arena_bytes, &g->why) !=
                       HVD_OK) {
            return 0;
        }
        if (!(c->flags & CAN_CMA) || !can_read_memory(c->pid, c->probe))
            flags &= ~(uint32_t)CAN_CMA;
    }
    h->pids[h->self] = (pid_t)g->cards[h->self].pid;
    return flags;
}

/* ---- Leader ---------------------------------------------------------------------- */

static enum hvd_status read_exactly(int fd, void *bytes, size_t n, uint64_t deadline_us,
                                    int peer, struct hvd_error *err)
{
    int none[1];

    return receive_fds(fd, bytes, n, none, 0, deadline_us, peer, err);
}

/* Who has come; a stranger is an error that the caller forgets. */
static enum hvd_status admit(struct shm_meeting *g, int fd, int *local_rank_p,
                             struct hvd_error *err)
{
    struct mesh *m = g->m;
    struct hs_identity expect = {.purpose = HS_LOCAL, .self = m->topology.rank,
                                 .peer = HS_ANY_RANK, .generation = m->generation};
    uint8_t buffer[HS_HELLO], reply[HS_REPLY];
    struct hs_listener hs;
    struct hs_keys keys;
    uint64_t until = clock_us() + HS_DEADLINE_US;
    enum hvd_status status;

    memcpy(expect.job_id, m->job_id, sizeof expect.job_id);
    until = until < m->deadline_us ? until : m->deadline_us;
    if (!is_same_user(fd))
        return error_set(err, HVD_AUTH, -1, "another user came to the meeting");
    TRY(read_exactly(fd, buffer, HS_HELLO, until, -1, err));
    status = hs_accept(&hs, m->key, &expect, buffer, reply, err);
    if (status == HVD_OK || status == HVD_VERSION)
        if (send_fds(fd, reply, sizeof reply, NULL, 0, -1, NULL) != HVD_OK)
            status = error_set(err, HVD_AUTH, -1, "hung up");
    if (status == HVD_OK)
        status = read_exactly(fd, buffer, HS_CONFIRM, until, -1, err);
    if (status == HVD_OK)
        status = hs_accept_finish(&hs, buffer, &keys, err);
    explicit_bzero(&keys, sizeof keys);
    if (status == HVD_OK &&
        (hs.id.peer < 0 || hs.id.peer >= g->table->count ||
         m->topology.host_of[hs.id.peer] != m->topology.host_of[m->topology.rank]))
        status = error_set(err, HVD_AUTH, hs.id.peer, "not of this host");
    if (status == HVD_OK)
        *local_rank_p = m->topology.local_rank_of[hs.id.peer];
    hs_listener_release(&hs);
    return status;
}

static enum hvd_status missing(const struct shm_meeting *g, struct hvd_error *err)
{
    bool *absent = calloc((size_t)g->table->count, sizeof *absent);
    struct strbuf ranks;
    int first = -1;

    strbuf_init(&ranks);
    for (int i = 1; i < g->h->count && absent != NULL; i++)
        if (g->fds[i] < 0) {
            absent[rank_at(g, i)] = true;
            first = first < 0 ? rank_at(g, i) : first;
        }
    if (absent != NULL)
        strbuf_add_ranks(&ranks, absent, g->table->count);
    error_set(err, HVD_TIMEOUT, first,
              "ranks %s did not come to the meeting of %s within the time limit",
              ranks.text, g->m->topology.hosts[g->m->topology.rank]);
    strbuf_release(&ranks);
    free(absent);
    return HVD_TIMEOUT;
}

/* Rule 1: until all have come, their processes are watched. */
static void watch_members(struct shm_meeting *g, struct pollfd *polls)
{
    for (int i = 0; i < g->h->count; i++) {
        polls[i] = (struct pollfd){-1, POLLIN, 0};
        if (i == 0)
            continue;
        polls[i].fd = (int)syscall(SYS_pidfd_open, g->table->entries[rank_at(g, i)].pid, 0);
        if (polls[i].fd >= 0)
            fork_add(polls[i].fd);
    }
}

static enum hvd_status check_members(struct shm_meeting *g, struct pollfd *polls,
                                     struct hvd_error *err)
{
    for (int i = 1; i < g->h->count; i++)
        if (polls[i].revents != 0 && g->fds[i] < 0)
            return error_set(err, HVD_PEER_LOST, rank_at(g, i),
                             "rank %d on %s: process ended before the job was formed",
                             rank_at(g, i), g->m->topology.hosts[rank_at(g, i)]);
    return HVD_OK;
}

/* HVD_AGAIN: it was a stranger, or nobody. */
static enum hvd_status welcome(struct shm_meeting *g, int listener, struct hvd_error *err)
{
    int local_rank = 0;
    int fd = FAULT("meet.accept") ? -1 : accept4(listener, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED || errno == EAGAIN))
        return HVD_AGAIN;
    if (fd < 0)
        return error_sys(err, -1, "meeting of this host");
    fork_add(fd);
    if (admit(g, fd, &local_rank, err) != HVD_OK || local_rank == 0 ||
        g->fds[local_rank] >= 0) {
        log_debug("refused at the meeting: %s", err->text);
        fork_close(fd);
        return HVD_AGAIN;
    }
    g->fds[local_rank] = fd;
    return card_receive(g, fd, local_rank, err);
}

static enum hvd_status gather_all(struct shm_meeting *g, struct mesh_listener *listener,
                                  struct pollfd *polls, struct hvd_error *err)
{
    enum hvd_status status;

    for (int come = 1; come < g->h->count; come += status == HVD_OK) {
        uint64_t now = clock_us(), until = g->m->deadline_us;
        int n, ms = now < until ? (int)((until - now) / 1000 + 1) : 0;

        polls[0] = (struct pollfd){listener->local_fd, POLLIN, 0};
        n = poll(polls, (nfds_t)g->h->count, ms);
        if (n == 0)
            return missing(g, err);
        status = HVD_AGAIN;
        if (n > 0 && polls[0].revents != 0)
            status = welcome(g, listener->local_fd, err);
        else if (n > 0)
            TRY(check_members(g, polls, err));
        if (status != HVD_OK && status != HVD_AGAIN)
            return status;
        for (int i = 1; i < g->h->count; i++)
            if (g->fds[i] >= 0 && polls[i].fd >= 0) {
                fork_close(polls[i].fd);
                polls[i].fd = -1;
            }
    }
    return HVD_OK;
}

static enum hvd_status gather(struct shm_meeting *g, struct mesh_listener *listener,
                              struct hvd_error *err)
{
    struct pollfd *polls = calloc((size_t)g->h->count, sizeof *polls);
    enum hvd_status status;

    if (polls == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the meeting of this host");
    watch_members(g, polls);
    status = gather_all(g, listener, polls, err);
    for (int i = 1; i < g->h->count; i++)
        if (polls[i].fd >= 0)
            fork_close(polls[i].fd);
    free(polls);
    return status;
}

/* True: the host can share memory; else g->why says why not. */
static bool decide(struct shm_meeting *g)
{
    for (int i = 0; i < g->h->count; i++)
        if (!(g->cards[i].flags & ABLE)) {
            error_set(&g->why, HVD_UNSUPPORTED, rank_at(g, i), "switched off on rank %d",
                      rank_at(g, i));
            return false;
        }
    if (region_create(&g->h->layout, &g->h->fd, &g->why) != HVD_OK)
        return false;
    fork_add(g->h->fd);
    g->h->alarm = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (g->h->alarm < 0) {
        error_sys(&g->why, -1, "alarm of this host");
        return false;
    }
    fork_add(g->h->alarm);
    return true;
}

/* Those who have come learn why it was in vain. */
static void dismiss(struct shm_meeting *g, const struct hvd_error *why)
{
    struct area_plan plan = {.failed = *why};

    for (int i = 1; i < g->h->count; i++)
        if (g->fds[i] >= 0)
            send_fds(g->fds[i], &plan, sizeof plan, NULL, 0, rank_at(g, i), NULL);
}

static enum hvd_status announce(struct shm_meeting *g, bool able, struct hvd_error *err)
{
    struct area_plan plan = {.flags = able ? ABLE : 0};
    int fds[2] = {g->h->fd, g->h->alarm};

    for (int i = 1; i < g->h->count; i++) {
        TRY(send_fds(g->fds[i], &plan, sizeof plan, fds, able ? 2 : 0,
                     rank_at(g, i), err));
        for (int k = 0; k < g->h->count && able; k++)
            if (k != i)
                TRY(card_send(g, g->fds[i], k, rank_at(g, i), err));
    }
    return HVD_OK;
}

static enum hvd_status conclude(struct shm_meeting *g, uint32_t *flags_p,
                                struct hvd_error *err)
{
    uint32_t flags = map_all(g), answer;

    for (int i = 1; i < g->h->count; i++) {
        TRY(read_exactly(g->fds[i], &answer, sizeof answer, g->m->deadline_us,
                         rank_at(g, i), err));
        if (!(answer & ABLE) && flags & ABLE)
            error_set(&g->why, HVD_NOMEM, rank_at(g, i), "rank %d could not map it",
                      rank_at(g, i));
        flags &= answer;
    }
    for (int i = 1; i < g->h->count; i++)
        TRY(send_fds(g->fds[i], &flags, sizeof flags, NULL, 0, rank_at(g, i), err));
    *flags_p = flags;
    return HVD_OK;
}

static enum hvd_status lead(struct shm_meeting *g, struct mesh_listener *listener,
                            uint32_t *flags_p, struct hvd_error *err)
{
    enum hvd_status status = gather(g, listener, err);
    bool able;

    listener_drop_local(listener);
    if (status != HVD_OK) {
        dismiss(g, err);
        return status;
    }
    able = decide(g);
    TRY(announce(g, able, err));
    if (able)
        TRY(conclude(g, flags_p, err));
    if (!(*flags_p & ABLE) && !g->m->conf->shm_disable)
        log_warn("ranks of %s talk by TCP, no shared memory: %s",
                 g->m->topology.hosts[g->m->topology.rank], g->why.text);
    return HVD_OK;
}

/* ---- Member ---------------------------------------------------------------------- */

static enum hvd_status reach(struct shm_meeting *g, int *fd_p, struct hvd_error *err)
{
    const struct table_entry *leader = &g->table->entries[rank_at(g, 0)];
    uint64_t now = clock_us(), until = g->m->deadline_us;
    uint64_t left_us = until > now ? until - now : 1;
    /* Strangers may have filled its queue. */
    const struct timeval limit = {(time_t)(left_us / 1000000), (long)(left_us % 1000000)};
    struct sockaddr_un at;
    socklen_t n = local_address(leader->local_path, &at);
    int fd = FAULT("meet.connect") ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int code;

    if (fd < 0)
        return error_sys(err, -1, "meeting of this host");
    fork_add(fd);
    *fd_p = fd;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    do
        code = connect(fd, (struct sockaddr *)&at, n);
    while (code != 0 && errno == EINTR);
    if (code == 0 && is_same_user(fd))
        return HVD_OK;
    if (code == 0 || errno == ECONNREFUSED)
        return error_set(err, HVD_PEER_LOST, rank_at(g, 0),
                         "rank %d has given up the meeting of this host", rank_at(g, 0));
    return error_sys(err, rank_at(g, 0),
                     "meeting of this host, which rank %d holds at %s", rank_at(g, 0),
                     leader->local_path);
}

static enum hvd_status introduce(struct shm_meeting *g, int fd, struct hvd_error *err)
{
    struct mesh *m = g->m;
    struct hs_identity id = {.purpose = HS_LOCAL, .self = m->topology.rank,
                             .peer = rank_at(g, 0), .generation = m->generation};
    uint8_t hello[HS_HELLO], reply[HS_REPLY], confirm[HS_CONFIRM];
    struct hs_dialer hs;
    struct hs_keys keys;
    enum hvd_status status;

    memcpy(id.job_id, m->job_id, sizeof id.job_id);
    TRY(hs_dial(&hs, m->key, &id, hello, err));
    status = send_fds(fd, hello, sizeof hello, NULL, 0, id.peer, err);
    if (status == HVD_OK)
        status = read_exactly(fd, reply, sizeof reply, m->deadline_us, id.peer, err);
    if (status == HVD_OK)
        status = hs_dial_finish(&hs, reply, confirm, &keys, err);
    if (status == HVD_OK)
        status = send_fds(fd, confirm, sizeof confirm, NULL, 0, id.peer, err);
    explicit_bzero(&keys, sizeof keys);
    hs_dialer_release(&hs);
    return status;
}

static enum hvd_status follow(struct shm_meeting *g, uint32_t *flags_p, struct hvd_error *err)
{
    struct area_plan plan;
    uint32_t answer;
    int fd, fds[2], leader = rank_at(g, 0);
    enum hvd_status status;
    uint64_t until = g->m->deadline_us;

    TRY(reach(g, &g->fds[0], err));
    fd = g->fds[0];
    TRY(introduce(g, fd, err));
    TRY(card_send(g, fd, g->h->self, leader, err));
    status = receive_fds(fd, &plan, sizeof plan, fds, 2, until, leader, err);
    g->h->fd = fds[0];
    g->h->alarm = fds[1];
    TRY(status);
    if (plan.failed.status != HVD_OK)
        return error_set(err, plan.failed.status, plan.failed.rank, "%.*s",
                         HVD_ERROR_TEXT - 1, plan.failed.text);
    if (!(plan.flags & ABLE))
        return HVD_OK;
    if (g->h->fd < 0 || g->h->alarm < 0)
        return error_set(err, HVD_PROTO, leader, "rank %d sent no memory", leader);
    for (int i = 0; i < g->h->count; i++)
        if (i != g->h->self)
            TRY(card_receive(g, fd, i, err));
    answer = map_all(g);
    TRY(send_fds(fd, &answer, sizeof answer, NULL, 0, leader, err));
    return read_exactly(fd, flags_p, sizeof *flags_p, until, leader, err);
}

/* ---- Meeting --------------------------------------------------------------------- */

enum hvd_status shm_meet(struct mesh *m, struct mesh_listener *listener,
                     const struct table *table, struct hvd_error *err)
{
    const struct mesh_topology *t = &m->topology;
    struct shm_meeting g;
    uint32_t flags = 0;
    enum hvd_status status = HVD_OK;

    if (t->local_rank != 0 || t->local_size == 1)
        listener_drop_local(listener);
    if (t->local_size == 1 || table->entries[t->local_ranks[0]].local_path[0] == 0)
        return HVD_OK;
    status = meeting_init(&g, m, table, err);
    if (status == HVD_OK) {
        card_make(&g);
        status = t->local_rank == 0 ? lead(&g, listener, &flags, err)
                                    : follow(&g, &flags, err);
    }
    meeting_release(&g);
    if (status != HVD_OK || !(flags & ABLE)) {
        host_release(&m->host);
        return status;
    }
    m->host.can_cma = flags & CAN_CMA;
    return HVD_OK;
}
