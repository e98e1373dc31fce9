/*
 * rdv_client.c: the worker's end of the rendezvous (rendezvous.h).
 *
 * 1. A server that goes away before the table has come may be started again at the same
 *    place: the worker comes again and sends its entry again, for COMEBACK_US at most.
 * 2. The server is told how long the worker waits, a little less than it really does, so
 *    that its answer, which names who is missing, comes before the worker gives up.
 * 3. After the table one thread may poll and another one report: `lock` is between them.
 */
#include "rendezvous/rendezvous.h"

#define LOG_COMPONENT "rendezvous"
#include "base/clock.h"
#include "base/log.h"
#include "rendezvous/channel.h"
#include "rendezvous/rdv_dial.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COMEBACK_US 8000000             /* RELIABILITY F25: an error within 10 s */
#define MARGIN_US 500000                /* rule 2 */
#define RETURN_PAUSE_US 50000           /* before coming again; the dial pauses grow */

struct rdv_client {
    pthread_mutex_t lock;               /* rule 3 */
    struct channel channel;
    char server[DIAL_TEXT];
    bool over;                          /* verdict has come */
    struct hvd_error verdict;
};

/* Milliseconds for poll, rounded up. */
static int until_ms(uint64_t deadline_us)
{
    uint64_t now = clock_us();
    uint64_t ms = deadline_us > now ? (deadline_us - now + 999) / 1000 : 0;

    return ms > 1000000 ? 1000000 : (int)ms;
}

/* ---- Joining ---------------------------------------------------------------------- */

/* What one rdv_join works with. */
struct join {
    const struct rdv_options *opt;
    const struct table_entry *self;
    struct dial_target targets[DIAL_TARGETS];
    int target_count;
    uint64_t dial_from_us, dial_until_us;       /* limits of the next connection */
};

static enum hvd_status connect_once(struct rdv_client *c, const struct join *j,
                                    struct hvd_error *err)
{
    struct hs_identity id = {HS_RENDEZVOUS, j->self->rank, HS_ANY_RANK,
                             j->opt->generation, ""};
    struct dial_result result;
    enum hvd_status status;

    snprintf(id.job_id, sizeof id.job_id, "%s",
             j->opt->job_id != NULL ? j->opt->job_id : "");
    TRY(dial_race(j->targets, j->target_count, j->opt->key, &id, j->dial_from_us,
                  j->dial_until_us, &result, err));
    memcpy(c->server, result.target->text, sizeof c->server);
    channel_release(&c->channel);
    status = channel_init(&c->channel, result.fd, &result.keys, RDV_BODY_MAX, err);
    explicit_bzero(&result.keys, sizeof result.keys);
    return status;
}

static enum hvd_status send_entry(struct rdv_client *c, const struct table_entry *self,
                                  uint64_t deadline_us, struct hvd_error *err)
{
    uint64_t now = clock_us();
    uint64_t left_us = deadline_us > now ? deadline_us - now : 0;
    uint64_t margin_us = left_us / 4 < MARGIN_US ? left_us / 4 : MARGIN_US;
    uint64_t wait_ms = (left_us - margin_us) / 1000;
    enum hvd_status status;
    uint8_t *bytes;
    size_t n;

    TRY(put_rdv_entry(self, wait_ms < UINT32_MAX ? (uint32_t)wait_ms : UINT32_MAX, &bytes,
                      &n, err));
    status = channel_send(&c->channel, RDV_ENTRY, bytes, n, err);
    free(bytes);
    return status;
}

/* The next message, or HVD_TIMEOUT. */
static enum hvd_status await(struct rdv_client *c, uint64_t deadline_us,
                             struct channel_message *m, struct hvd_error *err)
{
    for (;;) {
        struct pollfd p = {.fd = c->channel.fd, .events = POLLIN};
        enum hvd_status status = channel_flush(&c->channel, err);

        if (status == HVD_AGAIN)
            p.events |= POLLOUT;
        else if (status != HVD_OK)
            return status;
        status = channel_receive(&c->channel, m, err);
        if (status != HVD_AGAIN)
            return status;
        if (clock_us() >= deadline_us)
            return error_set(err, HVD_TIMEOUT, -1,
                             "the rendezvous server at %s has our entry but did not answer "
                             "in time", c->server);
        poll(&p, 1, until_ms(deadline_us));
    }
}

static enum hvd_status take_table(const struct channel_message *m,
                                  const struct table_entry *self, struct table *table_p,
                                  struct hvd_error *err)
{
    const struct table_entry *own;

    TRY(get_table(table_p, m->body, m->n, err));
    own = self->rank < table_p->count ? &table_p->entries[self->rank] : NULL;
    if (own != NULL && own->pid == self->pid && own->generation == self->generation &&
        strcmp(own->host, self->host) == 0)
        return HVD_OK;
    table_release(table_p);
    return error_set(err, HVD_PROTO, -1, "the table does not hold what rank %d has sent",
                     (int)self->rank);
}

static enum hvd_status take_answer(struct rdv_client *c, const struct table_entry *self,
                                   uint64_t deadline_us, struct table *table_p,
                                   struct hvd_error *err)
{
    struct channel_message m;
    struct hvd_error verdict;

    TRY(await(c, deadline_us, &m, err));
    if (m.kind == RDV_TABLE)
        return take_table(&m, self, table_p, err);
    if (m.kind != RDV_VERDICT)
        return error_set(err, HVD_PROTO, -1, "the rendezvous server sent kind %d",
                         (int)m.kind);
    TRY(get_rdv_verdict(&verdict, m.body, m.n, err));
    *err = verdict;
    return verdict.status;
}

