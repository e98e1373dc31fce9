/*
 * door.c: the connections to ranks that are reached by TCP: dialled when they are needed,
 * accepted as long as the mesh lives, proved in any case.
 *
 * 1. All addresses of a peer are raced: the next one starts when STAGGER_US have passed
 *    or one has failed; the first that completes the handshake wins, and only that one is
 *    confirmed, so the other side counts one as well.
 * 2. A stranger costs one struct attempt (fixed buffer) for HS_DEADLINE_US at most; there
 *    are at most STRANGERS of them, then the oldest goes.  Nothing it sends is looked at
 *    but by the handshake, a HELLO that was answered before not even by that.  Who has
 *    proved a HELLO keeps its place for GUEST_US: it may be a peer without a CPU.  Before
 *    one is given up its socket is read once more: it may be us who had none.
 * 3. A peer that cannot be reached or does not prove the key is tried again until the
 *    time is over: it may be a wrong machine that answers under this address.  What such a
 *    machine says decides nothing; it is a hint in the message at the end.  Only a
 *    version that is proved to differ ends it at once.
 * 4. An address that does not answer keeps no other one from being tried again.
 * 5. Between two ranks there is one connection for each purpose, and it is never replaced.
 *    A watch connection is dialled by the higher rank.  A data connection is dialled by
 *    whoever needs it first; when both do, the higher rank decides, by what it does first:
 *    it confirms its own, or it answers the HELLO of the lower one and then does not
 *    confirm its own.  The lower one answers every HELLO and confirms every REPLY until
 *    there is a connection.
 * 6. A peer that refuses has left, has died, or is not there yet.  The watch knows of the
 *    first two and ends the dial (door_forget, the verdict).
 * 7. Otherwise a dial ends with a verdict of its own when its time is over.
 */
#define LOG_COMPONENT "transport"
#include "door_int.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define STRANGERS 256
#define GUEST_US 30000000
#define ACCEPT_BURST 64                 /* then those who are here get their turn */
#define ACCEPT_PAUSE_US 100000
#define EVENTS 64                       /* handshakes in one step: 10 ms of work at most */

bool door_has(const struct door *d, int peer, enum hs_purpose purpose)
{
    return d->made[peer] >> purpose & 1;
}

static bool is_accepted_from(const struct attempt *a, int peer, enum hs_purpose purpose)
{
    return a->state == ATTEMPT_CONFIRM && a->hs.listener.id.peer == peer &&
           a->hs.listener.id.purpose == purpose;
}

/* It is about to prove a connection that it has dialled. */
bool door_expects(const struct door *d, int peer, enum hs_purpose purpose)
{
    list_each(node, &d->attempts)
        if (is_accepted_from(list_entry(node, struct attempt, node), peer, purpose))
            return true;
    return false;
}

/* ---- Attempts -------------------------------------------------------------------- */

static int *count_of(struct door *d, const struct attempt *a)
{
    return a->state == ATTEMPT_CONFIRM ? &d->guest_count : &d->stranger_count;
}

void attempt_end(struct door *d, struct attempt *a)
{
    if (a->fd >= 0) {
        epoll_ctl(d->epoll, EPOLL_CTL_DEL, a->fd, NULL);    /* a child may have a copy */
        fork_close(a->fd);
    }
    a->fd = -1;
    if (a->dial != NULL) {
        a->dial->busy[a->target] = false;
        hs_dialer_release(&a->hs.dialer);
    } else {
        --*count_of(d, a);
        hs_listener_release(&a->hs.listener);
    }
    a->state = ATTEMPT_DEAD;
    list_remove(&a->node);
    list_append(&d->dead, &a->node);
}

static void bury(struct door *d)
{
    struct list *node;

    while ((node = list_pop(&d->dead)) != NULL)
        free(list_entry(node, struct attempt, node));
}

