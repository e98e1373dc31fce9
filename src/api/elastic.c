/*
 * elastic.c: the worker's side of an elastic job: hvd_elastic_* of horovod.h, and the way to
 * an assignment.
 *
 * 1. The connection to the driver outlives jobs: it is made by the first hvd_init and ends
 *    with the process.
 * 2. Everything but the numbers that hvd_elastic_pending and hvd_elastic_committed touch is
 *    guarded by the lock of job.c, which is held during init and shutdown.
 */
#include "api/elastic.h"

#include "base/clock.h"
#include "base/log.h"
#include "elastic/driver_link.h"
#include "horovod/driver.h"

#include <stdatomic.h>
#include <string.h>

#define LOG_COMPONENT "elastic"

static struct driver_link *_Atomic link_to_driver;      /* NULL: none, or not yet */
static struct hvd_elastic info;         /* of the present generation */
static atomic_uint generation;          /* the same as info.generation */
static _Atomic uint64_t commits;
static atomic_uint committed_generation;        /* the driver was told of a commit in it */
static enum hvd_status ended_status;    /* how the last generation ended */
static int32_t ended_rank = -1;

static enum hvd_status open_link(const struct job *job, struct hvd_error *err)
{
    struct driver_link_options opt = {
        .addrs = job->conf.rendezvous_addr, .port = (uint16_t)job->conf.rendezvous_port,
        .key = job->key, .job_id = job->conf.job_id, .worker = (int32_t)job->conf.worker,
        .deadline_us = clock_us() + (uint64_t)(job->conf.timeout_s * 1e6),
        .on_verdict = job_fail};
    struct driver_link *opened;

    if (atomic_load(&link_to_driver) != NULL)
        return HVD_OK;
    TRY(driver_link_open(&opt, &opened, err));
    atomic_store(&link_to_driver, opened);
    return HVD_OK;
}

static void make_ready(struct elastic_ready *ready, const struct table_entry *self,
                       const struct hvd_error *failed)
{
    ready->generation = info.generation;
    ready->commits = atomic_load(&commits);
    ready->lost_rank = failed != NULL ? failed->rank : ended_rank;
    ready->status = failed != NULL ? failed->status : ended_status;
    ready->entry = *self;
    ready->entry.rank = 0;
    ready->entry.size = 1;
    ready->entry.local_rank = ready->entry.local_size = -1;
    ready->entry.cross_rank = ready->entry.cross_size = -1;
    ready->entry.generation = 0;
}

/* All members see the same table, and come to the same result. */
static enum hvd_status check_agreement(const struct table *t, struct hvd_error *err)
{
    for (int r = 1; r < t->count; r++)
        if (memcmp(t->entries[r].config_hash, t->entries[0].config_hash,
                   sizeof t->entries[0].config_hash) != 0)
            return error_set(err, HVD_MISMATCH, r,
                             "rank %d on %s disagrees with rank 0 on %s: '%.200s' is not "
                             "'%.200s'", r, t->entries[r].host, t->entries[0].host,
                             t->entries[r].config_text, t->entries[0].config_text);
    return HVD_OK;
}

static void take_place(struct job *job, const struct elastic_assign *assign)
{
    const struct table_entry *own = &assign->table.entries[assign->rank];
    struct config *conf = &job->conf;

    conf->rank = own->rank;
    conf->size = own->size;
    conf->local_rank = own->local_rank;
    conf->local_size = own->local_size;
    conf->cross_rank = own->cross_rank;
    conf->cross_size = own->cross_size;
    conf->generation = own->generation;
    info = (struct hvd_elastic){.size = sizeof info, .is_elastic = true,
                                .worker = (int)conf->worker, .sync = assign->sync,
                                .generation = own->generation};
    atomic_store(&generation, info.generation);
    ended_status = HVD_OK;
    ended_rank = -1;
    log_set_rank((int)own->rank);
}

void elastic_prepare(struct config *conf)
{
    conf->rank = 0;
    conf->size = 2;                     /* there may be others to listen for */
    conf->local_rank = conf->local_size = -1;
    conf->cross_rank = conf->cross_size = -1;
}

enum hvd_status elastic_join(struct job *job, const struct table_entry *self,
                             const struct hvd_error *failed, struct table *table,
                             struct hvd_error *err)
{
    struct elastic_assign assign = {0};
    struct elastic_ready ready;
    enum hvd_status status;

    TRY(open_link(job, err));
    make_ready(&ready, self, failed);
    TRY(driver_link_join(atomic_load(&link_to_driver), &ready, &assign, err));
    take_place(job, &assign);
    status = check_agreement(&assign.table, err);
    *table = assign.table;
    assign.table = (struct table){0};
    elastic_assign_release(&assign);
    return status;
}

void elastic_formed(const struct job *job)
{
    struct driver_link *m = atomic_load(&link_to_driver);

    if (m != NULL)
        driver_link_progress(m, (uint32_t)job->conf.generation, ELASTIC_FORMED);
}

void elastic_ended(const struct hvd_error *verdict)
{
    ended_status = verdict != NULL ? verdict->status : HVD_OK;
    ended_rank = verdict != NULL ? verdict->rank : -1;
}

void elastic_forget(void)
{
    struct driver_link *m = atomic_exchange(&link_to_driver, NULL);

    if (m != NULL)
        driver_link_forget(m);
    memset(&info, 0, sizeof info);
    atomic_store(&generation, 0);
}

/* ---- horovod.h ----------------------------------------------------------------------- */

void hvd_elastic_info(struct hvd_elastic *out)
{
    *out = info;
    out->size = sizeof *out;
}

unsigned hvd_elastic_pending(uint32_t *version_p)
{
    struct driver_link *m = atomic_load_explicit(&link_to_driver, memory_order_acquire);

    *version_p = 0;
    return m != NULL ? driver_link_pending(m, version_p) : 0;
}

void hvd_elastic_committed(uint64_t count)
{
    struct driver_link *m = atomic_load_explicit(&link_to_driver, memory_order_acquire);
    unsigned now = atomic_load_explicit(&generation, memory_order_relaxed);

    atomic_store_explicit(&commits, count, memory_order_relaxed);
    if (m == NULL || atomic_load_explicit(&committed_generation, memory_order_relaxed) == now)
        return;
    atomic_store(&committed_generation, now);
    driver_link_progress(m, now, ELASTIC_COMMITTED);
}

void hvd_elastic_leave(void)
{
    struct driver_link *m = atomic_load(&link_to_driver);

    if (m != NULL)
        driver_link_leave(m);
}
