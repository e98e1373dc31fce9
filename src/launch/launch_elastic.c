/*
 * launch_elastic.c: a launch whose ranks and hosts are not fixed: the elastic driver
 * (horovod/driver.h) says whom to start and to end, this file does it with the agents.
 *
 * 1. A worker's index in job->ranks is its number less 1; it is never used again.
 * 2. An agent is reached when the first worker of its host is to be started, and ended when
 *    its host has gone from the list and its last worker has ended.
 * 3. The end of an agent is the end of its workers, whether they had begun or not.
 * 4. A machine that has joined is a host like any other as long as its agent is there; then
 *    its name is forgotten.
 */
#include "base/secret.h"
#include "launch/discovery.h"
#include "launch/join.h"
#include "launch/launch_int.h"
#include "launch/nic.h"
#include "launch/spawn.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SSH_TRIES 3
#define LATE_MS 1000                    /* who has not left in time, from SIGTERM to SIGKILL */

/* What is known of a worker beside its rank_state. */
struct start {
    struct hvd_driver_action action;    /* its START */
    int place;                          /* among the CPUs of its machine */
};

static void give_hosts(struct launch *job);

struct elastic {
    struct hvd_driver *driver;
    uv_poll_t actions;                  /* of the driver */
    struct discovery *discovery;        /* NULL: the hosts are fixed */
    struct start *starts;               /* by index, as job->ranks */
    int capacity;
    struct host_list hosts;             /* as discovered last */
    bool is_over;
};

/* ---- Agents ------------------------------------------------------------------------- */

static struct agent_link *find_link(struct launch *job, const char *host)
{
    for (int i = 1; i < job->link_count; i++)
        if (job->links[i].is_joined && strcmp(job->links[i].host, host) == 0)
            return &job->links[i];
    if (nic_is_local_host(host))
        return &job->links[0];
    for (int i = 1; i < job->link_count; i++)
        if (strcmp(job->links[i].host, host) == 0)
            return &job->links[i];
    return NULL;
}

static struct agent_link *add_link(struct launch *job, const char *host)
{
    char *name = job->link_count < ELASTIC_HOSTS ? strdup(host) : NULL;

    return name != NULL ? launch_add_link(job, name, false) : NULL;
}

static bool is_usable(const struct agent_link *link)
{
    return link->state == AGENT_LINK_CONNECTING || link->state == AGENT_LINK_READY ||
           link->state == AGENT_LINK_REACHED;
}

/* An agent that has ended can be reached again once nothing of it is left. */
static bool can_open(const struct agent_link *link)
{
    return !link->is_local && !link->is_joined && !is_usable(link) && link->pid == 0 &&
           link->handles == 0;
}

static int count_slots(const struct launch *job, const struct agent_link *link)
{
    const struct elastic *e = job->elastic;
    int slots = link->is_joined ? link->slots : 0;

    for (int i = 0; i < e->hosts.count; i++)
        if (find_link((struct launch *)job, e->hosts.items[i].name) == link)
            slots += e->hosts.items[i].slots;
    return job->settings->max_np > 0 && slots > job->settings->max_np
               ? job->settings->max_np : slots;
}

static void choose_threads(struct launch *job, struct agent_link *link)
{
    const struct settings *s = job->settings;

    if (!link->is_joined)
        link->rank_count = count_slots(job, link);
    if (link->rank_count < 1)
        link->rank_count = 1;
    if (env_get(&s->base, "OMP_NUM_THREADS") != NULL ||
        env_get(&s->assigned, "OMP_NUM_THREADS") != NULL || link->rank_count < 2)
        return;
    link->threads = (int)link->cpus / link->rank_count;
    if (link->threads < 1)
        link->threads = 1;
}

static int alive_on(const struct launch *job, const struct agent_link *link)
{
    int alive = 0;

    for (int r = 0; r < job->rank_count; r++)
        alive += job->ranks[r].link == link && !job->ranks[r].is_ended;
    return alive;
}

/* ---- Workers ------------------------------------------------------------------------ */

/* The lowest place of its machine that no living worker has. */
static int choose_place(const struct launch *job, int rank)
{
    for (int place = 0;; place++) {
        bool is_taken = false;

        for (int r = 0; r < rank; r++)
            is_taken |= job->ranks[r].link == job->ranks[rank].link &&
                        !job->ranks[r].is_ended && job->elastic->starts[r].place == place;
        if (!is_taken)
            return place;
    }
}