/* dial, target: NULL, 0 for one that was accepted. */
struct attempt *attempt_new(struct door *d, int fd, struct dial *dial, int target)
{
    struct attempt *a = calloc(1, sizeof *a);

    if (a == NULL) {
        fork_close(fd);
        return NULL;
    }
    a->fd = fd;
    a->dial = dial;
    a->target = target;
    a->state = dial != NULL ? ATTEMPT_CONNECTING : ATTEMPT_HELLO;
    if (dial != NULL)
        dial->busy[target] = true;
    else
        d->stranger_count++;
    list_append(&d->attempts, &a->node);
    return a;
}

/* One that cannot be followed never answers, and is given up like those. */
void door_follow(struct door *d, struct attempt *a)
{
    struct epoll_event event = {
        .events = a->state == ATTEMPT_CONNECTING ? EPOLLOUT : EPOLLIN, .data.ptr = a};

    if (epoll_ctl(d->epoll, EPOLL_CTL_ADD, a->fd, &event) != 0 && errno == EEXIST)
        epoll_ctl(d->epoll, EPOLL_CTL_MOD, a->fd, &event);
}

static bool send_all(int fd, const void *bytes, size_t n)
{
    return send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n;  /* an empty socket buffer */
}

/* The connection is proved: it goes where it belongs, and no other one is wanted. */
static void met(struct door *d, struct attempt *a, int peer, enum hs_purpose purpose,
                const struct hs_keys *keys)
{
    struct dial *dial = dial_find(d, peer, purpose);
    struct proved p = {.fd = a->fd, .keys = *keys};

    epoll_ctl(d->epoll, EPOLL_CTL_DEL, a->fd, NULL);
    a->fd = -1;
    attempt_end(d, a);
    if (dial != NULL)
        dial_end(d, dial);
    d->made[peer] |= (uint8_t)(1u << purpose);
    tcp_tune(p.fd, d->m->conf, d->places[peer].same_kernel);
    if (purpose == HS_DATA)
        mesh_take_data(d->m, peer, &p);
    else
        watch_take(d->m, peer, &p);
    explicit_bzero(&p, sizeof p);
}

/* ---- Dialling -------------------------------------------------------------------- */

static enum hvd_status say_hello(struct door *d, struct attempt *a, struct hvd_error *err)
{
    struct mesh *m = d->m;
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
    door_follow(d, a);
    return HVD_OK;
}

/* Rule 5. */
static bool must_yield(const struct door *d, const struct dial *dial)
{
    return d->m->topology.rank > dial->peer && door_expects(d, dial->peer, dial->purpose);
}

static enum hvd_status say_confirm(struct door *d, struct attempt *a, struct hvd_error *err)
{
    uint8_t confirm[HS_CONFIRM];
    struct dial *dial = a->dial;
    struct hs_keys keys;

    TRY(hs_dial_finish(&a->hs.dialer, a->buffer, confirm, &keys, err));
    if (must_yield(d, dial)) {
        attempt_end(d, a);
    } else if (!send_all(a->fd, confirm, sizeof confirm)) {
        explicit_bzero(&keys, sizeof keys);
        return error_sys(err, dial->peer, "handshake");
    } else {
        met(d, a, dial->peer, dial->purpose, &keys);
    }
    explicit_bzero(&keys, sizeof keys);
    return HVD_OK;
}

/* ---- Accepting ------------------------------------------------------------------- */

/* The newest one has not had its chance yet, unless it is the only one. */
static void drop_oldest_stranger(struct door *d)
{
    list_each(node, &d->attempts) {
        struct attempt *a = list_entry(node, struct attempt, node);

        if (a->state == ATTEMPT_HELLO) {
            attempt_end(d, a);
            return;
        }
    }
}

static void attempt_run(struct door *d, struct attempt *a);

