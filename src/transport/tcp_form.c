/*
 * tcp_form.c: makes the two connections (data, watch) to every rank that is reached by
 * TCP.  Of a pair the higher rank dials, the lower one accepts.
 *
 * 1. All addresses of a peer are raced: the next one starts when STAGGER_US have passed
 *    or one has failed; the first that completes the handshake wins, and only that one is
 *    confirmed, so the other side counts one as well.
 * 2. A stranger costs one struct attempt (fixed buffer) for HS_DEADLINE_US at most; there
 *    are at most STRANGERS of them, then the oldest goes.  Nothing it sends is looked at
 *    but by the handshake.
 * 3. A peer that cannot be reached or does not prove the key is tried again until the
 *    deadline: it may be a wrong machine that answers under this address.
 */
#define LOG_COMPONENT "transport"
#include "transport_int.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/strbuf.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define STRANGERS 256
#define STAGGER_US 100000
#define AGAIN_FIRST_US 20000
#define AGAIN_LAST_US 500000
#define TARGETS 32                      /* addresses of one peer */

enum attempt_state {
    ATTEMPT_CONNECTING,                 /* connect() under way */
    ATTEMPT_REPLY,                      /* hello sent, reading the reply */
    ATTEMPT_HELLO,                      /* accepted, reading hello */
    ATTEMPT_CONFIRM,                    /* reply sent, reading confirm */
    ATTEMPT_DEAD,
};

struct attempt {
    struct list node;
    enum attempt_state state;
    int fd;
    struct dial *dial;                  /* NULL: accepted */
    int target;                         /* index of its address in the dial */
    uint64_t deadline_us;
    size_t got;
    uint8_t buffer[HS_REPLY];           /* the largest of the three */
    union {
        struct hs_dialer dialer;
        struct hs_listener listener;
    } hs;
};

/* One connection that we have to make. */
struct dial {
    int peer;
    enum hs_purpose purpose;
    int target_count, next, under_way;
    uint64_t start_us;                  /* when the next address is due */
    uint64_t again_us;                  /* pause after all have failed */
    struct sockaddr_storage targets[TARGETS];
    struct hvd_error why;               /* of the last failure */
};

struct forming {
    struct mesh *m;
    struct mesh_listener *listener;
    const struct table *table;
    const struct tcp_pairs *pairs;
    struct list attempts;               /* oldest first */
    int attempt_count, stranger_count;
    struct dial *dials;                 /* of a peer: data, then watch */
    int dial_count;
    struct dial *hopeless;              /* that peer runs another version */
    uint64_t accept_us;                 /* no accept before: out of descriptors */
    struct pollfd *polls;
    struct attempt **polled;
    int poll_room;
};

static struct proved *place_of(struct forming *f, int peer, enum hs_purpose purpose)
{
    return purpose == HS_DATA ? &f->pairs->data[peer] : &f->pairs->watch[peer];
}

static bool is_complete(const struct forming *f)
{
    for (int r = 0; r < f->table->count; r++)
        if (f->pairs->want[r] && (f->pairs->data[r].fd < 0 || f->pairs->watch[r].fd < 0))
            return false;
    return true;
}

/* ---- Attempts -------------------------------------------------------------------- */

static void attempt_end(struct forming *f, struct attempt *a)
{
    if (a->fd >= 0)
        fork_close(a->fd);
    if (a->dial != NULL) {
        a->dial->under_way--;
        hs_dialer_release(&a->hs.dialer);
    } else {
        f->stranger_count--;
        hs_listener_release(&a->hs.listener);
    }
    f->attempt_count--;
    list_remove(&a->node);
    free(a);
}

static struct attempt *attempt_new(struct forming *f, int fd, struct dial *d)
{
    struct attempt *a = calloc(1, sizeof *a);

    if (a == NULL) {
        fork_close(fd);
        return NULL;
    }
    a->fd = fd;
    a->dial = d;
    f->attempt_count++;
    if (d != NULL)
        d->under_way++;
    else
        f->stranger_count++;
    list_append(&f->attempts, &a->node);
    return a;
}

/* The other side of a dial that failed; the next address may start at once. */
static void dial_failed(struct forming *f, struct attempt *a, const struct hvd_error *why)
{
    struct dial *d = a->dial;

    d->why = *why;
    if (why->status == HVD_VERSION)
        f->hopeless = d;
    log_debug("rank %d: %s", d->peer, why->text);
    attempt_end(f, a);
    d->start_us = 0;
}