static void start_now(struct launch *job, int rank)
{
    struct elastic *e = job->elastic;
    struct agent_link *link = job->ranks[rank].link;
    char lines[4096], *rest = NULL;
    struct env env;

    hvd_driver_environment(e->driver, &e->starts[rank].action, link->addr, lines,
                           sizeof lines);
    env_init(&env);
    for (char *line = strtok_r(lines, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest))
        env_put(&env, line);
    launch_say_start(job, rank);
    agent_link_start(link, rank, &env, e->starts[rank].place % link->rank_count);
    env_release(&env);
}

static void ended_early(struct launch *job, int rank, const char *why)
{
    launch_rank_ended(job, rank, 255, 0, why);
}

static bool grow(struct launch *job)
{
    struct elastic *e = job->elastic;
    int room = e->capacity == 0 ? 16 : 2 * e->capacity;
    struct rank_state *ranks;
    struct start *starts;

    if (job->rank_count < e->capacity)
        return true;
    ranks = realloc(job->ranks, (size_t)room * sizeof *ranks);
    if (ranks != NULL)
        job->ranks = ranks;
    starts = realloc(e->starts, (size_t)room * sizeof *starts);
    if (starts != NULL)
        e->starts = starts;
    if (ranks == NULL || starts == NULL)
        return false;
    e->capacity = room;
    return true;
}

static void begin_worker(struct launch *job, const struct hvd_driver_action *a)
{
    struct elastic *e = job->elastic;
    struct hvd_error err = {.rank = -1};
    struct agent_link *link = find_link(job, a->host);
    int rank = job->rank_count;

    if (!grow(job) || output_add(job->output, a->rank, &err) != HVD_OK) {
        error_set(&err, HVD_NOMEM, -1, "no memory for another worker");
        launch_fail(job, &err);
        return;
    }
    if (link == NULL)
        link = add_link(job, a->host);
    job->rank_count++;
    job->ranks[rank] = (struct rank_state){.link = link, .label = a->rank};
    snprintf(job->ranks[rank].name, sizeof job->ranks[rank].name, "%s[%d]", a->host,
             a->slot);
    e->starts[rank] = (struct start){.action = *a};
    if (link == NULL) {
        ended_early(job, rank, "there are too many hosts");
        return;
    }
    e->starts[rank].place = choose_place(job, rank);
    if (can_open(link) && agent_link_open_remote(link, &err) != HVD_OK)
        ended_early(job, rank, err.text);
    else if (!is_usable(link) && link->handles == 0 && link->pid == 0)
        ended_early(job, rank, "the agent of this host has ended");
    else if (link->state == AGENT_LINK_REACHED)
        start_now(job, rank);
}

static void end_worker(struct launch *job, const struct hvd_driver_action *a)
{
    int rank = a->worker - 1;
    struct rank_state *r = &job->ranks[rank];

    if (r->is_ended)
        return;
    if (r->is_started)
        agent_link_end_rank(r->link, rank, (uint32_t)(a->grace_s * 1000));
    else
        ended_early(job, rank, "it was not started");
}

/* The last worker of a machine that has joined and wants to leave has gone. */
static void release_joined(struct launch *job, struct agent_link *link)
{
    if (link != NULL && link->is_joined && link->is_leaving &&
        link->state == AGENT_LINK_REACHED && alive_on(job, link) == 0)
        agent_link_stop(link, (uint32_t)job->settings->grace_ms);
}

void elastic_rank_ended(struct launch *job, int rank)
{
    struct rank_state *r = &job->ranks[rank];

    output_end(job->output, rank);
    if (job->state >= JOB_ENDING)
        return;
    hvd_driver_worker_ended(job->elastic->driver, rank + 1, r->code, r->signal, r->text);
    release_joined(job, r->link);
}

/* ---- Machines that join ----------------------------------------------------------- */

/* A link of that name that nobody uses, or a new one; the name gets a number if another host
 * of the job has it. */
static struct agent_link *joined_link(struct launch *job, const char *host)
{
    struct agent_link *link;
    char name[HVD_HOST_MAX];

    snprintf(name, sizeof name, "%s", host);
    for (int n = 2;; n++) {
        link = find_link(job, name);
        if (link == NULL)
            break;
        if (link->is_joined && !is_usable(link) && link->handles == 0 &&
            alive_on(job, link) == 0)
            return link;
        snprintf(name, sizeof name, "%.200s-%d", host, n);
    }
    link = add_link(job, name);
    if (link != NULL)
        link->is_joined = true;
    return link;
}