/* False: nobody is there. */
static bool accept_one(struct door *d, int listener, uint64_t now)
{
    struct attempt *a;
    int fd = FAULT("tcp.accept") ? -1
                                 : accept4(listener, NULL, NULL,
                                           SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            drop_oldest_stranger(d);
            d->accept_us = now + ACCEPT_PAUSE_US;
        }
        return false;
    }
    fork_add(fd);
    a = attempt_new(d, fd, NULL, 0);
    if (a == NULL)
        return true;
    a->deadline_us = now + HS_DEADLINE_US;
    door_follow(d, a);
    attempt_run(d, a);                  /* an honest HELLO is often here already */
    if (d->stranger_count > STRANGERS)
        drop_oldest_stranger(d);
    return true;
}

static void accept_some(struct door *d, uint64_t now)
{
    for (int k = 0; k < d->listener->count; k++)
        for (int i = 0; i < ACCEPT_BURST && accept_one(d, d->listener->fds[k], now); i++)
            continue;
}

/* Whether this peer may have such a connection to us, and has none. */
static enum hvd_status check_guest(const struct door *d, const struct hs_identity *id,
                                   struct hvd_error *err)
{
    const struct mesh *m = d->m;

    if (id->peer < 0 || id->peer >= m->topology.size || id->peer == m->topology.rank ||
        (id->purpose != HS_DATA && id->purpose != HS_WATCH) || mesh_is_near(m, id->peer))
        return error_set(err, HVD_PROTO, id->peer, "rank %d has nothing to dial here",
                         (int)id->peer);
    if (door_has(d, id->peer, id->purpose))
        return error_set(err, HVD_PROTO, id->peer, "rank %d is connected", (int)id->peer);
    if (d->guest_count >= 4 * m->topology.size)
        return error_set(err, HVD_AUTH, id->peer, "too many are about to be proved");
    return HVD_OK;
}

static enum hvd_status say_reply(struct door *d, struct attempt *a, struct hvd_error *err)
{
    struct mesh *m = d->m;
    struct hs_identity expect = {.self = m->topology.rank, .peer = HS_ANY_RANK,
                                 .generation = m->generation};
    uint8_t reply[HS_REPLY];
    enum hvd_status status;

    if (replay_has(&d->seen, a->buffer))
        return error_set(err, HVD_AUTH, -1, "a HELLO that was answered before");
    memcpy(expect.job_id, m->job_id, sizeof expect.job_id);
    status = hs_accept(&a->hs.listener, m->key, &expect, a->buffer, reply, err);
    if (status == HVD_OK) {
        replay_add(&d->seen, a->buffer);
        TRY(check_guest(d, &a->hs.listener.id, err));
    }
    if ((status == HVD_OK || status == HVD_VERSION) &&
        !send_all(a->fd, reply, sizeof reply))
        return error_sys(err, -1, "handshake");
    TRY(status);
    d->stranger_count--;
    d->guest_count++;
    a->state = ATTEMPT_CONFIRM;
    a->deadline_us = clock_us() + GUEST_US;
    a->got = 0;
    return HVD_OK;
}

static enum hvd_status check_confirm(struct door *d, struct attempt *a,
                                     struct hvd_error *err)
{
    struct hs_identity id = a->hs.listener.id;
    struct hs_keys keys;

    TRY(hs_accept_finish(&a->hs.listener, a->buffer, &keys, err));
    TRY(check_guest(d, &id, err));
    met(d, a, id.peer, id.purpose, &keys);
    explicit_bzero(&keys, sizeof keys);
    return HVD_OK;
}

/* ---- Steps ----------------------------------------------------------------------- */

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

static enum hvd_status attempt_step(struct door *d, struct attempt *a,
                                    struct hvd_error *err)
{
    if (a->state == ATTEMPT_CONNECTING)
        return say_hello(d, a, err);
    TRY(attempt_read(a, a->state == ATTEMPT_CONFIRM ? HS_CONFIRM : HS_HELLO, err));
    if (a->state == ATTEMPT_REPLY)
        return say_confirm(d, a, err);
    return a->state == ATTEMPT_HELLO ? say_reply(d, a, err) : check_confirm(d, a, err);
}

