/*
 * launch.c: one launch as a state machine over events (frames of agents, signals, timers).
 *
 * 1. Nobody but this loop decides; nothing in it blocks.
 * 2. The first failure, a signal, or the end of all workers leads to ENDING; from there
 *    only to DONE.
 * 3. A second signal kills at once.
 * 4. Ranks that are ended by us are reported, but the first failure stays the verdict.
 * 5. Who was first is not who ends first: an exception on one rank fails the operations of
 *    all others, which may be quicker to end.  The ranks know, and tell the server before
 *    they fail; what the first one to end has told is known when its connection has ended.
 */
#include "launch/launch.h"

#include "base/log.h"
#include "base/process.h"
#include "base/secret.h"
#include "launch/bind.h"
#include "launch/dashboard.h"
#include "launch/launch_int.h"
#include "launch/look_desk.h"
#include "launch/spawn.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOG_COMPONENT "launch"
#define SSH_TRIES 5
#define END_MS 12000                    /* beyond the grace: agents need 6 s at most */
#define SUSPECT_MS 5000                 /* for an interpreter to end after an exception */
#define SWEEP_MS 10                     /* between two looks at what is left */

const char *launch_rank_host(const struct launch *job, int rank)
{
    if (job->elastic != NULL)
        return job->ranks[rank].name;
    return job->settings->hosts.items[job->slots[rank].host].name;
}

void launch_say(struct launch *job, const char *text)
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

static bool has_ended(const struct agent_link *link)
{
    return link->state == AGENT_LINK_DONE || link->state == AGENT_LINK_LOST;
}

static bool is_over(const struct launch *job)
{
    for (int i = 0; i < job->link_count; i++)
        if (!has_ended(&job->links[i]) && job->links[i].state != AGENT_LINK_CLOSED)
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

    for (int i = 0; i < job->link_count; i++)
        if (!has_ended(&job->links[i])) {
            output_say(job->output, 2, "horovodrun: the agent of host %s does not end; "
                       "its processes %s", job->links[i].host,
                       job->links[i].is_local ? "are killed" : "may be left");
            job->links[i].state = AGENT_LINK_LOST;
            if (job->links[i].is_local)
                spawn_signal_descendants(SIGKILL);
        }
    check_over(job);
}

