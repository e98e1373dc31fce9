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

const char *launch_rank_host(const struct launch *job, int rank)
{
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

void launch_begin_end(struct launch *job, uint32_t grace_ms)
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
    launch_begin_end(job, (uint32_t)job->settings->grace_ms);
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
                   launch_rank_host(job, rank), text);
    if (code != 0) {
        output_end(job->output, rank);
        output_say(job->output, 1, "Process %d exit with status code %d.", rank, code);
        if (job->first_failed < 0) {
            job->first_failed = rank;
            if (job->signal == 0 && job->ended < job->mine)
                output_say(job->output, 1, "Terminating remaining workers after failure "
                           "of Process %d.", rank);
            launch_begin_end(job, (uint32_t)job->settings->grace_ms);
        }
    }
    if (job->ended == job->mine)
        launch_begin_end(job, (uint32_t)job->settings->grace_ms);
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
    strbuf_addf(&line, "Starting rank %d on %s:", rank, launch_rank_host(job, rank));
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

void launch_tether_ready(struct launch *job)
{
    if (job->state != JOB_CONNECTING || !all_tethers(job, TETHER_READY))
        return;
    if (job->has_remote) {
        launch_say(job, "SSH was successful into all the remote hosts.");
        launch_say(job, "Testing interfaces on all the hosts.");
        launch_say(job, "Launched horovod server.");
        for (int i = 0; i < job->tether_count && job->settings->verbose; i++)
            output_say(job->output, 1, "Launching horovod task function: "
                       "horovodrun --agent on %s", job->tethers[i].host);
        launch_say(job, "Attempted to launch horovod task servers.");
        launch_say(job, "Waiting for the hosts to acknowledge.");
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

/* ---- one launch from its begin to its end ------------------------------------------- */

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
    if (launch_prepare(&job, &err) != HVD_OK) {
        if (job.output == NULL) {
            fprintf(stderr, "horovodrun: error: %s\n", err.text);
            return 1;
        }
        launch_fail(&job, &err);
    } else {
        launch_watch_time(&job);
    }
    while (job.state != JOB_DONE)
        uv_run(&job.loop, UV_RUN_DEFAULT);
    wait_for_processes(&job);
    code = finish(&job);
    release(&job);
    return code;
}
