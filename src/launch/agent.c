/*
 * agent.c: the process that owns the workers of one host.
 *
 * 1. It is the only reaper of its workers and, as subreaper, of all their descendants.
 * 2. Whatever ends the job here (STOP, the channel closes, no PING, SIGTERM): SIGTERM to
 *    every worker's group, grace, SIGKILL to every descendant; then what the workers have
 *    left behind: SIGTERM, a second, SIGKILL.
 * 3. What SIGKILL does not end within 5 s is reported and left.
 */
#include "launch/agent.h"

#include "base/log.h"
#include "base/process.h"
#include "launch/agent_int.h"
#include "launch/agent_look.h"
#include "launch/bind.h"
#include "launch/reach.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SWEEP_MS 1000                   /* contract: drain at most a second */
#define KILL_MS 5000                    /* F28 */
#define STALL_MS 1000                   /* F41: workers never block longer */
#define LOST_GRACE_MS 3000              /* so that nothing is left 5 s after the launcher */

static void __attribute__((format(printf, 3, 4)))
agent_text(struct agent *agent, int level, const char *format, ...)
{
    char text[1024];
    va_list args;

    text[0] = (char)level;
    va_start(args, format);
    vsnprintf(text + 1, sizeof text - 1, format, args);
    va_end(args);
    agent_put_frame(duplex_out(&agent->channel), AGENT_TEXT, text, strlen(text + 1) + 2);
    duplex_flush(&agent->channel);
}

/* ---- the end ---------------------------------------------------------------------- */

static void agent_check_end(struct agent *agent);

static void signal_workers(struct agent *agent, int signal)
{
    list_each(node, &agent->workers) {
        struct worker *w = list_entry(node, struct worker, node);

        if (w->is_alive)
            kill(-w->pid, signal);
    }
}

static void enter_done(struct agent *agent)
{
    agent->phase = PHASE_DONE;
    list_each(node, &agent->workers)
        worker_close(list_entry(node, struct worker, node));
    agent_put_frame(duplex_out(&agent->channel), AGENT_DONE, NULL, 0);
    duplex_flush(&agent->channel);
    uv_stop(&agent->loop);
}

static void on_unkillable(uv_timer_t *timer)
{
    struct agent *agent = timer->data;

    list_each(node, &agent->workers) {
        struct worker *w = list_entry(node, struct worker, node);

        if (w->is_alive)
            worker_ended(w, 137, SIGKILL, "the process cannot be killed and was left");
    }
    enter_done(agent);
}

static void enter_killing(struct agent *agent)
{
    agent->phase = PHASE_KILLING;
    spawn_signal_descendants(SIGKILL);
    uv_timer_start(&agent->limit, on_unkillable, KILL_MS, 0);
    agent_check_end(agent);
}

static void on_grace_over(uv_timer_t *timer)
{
    enter_killing(timer->data);
}

static void enter_sweeping(struct agent *agent)
{
    agent->phase = PHASE_SWEEPING;
    spawn_signal_descendants(SIGTERM);
    uv_timer_start(&agent->limit, on_grace_over, SWEEP_MS, 0);
}

static void agent_stop(struct agent *agent, uint64_t grace_ms)
{
    if (agent->phase >= PHASE_KILLING)
        return;
    if (grace_ms == 0 && agent->alive > 0) {
        enter_killing(agent);
        return;
    }
    if (agent->phase != PHASE_STOPPING) {
        agent->phase = PHASE_STOPPING;
        signal_workers(agent, SIGTERM);
    }
    uv_timer_start(&agent->limit, on_grace_over, grace_ms, 0);
    agent_check_end(agent);
}

static void agent_check_end(struct agent *agent)
{
    if (agent->phase < PHASE_STOPPING || agent->phase == PHASE_DONE || agent->alive > 0)
        return;
    if (spawn_signal_descendants(agent->phase == PHASE_KILLING ? SIGKILL : 0) == 0)
        enter_done(agent);
    else if (agent->phase == PHASE_STOPPING)
        enter_sweeping(agent);
}

static void agent_lose(struct agent *agent)
{
    agent->is_lost = true;
    agent_stop(agent, LOST_GRACE_MS);
}

/* ---- signals of the user ---------------------------------------------------------- */

