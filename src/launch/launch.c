/*
 * launch.c: one launch as a state machine over events (frames of agents, signals, timers).
 *
 * 1. Nobody but this loop decides; nothing in it blocks.
 * 2. The first failure, a signal, or the end of all workers leads to ENDING; from there
 *    only to DONE.
 * 3. A second signal kills at once.
 * 4. Ranks that are ended by us are reported, but the first failure stays the verdict.
 */
#include "launch/launch.h"

#include "base/log.h"
#include "launch/bind.h"
#include "launch/launch_int.h"
#include "launch/nic.h"
#include "launch/spawn.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOG_COMPONENT "launch"
#define TICK_MS 1000                    /* heartbeat */
#define STATUS_MS 10000                 /* a wait is told after so long, and again */
#define SSH_TRIES 5
#define END_MS 12000                    /* beyond the grace: agents need 6 s at most */

static void begin_end(struct launch *job, uint32_t grace_ms);

static const char *rank_host(const struct launch *job, int rank)
{
    return job->settings->hosts.items[job->slots[rank].host].name;
}

static void say_verbose(struct launch *job, const char *text)
{
    if (job->settings->verbose)
        output_say(job->output, 1, "%s", text);
}

static void enter(struct launch *job, enum job_state state)
{
    static const char *const names[] = {
#define JOB_STATE_NAME(name, text) #name,
        JOB_STATES(JOB_STATE_NAME)
#undef JOB_STATE_NAME
    };

    log_debug("job: %s -> %s", names[job->state], names[state]);
    job->state = state;
    job->since_ms = uv_now(&job->loop);
    job->told_ms = 0;
}

/* ---- the end ---------------------------------------------------------------------- */

static bool is_over(const struct launch *job)
{
    for (int i = 0; i < job->tether_count; i++)
        if (job->tethers[i].state != TETHER_DONE && job->tethers[i].state != TETHER_LOST &&
            job->tethers[i].state != TETHER_CLOSED)
            return false;
    return true;
}

static void check_over(struct launch *job)
{
    if (job->state == JOB_ENDING && is_over(job)) {
        enter(job, JOB_DONE);
        uv_stop(&job->loop);
    }
}

static void on_end_limit(uv_timer_t *timer)
{
    struct launch *job = timer->data;

    for (int i = 0; i < job->tether_count; i++)
        if (job->tethers[i].state != TETHER_DONE && job->tethers[i].state != TETHER_LOST) {
            output_say(job->output, 2, "horovodrun: the agent of host %s does not end; "
                       "its processes may be left", job->tethers[i].host);
            job->tethers[i].state = TETHER_LOST;
        }
    check_over(job);
}

static void begin_end(struct launch *job, uint32_t grace_ms)
{
    if (job->state == JOB_DONE)
        return;
    if (job->state != JOB_ENDING)
        enter(job, JOB_ENDING);
    uv_timer_start(&job->limit, on_end_limit, grace_ms + END_MS, 0);
    input_stop(job);
    for (int i = 0; i < job->tether_count; i++) {
        struct tether *tether = &job->tethers[i];

        /* Not connected yet: the end of its process is the end of it. */
        if (tether->state == TETHER_CONNECTING && !tether->is_local) {
            tether->state = TETHER_LOST;
            if (tether->pid > 0)
                kill(tether->pid, SIGTERM);
        } else if (tether->state != TETHER_DONE && tether->state != TETHER_LOST) {
            tether_stop(tether, grace_ms);
        }
    }
    check_over(job);
}

void launch_fail(struct launch *job, const struct hvd_error *err)
{
    if (!job->has_error)
        job->error = *err;
    job->has_error = true;
    if (job->has_result) {
        agent_put_frame(duplex_out(&job->result), AGENT_TEXT, err->text,
                        strlen(err->text));
        duplex_flush(&job->result);
    }
    begin_end(job, (uint32_t)job->settings->grace_ms);
}

/* ---- ranks ------------------------------------------------------------------------ */

/* horovod.run learns who failed, and in which order. */
static void tell_result_end(struct launch *job, int rank)
{
    const struct rank_state *r = &job->ranks[rank];
    uint32_t words[3] = {(uint32_t)rank, (uint32_t)r->code, (uint32_t)r->signal};

    if (!job->has_result)
        return;
    agent_put_words(duplex_out(&job->result), AGENT_EXIT, words, 3, r->text,
                    strlen(r->text));
    duplex_flush(&job->result);
}