static void join_machine(struct launch *job, const struct hvd_driver_action *a)
{
    struct agent_link *link = job->state < JOB_ENDING ? joined_link(job, a->host) : NULL;
    struct hvd_error err = {.rank = -1};

    if (link == NULL) {
        close(a->fd);
        return;
    }
    link->rank_count = a->slot;
    link->slots = 0;                    /* until its agent is ready */
    if (agent_link_open_joined(link, a->fd, &err) != HVD_OK)
        elastic_agent_lost(job, link, err.text);
}

/* ---- The driver's actions ----------------------------------------------------------- */

static void end_job(struct launch *job, const struct hvd_driver_action *a)
{
    struct elastic *e = job->elastic;

    e->is_over = true;
    if (!a->ok) {
        error_set(&job->error, HVD_ABORTED, -1, "%s", a->text);
        job->has_error = true;
        if (a->worker > 0)
            job->first_failed = a->worker - 1;
    }
    for (int r = 0; r < job->rank_count; r++)
        if (job->ranks[r].is_ended && (r == job->first_failed || (a->ok &&
                                                                 job->ranks[r].code == 0)))
            launch_tell_end(job, r);
    if (!a->ok && job->has_result) {
        agent_put_frame(duplex_out(&job->result), AGENT_TEXT, a->text, strlen(a->text));
        duplex_flush(&job->result);
    }
    launch_begin_end(job, (uint32_t)job->settings->grace_ms);
}

static void act(struct launch *job, const struct hvd_driver_action *a)
{
    switch (a->kind) {
    case HVD_DRIVER_START:
        begin_worker(job, a);
        break;
    case HVD_DRIVER_STOP:
        end_worker(job, a);
        break;
    case HVD_DRIVER_RANK:
        job->ranks[a->worker - 1].label = a->rank;
        output_label(job->output, a->worker - 1, a->rank);
        break;
    case HVD_DRIVER_SAY:
        output_say(job->output, 2, "horovodrun: %s", a->text);
        break;
    case HVD_DRIVER_END:
        end_job(job, a);
        break;
    case HVD_DRIVER_JOIN:
        join_machine(job, a);
        break;
    }
}

static void on_actions(uv_poll_t *poll, int status, int events)
{
    struct launch *job = poll->data;
    struct hvd_driver_action a;

    while (job->state < JOB_ENDING && hvd_driver_next(job->elastic->driver, &a) == HVD_OK)
        act(job, &a);
    if (job->state >= JOB_ENDING)
        uv_poll_stop(poll);
}

/* ---- What agents have learned ------------------------------------------------------- */

void elastic_agents_changed(struct launch *job)
{
    if (job->state >= JOB_ENDING)
        return;
    if (job->state < JOB_RUNNING)
        launch_enter_running(job);
    for (int i = 0; i < job->link_count; i++) {
        struct agent_link *link = &job->links[i];

        if (link->state == AGENT_LINK_READY && link->cpus > 0 && !link->has_job) {
            link->has_job = true;
            choose_threads(job, link);
            agent_link_send_job(link);
        }
        if (link->state != AGENT_LINK_REACHED)
            continue;
        if (job->settings->payload_fd >= 0 && !link->has_payload) {
            link->has_payload = true;
            agent_link_send_payload(link);
        }
        if (link->is_joined && link->slots == 0) {
            link->slots = link->rank_count;
            output_say(job->output, 2, "horovodrun: %s has joined with %d slot%s", link->host,
                       link->slots, link->slots == 1 ? "" : "s");
            give_hosts(job);
        }
        for (int r = 0; r < job->rank_count; r++)
            if (job->ranks[r].link == link && !job->ranks[r].is_started &&
                !job->ranks[r].is_ended)
                start_now(job, r);
    }
}

static void forget_agent(struct agent_link *link)
{
    agent_link_close(link);
    link->has_job = link->has_payload = link->is_leaving = false;
    link->tries = 0;
}

/* Rule 4. */
static void forget_joined(struct launch *job, struct agent_link *link)
{
    if (!link->is_joined || link->slots == 0)
        return;
    link->slots = 0;
    give_hosts(job);
}

