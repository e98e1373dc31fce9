/*
 * driver_worker.c: one worker's connection to the driver.
 *
 * 1. A number that the membership does not expect (unknown, ended, removed, here already)
 *    gets no connection; what does not fit the state ends the connection.
 * 2. Silence is counted in PINGs that were sent and not answered, so that a driver that was
 *    stopped itself does not take its workers for dead.
 */
#include "elastic/driver_int.h"

#define LOG_COMPONENT "elastic"
#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PING_US 1000000

static struct driver_worker *driver_worker_of(struct hvd_driver *d, int number)
{
    return number >= 1 && number <= d->worker_count ? d->workers[number - 1] : NULL;
}

struct driver_worker *driver_worker_add(struct hvd_driver *d, int number)
{
    struct driver_worker *w = calloc(1, sizeof *w);

    BUG_ON(w == NULL || number != d->worker_count + 1);
    if (d->worker_count == d->worker_capacity) {
        d->worker_capacity = d->worker_capacity == 0 ? 16 : 2 * d->worker_capacity;
        d->workers = realloc(d->workers, (size_t)d->worker_capacity * sizeof *d->workers);
        BUG_ON(d->workers == NULL);
    }
    w->driver = d;
    w->number = number;
    d->workers[d->worker_count++] = w;
    return w;
}

/* ---- Coming and going ---------------------------------------------------------------- */

bool driver_worker_came(void *context, struct guest *guest, int32_t number, void **tag_p)
{
    struct hvd_driver *d = context;
    struct driver_worker *w = driver_worker_of(d, number);

    if (guest_purpose(guest) == HS_JOIN) {
        driver_take_joiner(d, guest);
        return false;                   /* it is no guest any more */
    }
    if (w == NULL || !membership_connected(d->membership, number, clock_us())) {
        log_warn("refused worker %d from %s: it is not expected", (int)number,
                 guest_address(guest));
        return false;
    }
    w->guest = guest;
    w->said = true;
    *tag_p = w;
    return true;
}

void driver_worker_left(void *context, void *tag, const char *why)
{
    struct driver_worker *w = tag;
    struct hvd_driver *d = context;

    log_debug("worker %d: %s", w->number, why);
    w->guest = NULL;
    membership_disconnected(d->membership, w->number, why, clock_us());
}

static void cut_off(struct driver_worker *w, const char *why)
{
    struct hvd_driver *d = w->driver;

    log_warn("worker %d is cut off: %s", w->number, why);
    guest_drop(d->server, w->guest);
    w->guest = NULL;
    membership_disconnected(d->membership, w->number, why, clock_us());
}

/* ---- What it says -------------------------------------------------------------------- */

static enum hvd_status take_ready(struct driver_worker *w, const struct channel_message *m,
                                  struct hvd_error *err)
{
    struct elastic_ready ready;

