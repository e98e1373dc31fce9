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
#define HOSTS_SHOWN 8                   /* of those that are missing */

/* One more of a list of hosts, of which a large job may miss a thousand. */
static void add_host(struct strbuf *names, int *count_p, const char *host)
{
    if (++*count_p <= HOSTS_SHOWN)
        strbuf_addf(names, "%s%s", *count_p > 1 ? ", " : "", host);
}

static void end_hosts(struct strbuf *names, int count)
{
    if (count > HOSTS_SHOWN)
        strbuf_addf(names, " and %d more", count - HOSTS_SHOWN);
}

static void say_status(struct launch *job)
{
    struct strbuf names;
    int missing = 0;

    strbuf_init(&names);
    for (int i = 0; i < job->link_count; i++)
        if (job->links[i].state == (job->state == JOB_CONNECTING ? AGENT_LINK_CONNECTING
                                                                 : AGENT_LINK_READY))
            add_host(&names, &missing, job->links[i].host);
    end_hosts(&names, missing);
    output_say(job->output, 2, "horovodrun: waiting %llu s for %s of %s; %d of %d hosts are "
               "ready", (unsigned long long)(uv_now(&job->loop) - job->since_ms) / 1000,
               job->state == JOB_CONNECTING ? "the agent" : "the network check",
               names.text, job->link_count - missing, job->link_count);
    strbuf_release(&names);
}

/* The hosts of ranks, each once: they come in the order of their hosts. */
static void add_rank_hosts(const struct launch *job, const bool *member, int count,
                           struct strbuf *names)
{
    const char *last = "";
    int hosts = 0;

    for (int r = 0; r < count; r++) {
        const char *host = launch_rank_host(job, r);

        if (!member[r] || strcmp(host, last) == 0)
            continue;
        add_host(names, &hosts, host);
        last = host;
    }
    end_hosts(names, hosts);
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
        strbuf_addf(&names, " on ");
        add_rank_hosts(job, is_missing, np, &names);
        output_say(job->output, 2, "horovodrun: %d of %d processes wait in hvd.init for %llu s; "
                   "not there yet: ranks %s (what they do: horovodrun --status %.8s)", waiting,
                   np, (unsigned long long)(uv_now(&job->loop) - job->since_ms) / 1000,
                   names.text, job->job_id);
    }
    strbuf_release(&names);
    free(is_missing);
    free(text);
}

static void check_heartbeat(struct launch *job, struct agent_link *link)
{
    uint64_t silent_ms = uv_now(&job->loop) - link->heard_ms;

    if (link->is_local || link->state != AGENT_LINK_REACHED)
        return;
    agent_put_frame(duplex_out(&link->channel), AGENT_PING, NULL, 0);
    duplex_flush(&link->channel);
    if (silent_ms > (uint64_t)(job->settings->heartbeat_s * 1000) + 1000) {
        link->state = AGENT_LINK_LOST;
        if (link->pid > 0)
            kill(link->pid, SIGKILL);
        launch_agent_lost(job, link, "no sign of life");
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
    for (int i = 0; i < job->link_count; i++)
        check_heartbeat(job, &job->links[i]);
}

static void on_start_limit(uv_timer_t *timer)
{
    struct launch *job = timer->data;
    struct hvd_error err = {.rank = -1};
    struct strbuf names;

    strbuf_init(&names);
    for (int i = 0; i < job->link_count; i++)
        if (job->links[i].state < AGENT_LINK_REACHED &&
            (job->state == JOB_PROBING || job->links[i].state == AGENT_LINK_CONNECTING))
            strbuf_addf(&names, "%s%s", names.length > 0 ? ", " : "", job->links[i].host);
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

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (elastic_reaped(job, pid, status))
            continue;
        for (int i = 0; i < job->link_count; i++)
            if (job->links[i].pid == pid) {
                agent_link_reaped(&job->links[i], status);
                break;
            }
    }
}

/* SIGTERM is notice to an elastic job (its host goes); another signal, or a second one, is
 * the end of it. */
static void on_stop_signal(uv_signal_t *handle, int number)
{
    struct launch *job = handle->data;

    job->signal_count++;
    if (number == SIGTERM && job->signal_count == 1 && elastic_leave(job))
        return;
    if (job->signal == 0)
        job->signal = number;
    launch_begin_end(job, job->signal_count > 1 ? 0 : (uint32_t)job->settings->grace_ms);
}

/* SIGUSR1, SIGUSR2 (Slurm's --signal, the flight recorder): the workers are meant. */
static void on_user_signal(uv_signal_t *handle, int number)
{
    struct launch *job = handle->data;
    uint32_t word = (uint32_t)number;

    for (int i = 0; i < job->link_count; i++) {
        struct agent_link *link = &job->links[i];

        if (link->state != AGENT_LINK_REACHED || !link->has_channel)
            continue;
        agent_put_words(duplex_out(&link->channel), AGENT_SIGNAL, &word, 1, NULL, 0);
        duplex_flush(&link->channel);
    }
}

/* Ctrl-Z: agents must not take our silence for death. */
static void tell_pause(struct launch *job, uint32_t is_paused)
{
    for (int i = 0; i < job->link_count; i++) {
        struct agent_link *link = &job->links[i];

        if (link->is_local || link->state != AGENT_LINK_REACHED)
            continue;
        agent_put_words(duplex_out(&link->channel), AGENT_PAUSE, &is_paused, 1, NULL, 0);
        duplex_flush(&link->channel);
        link->heard_ms = uv_now(&job->loop);
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
    signal(SIGXFSZ, SIG_IGN);           /* a limit on files is an error of write, no death */
    for (int i = 0; i < 7; i++) {
        uv_signal_init(&job->loop, &job->signals[i]);
        job->signals[i].data = job;
    }
    uv_signal_start(&job->signals[0], on_child, SIGCHLD);
    uv_signal_start(&job->signals[1], on_suspend, SIGTSTP);
    for (int i = 0; i < 3; i++)
        /* nohup and background jobs of shells ignore some: that stays. */
        if (sigaction(stops[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            uv_signal_start(&job->signals[2 + i], on_stop_signal, stops[i]);
    uv_signal_start(&job->signals[5], on_user_signal, SIGUSR1);
    uv_signal_start(&job->signals[6], on_user_signal, SIGUSR2);
}

void launch_watch_time(struct launch *job)
{
    uv_timer_start(&job->limit, on_start_limit,
                   (uint64_t)job->settings->start_timeout_s * 1000, 0);
    uv_timer_start(&job->tick, on_tick, TICK_MS, TICK_MS);
}
