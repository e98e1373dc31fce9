/*
 * server_peer.c: one connection of the rendezvous server, from a stranger to a worker.
 *
 * 1. Until the proof a peer costs this struct and two fixed-size reads, nothing else, and
 *    a key exchange once for each HELLO that was made with the key.
 * 2. A stranger is dropped with a reset: it leaves no state in the kernel either.
 * 3. Strangers are told nothing, and cost one log line a second all together.
 * 4. A worker says its entry and, if the job fails after the table, the verdict it has
 *    come to; whatever else it says ends its connection.  The first verdict stays: who dies
 *    of it is reported later, by others.
 */
#include "rendezvous/server_int.h"

#define LOG_COMPONENT "rendezvous"
#include "base/clock.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define REFUSAL_LOG_US 1000000

#define TO(state) (1u << PEER_##state)

static const unsigned peer_may_enter[] = {
    [PEER_HELLO] = TO(CONFIRM) | TO(DEAD),
    [PEER_CONFIRM] = TO(ENTRY) | TO(GUEST) | TO(DEAD),
    [PEER_ENTRY] = TO(WAITING) | TO(DEAD),
    [PEER_WAITING] = TO(RUNNING) | TO(DEAD),
    [PEER_RUNNING] = TO(DEAD),
    [PEER_GUEST] = TO(DEAD),
};

static bool is_unproved(const struct peer *p)
{
    return p->state == PEER_HELLO || p->state == PEER_CONFIRM;
}

static void peer_enter(struct hvd_server *s, struct peer *p, enum peer_state to,
                       struct list *list)
{
    BUG_ON(!(peer_may_enter[p->state] & 1u << to));
    s->unproved_count -= is_unproved(p);
    p->state = to;
    s->unproved_count += is_unproved(p);
    list_remove(&p->node);
    list_append(list, &p->node);
}

/* ---- Leaving ---------------------------------------------------------------------- */

static bool has_seat(const struct hvd_server *s, const struct peer *p)
{
    return (p->state == PEER_WAITING || p->state == PEER_RUNNING) &&
           p->generation == s->meeting.generation;
}

static void tell_owner(struct hvd_server *s)
{
    if (s->heard != NULL)
        s->heard(s->context);
}

/* A forked child may hold a copy of the descriptor: closing ours would neither end the
 * connection nor take it out of epoll. */
static void peer_close(struct hvd_server *s, struct peer *p, bool reset)
{
    const struct linger now = {.l_onoff = 1, .l_linger = 0};

    if (has_seat(s, p)) {
        meeting_leave(&s->meeting, p->rank, clock_us());
        tell_owner(s);
    }
    epoll_ctl(s->epoll, EPOLL_CTL_DEL, p->fd, NULL);
    if (reset)
        setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    else
        shutdown(p->fd, SHUT_RDWR);
    if (is_unproved(p))
        close(p->fd);
    else
        channel_release(&p->channel);
    hs_listener_release(&p->proof);
    p->fd = -1;
    peer_enter(s, p, PEER_DEAD, &s->dead);
}

void peer_drop(struct hvd_server *s, struct peer *p)
{
    if (p->state != PEER_DEAD)
        peer_close(s, p, is_unproved(p));
}

void peer_free_dead(struct hvd_server *s)
{
    struct list *node;

    while ((node = list_pop(&s->dead)) != NULL)
        free(list_entry(node, struct peer, node));
}

/* Rule 3. */
static void log_refusal(struct hvd_server *s, const struct peer *p, const char *why)
{
    uint64_t now = clock_us();

    s->counters.refused++;
    s->refusals.count++;
    if (s->refusals.logged_us != 0 && now - s->refusals.logged_us < REFUSAL_LOG_US)
        return;
    log_warn("refused %u connection%s, the last one from %s: %s", s->refusals.count,
             s->refusals.count == 1 ? "" : "s", p->address, why);
    s->refusals.logged_us = now;
    s->refusals.count = 0;
}

static void peer_refuse(struct hvd_server *s, struct peer *p, const char *why)
{
    log_refusal(s, p, why);
    peer_drop(s, p);
}

/* The oldest that has not sent a HELLO that fits, or else the oldest that has; the newest
 * one has not had its chance yet. */