void launch_rank_ended(struct launch *job, int rank, int code, int signal, const char *text)
{
    struct rank_state *r = &job->ranks[rank];

    if (r->is_ended)
        return;
    r->is_ended = true;
    r->code = code;
    r->signal = signal;
    snprintf(r->text, sizeof r->text, "%s", text);
    job->ended++;
    tell_result_end(job, rank);
    if (text[0] != '\0')
        output_say(job->output, 2, "horovodrun: rank %d on %s: %s", rank,
                   rank_host(job, rank), text);
    if (code != 0) {
        output_end(job->output, rank);
        output_say(job->output, 1, "Process %d exit with status code %d.", rank, code);
        if (job->first_failed < 0) {
            job->first_failed = rank;
            if (job->signal == 0 && job->ended < job->mine)
                output_say(job->output, 1, "Terminating remaining workers after failure "
                           "of Process %d.", rank);
            begin_end(job, (uint32_t)job->settings->grace_ms);
        }
    }
    if (job->ended == job->mine)
        begin_end(job, (uint32_t)job->settings->grace_ms);
}

void launch_rank_result(struct launch *job, int rank, const char *bytes, size_t count)
{
    uint32_t word = (uint32_t)rank;

    if (!job->has_result)
        return;
    agent_put_words(duplex_out(&job->result), AGENT_RESULT, &word, 1, bytes, count);
    duplex_flush(&job->result);
}

/* ---- tethers ------------------------------------------------------------------------ */

static bool all_tethers(const struct launch *job, enum tether_state state)
{
    for (int i = 0; i < job->tether_count; i++)
        if (job->tethers[i].state != state)
            return false;
    return true;
}

static void say_command(struct launch *job, int rank)
{
    struct strbuf line;

    if (!job->settings->verbose)
        return;
    /* Neither environment nor key: names of the launcher's own variables only. */
    strbuf_init(&line);
    strbuf_addf(&line, "Starting rank %d on %s:", rank, rank_host(job, rank));
    for (int i = 0; job->settings->command[i] != NULL; i++)
        strbuf_addf(&line, " %s", job->settings->command[i]);
    output_say(job->output, 1, "%s", line.text);
    strbuf_release(&line);
}

static void start_generation(struct launch *job)
{
    enter(job, JOB_RUNNING);
    uv_timer_stop(&job->limit);
    for (int i = 0; i < job->tether_count; i++)
        if (job->settings->payload_fd >= 0)
            tether_send_payload(&job->tethers[i]);
    for (int r = 0; r < job->settings->np; r++)
        if (job->ranks[r].tether != NULL) {
            say_command(job, r);
            tether_start_rank(job->ranks[r].tether, r);
        }
    if (job->ranks[0].tether != NULL && !job->ranks[0].tether->is_local)
        input_start(job, job->ranks[0].tether);
}

static void choose_threads(struct launch *job)
{
    const struct settings *s = job->settings;

    if (env_get(&s->base, "OMP_NUM_THREADS") != NULL ||
        env_get(&s->assigned, "OMP_NUM_THREADS") != NULL)
        return;
    for (int i = 0; i < job->tether_count; i++) {
        struct tether *tether = &job->tethers[i];

        if (tether->rank_count < 2)
            continue;
        tether->threads = (int)tether->cpus / tether->rank_count;
        if (tether->threads < 1)
            tether->threads = 1;
    }
    if (job->tethers[0].threads > 0)
        output_say(job->output, 2, "horovodrun: OMP_NUM_THREADS is not set; workers get "
                   "%d (%u CPUs for %d processes)", job->tethers[0].threads,
                   job->tethers[0].cpus, job->tethers[0].rank_count);
}

void launch_tether_reached(struct launch *job)
{
    if (job->state != JOB_PROBING || !all_tethers(job, TETHER_REACHED))
        return;
    if (job->has_remote) {
        say_verbose(job, "Notified all the hosts that the registration is complete.");
        say_verbose(job, "Waiting for hosts to perform host-to-host interface checking.");
        say_verbose(job, "Host-to-host interface checking successful.");
        say_verbose(job, "Interfaces on all the hosts were successfully checked.");
        if (job->settings->verbose)
            output_say(job->output, 1, "Common interface found: %s",
                       job->nics[0] != '\0' ? job->nics : job->addrs.text);
    }
    start_generation(job);
}