    TRY(get_elastic_ready(&ready, m->body, m->n, err));
    if (w->entry == NULL)
        w->entry = malloc(sizeof *w->entry);
    if (w->entry == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for an entry");
    *w->entry = ready.entry;
    if (ready.lost_rank >= 0)
        membership_accuse(w->driver->membership, w->number, ready.generation,
                          ready.lost_rank);
    if (!membership_ready(w->driver->membership, w->number, ready.generation,
                          ready.status != HVD_OK, ready.commits, clock_us()))
        return error_set(err, HVD_PROTO, -1, "it is not expected to be ready");
    return HVD_OK;
}

static enum hvd_status take_progress(struct driver_worker *w,
                                     const struct channel_message *m, struct hvd_error *err)
{
    struct membership *machine = w->driver->membership;
    uint32_t generation, what;

    TRY(get_elastic_pair(&generation, &what, ELASTIC_COMMITTED, m->body, m->n, err));
    if (what == ELASTIC_FORMED)
        membership_formed(machine, w->number, generation, clock_us());
    else if (what == ELASTIC_COMMITTED)
        membership_committed(machine, w->number, generation, clock_us());
    return HVD_OK;
}

static enum hvd_status take_message(struct driver_worker *w,
                                    const struct channel_message *m, struct hvd_error *err)
{
    switch (m->kind) {
    case RDV_READY:
        return take_ready(w, m, err);
    case RDV_PROGRESS:
        return take_progress(w, m, err);
    case RDV_NOTICE:
        membership_notice(w->driver->membership, w->number, clock_us());
        return HVD_OK;
    case RDV_PONG:
        return HVD_OK;
    default:
        return error_set(err, HVD_PROTO, -1, "it sent a message of kind %d", (int)m->kind);
    }
}

void driver_worker_said(void *context, void *tag, const struct channel_message *m)
{
    struct driver_worker *w = tag;
    struct hvd_error err;

    w->said = true;
    if (take_message(w, m, &err) != HVD_OK)
        cut_off(w, err.text);
}

/* ---- What it is told ----------------------------------------------------------------- */

void driver_tell(struct hvd_driver *d, int worker, enum rdv_kind kind, const void *body,
                 size_t n)
{
    struct driver_worker *w = driver_worker_of(d, worker);

    if (w != NULL && w->guest != NULL)
        guest_send(d->server, w->guest, kind, body, n);
}

void driver_tell_end(struct hvd_driver *d, const char *why)
{
    uint8_t bytes[RDV_VERDICT_MAX];
    struct hvd_error verdict;
    size_t n;

    error_set(&verdict, HVD_ABORTED, -1, "%s", why);
    n = put_rdv_verdict(&verdict, bytes);
    for (int i = 1; i <= d->worker_count; i++)
        driver_tell(d, i, RDV_VERDICT, bytes, n);
}

/* Rule 2. */
void driver_ping(struct hvd_driver *d, uint64_t now_us)
{
    if (now_us < d->ping_us)
        return;
    d->ping_us = now_us + PING_US;
    for (int i = 0; i < d->worker_count; i++) {
        struct driver_worker *w = d->workers[i];

        if (w->guest == NULL)
            continue;
        w->missed = w->said ? 0 : w->missed + 1;
        w->said = false;
        if (w->missed * (PING_US / 1e6) > d->heartbeat_s)
            cut_off(w, "it gives no sign of life");
        else
            guest_send(d->server, w->guest, RDV_PING, NULL, 0);
    }
}

/* ---- A generation -------------------------------------------------------------------- */

static void fill_entry(struct table_entry *e, const struct member_place *p, int size,
                       uint32_t generation)
{
    e->rank = p->rank;
    e->size = size;
    e->local_rank = p->local_rank;
    e->local_size = p->local_size;
    e->cross_rank = p->cross_rank;
    e->cross_size = p->cross_size;
    e->generation = generation;
}

static void send_assignment(struct hvd_driver *d, struct elastic_assign *assign)
{
    struct hvd_error err;

    for (int r = 0; r < assign->table.count; r++) {
        uint8_t *bytes;
        size_t n;

        assign->rank = r;
        if (put_elastic_assign(assign, &bytes, &n, &err) != HVD_OK) {
            driver_tell_end(d, err.text);
            return;
        }
        driver_tell(d, assign->workers[r], RDV_ASSIGN, bytes, n);
        free(bytes);
    }
}

void driver_assign(struct hvd_driver *d, const struct member_action *a)
{
    struct elastic_assign assign = {.sync = a->sync, .version = a->version};
    struct hvd_driver_action told = {.size = sizeof told, .kind = HVD_DRIVER_RANK};

    assign.table.generation = a->generation;
    assign.table.count = a->count;
    assign.table.entries = calloc((size_t)a->count, sizeof *assign.table.entries);
    assign.workers = calloc((size_t)a->count, sizeof *assign.workers);
    BUG_ON(assign.table.entries == NULL || assign.workers == NULL);
    for (int r = 0; r < a->count; r++) {
        const struct member_place *p = &a->places[r];

        assign.workers[r] = p->worker;
        assign.table.entries[r] = *driver_worker_of(d, p->worker)->entry;
        fill_entry(&assign.table.entries[r], p, a->count, a->generation);
        told.worker = p->worker;
        told.rank = r;
        told.job_size = a->count;
        told.local_rank = p->local_rank;
        told.local_size = p->local_size;
        told.cross_rank = p->cross_rank;
        told.cross_size = p->cross_size;
        driver_put(d, &told);
    }
    send_assignment(d, &assign);
    elastic_assign_release(&assign);
}