/* Over one connection; HVD_PEER_LOST: the server has gone. */
static enum hvd_status exchange(struct rdv_client *c, const struct join *j,
                                struct table *table_p, struct hvd_error *err)
{
    TRY(send_entry(c, j->self, j->opt->deadline_us, err));
    return take_answer(c, j->self, j->opt->deadline_us, table_p, err);
}

static enum hvd_status not_connected(const struct rdv_client *c, const struct join *j,
                                     enum hvd_status status, struct hvd_error *err)
{
    if (status != HVD_TIMEOUT || j->dial_until_us == j->opt->deadline_us)
        return status;
    return error_set(err, HVD_PEER_LOST, -1,
                     "the rendezvous server at %s has gone before all ranks had come, and "
                     "did not return within %d s", c->server, COMEBACK_US / 1000000);
}

/* Rule 1. */
static enum hvd_status join_until_done(struct rdv_client *c, struct join *j,
                                       struct table *table_p, struct hvd_error *err)
{
    for (;;) {
        enum hvd_status status = connect_once(c, j, err);
        uint64_t now;

        if (status != HVD_OK)
            return not_connected(c, j, status, err);
        status = exchange(c, j, table_p, err);
        now = clock_us();
        if (status != HVD_PEER_LOST || now >= j->opt->deadline_us)
            return status;
        log_info("the rendezvous server at %s has gone; waiting for its return", c->server);
        j->dial_from_us = now + RETURN_PAUSE_US;
        j->dial_until_us = now + COMEBACK_US < j->opt->deadline_us ? now + COMEBACK_US
                                                                   : j->opt->deadline_us;
    }
}

static enum hvd_status check_options(const struct rdv_options *opt,
                                     const struct table_entry *self, struct hvd_error *err)
{
    if (opt->job_id != NULL &&
        strlen(opt->job_id) >= sizeof ((struct hs_identity *)0)->job_id)
        return error_set(err, HVD_INVALID, -1, "job id '%s' is longer than 64 bytes",
                         opt->job_id);
    if (opt->port == 0)
        return error_set(err, HVD_INVALID, -1,
                         "the port of the rendezvous server is not given "
                         "(HOROVOD_GLOO_RENDEZVOUS_PORT)");
    if (self->rank < 0 || self->generation != opt->generation)
        return error_set(err, HVD_INVALID, -1, "entry of rank %d, generation %u",
                         (int)self->rank, self->generation);
    return HVD_OK;
}

enum hvd_status rdv_join(const struct rdv_options *opt, const struct table_entry *self,
                         struct rdv_client **client_p, struct table *table_p,
                         struct hvd_error *err)
{
    struct join j = {.opt = opt, .self = self, .dial_until_us = opt->deadline_us};
    struct rdv_client *c;
    enum hvd_status status;

    TRY(check_options(opt, self, err));
    TRY(resolve_targets(opt->addrs, opt->port, opt->deadline_us, j.targets,
                        &j.target_count, err));
    c = calloc(1, sizeof *c);
    if (c == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the rendezvous");
    pthread_mutex_init(&c->lock, NULL);
    status = join_until_done(c, &j, table_p, err);
    if (status != HVD_OK) {
        rdv_close(c);
        return status;
    }
    *client_p = c;
    return HVD_OK;
}

/* ---- Afterwards ------------------------------------------------------------------- */

int rdv_fd(const struct rdv_client *client)
{
    return client->channel.fd;
}

static enum hvd_status server_gone(struct rdv_client *c, struct hvd_error *err)
{
    channel_release(&c->channel);
    return error_set(err, HVD_PEER_LOST, -1, "the rendezvous server at %s has gone",
                     c->server);
}

static enum hvd_status poll_verdict(struct rdv_client *c, struct hvd_error *err)
{
    struct channel_message m;
    enum hvd_status status;

    if (c->over) {
        *err = c->verdict;
        return HVD_ABORTED;
    }
    if (c->channel.fd < 0)
        return server_gone(c, err);
    status = channel_receive(&c->channel, &m, err);
    if (status == HVD_AGAIN)
        return status;
    if (status != HVD_OK || m.kind != RDV_VERDICT ||
        get_rdv_verdict(&c->verdict, m.body, m.n, err) != HVD_OK)
        return server_gone(c, err);
    c->verdict.status = HVD_ABORTED;
    c->over = true;
    *err = c->verdict;
    return HVD_ABORTED;
}

enum hvd_status rdv_poll(struct rdv_client *client, struct hvd_error *err)
{
    enum hvd_status status;

    pthread_mutex_lock(&client->lock);
    status = poll_verdict(client, err);
    pthread_mutex_unlock(&client->lock);
    return status;
}

void rdv_report(struct rdv_client *client, const struct hvd_error *verdict)
{
    uint8_t bytes[RDV_VERDICT_MAX];
    struct hvd_error err;

    pthread_mutex_lock(&client->lock);
    if (client->channel.fd >= 0)
        channel_send(&client->channel, RDV_VERDICT, bytes, put_rdv_verdict(verdict, bytes),
                     &err);
    pthread_mutex_unlock(&client->lock);
}

void rdv_close(struct rdv_client *client)
{
    if (client == NULL)
        return;
    channel_release(&client->channel);
    pthread_mutex_destroy(&client->lock);
    free(client);
}