static void keep(struct forming *f, struct attempt *a, int peer, enum hs_purpose purpose,
                 const struct hs_keys *keys)
{
    struct proved *p = place_of(f, peer, purpose);

    if (p->fd >= 0)
        fork_close(p->fd);
    p->fd = a->fd;
    p->keys = *keys;
    a->fd = -1;
    tcp_tune(p->fd, f->m->conf,
             machine_is_same_kernel(f->table->entries[peer].machine,
                                    f->table->entries[f->m->topology.rank].machine));
}

static bool send_all(int fd, const void *bytes, size_t n)
{
    return send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n;  /* an empty socket buffer */
}

/* ---- Dialling -------------------------------------------------------------------- */

static enum hvd_status say_hello(struct forming *f, struct attempt *a,
                                 struct hvd_error *err)
{
    struct mesh *m = f->m;
    struct hs_identity id = {.purpose = a->dial->purpose, .self = m->topology.rank,
                             .peer = a->dial->peer, .generation = m->generation};
    uint8_t hello[HS_HELLO];
    int code = 0;
    socklen_t n = sizeof code;

    getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &code, &n);
    errno = code;
    if (code != 0)
        return error_sys(err, a->dial->peer, "connecting");
    memcpy(id.job_id, m->job_id, sizeof id.job_id);
    TRY(hs_dial(&a->hs.dialer, m->key, &id, hello, err));
    if (!send_all(a->fd, hello, sizeof hello))
        return error_sys(err, a->dial->peer, "handshake");
    a->state = ATTEMPT_REPLY;
    return HVD_OK;
}

/* The watch connection follows on the way that has been found. */
static void dial_watch(struct dial *d, int target)
{
    struct sockaddr_storage first = d->targets[0];

    d->targets[0] = d->targets[target];
    d->targets[target] = first;
    d->start_us = 0;
}

static enum hvd_status say_confirm(struct forming *f, struct attempt *a,
                                   struct hvd_error *err)
{
    uint8_t confirm[HS_CONFIRM];
    struct dial *d = a->dial;
    struct hs_keys keys;

    TRY(hs_dial_finish(&a->hs.dialer, a->buffer, confirm, &keys, err));
    if (place_of(f, d->peer, d->purpose)->fd < 0) {
        if (!send_all(a->fd, confirm, sizeof confirm))
            return error_sys(err, d->peer, "handshake");
        keep(f, a, d->peer, d->purpose, &keys);
        if (d->purpose == HS_DATA)
            dial_watch(d + 1, a->target);
    }
    explicit_bzero(&keys, sizeof keys);
    a->state = ATTEMPT_DEAD;
    return HVD_OK;
}