static struct peer *find_oldest(struct hvd_server *s)
{
    struct peer *oldest = NULL;

    list_each(node, &s->unproved) {
        struct peer *p = list_entry(node, struct peer, node);

        if (p->state == PEER_HELLO && node != s->unproved.prev)
            return p;
        if (is_unproved(p) && oldest == NULL)
            oldest = p;
    }
    return oldest;
}

void peer_push_out_oldest(struct hvd_server *s)
{
    struct peer *oldest = find_oldest(s);

    if (oldest == NULL)
        return;
    s->counters.pushed_out++;
    peer_refuse(s, oldest, "too many that have not proved the job key");
}

/* ---- Telling ---------------------------------------------------------------------- */

void peer_watch(struct hvd_server *s, struct peer *p)
{
    bool writes = p->channel.unsent_n > 0;
    struct epoll_event e = {.events = EPOLLIN | (writes ? EPOLLOUT : 0u), .data.ptr = p};

    if (writes == p->wants_write)
        return;
    p->wants_write = writes;
    if (epoll_ctl(s->epoll, EPOLL_CTL_MOD, p->fd, &e) == 0)
        return;
    if (p->state == PEER_GUEST)
        p->failed = true;
    else
        peer_drop(s, p);
}

static enum hvd_status send_verdict(struct hvd_server *s, struct peer *p,
                                    const struct hvd_error *verdict)
{
    uint8_t bytes[RDV_VERDICT_MAX];
    struct hvd_error err;

    s->counters.verdicts++;
    return channel_send(&p->channel, RDV_VERDICT, bytes, put_rdv_verdict(verdict, bytes),
                        &err);
}

/* The verdict, and then the end.  It is the first thing the peer is sent, so the socket
 * takes it whole. */
static void peer_dismiss(struct hvd_server *s, struct peer *p,
                         const struct hvd_error *verdict)
{
    log_debug("%s, rank %d: %s", p->address, p->rank, verdict->text);
    send_verdict(s, p, verdict);
    peer_drop(s, p);
}

void peer_tell_all(struct hvd_server *s, const struct hvd_error *err, bool running)
{
    list_each_safe(node, &s->workers) {
        struct peer *p = list_entry(node, struct peer, node);

        if (p->state == PEER_GUEST)
            continue;
        if (p->state == PEER_WAITING)
            peer_dismiss(s, p, err);
        else if (running && send_verdict(s, p, err) != HVD_OK)
            peer_drop(s, p);
        else if (running)
            peer_watch(s, p);
    }
}

static void fail_round(struct hvd_server *s, const struct hvd_error *err, int newcomer)
{
    log_warn("%s", err->text);
    meeting_fail(&s->meeting, err, newcomer, false);
    peer_tell_all(s, err, false);
}

/* ---- The proof -------------------------------------------------------------------- */

/* Reads until the buffer holds n bytes, and never more. */
static enum hvd_status read_exactly(struct peer *p, size_t n)
{
    while (p->got < n) {
        ssize_t step = recv(p->fd, p->buffer + p->got, n - p->got, 0);

        if (step < 0 && errno == EINTR)
            continue;
        if (step < 0 && errno == EAGAIN)
            return HVD_AGAIN;
        if (step <= 0)
            return HVD_PEER_LOST;
        p->got += (size_t)step;
    }
    p->got = 0;
    return HVD_OK;
}

/* The first bytes on a fresh connection: its buffer takes them whole. */
static bool send_reply(const struct peer *p, const uint8_t reply[HS_REPLY])
{
    return send(p->fd, reply, HS_REPLY, MSG_NOSIGNAL) == HS_REPLY;
}

/* Which key a HELLO was made with is not written on it. */
static enum hvd_status accept_hello(struct hvd_server *s, struct peer *p,
                                    uint8_t reply[HS_REPLY], struct hvd_error *err)
{
    enum hvd_status status = hs_accept(&p->proof, s->key, &s->identity, p->buffer, reply,
                                       err);

    if (status != HVD_AUTH || s->join_key == NULL)
        return status;
    return hs_accept(&p->proof, s->join_key, &s->join_identity, p->buffer, reply, err);
}

