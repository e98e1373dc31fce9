/*
 * rdv_dial.c: the race over the addresses of the rendezvous server.
 *
 * Each address is in one state:
 *   PAUSING     nothing under way; tries again at until_us
 *   CONNECTING  connect() under way
 *   PROVING     HELLO sent, REPLY expected before until_us
 *   LOST        it will not get better: our server, in another version
 *
 * 1. A refused connection is tried again with growing pauses: the server may come later.
 * 2. So is whoever does not prove the key, whatever it says or however it hangs up: it may
 *    be another machine under this address, or somebody who sits there until our server
 *    comes.  After REFUSALS in a row the user is told; the cause is in the message at the
 *    deadline.
 * 3. A port nobody listens on may be given to our own end of the connection, which then
 *    meets itself; that counts as refused.
 * 4. Only the winner gets a CONFIRM, so that the server sees one worker.
 */
#include "rendezvous/rdv_dial.h"

#define LOG_COMPONENT "rendezvous"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/strbuf.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define PAUSE_FIRST_US 5000
#define PAUSE_LAST_US 250000
#define REFUSALS 6                      /* 5 + 10 + ... + 160 ms: 0.3 s in all */

enum dial_state { DIAL_PAUSING, DIAL_CONNECTING, DIAL_PROVING, DIAL_LOST };

struct attempt {
    const struct dial_target *target;
    enum dial_state state;
    int fd;                             /* -1 unless CONNECTING or PROVING */
    uint64_t until_us;
    uint64_t pause_us;                  /* the next one */
    int refusals;                       /* connections without a proof */
    struct hs_dialer dialer;
    uint8_t reply[HS_REPLY];
    size_t got;
    struct hvd_error err;               /* why it is not connected */
    struct hvd_error hint;              /* the last who did not prove the key; or HVD_OK */
};

struct race {
    struct attempt attempts[DIAL_TARGETS];
    int count;
    const uint8_t *key;
    const struct hs_identity *id;
    struct dial_result *result;         /* fd >= 0: won */
};

static void attempt_close(struct attempt *a)
{
    if (a->fd >= 0)
        close(a->fd);
    a->fd = -1;
    hs_dialer_release(&a->dialer);
}

/* a->err says why. */
static void attempt_pause(struct attempt *a)
{
    log_debug("%s", a->err.text);
    attempt_close(a);
    a->state = DIAL_PAUSING;
    a->until_us = clock_us() + a->pause_us;
    a->pause_us = a->pause_us * 2 > PAUSE_LAST_US ? PAUSE_LAST_US : a->pause_us * 2;
}

static void attempt_lose(struct attempt *a)
{
    attempt_close(a);
    a->state = DIAL_LOST;
    a->until_us = UINT64_MAX;
}

/* Rule 2; a->err says what was wrong. */
static void attempt_refused(struct attempt *a)
{
    a->hint = a->err;
    if (++a->refusals == REFUSALS)
        log_warn("%s; trying again until the time limit", a->err.text);
    attempt_pause(a);
}

/* ---- Steps ------------------------------------------------------------------------ */

static void attempt_fail_sys(struct attempt *a, const char *what)
{
    error_sys(&a->err, -1, "%s: %s", a->target->text, what);
    attempt_pause(a);
}

/* Rule 3. */
static bool meets_itself(int fd)
{
    struct sockaddr_storage own = {0}, peer = {0};
    socklen_t own_n = sizeof own, peer_n = sizeof peer;

    return getsockname(fd, (struct sockaddr *)&own, &own_n) == 0 &&
           getpeername(fd, (struct sockaddr *)&peer, &peer_n) == 0 && own_n == peer_n &&
           memcmp(&own, &peer, own_n) == 0;
}