void elastic_agent_lost(struct launch *job, struct agent_link *link, const char *why)
{
    bool was_connecting = !link->has_job;
    char text[512];

    if (was_connecting && !link->is_local && !link->is_joined && link->tries < SSH_TRIES) {
        agent_link_retry(link);
        return;
    }
    snprintf(text, sizeof text, "%s host %s: %s",
             was_connecting ? "could not connect to" : "lost the agent of", link->host, why);
    link->state = AGENT_LINK_LOST;
    if (link->is_joined && alive_on(job, link) == 0)
        output_say(job->output, 2, "horovodrun: %s", text);
    forget_agent(link);
    if (link->is_local)
        spawn_signal_descendants(SIGKILL);
    for (int r = 0; r < job->rank_count; r++)
        if (job->ranks[r].link == link && !job->ranks[r].is_ended)
            ended_early(job, r, text);
    forget_joined(job, link);
}

void elastic_agent_done(struct launch *job, struct agent_link *link)
{
    if (job->state >= JOB_ENDING)
        return;
    forget_agent(link);
    for (int r = 0; r < job->rank_count; r++)
        if (job->ranks[r].link == link && !job->ranks[r].is_ended)
            ended_early(job, r, "its agent has ended");
    forget_joined(job, link);
}

void elastic_agent_notice(struct launch *job, struct agent_link *link)
{
    struct elastic *e = job->elastic;

    if (link->is_joined && e != NULL) {
        link->is_leaving = true;
        hvd_driver_host_notice(e->driver, link->host);
        release_joined(job, link);
        return;
    }
    for (int i = 0; e != NULL && i < e->hosts.count; i++)
        if (find_link(job, e->hosts.items[i].name) == link)
            hvd_driver_host_notice(e->driver, e->hosts.items[i].name);
}

/* ---- Leaving ------------------------------------------------------------------------ */

static void on_late(uv_timer_t *timer)
{
    struct launch *job = timer->data;

    output_say(job->output, 2, "horovodrun: the workers have not left within %.0f s "
               "(--grace-period); they are ended", job->settings->leave_ms / 1e3);
    job->signal = SIGTERM;
    launch_begin_end(job, LATE_MS);
}

bool elastic_leave(struct launch *job)
{
    if (job->elastic == NULL || job->state != JOB_RUNNING)
        return false;
    output_say(job->output, 2, "horovodrun: SIGTERM: the workers leave after their next "
               "commit, within %.0f s", job->settings->leave_ms / 1e3);
    uv_timer_start(&job->limit, on_late, (uint64_t)job->settings->leave_ms, 0);
    hvd_driver_leave(job->elastic->driver);
    return true;
}

/* ---- Hosts -------------------------------------------------------------------------- */

/* Rule 2. */
static void end_idle_agents(struct launch *job)
{
    for (int i = 1; i < job->link_count; i++) {
        struct agent_link *link = &job->links[i];

        if (link->state == AGENT_LINK_REACHED && count_slots(job, link) == 0 &&
            alive_on(job, link) == 0)
            agent_link_stop(link, (uint32_t)job->settings->grace_ms);
    }
}

/* What discovery has found, and who has joined. */
static void give_hosts(struct launch *job)
{
    struct elastic *e = job->elastic;
    struct hvd_host *hosts = calloc((size_t)(e->hosts.count + job->link_count),
                                    sizeof *hosts);
    int count = 0;

    for (int i = 0; hosts != NULL && i < e->hosts.count; i++) {
        memcpy(hosts[count].name, e->hosts.items[i].name, sizeof hosts[count].name);
        hosts[count++].slots = e->hosts.items[i].slots;
    }
    for (int i = 1; hosts != NULL && i < job->link_count; i++)
        if (job->links[i].is_joined && job->links[i].slots > 0) {
            snprintf(hosts[count].name, sizeof hosts[count].name, "%s", job->links[i].host);
            hosts[count++].slots = job->links[i].slots;
        }
    if (hosts != NULL)
        hvd_driver_hosts(e->driver, hosts, count);
    free(hosts);
}

static void take_hosts(struct launch *job, const struct host_list *list)
{
    struct elastic *e = job->elastic;
    struct host *items = malloc(((size_t)list->count + 1) * sizeof *items);

    if (items == NULL)
        return;
    for (int i = 0; i < list->count; i++)
        items[i] = list->items[i];
    free(e->hosts.items);
    e->hosts.items = items;
    e->hosts.count = list->count;
    give_hosts(job);
    end_idle_agents(job);
}