static void on_hello(struct hvd_server *s, struct peer *p)
{
    enum hvd_status status = read_exactly(p, HS_HELLO);
    uint8_t reply[HS_REPLY];
    struct hvd_error err;

    if (status == HVD_AGAIN)
        return;
    if (status != HVD_OK && p->got == 0) {
        /* Not a byte: somebody has looked whether the port can be reached, as the
         * launcher's agents do. */
        peer_drop(s, p);
        return;
    }
    if (status != HVD_OK) {
        peer_refuse(s, p, "it left without proving the job key");
        return;
    }
    if (replay_has(&s->seen, p->buffer)) {
        peer_refuse(s, p, "it repeated somebody's HELLO");
        return;
    }
    status = accept_hello(s, p, reply, &err);
    if (status == HVD_OK)
        replay_add(&s->seen, p->buffer);
    if (status == HVD_VERSION) {
        log_refusal(s, p, err.text);
        send_reply(p, reply);
        peer_close(s, p, false);
    } else if (status != HVD_OK || !send_reply(p, reply)) {
        peer_refuse(s, p, status != HVD_OK ? err.text : "it does not listen");
    } else {
        peer_enter(s, p, PEER_CONFIRM, &s->unproved);
    }
}

static void on_entry(struct hvd_server *s, struct peer *p);

static void on_confirm(struct hvd_server *s, struct peer *p)
{
    enum hvd_status status = read_exactly(p, HS_CONFIRM);
    struct hs_keys keys;
    struct hvd_error err;

    if (status == HVD_AGAIN)
        return;
    if (status == HVD_PEER_LOST && p->got == 0) {
        /* Its HELLO fits: a worker that tried several of our addresses, and has taken
         * another one. */
        peer_drop(s, p);
        return;
    }
    if (status == HVD_OK)
        status = hs_accept_finish(&p->proof, p->buffer, &keys, &err);
    else
        error_set(&err, status, -1, "it left without proving the job key");
    if (status != HVD_OK) {
        peer_refuse(s, p, err.text);
        return;
    }
    p->purpose = p->proof.id.purpose;
    p->rank = p->proof.id.peer;
    p->generation = p->proof.id.generation;
    hs_listener_release(&p->proof);
    status = channel_init(&p->channel, p->fd, &keys,
                          s->hooks.came != NULL ? s->hooks.limit : RDV_ENTRY_MAX, &err);
    explicit_bzero(&keys, sizeof keys);
    if (s->hooks.came != NULL)
        peer_enter(s, p, PEER_GUEST, &s->workers);
    else
        peer_enter(s, p, PEER_ENTRY, &s->unproved);
    if (status != HVD_OK)
        peer_drop(s, p);
    else if (p->state == PEER_GUEST)
        guest_came(s, p);
    else
        on_entry(s, p);
}

/* ---- The entry -------------------------------------------------------------------- */

static void peer_sit(struct hvd_server *s, struct peer *p, uint32_t wait_ms)
{
    p->deadline_us = clock_us() + (uint64_t)wait_ms * 1000;
    if (p->deadline_us < s->worker_deadline_us)
        s->worker_deadline_us = p->deadline_us;
    peer_enter(s, p, PEER_WAITING, &s->workers);
}

/* All have the same version and settings (meeting.c): they need not be told each other's. */
static enum hvd_status encode_table(struct hvd_server *s, uint8_t **bytes_p, size_t *n_p,
                                    struct hvd_error *err)
{
    enum hvd_status status;
    struct table table;

    TRY(meeting_form(&s->meeting, clock_us(), &table, err));
    for (int i = 0; i < table.count; i++)
        table.entries[i].version[0] = table.entries[i].config_text[0] = '\0';
    status = put_table(&table, bytes_p, n_p, err);
    table_release(&table);
    return status;
}

/* Each has a copy of its own, as it is sealed with another key: so many bytes at a time. */
static void send_tables(struct hvd_server *s, size_t room)
{
    struct hvd_error err;
    size_t unsent = 0;
    bool all = true;

    list_each(node, &s->workers)
        unsent += list_entry(node, struct peer, node)->channel.unsent_n;
    list_each_safe(node, &s->workers) {
        struct peer *p = list_entry(node, struct peer, node);

        if (!p->owed)
            continue;
        all = unsent < room;
        if (!all)
            break;
        p->owed = false;
        s->counters.tables++;
        if (channel_send(&p->channel, RDV_TABLE, s->table, s->table_bytes, &err) != HVD_OK) {
            peer_drop(s, p);
            continue;
        }
        unsent += p->channel.unsent_n;
        peer_watch(s, p);
    }
    if (all) {
        free(s->table);
        s->table = NULL;
    }
}