static void attempt_run(struct door *d, struct attempt *a)
{
    struct hvd_error err;
    enum hvd_status status = attempt_step(d, a, &err);

    if (status == HVD_AGAIN || status == HVD_OK)
        return;
    if (a->dial != NULL) {
        dial_failed(d, a, &err);
        return;
    }
    log_debug("refused a connection: %s", err.text);
    attempt_end(d, a);
}

/* Of those that were accepted: the one whose time is over first. */
static struct attempt *soonest(const struct door *d)
{
    struct attempt *found = NULL;

    list_each(node, &d->attempts) {
        struct attempt *a = list_entry(node, struct attempt, node);

        if (a->dial == NULL && (found == NULL || a->deadline_us < found->deadline_us))
            found = a;
    }
    return found;
}

/* Rule 2. */
static uint64_t expire(struct door *d, uint64_t now)
{
    struct attempt *a;

    while ((a = soonest(d)) != NULL && now >= a->deadline_us) {
        attempt_run(d, a);
        if (a->state != ATTEMPT_DEAD && now >= a->deadline_us)
            attempt_end(d, a);
    }
    return a != NULL ? a->deadline_us : UINT64_MAX;
}

static void accept_switch(struct door *d, bool on)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = d};

    for (int i = 0; i < d->listener->count && d->accepting != on; i++)
        epoll_ctl(d->epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, d->listener->fds[i], &event);
    d->accepting = on;
}

uint64_t door_step(struct door *d)
{
    struct epoll_event events[EVENTS];
    uint64_t now = clock_us(), next, due;
    bool knocked = false;
    int n;

    next = dials_step(d, now);
    due = expire(d, now);
    next = due < next ? due : next;
    accept_switch(d, now >= d->accept_us);
    next = now < d->accept_us && d->accept_us < next ? d->accept_us : next;
    n = epoll_wait(d->epoll, events, EVENTS, 0);
    for (int i = 0; i < n; i++) {
        struct attempt *a = events[i].data.ptr;

        knocked = knocked || events[i].data.ptr == d;
        if (events[i].data.ptr != d && a->state != ATTEMPT_DEAD)
            attempt_run(d, a);
    }
    if (knocked)
        accept_some(d, now);
    bury(d);
    return n > 0 ? 0 : next;            /* what they have begun may be due */
}

/* ---- Life ------------------------------------------------------------------------ */

static size_t texts_size(const struct table *table)
{
    size_t n = 1;

    for (int r = 0; r < table->count; r++)
        n += (size_t)table->entries[r].addr_count * TABLE_ADDR_BYTES;
    return n;
}

static void places_fill(struct door *d, const struct table *table)
{
    const struct table_entry *self = &table->entries[d->m->topology.rank];
    uint32_t at = 0;

    for (int r = 0; r < table->count; r++) {
        const struct table_entry *e = &table->entries[r];

        d->places[r] = (struct place){
            .port = e->port, .at = at,
            .same_kernel = machine_is_same_kernel(e->machine, self->machine)};
        for (int k = 0; k < e->addr_count && k < TABLE_ADDRS; k++) {
            size_t n = strnlen(e->addrs[k], TABLE_ADDR_BYTES - 1);

            memcpy(d->texts + at, e->addrs[k], n);
            at += (uint32_t)n + 1;      /* texts were zeroed */
            d->places[r].count++;
        }
    }
}

