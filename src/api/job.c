/*
 * job.c: hvd_init and hvd_shutdown: forms the one job of this process and ends it.
 *
 * 1. `lock` guards the change of state; it is held while a job forms or ends.
 * 2. Users of the job hold a reference (job_use .. job_done), so that shutdown frees the
 *    engine only after the last of them has come back; their calls end soon, because
 *    engine_stop has failed every operation by then.
 * 3. A forked child has no job: forks are counted (getpid would be a system call in every
 *    operation).
 * 4. In an elastic job rank and size come from the driver, and a generation that does not
 *    form leads to the next one, as long as the driver gives one.
 */
#include "api/job.h"

#include "api/elastic.h"
#include "api/formed.h"
#include "api/responder.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/secret.h"
#include "base/thread.h"
#include "collective/collective.h"
#include "horovod/driver.h"
#include "rendezvous/rendezvous.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOG_COMPONENT "api"

#define SERVE_ADDRS_MAX 16

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct job *_Atomic current;     /* NULL: no job */
static atomic_uint users;               /* calls under way that use `current` */
static atomic_int forks;                /* between us and the first process of the line */

static void count_fork(void)
{
    atomic_fetch_add(&forks, 1);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, count_fork);
}

static bool is_ours(const struct job *job)
{
    return job->forks == atomic_load_explicit(&forks, memory_order_relaxed);
}

/* Whoever started the job hears who is to blame before the user hears of a failure: else a
 * rank that fails because of another one could end first, unexplained. */
static void report(void *context, const struct hvd_error *why)
{
    struct job *job = context;

    if (job->rdv != NULL)
        rdv_report(job->rdv, why);
    job->has_reported = true;
}

/* The mesh follows the server's connection and knows the verdict: the one is closed first,
 * the other is asked before. */
static void leave(struct job *job, bool goodbye)
{
    const struct hvd_error *verdict = job->mesh != NULL ? mesh_verdict(job->mesh) : NULL;

    if (verdict != NULL && !job->has_reported)
        report(job, verdict);
    if (job->mesh != NULL)
        mesh_close(job->mesh, goodbye);
    (void)FAULT("job.leave");           /* between its two farewells */
    if (job->rdv != NULL)
        rdv_close(job->rdv);
}

static void job_free(struct job *job, bool goodbye)
{
    if (job->engine != NULL)
        engine_free(job->engine);
    leave(job, goodbye);
    if (job->server != NULL)
        hvd_server_free(job->server);
    config_release(&job->conf);
    secret_free(job->key, HVD_KEY_BYTES);
    free(job);
}

/* ---- Forming ------------------------------------------------------------------------ */

static enum hvd_status check_identity(const struct config *conf, struct hvd_error *err)
{
    if (conf->rank >= conf->size)
        return error_set(err, HVD_INVALID, -1,
                         "HOROVOD_RANK is %lld, but HOROVOD_SIZE is %lld",
                         (long long)conf->rank, (long long)conf->size);
    if (conf->size > 1 && (conf->rendezvous_addr[0] == '\0' || conf->rendezvous_port < 0))
        return error_set(err, HVD_INVALID, -1,
                         "a job of %lld processes needs HOROVOD_GLOO_RENDEZVOUS_ADDR and "
                         "HOROVOD_GLOO_RENDEZVOUS_PORT; start it with horovodrun, or see "
                         "docs/horovodrun.md", (long long)conf->size);
    if (strcmp(conf->security, "auth") != 0 && strcmp(conf->security, "encrypt") != 0)
        return error_set(err, HVD_INVALID, -1,
                         "HOROVOD_SECURITY: '%.32s' is not auth or encrypt",
                         conf->security);
    return HVD_OK;
}

static enum hvd_status get_key(struct job *job, struct hvd_error *err)
{
    bool found = false;