void launch_tether_ready(struct launch *job)
{
    if (job->state != JOB_CONNECTING || !all_tethers(job, TETHER_READY))
        return;
    if (job->has_remote) {
        say_verbose(job, "SSH was successful into all the remote hosts.");
        say_verbose(job, "Testing interfaces on all the hosts.");
        say_verbose(job, "Launched horovod server.");
        for (int i = 0; i < job->tether_count && job->settings->verbose; i++)
            output_say(job->output, 1, "Launching horovod task function: "
                       "horovodrun --agent on %s", job->tethers[i].host);
        say_verbose(job, "Attempted to launch horovod task servers.");
        say_verbose(job, "Waiting for the hosts to acknowledge.");
    }
    choose_threads(job);
    enter(job, JOB_PROBING);
    for (int i = 0; i < job->tether_count; i++)
        tether_send_job(&job->tethers[i]);
    launch_tether_reached(job);
}

void launch_tether_done(struct launch *job)
{
    check_over(job);
}

static void connection_failed(struct launch *job, struct tether *tether, const char *why)
{
    struct hvd_error err = {.rank = -1};

    /* The cause may pass (a host that starts, MaxStartups of sshd). */
    if (tether->tries < SSH_TRIES && !tether->is_local) {
        tether_retry(tether);
        return;
    }
    tether_close(tether);
    tether->state = TETHER_LOST;
    if (tether->is_local) {
        error_set(&err, HVD_SYS, -1, "the local agent ended: %s", why);
    } else {
        output_say(job->output, 2, "ssh to host %s failed:\n%s", tether->host,
                   tether->errors.length > 0 ? tether->errors.text : why);
        error_set(&err, HVD_SYS, -1, "could not connect to some hosts via ssh: %s (%s)",
                  tether->host, why);
    }
    launch_fail(job, &err);
}

void launch_tether_lost(struct launch *job, struct tether *tether, const char *why)
{
    char text[512];

    if (job->state == JOB_CONNECTING) {
        connection_failed(job, tether, why);
        return;
    }
    snprintf(text, sizeof text, "the connection to the agent of host %s was lost: %s",
             tether->host, why);
    if (job->state == JOB_PROBING) {
        struct hvd_error err = {.rank = -1};

        error_set(&err, HVD_PEER_LOST, -1, "%s", text);
        launch_fail(job, &err);
    }
    /* Of the local agent's children we are the parent now. */
    if (tether->is_local)
        spawn_signal_descendants(SIGKILL);
    for (int r = 0; r < job->settings->np; r++)
        if (job->ranks[r].tether == tether && job->ranks[r].is_started)
            launch_rank_ended(job, r, tether->is_local ? 137 : 255, 0, text);
    check_over(job);
}

/* ---- timers and signals ----------------------------------------------------------- */

static void say_status(struct launch *job)
{
    struct strbuf names;

    strbuf_init(&names);
    for (int i = 0; i < job->tether_count; i++)
        if (job->tethers[i].state == (job->state == JOB_CONNECTING ? TETHER_CONNECTING
                                                                 : TETHER_READY))
            strbuf_addf(&names, "%s%s", names.length > 0 ? ", " : "", job->tethers[i].host);
    output_say(job->output, 2, "horovodrun: waiting %llu s for %s of %s",
               (unsigned long long)(uv_now(&job->loop) - job->since_ms) / 1000,
               job->state == JOB_CONNECTING ? "the agent" : "the network check",
               names.text);
    strbuf_release(&names);
}