static void pass_signal(struct agent *agent, int number)
{
    struct strbuf deaf;

    if (number != SIGUSR1 && number != SIGUSR2)
        return;
    strbuf_init(&deaf);
    list_each(node, &agent->workers) {
        struct worker *w = list_entry(node, struct worker, node);

        if (w->is_alive && spawn_pass_signal(w->pid, number) == 0)
            strbuf_addf(&deaf, "%s%u", deaf.length > 0 ? ", " : "", w->rank);
    }
    if (deaf.length > 0)
        agent_text(agent, LOG_WARN, "SIG%s was not passed to rank %s, which does not "
                   "handle it", signal_name(number), deaf.text);
    strbuf_release(&deaf);
}

/* ---- memory ----------------------------------------------------------------------- */

/* Processes that the kernel of this machine has ended for lack of memory, in any cgroup;
 * -1: it does not tell.  It counts before it kills. */
static long count_oom_kills(void)
{
    FILE *file = fopen("/proc/vmstat", "re");
    char line[128];
    long count = -1;

    if (file == NULL)
        return -1;
    while (count < 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "oom_kill ", 9) == 0)
            count = atol(line + 9);
    fclose(file);
    return count;
}

/* Why SIGKILL, if it is not from us. */
static const char *explain_kill(const struct agent *agent)
{
    long count = count_oom_kills();

    if (agent->phase >= PHASE_STOPPING)
        return "";
    if (count < 0)
        return "killed; if nobody sent the signal, the kernel did for lack of memory: see "
               "dmesg";
    return count > agent->oom_kills
               ? "killed, and the kernel has ended a process here for lack of memory "
                 "(oom_kill in /proc/vmstat went up); dmesg names it"
               : "";
}

/* ---- children --------------------------------------------------------------------- */

static void on_child(uv_signal_t *handle, int number)
{
    struct agent *agent = handle->data;
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        struct worker *w = worker_find_pid(agent, pid);

        if (w == NULL)
            continue;
        if (WIFSIGNALED(status))
            worker_ended(w, 128 + WTERMSIG(status), WTERMSIG(status),
                         WTERMSIG(status) == SIGKILL ? explain_kill(agent) : "");
        else
            worker_ended(w, WEXITSTATUS(status), 0, "");
    }
    agent_check_end(agent);
}

static void on_leave_limit(uv_timer_t *timer)
{
    agent_lose(timer->data);
}

/* The host is about to go (preemption).  An elastic job gets the time for a commit. */
static void on_term(uv_signal_t *handle, int number)
{
    struct agent *agent = handle->data;

    if (!agent->is_elastic || agent->is_leaving || agent->phase != PHASE_RUNNING) {
        agent_lose(agent);
        return;
    }
    agent->is_leaving = true;
    agent_put_frame(duplex_out(&agent->channel), AGENT_NOTICE, NULL, 0);
    duplex_flush(&agent->channel);
    uv_timer_start(&agent->limit, on_leave_limit, agent->leave_ms, 0);
}

/* ---- output pressure -------------------------------------------------------------- */

static void on_stalled(uv_timer_t *timer)
{
    struct agent *agent = timer->data;

    agent->is_dropping = true;
    worker_watch_all(agent, true);
}

void agent_check_pressure(struct agent *agent)
{
    if (agent->is_blocked || duplex_unsent(&agent->channel) < DUPLEX_HIGH)
        return;
    agent->is_blocked = true;
    worker_watch_all(agent, false);
    uv_timer_start(&agent->stall, on_stalled, STALL_MS, 0);
}

static void on_drained(struct duplex *ch)
{
    struct agent *agent = ch->owner;

    if (!agent->is_blocked)
        return;
    agent->is_blocked = agent->is_dropping = false;
    uv_timer_stop(&agent->stall);
    worker_watch_all(agent, true);
}

/* ---- frames ----------------------------------------------------------------------- */

static void on_beat(uv_timer_t *timer)
{
    struct agent *agent = timer->data;

    agent_put_frame(duplex_out(&agent->channel), AGENT_PING, NULL, 0);
    duplex_flush(&agent->channel);
    if (!agent->is_paused && uv_now(&agent->loop) - agent->heard_ms > agent->heartbeat_ms)
        agent_lose(agent);
}

static void on_reached(void *owner, const char *addr)
{
    struct agent *agent = owner;

    agent_put_frame(duplex_out(&agent->channel), AGENT_REACHED, addr, strlen(addr) + 1);
    duplex_flush(&agent->channel);
    reach_stop(agent->reach);           /* the server takes silence for a stranger's */
    agent->reach = NULL;
}

static void on_desk(uv_poll_t *poll, int status, int events)
{
    struct agent *agent = poll->data;

    key_desk_serve(agent->desk_fd, agent->key_fd);
}