void peer_send_tables(struct hvd_server *s)
{
    if (s->table != NULL)
        send_tables(s, SERVER_UNSENT);
}

static void push_tables(struct hvd_server *s)
{
    struct hvd_error err;

    if (s->table != NULL)
        send_tables(s, SIZE_MAX);       /* that of the generation before */
    if (encode_table(s, &s->table, &s->table_bytes, &err) != HVD_OK) {
        fail_round(s, &err, -1);
        return;
    }
    log_info("generation %u: all %d workers have come", s->meeting.generation,
             s->meeting.count);
    list_each_safe(node, &s->workers) {
        struct peer *p = list_entry(node, struct peer, node);

        if (p->state != PEER_WAITING)
            continue;
        p->owed = true;
        peer_enter(s, p, PEER_RUNNING, &s->workers);
    }
    peer_send_tables(s);
}

static void seat(struct hvd_server *s, struct peer *p, const struct table_entry *e,
                 uint32_t wait_ms)
{
    struct hvd_error err;

    switch (meeting_enter(&s->meeting, e, clock_us(), &err)) {
    case MEETING_WAITING:
        peer_sit(s, p, wait_ms);
        break;
    case MEETING_COMPLETE:
        peer_sit(s, p, wait_ms);
        push_tables(s);
        break;
    case MEETING_REFUSED:
        peer_dismiss(s, p, &err);
        break;
    case MEETING_FAILED:
        fail_round(s, &err, e->rank);
        peer_dismiss(s, p, &err);
        break;
    }
}

/* What the peer says of itself must be what it has proved. */
static enum hvd_status read_entry(const struct peer *p, const struct channel_message *m,
                                  struct table_entry *e, uint32_t *wait_ms_p,
                                  struct hvd_error *err)
{
    if (m->kind != RDV_ENTRY)
        return error_set(err, HVD_PROTO, p->rank, "a message of kind %d before the entry",
                         (int)m->kind);
    TRY(get_rdv_entry(e, wait_ms_p, m->body, m->n, err));
    if (e->rank != p->rank || e->generation != p->generation)
        return error_set(err, HVD_PROTO, p->rank,
                         "rank %d of generation %u sent the entry of rank %d of generation "
                         "%u", p->rank, p->generation, (int)e->rank, e->generation);
    return HVD_OK;
}

static void on_entry(struct hvd_server *s, struct peer *p)
{
    struct channel_message m;
    struct table_entry e;
    struct hvd_error err;
    uint32_t wait_ms;
    enum hvd_status status = channel_receive(&p->channel, &m, &err);

    if (status == HVD_AGAIN)
        return;
    if (status != HVD_OK) {
        peer_refuse(s, p, err.text);
        return;
    }
    s->counters.entries++;
    if (read_entry(p, &m, &e, &wait_ms, &err) == HVD_OK)
        seat(s, p, &e, wait_ms);
    else
        peer_dismiss(s, p, &err);
}

/* ---- Events and deadlines --------------------------------------------------------- */

/* Rule 4. */
static enum hvd_status take_report(struct hvd_server *s, const struct peer *p,
                                   const struct channel_message *m, struct hvd_error *err)
{
    struct hvd_error verdict;

    if (p->state != PEER_RUNNING || m->kind != RDV_VERDICT)
        return error_set(err, HVD_PROTO, p->rank, "it sent a second message");
    TRY(get_rdv_verdict(&verdict, m->body, m->n, err));
    if (has_seat(s, p) && s->report.status == HVD_OK) {
        s->report = verdict;
        tell_owner(s);
    }
    return HVD_OK;
}