    job->key = secret_new(HVD_KEY_BYTES);
    if (job->key == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the job key");
    TRY(job_key_read(&job->conf, job->key, &found, err));
    if (found)
        return HVD_OK;
    if (job->conf.size == 1)
        return hvd_key_generate(job->key, err);
    if (job->identity.launcher == NULL)
        return error_set(err, HVD_INVALID, -1,
                         "no job key: start the job with horovodrun, or give the key by "
                         "HOROVOD_KEY_FILE or HOROVOD_KEY");
    job->has_user_key = true;
    return hvd_key_of_user(job->conf.job_id, job->identity.one_host, job->key, err);
}

/* What all ranks must agree on, as text. */
static void describe_agreement(const struct job *job, const struct hvd_options *opt,
                               bool dynamic, char *text, size_t capacity)
{
    size_t used = (size_t)snprintf(text, capacity, "size %lld, security %s, dynamic sets %d",
                                   job->is_elastic ? 0 : (long long)job->conf.size,
                                   job->conf.security, dynamic);

    for (int i = 0; opt != NULL && i < opt->set_count && used < capacity; i++) {
        used += (size_t)snprintf(text + used, capacity - used, ", set %d [", i + 1);
        for (int k = 0; k < opt->sets[i].rank_count && used < capacity; k++)
            used += (size_t)snprintf(text + used, capacity - used, "%s%d",
                                     k > 0 ? " " : "", opt->sets[i].ranks[k]);
        if (used < capacity)
            used += (size_t)snprintf(text + used, capacity - used, "]");
    }
}

static void describe_self(struct table_entry *self, const struct job *job,
                          const struct hvd_options *opt, bool dynamic)
{
    uint32_t code;

    self->rank = (int32_t)job->conf.rank;
    self->size = (int32_t)job->conf.size;
    self->local_rank = (int32_t)job->conf.local_rank;
    self->local_size = (int32_t)job->conf.local_size;
    self->cross_rank = (int32_t)job->conf.cross_rank;
    self->cross_size = (int32_t)job->conf.cross_size;
    self->pid = (int32_t)getpid();
    self->generation = (uint32_t)job->conf.generation;
    snprintf(self->version, sizeof self->version, "%s", hvd_version());
    describe_agreement(job, opt, dynamic, self->config_text, sizeof self->config_text);
    for (size_t i = 0; i < sizeof self->config_hash; i += 4) {
        self->config_text[sizeof self->config_text - 1] = '\0';
        code = hash_code(self->config_text, strlen(self->config_text)) + (uint32_t)i;
        memcpy(self->config_hash + i, &code, 4);
    }
}

static enum hvd_status serve(struct job *job, struct hvd_error *err)
{
    char addrs[HVD_ADDR_MAX * SERVE_ADDRS_MAX], *rest = NULL;
    const char *list[SERVE_ADDRS_MAX];
    struct hvd_server_options opt = {
        .size = sizeof opt, .key = job->key, .job_id = job->conf.job_id,
        .listen_addrs = list, .port = (uint16_t)job->conf.rendezvous_port,
        .worker_count = (int)job->conf.size, .timeout_s = job->conf.timeout_s,
    };

    if (!job->conf.rendezvous_serve || job->conf.rank != 0)
        return HVD_OK;
    snprintf(addrs, sizeof addrs, "%s", job->conf.rendezvous_addr);
    for (char *addr = strtok_r(addrs, ",", &rest);
         addr != NULL && opt.listen_addr_count < SERVE_ADDRS_MAX;
         addr = strtok_r(NULL, ",", &rest))
        list[opt.listen_addr_count++] = addr;
    return hvd_server_new(&opt, &job->server, err);
}

static enum hvd_status meet(struct job *job, const struct table_entry *self,
                            uint64_t deadline_us, struct table *table,
                            struct hvd_error *err)
{
    struct rdv_options opt = {
        .addrs = job->conf.rendezvous_addr, .port = (uint16_t)job->conf.rendezvous_port,
        .key = job->key, .job_id = job->conf.job_id,
        .generation = (uint32_t)job->conf.generation, .deadline_us = deadline_us,
    };

    if (job->is_elastic)
        return elastic_join(job, self, job->has_failed ? &job->failed : NULL, table, err);
    if (job->conf.size > 1)
        return rdv_join(&opt, self, &job->rdv, table, err);
    table->generation = opt.generation;
    table->count = 1;
    table->entries = malloc(sizeof *table->entries);
    if (table->entries == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the table");
    table->entries[0] = *self;
    return HVD_OK;
}

static enum hvd_status read_push(void *context, struct hvd_error *err)
{
    return rdv_poll(context, err);
}

/* Whoever started the job may end it at any time; once its server has gone, nobody does. */
static enum hvd_status follow_server(struct job *job, struct hvd_error *err)
{
    enum hvd_status status = job->rdv != NULL ? rdv_poll(job->rdv, err) : HVD_OK;