/* Without a desk only workers behind a wrapper that closes descriptors are lost. */
static enum hvd_status take_key(struct agent *agent, const uint8_t *key,
                                struct hvd_error *err)
{
    struct hvd_error why = {.rank = -1};

    TRY(hvd_key_descriptor(key, &agent->key_fd, err));
    if (key_desk_open(agent->desk_name, &agent->desk_fd, &why) != HVD_OK) {
        agent_text(agent, LOG_WARN, "%s", why.text);
        agent->desk_name[0] = '\0';
        return HVD_OK;
    }
    uv_poll_init(&agent->loop, &agent->desk, agent->desk_fd);
    agent->desk.data = agent;
    uv_poll_start(&agent->desk, UV_READABLE, on_desk);
    return HVD_OK;
}

static enum hvd_status take_job(struct agent *agent, const char *body, size_t bytes,
                                struct hvd_error *err)
{
    enum hvd_status status;
    struct agent_job job;

    if (agent->phase != PHASE_IDLE)
        return error_set(err, HVD_PROTO, -1, "a second job for one agent");
    TRY_OUT(agent_get_job(body, bytes, &job, err));
    TRY_OUT(take_key(agent, job.key, err));
    if (chdir(job.directory) != 0)
        agent_text(agent, LOG_WARN, "directory %s: %s; workers run in the login directory",
                   job.directory, strerror(errno));
    if (job.keep_environment)
        env_add_own(&agent->common);
    for (uint32_t i = 0; i < job.env_count; i++)
        env_put(&agent->common, job.env[i]);
    agent->bind = job.bind;
    agent->is_elastic = env_get(&agent->common, "HOROVOD_ELASTIC") != NULL;
    agent->heartbeat_ms = job.heartbeat_ms;
    agent->leave_ms = job.leave_ms;
    if (job.heartbeat_ms > 0)
        uv_timer_start(&agent->beat, on_beat, 0, 1000);
    if (job.has_payload)
        agent->payload_fd = memfd_create("horovod-function", MFD_CLOEXEC);
    if (job.port != 0)
        status = reach_start(&agent->loop, job.addrs, (int)job.port, on_reached, agent,
                             &agent->reach, err);
    agent->phase = PHASE_RUNNING;
out:
    agent_job_release(&job);
    return status;
}

static enum hvd_status take_start(struct agent *agent, const char *body, size_t bytes,
                                  struct hvd_error *err)
{
    struct agent_start start;
    enum hvd_status status = agent_get_start(body, bytes, &start, err);

    /* While the job ends here, a late START is not an error, but it starts nothing. */
    if (status == HVD_OK && agent->phase == PHASE_RUNNING)
        status = worker_start(agent, &start, err);
    else if (status == HVD_OK && agent->phase == PHASE_IDLE)
        status = error_set(err, HVD_PROTO, -1, "a worker before the job");
    agent_start_release(&start);
    return status;
}

static enum hvd_status take_payload(struct agent *agent, const char *body, size_t bytes,
                                    struct hvd_error *err)
{
    while (bytes > 0) {
        ssize_t n = write(agent->payload_fd, body, bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_sys(err, -1, "cannot keep the function of the job");
        body += n;
        bytes -= (size_t)n;
    }
    return HVD_OK;
}

static enum hvd_status take_words(struct agent *agent, unsigned type, const char *body,
                                  size_t bytes, struct hvd_error *err)
{
    uint32_t word;
    struct worker *w;
    size_t rest_bytes;
    const char *rest;

    TRY(agent_get_words(body, bytes, &word, 1, &rest, &rest_bytes, err));
    if (type == AGENT_STOP) {
        agent_stop(agent, word);
    } else if (type == AGENT_PAUSE) {
        agent->is_paused = word;
    } else if (type == AGENT_SIGNAL) {
        pass_signal(agent, (int)word);
    } else {
        w = worker_find(agent, word);
        if (w != NULL)
            worker_feed(w, rest, rest_bytes);
    }
    return HVD_OK;
}

static enum hvd_status take_end(struct agent *agent, const char *body, size_t bytes,
                                struct hvd_error *err)
{
    uint32_t words[2];
    struct worker *w;
    size_t rest_bytes;
    const char *rest;