static void attempt_prove(struct race *r, struct attempt *a)
{
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    uint8_t hello[HS_HELLO];
    const int on = 1;

    if (meets_itself(a->fd)) {
        setsockopt(a->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        errno = ECONNREFUSED;
        attempt_fail_sys(a, "cannot connect");
        return;
    }
    setsockopt(a->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (hs_dial(&a->dialer, r->key, r->id, hello, &a->err) != HVD_OK) {
        attempt_lose(a);
        return;
    }
    if (send(a->fd, hello, HS_HELLO, MSG_NOSIGNAL) != HS_HELLO) {
        attempt_fail_sys(a, "cannot send");
        return;
    }
    a->state = DIAL_PROVING;
    a->got = 0;
    a->until_us = clock_us() + HS_DEADLINE_US;
}

static void attempt_begin(struct race *r, struct attempt *a)
{
    const struct dial_target *t = a->target;

    a->fd = socket(t->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (a->fd < 0) {
        attempt_fail_sys(a, "no socket");
    } else if (FAULT("rendezvous.connect")) {
        attempt_fail_sys(a, "cannot connect");
    } else if (connect(a->fd, (const struct sockaddr *)&t->address, t->address_n) == 0) {
        attempt_prove(r, a);
    } else if (errno == EINPROGRESS) {
        a->state = DIAL_CONNECTING;
        a->until_us = UINT64_MAX;       /* the kernel's limit, or the race's */
    } else {
        attempt_fail_sys(a, "cannot connect");
    }
}

static void attempt_connected(struct race *r, struct attempt *a)
{
    int code = 0;
    socklen_t n = sizeof code;

    getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &code, &n);
    errno = code;
    if (code == 0)
        attempt_prove(r, a);
    else
        attempt_fail_sys(a, "cannot connect");
}

/* Rule 4. */
static void attempt_win(struct race *r, struct attempt *a)
{
    uint8_t confirm[HS_CONFIRM];
    enum hvd_status status;

    status = hs_dial_finish(&a->dialer, a->reply, confirm, &r->result->keys, &a->err);
    if (status != HVD_OK) {
        error_prefix(&a->err, "%s", a->target->text);
        if (status == HVD_AUTH)
            attempt_refused(a);
        else
            attempt_lose(a);
        return;
    }
    if (send(a->fd, confirm, HS_CONFIRM, MSG_NOSIGNAL) != HS_CONFIRM) {
        attempt_fail_sys(a, "cannot send");
        return;
    }
    r->result->fd = a->fd;
    r->result->target = a->target;
    a->fd = -1;
}

static void attempt_read(struct race *r, struct attempt *a)
{
    ssize_t n = recv(a->fd, a->reply + a->got, HS_REPLY - a->got, 0);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        error_set(&a->err, HVD_AUTH, -1,
                  "%s ended the connection before the proof was complete: another job's "
                  "server, or the job key, job id or generation differ", a->target->text);
        attempt_refused(a);
        return;
    }
    a->got += (size_t)n;
    if (a->got == HS_REPLY)
        attempt_win(r, a);
}

/* until_us is over. */
static void attempt_due(struct race *r, struct attempt *a)
{
    if (a->state == DIAL_PAUSING) {
        attempt_begin(r, a);
    } else if (a->state == DIAL_PROVING) {
        error_set(&a->err, HVD_AUTH, -1,
                  "%s accepts connections but does not speak to us: not a rendezvous server",
                  a->target->text);
        attempt_refused(a);
    }
}

static void attempt_ready(struct race *r, struct attempt *a)
{
    if (a->state == DIAL_CONNECTING)
        attempt_connected(r, a);
    else if (a->state == DIAL_PROVING)
        attempt_read(r, a);
}

/* ---- The race --------------------------------------------------------------------- */

static uint64_t race_next_us(const struct race *r, uint64_t deadline_us)
{
    for (int i = 0; i < r->count; i++)
        if (r->attempts[i].until_us < deadline_us)
            deadline_us = r->attempts[i].until_us;
    return deadline_us;
}

static void race_sleep(const struct race *r, struct pollfd *polls, uint64_t next_us)
{
    uint64_t now = clock_us();
    uint64_t us = next_us > now ? next_us - now : 0;
    struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000 * 1000)};

    for (int i = 0; i < r->count; i++) {
        const struct attempt *a = &r->attempts[i];

        polls[i] = (struct pollfd){
            .fd = a->fd, .events = a->state == DIAL_CONNECTING ? POLLOUT : POLLIN};
    }
    if (ppoll(polls, (nfds_t)r->count, &t, NULL) < 0)
        memset(polls, 0, (size_t)r->count * sizeof *polls);
}