    if (status == HVD_AGAIN)
        return mesh_follow(job->mesh, rdv_fd(job->rdv), read_push, job->rdv, err);
    return status == HVD_ABORTED ? status : HVD_OK;
}

static enum hvd_status check_sets(const struct job *job, const struct hvd_options *opt,
                                  struct hvd_error *err)
{
    for (int i = 0; opt != NULL && i < opt->set_count; i++) {
        const struct hvd_set_spec *s = &opt->sets[i];

        if (s->rank_count < 1)
            return error_set(err, HVD_INVALID, -1, "process set %d has no ranks", i);
        for (int k = 0; k < s->rank_count; k++)
            if (s->ranks[k] < 0 || s->ranks[k] >= job->conf.size ||
                (k > 0 && s->ranks[k] <= s->ranks[k - 1]))
                return error_set(err, HVD_INVALID, -1,
                                 "process set %d: rank %d is out of range 0..%lld, or the "
                                 "ranks are not in ascending order", i, s->ranks[k],
                                 (long long)job->conf.size - 1);
    }
    return HVD_OK;
}

static enum hvd_status form_mesh(struct job *job, const struct hvd_options *opt,
                                 bool dynamic, struct hvd_error *err)
{
    uint64_t start_us = clock_us();
    uint64_t deadline_us = start_us + (uint64_t)(job->conf.timeout_s * 1e6);
    struct mesh_options mesh_opt = {
        .conf = &job->conf, .key = job->key, .job_id = job->conf.job_id,
        .generation = (uint32_t)job->conf.generation, .deadline_us = deadline_us,
        .board_bytes = coll_board_bytes(),
    };
    struct table_entry *self = calloc(1, sizeof *self);
    struct mesh_listener *listener = NULL;
    struct table table = {0};
    enum hvd_status status = HVD_OK;

    if (self == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the table");
    if (job->is_elastic)
        elastic_prepare(&job->conf);
    describe_self(self, job, opt, dynamic);
    TRY_OUT(serve(job, err));
    TRY_OUT(mesh_listen(&mesh_opt, self, &listener, err));
    status = meet(job, self, deadline_us, &table, err);
    if (status == HVD_OK)
        status = check_sets(job, opt, err);
    if (status != HVD_OK) {
        mesh_listener_free(listener);
        goto out;
    }
    mesh_opt.generation = (uint32_t)job->conf.generation;
    if (job->is_elastic)                /* the driver may have taken its time */
        mesh_opt.deadline_us = clock_us() + (uint64_t)(job->conf.timeout_s * 1e6);
    TRY_OUT(mesh_open(&mesh_opt, listener, &table, &job->mesh, err));
    formed_log(job->mesh, &table, start_us);
    status = follow_server(job, err);
out:
    table_release(&table);
    free(self);
    return status;
}

static int hierarchical(const char *text)
{
    return text[0] == '\0' ? -1 : strcmp(text, "0") != 0;
}

static enum hvd_status start_engine(struct job *job, const struct hvd_options *opt,
                                    bool dynamic, struct hvd_error *err)
{
    struct engine_options engine_opt = {.mesh = job->mesh, .conf = &job->conf,
                                        .dynamic_sets = dynamic, .thread = true,
                                        .failing = report, .context = job};

    if (job->conf.algorithms[0] != '\0')
        TRY(coll_set_rules(job->conf.algorithms, err));
    coll_set_hierarchical(hierarchical(job->conf.hierarchical_allreduce),
                          hierarchical(job->conf.hierarchical_allgather));
    TRY(engine_new(&engine_opt, &job->engine, err));
    for (int i = 0; opt != NULL && i < opt->set_count; i++)
        TRY(engine_add_static_set(job->engine, opt->sets[i].ranks,
                                  opt->sets[i].rank_count, err));
    engine_enable_dumps(job->engine);
    return HVD_OK;
}

/* Rule 4.  What breaks the job breaks one generation of it only. */
static bool may_form_again(const struct job *job, enum hvd_status status)
{
    return job->is_elastic && hvd_status_scope(status) == HVD_SCOPE_JOB &&
           status != HVD_ABORTED && status != HVD_AUTH && status != HVD_VERSION &&
           job->conf.generation > 0;
}

static enum hvd_status form_any_mesh(struct job *job, const struct hvd_options *opt,
                                     bool dynamic, struct hvd_error *err)
{
    for (;;) {
        int64_t before = job->conf.generation;
        enum hvd_status status = form_mesh(job, opt, dynamic, err);

        /* Without a newer generation it was the driver, not a peer. */
        if (status == HVD_OK || !may_form_again(job, status) ||
            job->conf.generation == before)
            return status;
        log_info("generation %lld did not form: %s", (long long)job->conf.generation,
                 err->text);
        if (job->mesh != NULL)
            mesh_close(job->mesh, false);
        job->mesh = NULL;
        job->failed = *err;
        job->has_failed = true;
    }
}

/* Hosts that do not share the home have each made a key of its own: what to type. */
static void explain_keys(const struct job *job, enum hvd_status status,
                         struct hvd_error *err)
{
    struct hvd_error why = *err;

    if (!job->has_user_key || job->identity.one_host ||
        (status != HVD_AUTH && status != HVD_TIMEOUT))
        return;
    error_set(err, status, why.rank,
              "%.600s; the job's key is derived from ~/.horovod/key: if the hosts do not "
              "share the home directory, copy that file once to each of them, here by "
              "mkdir -p -m 700 ~/.horovod && scp -p %.128s:.horovod/key ~/.horovod/key",
              why.text, job->conf.rank != 0 ? job->conf.rendezvous_addr : "HOST-OF-RANK-0");
}

static enum hvd_status form(struct job *job, const struct hvd_options *opt,
                            struct hvd_error *err)
{
    bool dynamic;

    TRY(config_read(&job->conf, err));
    job->is_elastic = job->conf.elastic && job->conf.worker > 0;
    if (!job->is_elastic)
        TRY(identity_complete(&job->conf, &job->identity, err));
    dynamic = job->conf.dynamic_process_sets || (opt != NULL && opt->dynamic_sets);
    log_set_rank((int)job->conf.rank);
    if (!fault_setup(job->conf.fault, (int)job->conf.rank))
        return error_set(err, HVD_INVALID, -1, "HOROVOD_FAULT is not understood");
    TRY(check_identity(&job->conf, err));
    responder_start(&job->conf);
    TRY(get_key(job, err));
    TRY(form_any_mesh(job, opt, dynamic, err));
    job->forks = atomic_load(&forks);
    TRY(start_engine(job, opt, dynamic, err));
    if (job->is_elastic)
        elastic_formed(job);
    return HVD_OK;
}

enum hvd_status hvd_init(const struct hvd_options *opt, struct hvd_error *err)
{
    struct hvd_error local;
    struct job *job;
    enum hvd_status status = HVD_OK;

    if (err == NULL)
        err = &local;
    pthread_mutex_lock(&lock);
    job = atomic_load(&current);
    if (job != NULL && !is_ours(job)) {
        /* A forked child may have a job of its own; the parent's objects stay as they
         * are, its descriptors are closed already. */
        atomic_store(&current, NULL);
        atomic_store(&users, 0);
        elastic_forget();
        job = NULL;
    }
    if (job != NULL)
        goto out;
    job = calloc(1, sizeof *job);
    if (job == NULL) {
        status = error_set(err, HVD_NOMEM, -1, "no memory for a job");
        goto out;
    }
    status = form(job, opt, err);
    if (status != HVD_OK) {
        explain_keys(job, status, err);
        if (job->engine != NULL)
            engine_stop(job->engine);
        job_free(job, false);
        responder_stop();
        goto out;
    }
    responder_enter(LOOK_PHASE_RUNNING, &job->conf);
    atomic_store(&current, job);
out:
    pthread_mutex_unlock(&lock);
    return status;
}

void hvd_shutdown(void)
{
    struct job *job;
    bool goodbye;

    if (engine_is_in_callback()) {
        log_warn("shutdown was called from a function that hvd_submit_then calls, where it "
                 "would wait for itself; call it from another thread");
        return;
    }
    pthread_mutex_lock(&lock);
    job = atomic_load(&current);
    if (job == NULL || !is_ours(job))
        goto out;
    responder_enter(LOOK_PHASE_ENDING, &job->conf);
    job->has_reported |= engine_stop(job->engine);      /* then there is nothing to report */
    goodbye = mesh_verdict(job->mesh) == NULL;
    elastic_ended(mesh_verdict(job->mesh));
    atomic_store(&current, NULL);
    for (unsigned n; (n = atomic_load(&users)) != 0;)
        thread_wait(&users, n, 1000);
    job_free(job, goodbye);
    responder_stop();
out:
    pthread_mutex_unlock(&lock);
}

/* ---- Using --------------------------------------------------------------------------- */

struct job *job_use(struct hvd_error *err)
{
    struct job *job;

    atomic_fetch_add(&users, 1);
    job = atomic_load(&current);
    if (job != NULL && is_ours(job))
        return job;
    if (job != NULL)
        error_set(err, HVD_FORKED, -1,
                  "Horovod cannot be used in a forked child, which is no rank of the job; "
                  "call it in the process that called init");
    else
        error_set(err, HVD_NOT_INIT, -1,
                  "Horovod has not been initialized; use hvd.init()");
    job_done();
    return NULL;
}

void job_done(void)
{
    if (atomic_fetch_sub(&users, 1) == 1 && atomic_load(&current) == NULL)
        thread_wake_all(&users);
}

void job_fail(const struct hvd_error *verdict)
{
    struct hvd_error err;
    struct job *job = job_use(&err);

    if (job == NULL)
        return;
    mesh_fail(job->mesh, verdict);
    job_done();
}