    TRY(agent_get_words(body, bytes, words, 2, &rest, &rest_bytes, err));
    w = worker_find(agent, words[0]);
    if (w != NULL)
        worker_stop(w, words[1]);
    return HVD_OK;
}

static enum hvd_status on_frame(struct duplex *ch, unsigned type, const char *body,
                                size_t bytes, struct hvd_error *err)
{
    struct agent *agent = ch->owner;

    agent->heard_ms = uv_now(&agent->loop);
    switch (type) {
    case AGENT_JOB:
        return take_job(agent, body, bytes, err);
    case AGENT_START:
        return take_start(agent, body, bytes, err);
    case AGENT_PAYLOAD:
        return take_payload(agent, body, bytes, err);
    case AGENT_END:
        return take_end(agent, body, bytes, err);
    case AGENT_STOP:
    case AGENT_PAUSE:
    case AGENT_INPUT:
    case AGENT_SIGNAL:
        return take_words(agent, type, body, bytes, err);
    case AGENT_LOOK:
        return agent_look_take(agent, body, bytes, err);
    case AGENT_PING:
        return HVD_OK;
    default:
        return error_set(err, HVD_PROTO, -1, "unexpected %s from the launcher",
                         agent_frame_name(type));
    }
}

static void on_lost(struct duplex *ch, const struct hvd_error *err)
{
    agent_lose(ch->owner);
}

/* ---- life ------------------------------------------------------------------------- */

static void say_hello(struct agent *agent)
{
    char host[256] = "";
    struct agent_hello hello = {.protocol = AGENT_PROTOCOL, .version = hvd_version(),
                                .host = host, .cpus = (uint32_t)bind_cpu_count()};

    gethostname(host, sizeof host - 1);
    duplex_send_raw(&agent->channel, AGENT_MAGIC, AGENT_MAGIC_BYTES);
    agent_put_hello(duplex_out(&agent->channel), &hello);
    duplex_flush(&agent->channel);
}

static void init_handles(struct agent *agent)
{
    uv_timer_t *timers[] = {&agent->limit, &agent->stall, &agent->beat};
    uv_signal_t *signals[] = {&agent->child, &agent->term, &agent->hup};

    for (int i = 0; i < 3; i++) {
        uv_timer_init(&agent->loop, timers[i]);
        uv_signal_init(&agent->loop, signals[i]);
        timers[i]->data = signals[i]->data = agent;
    }
    uv_signal_start(&agent->child, on_child, SIGCHLD);
    uv_signal_start(&agent->term, on_term, SIGTERM);
    uv_signal_start(&agent->hup, on_term, SIGHUP);
}

static void close_handle(uv_handle_t *handle, void *unused)
{
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* What is still to be said is said; a launcher that takes nothing gets a second. */
static void flush_last_words(struct agent *agent)
{
    uint64_t until = uv_hrtime() + SWEEP_MS * 1000000ull;

    while (!agent->channel.lost && duplex_unsent(&agent->channel) > 0 &&
           uv_hrtime() < until) {
        uv_timer_start(&agent->limit, on_grace_over, SWEEP_MS, 0);
        uv_run(&agent->loop, UV_RUN_ONCE);
    }
}

static void release(struct agent *agent)
{
    flush_last_words(agent);
    reach_stop(agent->reach);
    agent_look_stop(agent);
    duplex_close(&agent->channel);
    uv_walk(&agent->loop, close_handle, NULL);
    uv_run(&agent->loop, UV_RUN_DEFAULT);
    uv_loop_close(&agent->loop);
    for (struct list *node; (node = list_pop(&agent->workers)) != NULL;)
        free(list_entry(node, struct worker, node));
    if (agent->payload_fd >= 0)
        close(agent->payload_fd);
    if (agent->key_fd >= 0)
        close(agent->key_fd);
    if (agent->desk_fd >= 0)
        close(agent->desk_fd);
    env_release(&agent->common);
}

int agent_run(int in_fd, int out_fd, int stdin_fd)
{
    struct agent agent = {.stdin_fd = stdin_fd, .payload_fd = -1,
                          .key_fd = -1, .desk_fd = -1,
                          .oom_kills = count_oom_kills()};
    struct hvd_error err;

    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    list_init(&agent.workers);
    env_init(&agent.common);
    if (uv_loop_init(&agent.loop) != 0)
        return 1;
    init_handles(&agent);
    agent.channel.owner = &agent;
    agent.channel.on_frame = on_frame;
    agent.channel.on_lost = on_lost;
    agent.channel.on_drained = on_drained;
    if (duplex_open(&agent.channel, &agent.loop, in_fd, out_fd, &err) != HVD_OK)
        return 1;
    say_hello(&agent);
    while (agent.phase != PHASE_DONE)
        uv_run(&agent.loop, UV_RUN_DEFAULT);
    release(&agent);
    return agent.is_lost;
}