void launch_begin_end(struct launch *job, uint32_t grace_ms)
{
    if (job->state == JOB_DONE)
        return;
    if (job->state != JOB_ENDING)
        enter(job, JOB_ENDING);
    uv_timer_start(&job->limit, on_end_limit, grace_ms + END_MS, 0);
    input_stop(job);
    for (int i = 0; i < job->link_count; i++) {
        struct agent_link *link = &job->links[i];

        /* Not connected yet: the end of its process is the end of it. */
        if (link->state == AGENT_LINK_CONNECTING && !link->is_local) {
            link->state = AGENT_LINK_LOST;
            if (link->pid > 0)
                kill(link->pid, SIGTERM);
        } else if (!has_ended(link)) {
            agent_link_stop(link, grace_ms);
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
    launch_begin_end(job, (uint32_t)job->settings->grace_ms);
}

/* ---- ranks ------------------------------------------------------------------------ */

/* horovod.run learns who failed, and in which order ... */
void launch_tell_end(struct launch *job, int rank)
{
    const struct rank_state *r = &job->ranks[rank];
    uint32_t words[3] = {(uint32_t)rank, (uint32_t)r->code, (uint32_t)r->signal};

    if (!job->has_result)
        return;
    words[0] = (uint32_t)r->label;
    agent_put_words(duplex_out(&job->result), AGENT_EXIT, words, 3, r->text,
                    strlen(r->text));
    duplex_flush(&job->result);
}

/* ... and who was at fault. */
static void tell_verdict(struct launch *job)
{
    uint32_t rank = (uint32_t)job->first_failed;

    if (!job->has_result || job->first_failed < 0 || job->elastic != NULL)
        return;
    agent_put_words(duplex_out(&job->result), AGENT_DONE, &rank, 1, NULL, 0);
    duplex_flush(&job->result);
}

/* Rule 5.  Who may have been the first, and is worth a wait: its exit code and last words
 * shall be its own, not those of our SIGTERM. */
static bool find_suspect(struct launch *job)
{
    struct hvd_error report;

    if (job->server == NULL || !hvd_server_report(job->server, &report) ||
        report.rank < 0 || report.rank >= job->settings->np ||
        job->ranks[report.rank].link == NULL)
        return false;
    log_debug("rank %d at fault: %s", report.rank, report.text);
    job->suspect = report.rank;
    job->is_convicted = report.status != HVD_SHUTDOWN;
    return !job->ranks[report.rank].is_ended &&
           (report.status == HVD_SHUTDOWN || report.status == HVD_ABORTED);
}

static enum verdict_wait find_wait(struct launch *job)
{
    bool is_worth_it = find_suspect(job);

    if (job->state != JOB_RUNNING)
        return WAIT_NOTHING;
    if (is_worth_it)
        return WAIT_SUSPECT;
    return job->suspect < 0 && job->server != NULL &&
           hvd_server_hears(job->server, job->first_failed) ? WAIT_REPORT : WAIT_NOTHING;
}

/* A rank that ends well was not the first to fail.  One that has not ended yet was it if
 * the others say so; that it has left the job is no proof. */
static void end_after_failure(struct launch *job)
{
    const struct rank_state *r = job->suspect >= 0 ? &job->ranks[job->suspect] : NULL;

    if (r != NULL && (r->is_ended ? r->code != 0 : job->is_convicted))
        job->first_failed = job->suspect;
    job->wait = WAIT_NOTHING;
    if (job->signal == 0 && job->ended < job->mine)
        output_say(job->output, 1, "Terminating remaining workers after failure "
                   "of Process %d.", job->first_failed);
    launch_begin_end(job, (uint32_t)job->settings->grace_ms);
}

static void on_wait_limit(uv_timer_t *timer)
{
    end_after_failure(timer->data);
}

static void on_heard(uv_async_t *async)
{
    struct launch *job = async->data;

    if (job->wait != WAIT_REPORT)
        return;
    job->wait = find_wait(job);
    if (job->wait == WAIT_NOTHING)
        end_after_failure(job);
}

/* In the server's thread. */
void launch_server_heard(void *context)
{
    struct launch *job = context;

    uv_async_send(&job->heard);
}

static void rank_failed(struct launch *job, int rank)
{
    output_end(job->output, rank);
    output_say(job->output, 1, "Process %d exit with status code %d.", rank,
               job->ranks[rank].code);
    if (job->first_failed >= 0)
        return;
    job->first_failed = rank;
    job->wait = find_wait(job);
    if (job->wait == WAIT_NOTHING)
        end_after_failure(job);
    else
        uv_timer_start(&job->limit, on_wait_limit, SUSPECT_MS, 0);
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
    if (job->elastic != NULL) {
        elastic_rank_ended(job, rank);
        return;
    }
    launch_tell_end(job, rank);
    if (text[0] != '\0')
        output_say(job->output, 2, "horovodrun: rank %d on %s: %s", rank,
                   launch_rank_host(job, rank), text);
    if (code != 0)
        rank_failed(job, rank);
    if (job->wait == WAIT_SUSPECT && rank == job->suspect)
        end_after_failure(job);
    if (job->ended == job->mine && job->wait == WAIT_NOTHING)
        launch_begin_end(job, (uint32_t)job->settings->grace_ms);
}

void launch_rank_result(struct launch *job, int rank, const char *bytes, size_t count)
{
    uint32_t word = (uint32_t)job->ranks[rank].label;

    if (!job->has_result)
        return;
    agent_put_words(duplex_out(&job->result), AGENT_RESULT, &word, 1, bytes, count);
    duplex_flush(&job->result);
}

/* ---- links ------------------------------------------------------------------------ */

static bool all_links(const struct launch *job, enum agent_link_state state)
{
    for (int i = 0; i < job->link_count; i++)
        if (job->links[i].state != state)
            return false;
    return true;
}

void launch_say_start(struct launch *job, int rank)
{
    struct strbuf line;

    if (!job->settings->verbose)
        return;
    /* Neither environment nor key: names of the launcher's own variables only. */
    strbuf_init(&line);
    strbuf_addf(&line, "Starting rank %d on %s:", rank, launch_rank_host(job, rank));
    for (int i = 0; job->settings->command[i] != NULL; i++)
        strbuf_addf(&line, " %s", job->settings->command[i]);
    output_say(job->output, 1, "%s", line.text);
    strbuf_release(&line);
}

void launch_enter_running(struct launch *job)
{
    enter(job, JOB_RUNNING);
    uv_timer_stop(&job->limit);
}

static void start_generation(struct launch *job)
{
    launch_enter_running(job);
    for (int i = 0; i < job->link_count; i++)
        if (job->settings->payload_fd >= 0)
            agent_link_send_payload(&job->links[i]);
    for (int r = 0; r < job->settings->np; r++)
        if (job->ranks[r].link != NULL) {
            launch_say_start(job, r);
            agent_link_start_rank(job->ranks[r].link, r);
        }
    if (job->ranks[0].link != NULL && !job->ranks[0].link->is_local)
        input_start(job, job->ranks[0].link);
}

static void choose_threads(struct launch *job)
{
    const struct settings *s = job->settings;

    if (env_get(&s->base, "OMP_NUM_THREADS") != NULL ||
        env_get(&s->assigned, "OMP_NUM_THREADS") != NULL)
        return;
    for (int i = 0; i < job->link_count; i++) {
        struct agent_link *link = &job->links[i];

        if (link->rank_count < 2)
            continue;
        link->threads = (int)link->cpus / link->rank_count;
        if (link->threads < 1)
            link->threads = 1;
    }
    if (job->links[0].threads > 0)
        output_say(job->output, 2, "horovodrun: OMP_NUM_THREADS is not set; workers get "
                   "%d (%u CPUs for %d processes)", job->links[0].threads,
                   job->links[0].cpus, job->links[0].rank_count);
}

void launch_agent_reached(struct launch *job)
{
    if (job->elastic != NULL)
        elastic_agents_changed(job);
    if (job->state != JOB_PROBING || !all_links(job, AGENT_LINK_REACHED))
        return;
    if (job->has_remote) {
        launch_say(job, "Notified all the hosts that the registration is complete.");
        launch_say(job, "Waiting for hosts to perform host-to-host interface checking.");
        launch_say(job, "Host-to-host interface checking successful.");
        launch_say(job, "Interfaces on all the hosts were successfully checked.");
        if (job->settings->verbose)
            output_say(job->output, 1, "Common interface found: %s",
                       job->nics[0] != '\0' ? job->nics : job->addrs.text);
    }
    start_generation(job);
}

void launch_agent_ready(struct launch *job)
{
    if (job->elastic != NULL)
        elastic_agents_changed(job);
    if (job->state != JOB_CONNECTING || !all_links(job, AGENT_LINK_READY))
        return;
    if (job->has_remote) {
        launch_say(job, "SSH was successful into all the remote hosts.");
        launch_say(job, "Testing interfaces on all the hosts.");
        launch_say(job, "Launched horovod server.");
        for (int i = 0; i < job->link_count && job->settings->verbose; i++)
            output_say(job->output, 1, "Launching horovod task function: "
                       "horovodrun --agent on %s", job->links[i].host);
        launch_say(job, "Attempted to launch horovod task servers.");
        launch_say(job, "Waiting for the hosts to acknowledge.");
    }
    choose_threads(job);
    enter(job, JOB_PROBING);
    for (int i = 0; i < job->link_count; i++)
        agent_link_send_job(&job->links[i]);
    launch_agent_reached(job);
}

void launch_agent_done(struct launch *job, struct agent_link *link)
{
    if (job->elastic != NULL)
        elastic_agent_done(job, link);
    check_over(job);
}

static void connection_failed(struct launch *job, struct agent_link *link, const char *why)
{
    struct hvd_error err = {.rank = -1};

    /* The cause may pass (a host that starts, MaxStartups of sshd). */
    if (link->tries < SSH_TRIES && !link->is_local) {
        agent_link_retry(link);
        return;
    }
    agent_link_close(link);
    link->state = AGENT_LINK_LOST;
    if (link->is_local) {
        error_set(&err, HVD_SYS, -1, "the local agent ended: %s", why);
    } else {
        output_say(job->output, 2, "ssh to host %s failed:\n%s", link->host,
                   link->errors.length > 0 ? link->errors.text : why);
        error_set(&err, HVD_SYS, -1, "could not connect to some hosts via ssh: %s (%s)",
                  link->host, why);
    }
    launch_fail(job, &err);
}

void launch_agent_lost(struct launch *job, struct agent_link *link, const char *why)
{
    char text[512];

    if (job->elastic != NULL && job->state < JOB_ENDING) {
        elastic_agent_lost(job, link, why);
        return;
    }
    if (job->state == JOB_CONNECTING) {
        connection_failed(job, link, why);
        return;
    }
    snprintf(text, sizeof text, "the connection to the agent of host %s was lost: %s",
             link->host, why);
    if (job->state == JOB_PROBING) {
        struct hvd_error err = {.rank = -1};

        error_set(&err, HVD_PEER_LOST, -1, "%s", text);
        launch_fail(job, &err);
    }
    /* Of the local agent's children we are the parent now. */
    if (link->is_local)
        spawn_signal_descendants(SIGKILL);
    for (int r = 0; r < job->rank_count; r++)
        if (job->ranks[r].link == link && job->ranks[r].is_started)
            launch_rank_ended(job, r, link->is_local ? 137 : 255, 0, text);
    check_over(job);
}

/* ---- one launch from its begin to its end ------------------------------------------- */

static void wait_for_processes(struct launch *job)
{
    uint64_t until = uv_hrtime() + 2000000000ull;

    /* The agents have nothing left; they end by themselves. */
    uv_timer_start(&job->limit, on_end_limit, 2000, 0);
    for (int i = 0; i < job->link_count; i++) {
        agent_link_close(&job->links[i]);
        while (job->links[i].pid > 0 && uv_hrtime() < until)
            uv_run(&job->loop, UV_RUN_ONCE);
        if (job->links[i].pid > 0)
            kill(job->links[i].pid, SIGKILL);
    }
    /* Usually one look: there is no child, hence nothing below it. */
    while (spawn_signal_descendants(SIGKILL) > 0 && uv_hrtime() < until) {
        uv_timer_start(&job->limit, on_end_limit, SWEEP_MS, 0);
        uv_run(&job->loop, UV_RUN_ONCE);
    }
    tell_verdict(job);
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
    look_desk_close(job);
    elastic_free(job);
    input_stop(job);
    for (int i = 0; i < job->link_count; i++) {
        agent_link_close(&job->links[i]);
        strbuf_release(&job->links[i].errors);
    }
    if (job->has_result)
        duplex_close(&job->result);
    output_free(job->output);
    uv_walk(&job->loop, close_handle, NULL);
    uv_run(&job->loop, UV_RUN_DEFAULT);
    uv_loop_close(&job->loop);
    secret_free(job->key, HVD_KEY_BYTES);
    strbuf_release(&job->addrs);
    free(job->nics);
    free(job->links);
    free(job->ranks);
    free(job->slots);
}

static void say_error(struct launch *job)
{
    char shown[HVD_ERROR_TEXT + 64];

    hvd_error_show(job->error.text, shown, sizeof shown);
    output_say(job->output, 2, "horovodrun: error: %s", shown);
}

static int finish(struct launch *job)
{
    int code = job->has_error || job->signal != 0 || job->first_failed >= 0;

    if (job->first_failed >= 0)
        failure_print(job);
    if (job->has_error && (job->first_failed < 0 || job->elastic != NULL))
        say_error(job);
    else if (job->signal != 0)
        output_say(job->output, 2, "horovodrun: stopped by SIG%s",
                   signal_name(job->signal));
    flush_output(job);
    return code != 0 || output_is_lost(job->output);
}

int launch_run(const struct settings *settings)
{
    struct launch job = {.settings = settings, .first_failed = -1, .suspect = -1};
    struct hvd_error err = {.rank = -1};
    char shown[HVD_ERROR_TEXT + 64];
    int code;

    strbuf_init(&job.addrs);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (uv_loop_init(&job.loop) != 0)
        return 1;
    uv_timer_init(&job.loop, &job.limit);
    uv_timer_init(&job.loop, &job.tick);
    uv_async_init(&job.loop, &job.heard, on_heard);
    job.limit.data = job.tick.data = job.heard.data = &job;
    job.since_ms = uv_now(&job.loop);
    if (launch_prepare(&job, &err) != HVD_OK) {
        if (job.output == NULL) {
            hvd_error_show(err.text, shown, sizeof shown);
            fprintf(stderr, "horovodrun: error: %s\n", shown);
            return 1;
        }
        launch_fail(&job, &err);
    } else {
        look_desk_open(&job);
        dashboard_start(&job);
        launch_watch_time(&job);
        if (job.elastic != NULL && elastic_begin(&job, &err) != HVD_OK)
            launch_fail(&job, &err);
    }
    while (job.state != JOB_DONE)
        uv_run(&job.loop, UV_RUN_DEFAULT);
    dashboard_end(&job);
    wait_for_processes(&job);
    code = finish(&job);
    release(&job);
    return code;
}
