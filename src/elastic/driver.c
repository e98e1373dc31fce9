/*
 * driver.c: the elastic driver's public functions (horovod/driver.h): events of the owner go
 * into the membership machine, its actions go to workers and owner.
 */
#include "elastic/driver_int.h"

#define LOG_COMPONENT "elastic"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define ELASTIC_TIMEOUT_S 600
#define GRACE_S 5
#define GONE_S 1                        /* agents need a millisecond */
#define HEARTBEAT_S 10

/* ---- Actions ------------------------------------------------------------------------- */

void driver_put(struct hvd_driver *d, const struct hvd_driver_action *action)
{
    uint64_t one = 1;

    if (d->queue_at == d->queue_count)
        d->queue_at = d->queue_count = 0;
    if (d->queue_count == d->queue_capacity) {
        d->queue_capacity = d->queue_capacity == 0 ? 16 : 2 * d->queue_capacity;
        d->queue = realloc(d->queue, (size_t)d->queue_capacity * sizeof *d->queue);
        BUG_ON(d->queue == NULL);
    }
    d->queue[d->queue_count++] = *action;
    while (write(d->event, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

static void put_start(struct hvd_driver *d, const struct member_action *a)
{
    const struct member_place *p = &a->places[0];
    struct hvd_driver_action out = {
        .size = sizeof out, .kind = HVD_DRIVER_START, .worker = a->worker, .slot = a->slot,
        .rank = p->rank, .job_size = a->count, .local_rank = p->local_rank,
        .local_size = p->local_size, .cross_rank = p->cross_rank,
        .cross_size = p->cross_size};

    snprintf(out.host, sizeof out.host, "%s", a->host);
    driver_worker_add(d, a->worker);
    driver_put(d, &out);
}

static void put_end(struct hvd_driver *d, const struct member_action *a)
{
    struct hvd_driver_action out = {.size = sizeof out, .kind = HVD_DRIVER_END,
                                    .worker = a->worker, .ok = a->ok};

    d->is_over = true;
    if (!a->ok)
        driver_tell_end(d, a->text);
    snprintf(out.text, sizeof out.text, "%s", a->text);
    driver_put(d, &out);
}

static void put_simple(struct hvd_driver *d, const struct member_action *a,
                       enum hvd_driver_kind kind)
{
    struct hvd_driver_action out = {.size = sizeof out, .kind = kind, .worker = a->worker,
                                    .grace_s = a->grace_ms / 1e3};

    snprintf(out.text, sizeof out.text, "%s", a->text);
    driver_put(d, &out);
}

/* Takes the machine's actions. */
static void driver_act(struct hvd_driver *d)
{
    uint8_t pair[ELASTIC_PAIR];
    struct member_action a;

    while (membership_next(d->membership, &a))
        switch (a.kind) {
        case MEMBER_START:
            put_start(d, &a);
            break;
        case MEMBER_STOP:
            put_simple(d, &a, HVD_DRIVER_STOP);
            break;
        case MEMBER_ASSIGN:
            driver_assign(d, &a);
            break;
        case MEMBER_RETIRE:
            driver_tell(d, a.worker, RDV_RETIRE, a.text, strlen(a.text));
            break;
        case MEMBER_UPDATE:
            put_elastic_pair(pair, a.version, a.update);
            driver_tell(d, a.worker, RDV_UPDATE, pair, sizeof pair);
            break;
        case MEMBER_SAY:
            put_simple(d, &a, HVD_DRIVER_SAY);
            break;
        case MEMBER_END:
            put_end(d, &a);
            break;
        }
}

enum hvd_status hvd_driver_next(struct hvd_driver *d, struct hvd_driver_action *action)
{
    enum hvd_status status = HVD_AGAIN;
    uint64_t count;

    guests_lock(d->server);
    if (d->queue_at < d->queue_count) {
        *action = d->queue[d->queue_at++];
        status = HVD_OK;
    }
    if (d->queue_at == d->queue_count)
        while (read(d->event, &count, sizeof count) < 0 && errno == EINTR)
            ;
    guests_unlock_quietly(d->server);
    return status;
}

int hvd_driver_fd(const struct hvd_driver *d)
{
    return d->event;
}

/* ---- Events -------------------------------------------------------------------------- */

static uint64_t on_turn(void *context, uint64_t now_us)
{
    struct hvd_driver *d = context;
    uint64_t due;

    membership_tick(d->membership, now_us);
    driver_ping(d, now_us);
    driver_act(d);
    due = membership_deadline_us(d->membership);
    return due < d->ping_us ? due : d->ping_us;
}

void hvd_driver_hosts(struct hvd_driver *d, const struct hvd_host *hosts, int count)
{
    guests_lock(d->server);
    membership_hosts(d->membership, hosts, count, clock_us());
    driver_act(d);
    guests_unlock(d->server);
}

void hvd_driver_discovery_failed(struct hvd_driver *d, const char *why)
{
    guests_lock(d->server);
    membership_discovery_failed(d->membership, why, clock_us());
    driver_act(d);
    guests_unlock(d->server);
}

void hvd_driver_worker_ended(struct hvd_driver *d, int worker, int code, int signal,
                             const char *text)
{
    guests_lock(d->server);
    membership_ended(d->membership, worker, code, signal, text, clock_us());
    driver_act(d);
    guests_unlock(d->server);
}

void hvd_driver_host_notice(struct hvd_driver *d, const char *host)
{
    guests_lock(d->server);
    membership_host_notice(d->membership, host, clock_us());
    driver_act(d);
    guests_unlock(d->server);
}

void hvd_driver_worker_notice(struct hvd_driver *d, int worker)
{
    guests_lock(d->server);
    membership_notice(d->membership, worker, clock_us());
    driver_act(d);
    guests_unlock(d->server);
}

void hvd_driver_leave(struct hvd_driver *d)
{
    guests_lock(d->server);
    membership_leave(d->membership, clock_us());
    driver_act(d);
    guests_unlock(d->server);
}

void hvd_driver_abort(struct hvd_driver *d, const char *why)
{
    guests_lock(d->server);
    driver_tell_end(d, why);
    guests_unlock(d->server);
}

/* ---- Looking ------------------------------------------------------------------------- */

uint16_t hvd_driver_port(const struct hvd_driver *d)
{
    return hvd_server_port(d->server);
}

size_t hvd_driver_status(struct hvd_driver *d, char *buffer, size_t capacity)
{
    struct strbuf text;
    size_t length;

    strbuf_init(&text);
    guests_lock(d->server);
    membership_describe(d->membership, clock_us(), &text);
    guests_unlock_quietly(d->server);
    if (capacity > 0)
        snprintf(buffer, capacity, "%s", text.text);
    length = text.length;
    strbuf_release(&text);
    return length;
}

size_t hvd_driver_environment(const struct hvd_driver *d,
                              const struct hvd_driver_action *start, const char *addrs,
                              char *buffer, size_t capacity)
{
    return (size_t)snprintf(
        buffer, capacity,
        "HOROVOD_ELASTIC=1\nHOROVOD_WORKER=%d\nHOROVOD_HOSTNAME=%.*s\nHOROVOD_RANK=%d\n"
        "HOROVOD_SIZE=%d\nHOROVOD_LOCAL_RANK=%d\nHOROVOD_LOCAL_SIZE=%d\n"
        "HOROVOD_CROSS_RANK=%d\nHOROVOD_CROSS_SIZE=%d\nHOROVOD_GLOO_RENDEZVOUS_ADDR=%s\n"
        "HOROVOD_GLOO_RENDEZVOUS_PORT=%d\nHOROVOD_JOB_ID=%s\n",
        start->worker, (int)strcspn(start->host, "#"), start->host, start->rank,
        start->job_size, start->local_rank, start->local_size, start->cross_rank,
        start->cross_size, addrs, hvd_driver_port(d), d->job_id);
}

/* ---- Life ---------------------------------------------------------------------------- */

static enum hvd_status check_options(const struct hvd_driver_options *opt,
                                     struct hvd_error *err)
{
    int min_np = opt->min_np > 0 ? opt->min_np : opt->np;

    if (opt->size != sizeof *opt)
        return error_set(err, HVD_INVALID, -1,
                         "hvd_driver_options.size is %u, this library expects %zu",
                         opt->size, sizeof *opt);
    if (opt->np < 1 || min_np > opt->np || (opt->max_np > 0 && opt->max_np < opt->np))
        return error_set(err, HVD_INVALID, -1,
                         "min-np %d, np %d and max-np %d must not decrease", min_np,
                         opt->np, opt->max_np);
    if (opt->cooldown_lo_s < 0 || opt->cooldown_lo_s > opt->cooldown_hi_s ||
        opt->cooldown_hi_s > 3600 || (opt->cooldown_hi_s > 0 && opt->cooldown_lo_s < 1))
        return error_set(err, HVD_INVALID, -1,
                         "a cooldown range of %g to %g s is not within 1 to 3600",
                         opt->cooldown_lo_s, opt->cooldown_hi_s);
    return HVD_OK;
}

static struct membership *make_membership(const struct hvd_driver_options *opt)
{
    double limit_s = opt->elastic_timeout_s > 0 ? opt->elastic_timeout_s
                                                : ELASTIC_TIMEOUT_S;
    struct membership_options machine = {
        .np = opt->np, .min_np = opt->min_np > 0 ? opt->min_np : opt->np,
        .max_np = opt->max_np, .reset_limit = opt->reset_limit,
        .restarts_per_slot = opt->restarts_per_slot,
        .elastic_timeout_us = (uint64_t)(limit_s * 1e6),
        .cooldown_lo_s = opt->cooldown_lo_s, .cooldown_hi_s = opt->cooldown_hi_s,
        .grace_ms = (uint32_t)((opt->grace_s >= 0 ? opt->grace_s : GRACE_S) * 1000),
        .gone_ms = (uint32_t)((opt->gone_s > 0 ? opt->gone_s : GONE_S) * 1000),
        .seed = clock_us()};

    return membership_new(&machine);
}

enum hvd_status hvd_driver_new(const struct hvd_driver_options *opt,
                               struct hvd_driver **driver_p, struct hvd_error *err)
{
    struct hvd_server_options server = {
        .size = sizeof server, .key = opt->key, .job_id = opt->job_id,
        .listen_addrs = opt->listen_addrs, .listen_addr_count = opt->listen_addr_count,
        .port = opt->port, .worker_count = 1};
    struct guest_hooks hooks = {.purpose = HS_ELASTIC, .limit = ELASTIC_READY_MAX,
                                .came = driver_worker_came, .said = driver_worker_said,
                                .left = driver_worker_left, .turn = on_turn,
                                .join_key = opt->join_key, .join_id = ELASTIC_JOIN_ID};
    struct hvd_driver *d;
    enum hvd_status status;

    TRY(check_options(opt, err));
    d = calloc(1, sizeof *d);
    if (d == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for an elastic driver");
    d->heartbeat_s = opt->heartbeat_s > 0 ? opt->heartbeat_s : HEARTBEAT_S;
    snprintf(d->job_id, sizeof d->job_id, "%s", opt->job_id != NULL ? opt->job_id : "");
    d->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    d->membership = make_membership(opt);
    hooks.context = d;
    status = d->event < 0 || d->membership == NULL
                 ? error_sys(err, -1, "the elastic driver has no descriptor or memory")
                 : guests_server_new(&server, &hooks, &d->server, err);
    if (status != HVD_OK) {
        hvd_driver_free(d);
        return status;
    }
    *driver_p = d;
    return HVD_OK;
}

void hvd_driver_free(struct hvd_driver *d)
{
    if (d == NULL)
        return;
    if (d->server != NULL)
        driver_end_joiners(d);
    hvd_server_free(d->server);
    for (int i = d->queue_at; i < d->queue_count; i++)
        if (d->queue[i].kind == HVD_DRIVER_JOIN)
            close(d->queue[i].fd);
    for (int i = 0; i < d->worker_count; i++) {
        free(d->workers[i]->entry);
        free(d->workers[i]);
    }
    free(d->workers);
    free(d->queue);
    membership_free(d->membership);
    if (d->event >= 0)
        close(d->event);
    free(d);
}