static void start_target(struct forming *f, struct dial *d, uint64_t now)
{
    const struct sockaddr_storage *to = &d->targets[d->next];
    struct attempt *a;
    int fd = FAULT("tcp.connect")
                 ? -1
                 : socket(to->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    d->next++;
    d->start_us = now + STAGGER_US;
    if (fd < 0) {
        error_sys(&d->why, d->peer, "socket");
        return;
    }
    fork_add(fd);
    a = attempt_new(f, fd, d);
    if (a == NULL)
        return;
    a->deadline_us = f->m->deadline_us;
    a->target = d->next - 1;
    if (connect(fd, (const struct sockaddr *)to, address_bytes(to)) != 0 &&
        errno != EINPROGRESS) {
        struct hvd_error why;

        error_sys(&why, d->peer, "connecting");
        dial_failed(f, a, &why);
    }
}

static void dial_step(struct forming *f, struct dial *d, uint64_t now)
{
    if (place_of(f, d->peer, d->purpose)->fd >= 0 || now < d->start_us)
        return;
    if (d->next < d->target_count) {
        start_target(f, d, now);
        return;
    }
    if (d->under_way > 0) {
        d->start_us = UINT64_MAX;       /* until one fails */
        return;
    }
    d->next = 0;
    d->start_us = now + d->again_us;
    d->again_us = d->again_us * 2 < AGAIN_LAST_US ? d->again_us * 2 : AGAIN_LAST_US;
}

static enum hvd_status dials_make(struct forming *f, struct hvd_error *err)
{
    int us = f->m->topology.rank;

    f->dials = calloc((size_t)us * 2 + 1, sizeof *f->dials);
    if (f->dials == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory to connect");
    for (int i = 0; i < 2 * us; i++) {
        struct dial *d = &f->dials[f->dial_count];
        const struct table_entry *e = &f->table->entries[i / 2];

        if (!f->pairs->want[i / 2])
            continue;
        *d = (struct dial){.peer = i / 2, .purpose = i % 2 == 0 ? HS_DATA : HS_WATCH,
                           .start_us = i % 2 == 0 ? 0 : UINT64_MAX,
                           .again_us = AGAIN_FIRST_US};
        for (int k = 0; k < e->addr_count && k < TABLE_ADDRS; k++)
            d->target_count += addresses_resolve(e->addrs[k], e->port,
                                                 d->targets + d->target_count,
                                                 TARGETS - d->target_count);
        error_set(&d->why, HVD_TIMEOUT, d->peer, "no answer");
        f->dial_count++;
    }
    return HVD_OK;
}

/* ---- Accepting ------------------------------------------------------------------- */

static void drop_oldest_stranger(struct forming *f)
{
    list_each(node, &f->attempts) {
        struct attempt *a = list_entry(node, struct attempt, node);

        if (a->dial == NULL) {
            attempt_end(f, a);
            return;
        }
    }
}

static void accept_one(struct forming *f, int listener, uint64_t now)
{
    struct attempt *a;
    int fd = FAULT("tcp.accept") ? -1
                                 : accept4(listener, NULL, NULL,
                                           SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            drop_oldest_stranger(f);
            f->accept_us = now + STAGGER_US;
        }
        return;
    }
    fork_add(fd);
    if (f->stranger_count >= STRANGERS)
        drop_oldest_stranger(f);
    a = attempt_new(f, fd, NULL);
    if (a == NULL)
        return;
    a->state = ATTEMPT_HELLO;
    a->deadline_us = now + HS_DEADLINE_US;
}

static enum hvd_status say_reply(struct forming *f, struct attempt *a,
                                 struct hvd_error *err)
{
    struct mesh *m = f->m;
    struct hs_identity expect = {.self = m->topology.rank, .peer = HS_ANY_RANK,
                                 .generation = m->generation};
    uint8_t reply[HS_REPLY];
    enum hvd_status status;

    memcpy(expect.job_id, m->job_id, sizeof expect.job_id);
    status = hs_accept(&a->hs.listener, m->key, &expect, a->buffer, reply, err);
    if ((status == HVD_OK || status == HVD_VERSION) &&
        !send_all(a->fd, reply, sizeof reply))
        return error_sys(err, -1, "handshake");
    a->state = ATTEMPT_CONFIRM;
    a->got = 0;
    return status;
}

static enum hvd_status check_confirm(struct forming *f, struct attempt *a,
                                     struct hvd_error *err)
{
    const struct hs_identity *id = &a->hs.listener.id;
    struct hs_keys keys;

    TRY(hs_accept_finish(&a->hs.listener, a->buffer, &keys, err));
    if (id->peer <= f->m->topology.rank || id->peer >= f->table->count ||
        !f->pairs->want[id->peer] || (id->purpose != HS_DATA && id->purpose != HS_WATCH))
        return error_set(err, HVD_PROTO, id->peer, "rank %d has nothing to dial here",
                         (int)id->peer);
    keep(f, a, id->peer, id->purpose, &keys);
    explicit_bzero(&keys, sizeof keys);
    a->state = ATTEMPT_DEAD;
    return HVD_OK;
}

/* ---- The loop -------------------------------------------------------------------- */

static enum hvd_status attempt_read(struct attempt *a, size_t need, struct hvd_error *err)
{
    ssize_t n = recv(a->fd, a->buffer + a->got, need - a->got, 0);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return HVD_AGAIN;
    if (n < 0)
        return error_sys(err, -1, "handshake");
    if (n == 0)
        return error_set(err, HVD_AUTH, -1, "the other side hung up in the handshake");
    a->got += (size_t)n;
    return a->got < need ? HVD_AGAIN : HVD_OK;
}

static enum hvd_status attempt_step(struct forming *f, struct attempt *a,
                                    struct hvd_error *err)
{
    if (a->state == ATTEMPT_CONNECTING)
        return say_hello(f, a, err);
    TRY(attempt_read(a, a->state == ATTEMPT_CONFIRM ? HS_CONFIRM : HS_HELLO, err));
    if (a->state == ATTEMPT_REPLY)
        return say_confirm(f, a, err);
    return a->state == ATTEMPT_HELLO ? say_reply(f, a, err) : check_confirm(f, a, err);
}

static void attempt_run(struct forming *f, struct attempt *a)
{
    struct hvd_error err;
    enum hvd_status status = attempt_step(f, a, &err);

    if (status == HVD_AGAIN || (status == HVD_OK && a->state != ATTEMPT_DEAD))
        return;
    if (status != HVD_OK && a->dial != NULL) {
        dial_failed(f, a, &err);
        return;
    }
    if (status != HVD_OK)
        log_debug("refused a connection: %s", err.text);
    attempt_end(f, a);
}

static bool polls_grow(struct forming *f, int need)
{
    struct pollfd *polls;
    struct attempt **polled;

    if (need <= f->poll_room)
        return true;
    polls = realloc(f->polls, (size_t)need * 2 * sizeof *polls);
    if (polls != NULL)
        f->polls = polls;
    polled = realloc(f->polled, (size_t)need * 2 * sizeof *polled);
    if (polled != NULL)
        f->polled = polled;
    if (polls == NULL || polled == NULL)
        return false;
    f->poll_room = need * 2;
    return true;
}

static int polls_fill(struct forming *f, uint64_t now, int *timeout_ms_p)
{
    uint64_t until = f->m->deadline_us;
    int n = 0;

    for (int i = 0; i < f->dial_count; i++) {
        struct dial *d = &f->dials[i];

        if (place_of(f, d->peer, d->purpose)->fd < 0 && d->start_us < until)
            until = d->start_us;
    }
    for (int i = 0; i < f->listener->count && now >= f->accept_us; i++)
        f->polls[n++] = (struct pollfd){f->listener->fds[i], POLLIN, 0};
    if (now < f->accept_us && f->accept_us < until)
        until = f->accept_us;
    list_each(node, &f->attempts) {
        struct attempt *a = list_entry(node, struct attempt, node);

        f->polled[n] = a;
        f->polls[n++] = (struct pollfd){
            a->fd, a->state == ATTEMPT_CONNECTING ? POLLOUT : POLLIN, 0};
        if (a->deadline_us < until)
            until = a->deadline_us;
    }
    *timeout_ms_p = until <= now ? 0 : (int)((until - now) / 1000 + 1);
    return n;
}

static void expire(struct forming *f, uint64_t now)
{
    list_each_safe(node, &f->attempts) {
        struct attempt *a = list_entry(node, struct attempt, node);
        bool done = a->dial != NULL &&
                    place_of(f, a->dial->peer, a->dial->purpose)->fd >= 0;

        if (done || (a->dial == NULL && now >= a->deadline_us))
            attempt_end(f, a);
    }
}

static enum hvd_status round_trip(struct forming *f, struct hvd_error *err)
{
    uint64_t now = clock_us();
    int n, ready, timeout_ms, first;

    for (int i = 0; i < f->dial_count; i++)
        dial_step(f, &f->dials[i], now);
    expire(f, now);
    if (!polls_grow(f, f->attempt_count + LISTEN_SOCKETS))
        return error_set(err, HVD_NOMEM, -1, "no memory to connect");
    n = polls_fill(f, now, &timeout_ms);
    first = n - f->attempt_count;
    ready = poll(f->polls, (nfds_t)n, timeout_ms);
    for (int i = first; i < n && ready > 0; i++)
        if (f->polls[i].revents != 0)
            attempt_run(f, f->polled[i]);
    for (int i = 0; i < first && ready > 0; i++)
        if (f->polls[i].revents != 0)
            accept_one(f, f->polls[i].fd, now);
    return HVD_OK;
}

/* Names everybody who is missing, and why as far as we know. */
static enum hvd_status too_late(struct forming *f, struct hvd_error *err)
{
    enum hvd_status status = HVD_TIMEOUT;
    struct strbuf text;
    int first = -1;

    strbuf_init(&text);
    for (int r = 0; r < f->table->count; r++) {
        if (!f->pairs->want[r] || (f->pairs->data[r].fd >= 0 && f->pairs->watch[r].fd >= 0))
            continue;
        first = first < 0 ? r : first;
        strbuf_addf(&text, "%srank %d on %s", text.length > 0 ? ", " : "", r,
                    f->m->topology.hosts[r]);
        for (int i = 0; i < f->dial_count; i++)
            if (f->dials[i].peer == r && f->dials[i].next > 0) {
                strbuf_addf(&text, " (%s)", f->dials[i].why.text);
                if (f->dials[i].why.status == HVD_AUTH ||
                    f->dials[i].why.status == HVD_VERSION)
                    status = f->dials[i].why.status;
                break;
            }
    }
    error_set(err, status, first, "no connection to %s%s", text.text,
              status == HVD_VERSION ? "" : " within the time limit");
    strbuf_release(&text);
    return status;
}

enum hvd_status tcp_form(struct mesh *m, struct mesh_listener *listener,
                         const struct table *table, const struct tcp_pairs *pairs,
                         struct hvd_error *err)
{
    struct forming f = {.m = m, .listener = listener, .table = table, .pairs = pairs};
    enum hvd_status status = dials_make(&f, err);

    list_init(&f.attempts);
    while (status == HVD_OK && !is_complete(&f)) {
        if (f.hopeless != NULL || clock_us() >= m->deadline_us)
            status = too_late(&f, err);
        else
            status = round_trip(&f, err);
    }
    while (!list_is_empty(&f.attempts))
        attempt_end(&f, list_entry(f.attempts.next, struct attempt, node));
    free(f.dials);
    free(f.polls);
    free(f.polled);
    return status;
}
