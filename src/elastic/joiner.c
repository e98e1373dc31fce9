/*
 * joiner.c: machines that join a running job by themselves (horovodrun --join): both ends of
 * the connection over which their agent and the owner of the driver speak.
 *
 *   agent -- fd -- hvd_join == proved, encrypted channel == a thread -- fd -- owner
 *
 * 1. Whoever proved the join key says JOIN within a limit, and from then on BYTES only.
 *    What is in them is between agent and owner; nothing of it is looked at here.
 * 2. At most one message is under way to each side: who does not read holds up the other.
 * 3. The end of one side is the end of the other.
 */
#include "elastic/driver_int.h"

#define LOG_COMPONENT "elastic"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "rendezvous/rdv_dial.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define JOIN_TIMEOUT_S 30
#define SAY_US 5000000                  /* from the proof to JOIN */
#define LAST_US 2000000                 /* for what is unsent when fd is at its end */

/* ---- Carrying ------------------------------------------------------------------------ */

struct carrier {
    struct channel *channel;
    int fd;
    uint8_t bytes[ELASTIC_BYTES_MAX];   /* for fd, from `at` on */
    size_t at, n;
    bool is_at_end;                     /* fd is; the channel gets what is unsent */
    uint64_t until_us;                  /* then at the latest */
};

static enum hvd_status write_fd(struct carrier *c, struct hvd_error *err)
{
    ssize_t step;

    if (c->n == 0)
        return HVD_OK;
    step = send(c->fd, c->bytes + c->at, c->n - c->at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (step < 0)
        return errno == EAGAIN || errno == EINTR
                   ? HVD_OK : error_sys(err, -1, "what the job says has nobody to go to");
    c->at += (size_t)step;
    if (c->at == c->n)
        c->at = c->n = 0;
    return HVD_OK;
}

static enum hvd_status read_fd(struct carrier *c, struct hvd_error *err)
{
    uint8_t bytes[ELASTIC_BYTES_MAX];
    ssize_t n = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);

    if (n > 0)
        return channel_send(c->channel, RDV_BYTES, bytes, (size_t)n, err);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return HVD_OK;
    c->is_at_end = true;
    c->until_us = clock_us() + LAST_US;
    return HVD_OK;
}

/* HVD_AGAIN: no message. */
static enum hvd_status read_channel(struct carrier *c, struct hvd_error *err)
{
    struct channel_message m;

    TRY(channel_receive(c->channel, &m, err));
    if (m.kind != RDV_BYTES || m.n == 0 || m.n > sizeof c->bytes)
        return error_set(err, HVD_PROTO, -1, "a message of kind %d and %zu bytes from a "
                         "machine that joins", (int)m.kind, m.n);
    memcpy(c->bytes, m.body, m.n);
    c->at = 0;
    c->n = m.n;
    return write_fd(c, err);
}

static void wait_for_either(struct carrier *c)
{
    bool has_unsent = c->channel->unsent_n > 0, has_bytes = c->n > 0;
    struct pollfd p[2] = {
        {.fd = c->is_at_end ? -1 : c->fd,
         .events = (short)((has_unsent ? 0 : POLLIN) | (has_bytes ? POLLOUT : 0))},
        {.fd = c->channel->fd,
         .events = (short)((has_bytes ? 0 : POLLIN) | (has_unsent ? POLLOUT : 0))}};

    if (p[0].events == 0)
        p[0].fd = -1;                   /* its end is seen later */
    poll(p, 2, c->is_at_end ? LAST_US / 1000 : -1);
}

/* Until fd is at its end: HVD_OK. */
static enum hvd_status carry(struct channel *channel, int fd, struct hvd_error *err)
{
    struct carrier c = {.channel = channel, .fd = fd};
    enum hvd_status status;

    for (;;) {
        TRY(write_fd(&c, err));
        status = channel_flush(channel, err);
        if (status == HVD_OK && !c.is_at_end)
            status = read_fd(&c, err);
        if (status == HVD_OK || status == HVD_AGAIN)
            status = c.n == 0 ? read_channel(&c, err) : HVD_AGAIN;
        if (status != HVD_OK && status != HVD_AGAIN)
            return c.is_at_end ? HVD_OK : status;
        if (c.is_at_end && (channel->unsent_n == 0 || clock_us() >= c.until_us))
            return HVD_OK;
        if (status == HVD_AGAIN)
            wait_for_either(&c);
    }
}

/* ---- The driver's end ---------------------------------------------------------------- */

/* Rule 1. */
static enum hvd_status hear_join(struct channel *channel, struct elastic_join *join,
                                 struct hvd_error *err)
{
    uint64_t until_us = clock_us() + SAY_US, now_us;
    struct channel_message m;
    enum hvd_status status;

    while ((status = channel_receive(channel, &m, err)) == HVD_AGAIN) {
        struct pollfd p = {.fd = channel->fd, .events = POLLIN};

        now_us = clock_us();
        if (now_us >= until_us)
            return error_set(err, HVD_TIMEOUT, -1, "it has not said what it brings");
        poll(&p, 1, (int)((until_us - now_us) / 1000) + 1);
    }
    TRY(status);
    if (m.kind != RDV_JOIN)
        return error_set(err, HVD_PROTO, -1, "a message of kind %d before JOIN",
                         (int)m.kind);
    return get_elastic_join(join, m.body, m.n, err);
}