/* Some ranks wait in hvd.init for others: which ones have not come? */
static void say_rendezvous(struct launch *job)
{
    int np = job->settings->np, waiting = 0, missing = 0;
    size_t capacity = (size_t)np * 400 + 1;
    char *text = malloc(capacity), *rest = NULL;
    bool *is_missing = calloc((size_t)np, sizeof *is_missing);
    struct strbuf names;

    strbuf_init(&names);
    if (text != NULL && is_missing != NULL && job->server != NULL) {
        hvd_server_status(job->server, text, capacity);
        for (char *line = strtok_r(text, "\n", &rest); line != NULL;
             line = strtok_r(NULL, "\n", &rest)) {
            int rank = atoi(line + strcspn(line, "0123456789"));

            waiting += strstr(line, " waiting since ") != NULL;
            if (rank < np && strstr(line, " missing") != NULL)
                missing += is_missing[rank] = true;
        }
    }
    if (waiting > 0 && missing > 0) {
        strbuf_add_ranks(&names, is_missing, np);
        output_say(job->output, 2, "horovodrun: %d of %d processes wait in hvd.init; not "
                   "there yet: ranks %s", waiting, np, names.text);
    }
    strbuf_release(&names);
    free(is_missing);
    free(text);
}

static void check_heartbeat(struct launch *job, struct tether *tether)
{
    uint64_t silent_ms = uv_now(&job->loop) - tether->heard_ms;

    if (tether->is_local || tether->state != TETHER_REACHED)
        return;
    agent_put_frame(duplex_out(&tether->channel), AGENT_PING, NULL, 0);
    duplex_flush(&tether->channel);
    if (silent_ms > (uint64_t)(job->settings->heartbeat_s * 1000) + 1000) {
        tether->state = TETHER_LOST;
        if (tether->pid > 0)
            kill(tether->pid, SIGKILL);
        launch_tether_lost(job, tether, "no sign of life");
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct launch *job = timer->data;
    uint64_t waited_ms = uv_now(&job->loop) - job->since_ms;

    if (waited_ms >= job->told_ms + STATUS_MS) {
        job->told_ms = waited_ms;
        if (job->state < JOB_RUNNING)
            say_status(job);
        else if (job->state == JOB_RUNNING)
            say_rendezvous(job);
    }
    for (int i = 0; i < job->tether_count; i++)
        check_heartbeat(job, &job->tethers[i]);
}

static void on_start_limit(uv_timer_t *timer)
{
    struct launch *job = timer->data;
    struct hvd_error err = {.rank = -1};
    struct strbuf names;

    strbuf_init(&names);
    for (int i = 0; i < job->tether_count; i++)
        if (job->tethers[i].state < TETHER_REACHED &&
            (job->state == JOB_PROBING || job->tethers[i].state == TETHER_CONNECTING))
            strbuf_addf(&names, "%s%s", names.length > 0 ? ", " : "", job->tethers[i].host);
    error_set(&err, HVD_TIMEOUT, -1,
              "Timed out waiting for %s of %.400s. Please check connectivity between "
              "servers. You may need to increase the --start-timeout parameter if you have "
              "too many servers. Timeout after %d seconds.",
              job->state == JOB_CONNECTING ? "the agent" : "the network check", names.text,
              job->settings->start_timeout_s);
    strbuf_release(&names);
    launch_fail(job, &err);
}

static void on_child(uv_signal_t *handle, int number)
{
    struct launch *job = handle->data;
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (int i = 0; i < job->tether_count; i++)
            if (job->tethers[i].pid == pid) {
                tether_reaped(&job->tethers[i], status);
                break;
            }
}

static void on_stop_signal(uv_signal_t *handle, int number)
{
    struct launch *job = handle->data;

    job->signal_count++;
    if (job->signal == 0)
        job->signal = number;
    begin_end(job, job->signal_count > 1 ? 0 : (uint32_t)job->settings->grace_ms);
}

/* Ctrl-Z: agents must not take our silence for death. */
static void tell_pause(struct launch *job, uint32_t is_paused)
{
    for (int i = 0; i < job->tether_count; i++) {
        struct tether *tether = &job->tethers[i];

        if (tether->is_local || tether->state != TETHER_REACHED)
            continue;
        agent_put_words(duplex_out(&tether->channel), AGENT_PAUSE, &is_paused, 1, NULL, 0);
        duplex_flush(&tether->channel);
        tether->heard_ms = uv_now(&job->loop);
    }
}

static void on_suspend(uv_signal_t *handle, int number)
{
    struct launch *job = handle->data;

    tell_pause(job, 1);
    raise(SIGSTOP);
    uv_update_time(&job->loop);
    tell_pause(job, 0);
}

static void on_pressure(void *owner, bool is_high)
{
    struct launch *job = owner;

    for (int i = 0; i < job->tether_count; i++) {
        if (!job->tethers[i].has_channel)
            continue;
        if (is_high)
            duplex_pause(&job->tethers[i].channel);
        else
            duplex_resume(&job->tethers[i].channel);
    }
}

/* ---- preparation ------------------------------------------------------------------ */

static void watch_signals(struct launch *job)
{
    static const int stops[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction old;

    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 5; i++) {
        uv_signal_init(&job->loop, &job->signals[i]);
        job->signals[i].data = job;
    }
    uv_signal_start(&job->signals[0], on_child, SIGCHLD);
    uv_signal_start(&job->signals[1], on_suspend, SIGTSTP);
    for (int i = 0; i < 3; i++)
        /* nohup and background jobs of shells ignore some: that stays. */
        if (sigaction(stops[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            uv_signal_start(&job->signals[2 + i], on_stop_signal, stops[i]);
}

static struct tether *add_tether(struct launch *job, const char *host, bool is_local)
{
    struct tether *tether = &job->tethers[job->tether_count++];

    *tether = (struct tether){.job = job, .host = host, .is_local = is_local,
                          .error_fd = -1};
    strbuf_init(&tether->errors);
    job->has_remote |= !is_local;
    return tether;
}

/* --rendezvous: the ranks of this node, whatever it is called. */
static void make_node_tether(struct launch *job)
{
    int host = job->settings->node.rank;
    struct tether *tether = add_tether(job, job->settings->hosts.items[host].name, true);

    for (int r = 0; r < job->settings->np; r++)
        if (job->slots[r].host == host) {
            job->ranks[r].tether = tether;
            tether->rank_count++;
            job->mine++;
        }
}

/* One tether for all names of this machine, one for each other host. */
static void make_tethers(struct launch *job)
{
    struct tether *local = NULL, *tether = NULL;
    int host = -1;

    job->mine = job->settings->np;
    say_verbose(job, "Filtering local host names.");
    for (int r = 0; r < job->settings->np; r++) {
        if (job->slots[r].host != host) {
            host = job->slots[r].host;
            if (!nic_is_local_host(rank_host(job, r)))
                tether = add_tether(job, rank_host(job, r), false);
            else if (local != NULL)
                tether = local;
            else
                tether = local = add_tether(job, rank_host(job, r), true);
        }
        job->ranks[r].tether = tether;
        tether->rank_count++;
    }
}

static void say_hosts(struct launch *job)
{
    struct strbuf names;

    if (!job->settings->verbose)
        return;
    strbuf_init(&names);
    for (int i = 0; i < job->tether_count; i++)
        if (!job->tethers[i].is_local)
            strbuf_addf(&names, "%s%s", names.length > 0 ? " " : "", job->tethers[i].host);
    if (job->has_remote) {
        output_say(job->output, 1, "Remote host found: %s", names.text);
        say_verbose(job, "Checking ssh on all remote hosts.");
    } else {
        say_verbose(job, "All hosts are local, finding the interfaces with address "
                         "127.0.0.1");
        output_say(job->output, 1, "Local interface found %s", job->nics);
    }
    strbuf_release(&names);
}

static enum hvd_status choose_network(struct launch *job, struct hvd_error *err)
{
    const struct settings *s = job->settings;
    struct strbuf names;

    strbuf_init(&names);
    strbuf_init(&job->addrs);
    for (int i = 0; i < s->nic_count; i++) {
        if (!nic_exists(s->nics[i])) {
            strbuf_release(&names);
            if (job->has_remote)
                continue;
            return error_set(err, HVD_INVALID, -1, "network interface %s: there is none of "
                             "this name here", s->nics[i]);
        }
    }
    for (int i = 0; i < s->nic_count; i++)
        strbuf_addf(&names, "%s%s", i > 0 ? "," : "", s->nics[i]);
    if (s->nic_count == 0 && !job->has_remote && s->node.count < 2)
        nic_add_loopback(&names);
    if (job->has_remote || (s->node.count > 0 && s->node.rank == 0))
        nic_add_addresses(s->nics, s->nic_count, &job->addrs);
    job->nics = strdup(names.text);
    strbuf_release(&names);
    if (job->nics == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for interface names");
    if (job->has_remote && job->addrs.length == 0)
        return error_set(err, HVD_INVALID, -1, "this machine has no network address that "
                         "other hosts could reach%s", s->nic_count > 0
                         ? " on the interfaces given" : "");
    return HVD_OK;
}

static enum hvd_status start_server(struct launch *job, struct hvd_error *err)
{
    const char *list[66] = {"127.0.0.1"};
    struct hvd_server_options opt = {
        .size = sizeof opt, .key = job->key, .job_id = job->job_id, .listen_addrs = list,
        .listen_addr_count = 1, .worker_count = job->settings->np,
        .port = (uint16_t)job->settings->node.port,
        .timeout_s = job->settings->timeout_s};
    char *copy = strdup(job->addrs.text), *rest = NULL;
    enum hvd_status status;

    job->port = job->settings->node.port;
    if (job->settings->node.count > 0 && job->settings->node.rank != 0) {
        free(copy);
        return HVD_OK;
    }
    for (char *addr = copy == NULL ? NULL : strtok_r(copy, ",", &rest);
         addr != NULL && opt.listen_addr_count < 66; addr = strtok_r(NULL, ",", &rest))
        if (strcmp(addr, list[0]) != 0)
            list[opt.listen_addr_count++] = addr;
    status = hvd_server_new(&opt, &job->server, err);
    if (status == HVD_OK)
        job->port = hvd_server_port(job->server);
    free(copy);
    return status;
}

static enum hvd_status make_identity(struct launch *job, struct hvd_error *err)
{
    const struct node_settings *node = &job->settings->node;
    uint8_t random[HVD_KEY_BYTES];

    if (node->count > 0) {
        /* All launchers must come to the same. */
        memcpy(job->key, node->key, HVD_KEY_BYTES);
        snprintf(job->job_id, sizeof job->job_id, "%.26s:%d", node->host, node->port);
        return HVD_OK;
    }
    TRY(hvd_key_generate(job->key, err));
    TRY(hvd_key_generate(random, err));
    for (int i = 0; i < 16; i++)
        snprintf(job->job_id + 2 * i, 3, "%02x", random[i]);
    return HVD_OK;
}

static void on_result_lost(struct duplex *ch, const struct hvd_error *err)
{
    struct launch *job = ch->owner;

    /* Whoever called horovod.run has gone. */
    begin_end(job, (uint32_t)job->settings->grace_ms);
}

static enum hvd_status on_result_frame(struct duplex *ch, unsigned type,
                                       const char *body, size_t bytes,
                                       struct hvd_error *err)
{
    return error_set(err, HVD_PROTO, -1, "the result descriptor is for writing");
}

static enum hvd_status open_result(struct launch *job, struct hvd_error *err)
{
    if (job->settings->result_fd < 0)
        return HVD_OK;
    job->result.owner = job;
    job->result.on_frame = on_result_frame;
    job->result.on_lost = on_result_lost;
    job->has_result = true;
    return duplex_open(&job->result, &job->loop, job->settings->result_fd,
                        job->settings->result_fd, err);
}

/* The local agent is forked before this process has a thread or the key. */
static enum hvd_status open_tethers(struct launch *job, struct hvd_error *err)
{
    for (int i = 0; i < job->tether_count; i++)
        if (job->tethers[i].is_local)
            TRY(tether_open_local(&job->tethers[i], err));
    for (int i = 0; i < job->tether_count; i++)
        if (!job->tethers[i].is_local)
            TRY(tether_open_remote(&job->tethers[i], err));
    return HVD_OK;
}

static enum hvd_status prepare(struct launch *job, struct hvd_error *err)
{
    const struct settings *s = job->settings;
    struct output_options out = {
        .ranks = s->np, .directory = s->output_dir, .timestamps = s->timestamps,
        .stdout_fd = STDOUT_FILENO, .stderr_fd = STDERR_FILENO,
        .on_pressure = on_pressure, .owner = job};

    job->slots = calloc((size_t)s->np, sizeof *job->slots);
    job->ranks = calloc((size_t)s->np, sizeof *job->ranks);
    job->tethers = calloc((size_t)s->np, sizeof *job->tethers);
    if (job->slots == NULL || job->ranks == NULL || job->tethers == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for %d ranks", s->np);
    TRY(output_new(&job->loop, &out, &job->output, err));
    TRY(open_result(job, err));
    TRY(assign_slots(&s->hosts, s->np, job->slots, err));
    if (s->node.count > 0)
        make_node_tether(job);
    else
        make_tethers(job);
    if (job->mine == 0)
        return error_set(err, HVD_INVALID, -1, "node %d has no rank of the %d", s->node.rank,
                         s->np);
    TRY(choose_network(job, err));
    say_hosts(job);
    TRY(open_tethers(job, err));
    watch_signals(job);
    TRY(make_identity(job, err));
    return start_server(job, err);
}

static void wait_for_processes(struct launch *job)
{
    uint64_t until = uv_hrtime() + 2000000000ull;

    /* The agents have nothing left; they end by themselves. */
    uv_timer_start(&job->limit, on_end_limit, 2000, 0);
    for (int i = 0; i < job->tether_count; i++) {
        tether_close(&job->tethers[i]);
        while (job->tethers[i].pid > 0 && uv_hrtime() < until)
            uv_run(&job->loop, UV_RUN_ONCE);
        if (job->tethers[i].pid > 0)
            kill(job->tethers[i].pid, SIGKILL);
    }
    while (job->has_result && !job->result.lost && duplex_unsent(&job->result) > 0)
        uv_run(&job->loop, UV_RUN_ONCE);
}

/* A terminal that takes its time gets it, unless somebody wants us to end. */
static void flush_output(struct launch *job)
{
    uint64_t until = uv_hrtime() + 1000000000ull;

    while (output_unwritten(job->output) > 0 &&
           (job->signal == 0 || uv_hrtime() < until))
        uv_run(&job->loop, UV_RUN_ONCE);
}

static void close_handle(uv_handle_t *handle, void *unused)
{
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

static void release(struct launch *job)
{
    if (job->server != NULL)
        hvd_server_free(job->server);
    input_stop(job);
    for (int i = 0; i < job->tether_count; i++) {
        tether_close(&job->tethers[i]);
        strbuf_release(&job->tethers[i].errors);
    }
    if (job->has_result)
        duplex_close(&job->result);
    output_free(job->output);
    uv_walk(&job->loop, close_handle, NULL);
    uv_run(&job->loop, UV_RUN_DEFAULT);
    uv_loop_close(&job->loop);
    explicit_bzero(job->key, sizeof job->key);
    strbuf_release(&job->addrs);
    free(job->nics);
    free(job->tethers);
    free(job->ranks);
    free(job->slots);
}

static int finish(struct launch *job)
{
    int code = job->has_error || job->signal != 0 || job->first_failed >= 0;

    if (job->first_failed >= 0)
        failure_print(job);
    else if (job->has_error)
        output_say(job->output, 2, "horovodrun: error: %s", job->error.text);
    else if (job->signal != 0)
        output_say(job->output, 2, "horovodrun: stopped by SIG%s",
                   sigabbrev_np(job->signal));
    flush_output(job);
    return code;
}

int launch_run(const struct settings *settings)
{
    struct launch job = {.settings = settings, .first_failed = -1};
    struct hvd_error err = {.rank = -1};
    int code;

    strbuf_init(&job.addrs);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (uv_loop_init(&job.loop) != 0)
        return 1;
    uv_timer_init(&job.loop, &job.limit);
    uv_timer_init(&job.loop, &job.tick);
    job.limit.data = job.tick.data = &job;
    job.since_ms = uv_now(&job.loop);
    if (prepare(&job, &err) != HVD_OK) {
        if (job.output == NULL) {
            fprintf(stderr, "horovodrun: error: %s\n", err.text);
            return 1;
        }
        launch_fail(&job, &err);
    } else {
        uv_timer_start(&job.limit, on_start_limit,
                       (uint64_t)settings->start_timeout_s * 1000, 0);
        uv_timer_start(&job.tick, on_tick, TICK_MS, TICK_MS);
    }
    while (job.state != JOB_DONE)
        uv_run(&job.loop, UV_RUN_DEFAULT);
    wait_for_processes(&job);
    code = finish(&job);
    release(&job);
    return code;
}