static void on_hosts(void *owner, const struct host_list *hosts)
{
    struct launch *job = owner;

    if (job->state < JOB_ENDING)
        take_hosts(job, hosts);
}

static void on_warning(void *owner, const char *text)
{
    struct launch *job = owner;

    output_say(job->output, 2, "horovodrun: warning: %s", text);
}

static void on_failed(void *owner, const char *why)
{
    struct launch *job = owner;

    if (job->state >= JOB_ENDING)
        return;
    output_say(job->output, 2, "horovodrun: warning: %s", why);
    hvd_driver_discovery_failed(job->elastic->driver, why);
}

bool elastic_reaped(struct launch *job, pid_t pid, int status)
{
    return job->elastic != NULL && discovery_reaped(job->elastic->discovery, pid, status);
}

/* ---- Life --------------------------------------------------------------------------- */

enum hvd_status elastic_new(struct launch *job, struct hvd_error *err)
{
    job->elastic = calloc(1, sizeof *job->elastic);
    if (job->elastic == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for an elastic job");
    return HVD_OK;
}

enum hvd_status elastic_listen(struct launch *job, const char *const *addrs, int count,
                               struct hvd_error *err)
{
    const struct settings *s = job->settings;
    struct hvd_driver_options opt = {
        .size = sizeof opt, .key = job->key, .job_id = job->job_id, .listen_addrs = addrs,
        .listen_addr_count = count, .np = s->np, .min_np = s->min_np, .max_np = s->max_np,
        .reset_limit = s->reset_limit, .restarts_per_slot = s->restarts_per_slot,
        .elastic_timeout_s = s->elastic_timeout_s, .cooldown_lo_s = s->cooldown_lo_s,
        .cooldown_hi_s = s->cooldown_hi_s, .grace_s = s->grace_ms / 1e3,
        .heartbeat_s = s->heartbeat_s + 2,      /* after the peers, who know better */
        .port = (uint16_t)s->join_port};
    uint8_t *key = secret_new(HVD_KEY_BYTES);
    struct hvd_error why = {.rank = -1};
    enum hvd_status status = key != NULL ? join_read_key(s, false, key, &why) : HVD_NOMEM;

    if (status == HVD_OK)
        opt.join_key = key;
    else if (s->join_port > 0 || s->key_file != NULL)
        *err = why;                     /* somebody is to join, and could not */
    else
        status = HVD_OK;
    if (status == HVD_OK)
        status = hvd_driver_new(&opt, &job->elastic->driver, err);
    secret_free(key, HVD_KEY_BYTES);
    TRY(status);
    job->port = hvd_driver_port(job->elastic->driver);
    if (opt.join_key != NULL)
        output_say(job->output, 2, "horovodrun: to add slots: horovodrun --join %s:%d -np N",
                   addrs[count > 1 ? 1 : 0], job->port);
    return HVD_OK;
}

enum hvd_status elastic_begin(struct launch *job, struct hvd_error *err)
{
    struct elastic *e = job->elastic;
    struct discovery_options opt = {
        .command = job->settings->discovery, .interval_s = job->settings->discovery_s,
        .slots_per_host = job->settings->slots_per_host, .on_hosts = on_hosts,
        .on_failed = on_failed, .on_warning = on_warning, .owner = job};

    uv_timer_stop(&job->limit);         /* each wait has its own limit */
    uv_poll_init(&job->loop, &e->actions, hvd_driver_fd(e->driver));
    e->actions.data = job;
    uv_poll_start(&e->actions, UV_READABLE, on_actions);
    if (job->settings->discovery != NULL)
        return discovery_new(&job->loop, &opt, &e->discovery, err);
    take_hosts(job, &job->settings->hosts);
    return HVD_OK;
}

void elastic_free(struct launch *job)
{
    struct elastic *e = job->elastic;

    if (e == NULL)
        return;
    if (e->actions.data != NULL && !uv_is_closing((uv_handle_t *)&e->actions))
        uv_close((uv_handle_t *)&e->actions, NULL);
    discovery_free(e->discovery);
    uv_run(&job->loop, UV_RUN_NOWAIT);  /* the handles lie in e */
    hvd_driver_free(e->driver);
    for (int i = 1; i < job->link_count; i++)
        free((char *)job->links[i].host);
    free(e->hosts.items);
    free(e->starts);
    free(e);
    job->elastic = NULL;
}