static bool race_is_lost(const struct race *r)
{
    for (int i = 0; i < r->count; i++)
        if (r->attempts[i].state != DIAL_LOST)
            return false;
    return true;
}

static void race_turn(struct race *r, const struct pollfd *polls)
{
    uint64_t now = clock_us();

    for (int i = 0; i < r->count && r->result->fd < 0; i++) {
        struct attempt *a = &r->attempts[i];

        if (polls[i].revents != 0)
            attempt_ready(r, a);
        else if (a->until_us <= now)
            attempt_due(r, a);
    }
}

static void add_cause(const struct attempt *a, struct strbuf *text)
{
    strbuf_addf(text, "%s%s", text->length == 0 ? "" : "; ",
                a->err.text[0] != '\0' ? a->err.text : a->target->text);
    if (a->err.text[0] == '\0' || a->state == DIAL_CONNECTING)
        strbuf_addf(text, ": does not answer");
    if (a->hint.status != HVD_OK && strcmp(a->hint.text, a->err.text) != 0)
        strbuf_addf(text, "; before that %s", a->hint.text);
}

/* The causes, one after the other.  A refused proof says more than a refused connection. */
static enum hvd_status race_failed(const struct race *r, double waited_s,
                                   struct hvd_error *err)
{
    enum hvd_status status = HVD_TIMEOUT;
    struct strbuf text;

    strbuf_init(&text);
    for (int i = 0; i < r->count; i++) {
        const struct attempt *a = &r->attempts[i];

        if (a->err.status == HVD_VERSION)
            status = HVD_VERSION;
        else if (a->hint.status != HVD_OK && status == HVD_TIMEOUT)
            status = HVD_AUTH;
        add_cause(a, &text);
    }
    if (status == HVD_AUTH)
        error_set(err, status, -1,
                  "no connection to the rendezvous server within %.1f s: %s", waited_s,
                  text.text);
    else if (status == HVD_TIMEOUT)
        error_set(err, status, -1,
                  "no connection to the rendezvous server within %.1f s: %s; it must run, "
                  "and be reachable from this host (firewall, interface)", waited_s,
                  text.text);
    else
        error_set(err, status, -1, "no connection to the rendezvous server: %s", text.text);
    strbuf_release(&text);
    return status;
}

enum hvd_status dial_race(const struct dial_target *targets, int count,
                          const uint8_t key[HS_KEY], const struct hs_identity *id,
                          uint64_t begin_us, uint64_t deadline_us,
                          struct dial_result *result_p, struct hvd_error *err)
{
    struct race r = {.count = count, .key = key, .id = id, .result = result_p};
    struct pollfd polls[DIAL_TARGETS] = {0};
    uint64_t start_us = clock_us();

    result_p->fd = -1;
    for (int i = 0; i < count; i++) {
        r.attempts[i].target = &targets[i];
        r.attempts[i].fd = -1;
        r.attempts[i].until_us = begin_us;
        r.attempts[i].pause_us = PAUSE_FIRST_US;
    }
    race_turn(&r, polls);
    while (result_p->fd < 0 && !race_is_lost(&r) && clock_us() < deadline_us) {
        race_sleep(&r, polls, race_next_us(&r, deadline_us));
        race_turn(&r, polls);
    }
    for (int i = 0; i < count; i++)
        attempt_close(&r.attempts[i]);
    if (result_p->fd >= 0)
        return HVD_OK;
    return race_failed(&r, (double)(clock_us() - start_us) / 1e6, err);
}