static enum hvd_status announce(struct joiner *j, const struct elastic_join *join,
                                struct hvd_error *err)
{
    struct hvd_driver *d = j->driver;
    struct hvd_driver_action out = {.size = sizeof out, .kind = HVD_DRIVER_JOIN,
                                    .slot = join->slots};
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return error_sys(err, -1, "no sockets for a machine that joins");
    j->fd = pair[0];
    out.fd = pair[1];
    memcpy(out.host, join->host, sizeof out.host);
    guests_lock(d->server);
    driver_put(d, &out);
    guests_unlock_quietly(d->server);
    return HVD_OK;
}

static void *joiner_run(void *context)
{
    struct joiner *j = context;
    struct elastic_join join;
    struct hvd_error err;

    if (hear_join(&j->channel, &join, &err) == HVD_OK && announce(j, &join, &err) == HVD_OK &&
        carry(&j->channel, j->fd, &err) == HVD_OK)
        log_debug("%s, which had joined, has left", join.host);
    else
        log_debug("a machine that joined: %s", err.text);
    if (j->fd >= 0)
        shutdown(j->fd, SHUT_RDWR);     /* rule 3 */
    shutdown(j->channel.fd, SHUT_RDWR);
    atomic_store(&j->is_done, true);
    return NULL;
}

static void joiner_free(struct joiner *j)
{
    pthread_join(j->thread, NULL);
    channel_release(&j->channel);
    if (j->fd >= 0)
        close(j->fd);
    free(j);
}

static void free_done(struct hvd_driver *d)
{
    for (struct joiner **at = &d->joiners; *at != NULL;) {
        struct joiner *j = *at;

        if (!atomic_load(&j->is_done)) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        joiner_free(j);
    }
}

void driver_take_joiner(struct hvd_driver *d, struct guest *guest)
{
    struct joiner *j = calloc(1, sizeof *j);

    free_done(d);
    if (j == NULL || d->is_over) {
        free(j);
        return;
    }
    j->driver = d;
    j->fd = -1;
    log_info("%s joins", guest_address(guest));
    guest_take(d->server, guest, &j->channel);
    j->channel.limit = ELASTIC_BYTES_MAX;
    if (thread_start(&j->thread, joiner_run, j) != 0) {
        channel_release(&j->channel);
        free(j);
        return;
    }
    j->next = d->joiners;
    d->joiners = j;
}

void driver_end_joiners(struct hvd_driver *d)
{
    guests_lock(d->server);
    d->is_over = true;                  /* nobody comes any more */
    guests_unlock_quietly(d->server);
    for (struct joiner *j = d->joiners; j != NULL; j = j->next)
        shutdown(j->channel.fd, SHUT_RDWR);
    while (d->joiners != NULL) {
        struct joiner *j = d->joiners;

        d->joiners = j->next;
        joiner_free(j);
    }
}

/* ---- The joiner's end ---------------------------------------------------------------- */

static enum hvd_status connect_driver(const struct hvd_join_options *opt,
                                      struct channel *channel, struct hvd_error *err)
{
    double limit_s = opt->timeout_s > 0 ? opt->timeout_s : JOIN_TIMEOUT_S;
    uint64_t deadline_us = clock_us() + (uint64_t)(limit_s * 1e6);
    struct hs_identity id = {HS_JOIN, 0, HS_ANY_RANK, 0, ELASTIC_JOIN_ID};
    struct dial_target targets[DIAL_TARGETS];
    struct dial_result result;
    enum hvd_status status;
    int count;

    TRY(resolve_targets(opt->addrs, opt->port, deadline_us, targets, &count, err));
    TRY(dial_race(targets, count, opt->key, &id, 0, deadline_us, &result, err));
    status = channel_init(channel, result.fd, &result.keys, ELASTIC_BYTES_MAX, err);
    explicit_bzero(&result.keys, sizeof result.keys);
    return status;
}

static enum hvd_status say_join(const struct hvd_join_options *opt, struct channel *channel,
                                struct hvd_error *err)
{
    struct elastic_join join = {.slots = opt->slots}, check;
    uint8_t bytes[ELASTIC_JOIN_MAX];
    size_t n;

    snprintf(join.host, sizeof join.host, "%s", opt->host);
    n = put_elastic_join(&join, bytes);
    TRY(get_elastic_join(&check, bytes, n, err));
    return channel_send(channel, RDV_JOIN, bytes, n, err);
}

enum hvd_status hvd_join(const struct hvd_join_options *opt, int fd, struct hvd_error *err)
{
    struct channel channel = {0};
    struct hvd_error local;
    enum hvd_status status;

    if (err == NULL)
        err = &local;
    if (opt->size != sizeof *opt || opt->key == NULL || opt->slots < 1 ||
        opt->slots > ELASTIC_JOIN_SLOTS)
        return error_set(err, HVD_INVALID, -1, "hvd_join: size %u, %d slots", opt->size,
                         opt->slots);
    status = connect_driver(opt, &channel, err);
    if (status == HVD_OK)
        status = say_join(opt, &channel, err);
    if (status == HVD_OK)
        status = carry(&channel, fd, err);
    channel_release(&channel);
    return status;
}