enum hvd_status door_new(struct mesh *m, struct mesh_listener *listener,
                         const struct table *table, struct hvd_error *err)
{
    struct door *d = calloc(1, sizeof *d);

    if (d == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory to connect");
    m->door = d;
    d->m = m;
    d->listener = listener;
    d->epoll = -1;
    list_init(&d->attempts);
    list_init(&d->dead);
    list_init(&d->dials);
    d->places = calloc((size_t)table->count, sizeof *d->places);
    d->texts = calloc(texts_size(table), 1);
    d->made = calloc((size_t)table->count, 1);
    if (d->places == NULL || d->texts == NULL || d->made == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory to connect");
    places_fill(d, table);
    d->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (d->epoll < 0)
        return error_sys(err, -1, "descriptors to connect");
    fork_add(d->epoll);
    return HVD_OK;
}

void door_free(struct door *d)
{
    if (d == NULL)
        return;
    while (!list_is_empty(&d->dials))
        dial_end(d, list_entry(d->dials.next, struct dial, node));
    while (!list_is_empty(&d->attempts))
        attempt_end(d, list_entry(d->attempts.next, struct attempt, node));
    bury(d);
    replay_release(&d->seen);
    mesh_listener_free(d->listener);
    if (d->epoll >= 0)
        fork_close(d->epoll);
    free(d->places);
    free(d->texts);
    free(d->made);
    free(d);
}

int door_fd(const struct door *d)
{
    return d->epoll;
}

void door_need(struct door *d, int peer)
{
    dial_begin(d, peer, HS_DATA, clock_us() + (uint64_t)(d->m->conf->timeout_s * 1e6));
}

void door_watch(struct door *d, int peer)
{
    dial_begin(d, peer, HS_WATCH, clock_us() + (uint64_t)(d->m->conf->timeout_s * 1e6));
}

void door_forget(struct door *d, int peer)
{
    for (int purpose = HS_DATA; purpose <= HS_WATCH; purpose++) {
        struct dial *dial = dial_find(d, peer, (enum hs_purpose)purpose);

        if (dial != NULL)
            dial_end(d, dial);
    }
}

/* ---- Forming --------------------------------------------------------------------- */

/* Names everybody who is missing, and why as far as we know. */
static enum hvd_status too_late(struct door *d, const bool *want, struct hvd_error *err)
{
    enum hvd_status status = HVD_TIMEOUT;
    struct strbuf text;
    int first = -1;

    strbuf_init(&text);
    for (int r = 0; r < d->m->topology.size; r++) {
        const struct dial *dial = dial_find(d, r, HS_WATCH);

        if (!want[r] || door_has(d, r, HS_WATCH))
            continue;
        first = first < 0 ? r : first;
        strbuf_addf(&text, "%srank %d on %s", text.length > 0 ? ", " : "", r,
                    d->m->topology.hosts[r]);
        if (dial != NULL) {
            enum hvd_status cause = dial_cause(dial, &text);

            status = cause != HVD_TIMEOUT ? cause : status;
        }
    }
    error_set(err, status, first, "no connection to %s%s", text.text,
              status == HVD_VERSION ? "" : " within the time limit");
    strbuf_release(&text);
    return status;
}

static bool is_complete(const struct door *d, const bool *want)
{
    for (int r = 0; r < d->m->topology.size; r++)
        if (want[r] && !door_has(d, r, HS_WATCH))
            return false;
    return true;
}

enum hvd_status door_form(struct door *d, const bool *want, struct hvd_error *err)
{
    uint64_t deadline_us = d->m->deadline_us, next, now;

    for (int r = 0; r < d->m->topology.rank; r++)
        if (want[r])
            dial_begin(d, r, HS_WATCH, UINT64_MAX);
    while (!is_complete(d, want)) {
        struct pollfd p = {d->epoll, POLLIN, 0};
        const struct hvd_error *verdict = mesh_verdict(d->m);

        if (verdict != NULL) {
            *err = *verdict;
            return err->status;
        }
        now = clock_us();
        if (d->hopeless != NULL || now >= deadline_us)
            return too_late(d, want, err);
        next = door_step(d);
        next = next < deadline_us ? next : deadline_us;
        poll(&p, 1, next <= now ? 0 : (int)((next - now) / 1000 + 1));
    }
    return HVD_OK;
}