static void on_worker(struct hvd_server *s, struct peer *p, uint32_t events)
{
    struct channel_message m;
    struct hvd_error err;
    enum hvd_status status = HVD_AGAIN;

    if (events & EPOLLOUT)
        status = channel_flush(&p->channel, &err);
    if ((events & ~(uint32_t)EPOLLOUT) != 0 && (status == HVD_OK || status == HVD_AGAIN)) {
        status = channel_receive(&p->channel, &m, &err);
        if (status == HVD_OK)
            status = take_report(s, p, &m, &err);
    }
    if (status == HVD_OK || status == HVD_AGAIN) {
        peer_watch(s, p);
        return;
    }
    if (status != HVD_PEER_LOST || p->state == PEER_WAITING)
        log_warn("rank %d (%s) is forgotten: %s", p->rank, p->address, err.text);
    peer_drop(s, p);
}

void peer_handle(struct hvd_server *s, struct peer *p, uint32_t events)
{
    switch (p->state) {
    case PEER_HELLO:
        on_hello(s, p);
        break;
    case PEER_CONFIRM:
        on_confirm(s, p);
        break;
    case PEER_ENTRY:
        on_entry(s, p);
        break;
    case PEER_WAITING:
    case PEER_RUNNING:
        on_worker(s, p, events);
        break;
    case PEER_GUEST:
        guest_handle(s, p, events);
        break;
    case PEER_DEAD:                     /* closed earlier in the same turn */
        break;
    }
}

static void format_address(const struct sockaddr_storage *from, char *text, size_t n)
{
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)from;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)from;
    char numeric[INET6_ADDRSTRLEN] = "?";
    bool is_v4 = from->ss_family == AF_INET;

    inet_ntop(from->ss_family, is_v4 ? (void *)&v4->sin_addr : (void *)&v6->sin6_addr,
              numeric, sizeof numeric);
    snprintf(text, n, "%s port %u", numeric, ntohs(is_v4 ? v4->sin_port : v6->sin6_port));
}

/* A worker whose host vanished is noticed after 25 s, and its rank is free again. */
static void set_options(int fd)
{
    const int on = 1, idle_s = 10, every_s = 5, tries = 3;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
}

void peer_accepted(struct hvd_server *s, int fd, const struct sockaddr_storage *from)
{
    struct peer *p = calloc(1, sizeof *p);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = p};

    s->counters.accepted++;
    if (p == NULL || epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &e) != 0) {
        free(p);
        close(fd);
        return;
    }
    set_options(fd);
    p->fd = fd;
    p->rank = -1;
    p->state = PEER_HELLO;
    p->deadline_us = clock_us() + HS_DEADLINE_US;
    format_address(from, p->address, sizeof p->address);
    list_append(&s->unproved, &p->node);
    s->unproved_count++;
    peer_handle(s, p, EPOLLIN);         /* an honest HELLO is often here already */
    if (s->unproved_count > SERVER_UNPROVED)
        peer_push_out_oldest(s);
}

static void expire_workers(struct hvd_server *s, uint64_t now_us)
{
    struct hvd_error err;

    if (s->worker_deadline_us > now_us)
        return;
    s->worker_deadline_us = UINT64_MAX;
    list_each_safe(node, &s->workers) {
        struct peer *p = list_entry(node, struct peer, node);

        if (p->state != PEER_WAITING)
            continue;
        if (p->deadline_us <= now_us) {
            meeting_timed_out(&s->meeting, now_us, &err);
            peer_dismiss(s, p, &err);
        } else if (p->deadline_us < s->worker_deadline_us) {
            s->worker_deadline_us = p->deadline_us;
        }
    }
}

void peer_expire(struct hvd_server *s, uint64_t now_us)
{
    struct hvd_error err;

    list_each_safe(node, &s->unproved) {
        struct peer *p = list_entry(node, struct peer, node);

        if (p->deadline_us <= now_us)
            peer_refuse(s, p, is_unproved(p) ? "it did not prove the job key in time"
                                             : "it did not send its entry in time");
    }
    expire_workers(s, now_us);
    if (meeting_deadline_us(&s->meeting) <= now_us) {
        meeting_timed_out(&s->meeting, now_us, &err);
        fail_round(s, &err, -1);
    }
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t peer_next_deadline_us(const struct hvd_server *s)
{
    uint64_t next = earlier(s->worker_deadline_us, meeting_deadline_us(&s->meeting));

    list_each(node, &s->unproved)
        next = earlier(next, list_entry(node, struct peer, node)->deadline_us);
    return next;
}
