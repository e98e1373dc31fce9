/*
 * launch_watch.c: what comes to a launch by itself: time (heartbeats of agents, a word to
 * the user while he waits, the limit of the start) and signals.
 */
#include "base/log.h"
#include "launch/launch_int.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define TICK_MS 1000                    /* heartbeat */
#define STATUS_MS 10000                 /* a wait is told after so long, and again */

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
    launch_begin_end(job, job->signal_count > 1 ? 0 : (uint32_t)job->settings->grace_ms);
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

void launch_watch_signals(struct launch *job)
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

void launch_watch_time(struct launch *job)
{
    uv_timer_start(&job->limit, on_start_limit,
                   (uint64_t)job->settings->start_timeout_s * 1000, 0);
    uv_timer_start(&job->tick, on_tick, TICK_MS, TICK_MS);
}
