/*
 * agent_worker.c: one worker as its agent sees it: its start, what it writes, what it is
 * fed, its end.
 *
 * 1. The end of a worker is what waitpid says, never the end of a pipe: a grandchild may
 *    keep the pipe open for ever.
 * 2. Output that was written before the end is sent before EXIT.
 * 3. Results are never dropped; output is, when the launcher takes nothing for a second.
 */
#include "launch/agent_int.h"

#include "base/log.h"
#include "base/process.h"
#include "launch/bind.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* What is read of a pipe at the end of its writer; a chatty grandchild must not hold the
 * agent here. */
#define DRAIN_LIMIT (4u << 20)

struct worker *worker_find(struct agent *agent, uint32_t rank)
{
    list_each(node, &agent->workers) {
        struct worker *w = list_entry(node, struct worker, node);

        if (w->rank == rank)
            return w;
    }
    return NULL;
}

struct worker *worker_find_pid(struct agent *agent, pid_t pid)
{
    list_each(node, &agent->workers) {
        struct worker *w = list_entry(node, struct worker, node);

        if (w->is_alive && w->pid == pid)
            return w;
    }
    return NULL;
}

static void stream_close(struct stream *s)
{
    if (s->fd < 0)
        return;
    uv_poll_stop(&s->poll);
    uv_close((uv_handle_t *)&s->poll, NULL);
    close(s->fd);
    s->fd = -1;
}

static void send_bytes(struct stream *s, const char *bytes, size_t count)
{
    struct agent *agent = s->worker->agent;
    uint32_t words[2] = {s->worker->rank, s->kind == STREAM_OUT ? 1 : 2};
    bool is_result = s->kind == STREAM_RESULT;

    agent_put_words(duplex_out(&agent->channel), is_result ? AGENT_RESULT : AGENT_OUTPUT,
                    words, is_result ? 1 : 2, bytes, count);
    duplex_flush(&agent->channel);
}

static void send_marker(struct stream *s)
{
    char text[160];
    int n = snprintf(text, sizeof text, "\n[horovodrun: %llu bytes of output dropped, "
                     "nobody took them for a second]\n",
                     (unsigned long long)s->dropped_bytes);

    s->dropped_bytes = 0;
    send_bytes(s, text, (size_t)n);
}

static void take_bytes(struct stream *s, const char *bytes, size_t count)
{
    struct agent *agent = s->worker->agent;

    if (agent->is_dropping && s->kind != STREAM_RESULT) {
        s->dropped_bytes += count;
        return;
    }
    if (s->dropped_bytes > 0)
        send_marker(s);
    send_bytes(s, bytes, count);
}

/* Reads once.  False: nothing more for now. */
static bool stream_read(struct stream *s)
{
    char bytes[AGENT_CHUNK];
    ssize_t n = read(s->fd, bytes, sizeof bytes);

    if (n < 0 && errno == EINTR)
        return true;
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n <= 0) {
        if (s->dropped_bytes > 0 && !s->worker->agent->is_dropping)
            send_marker(s);
        if (s->kind != STREAM_RESULT)
            send_bytes(s, NULL, 0);
        stream_close(s);
        return false;
    }
    take_bytes(s, bytes, (size_t)n);
    return true;
}

static void on_stream(uv_poll_t *poll, int status, int events)
{
    struct stream *s = poll->data;
    struct agent *agent = s->worker->agent;

    stream_read(s);
    agent_check_pressure(agent);
}

static void stream_watch(struct stream *s, bool on)
{
    if (s->fd < 0 || s->is_watched == on)
        return;
    s->is_watched = on;
    if (on)
        uv_poll_start(&s->poll, UV_READABLE, on_stream);
    else
        uv_poll_stop(&s->poll);
}

void worker_watch_all(struct agent *agent, bool on)
{
    list_each(node, &agent->workers) {
        struct worker *w = list_entry(node, struct worker, node);

        for (int i = 0; i < STREAM_COUNT; i++)
            /* Results wait until there is room, however long it takes. */
            stream_watch(&w->streams[i],
                         on && !(agent->is_dropping && i == STREAM_RESULT));
    }
}

static void stream_open(struct worker *w, int kind, int fd)
{
    struct stream *s = &w->streams[kind];

    *s = (struct stream){.worker = w, .kind = kind, .fd = fd};
    if (fd < 0)
        return;
    if (uv_poll_init(&w->agent->loop, &s->poll, fd) != 0) {
        close(fd);
        s->fd = -1;
        return;
    }
    s->poll.data = s;
    stream_watch(s, !w->agent->is_blocked || w->agent->is_dropping);
}

static void input_close(struct worker *w)
{
    if (w->input_fd < 0)
        return;
    uv_poll_stop(&w->input_poll);
    uv_close((uv_handle_t *)&w->input_poll, NULL);
    close(w->input_fd);
    w->input_fd = -1;
    strbuf_release(&w->input);
}

static void on_input(uv_poll_t *poll, int status, int events)
{
    struct worker *w = poll->data;
    uint32_t rank = w->rank;
    ssize_t n = write(w->input_fd, w->input.text + w->input_at,
                      w->input.length - w->input_at);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n < 0) {
        input_close(w);
        return;
    }
    w->input_at += (size_t)n;
    if (w->input_at < w->input.length)
        return;
    strbuf_clear(&w->input);
    w->input_at = 0;
    uv_poll_stop(&w->input_poll);
    agent_put_words(duplex_out(&w->agent->channel), AGENT_TAKEN, &rank, 1, NULL, 0);
    duplex_flush(&w->agent->channel);
    if (w->input_ends)
        input_close(w);
}

void worker_feed(struct worker *w, const char *bytes, size_t count)
{
    if (w->input_fd < 0)
        return;
    if (count == 0) {
        w->input_ends = true;
        if (w->input.length == 0)
            input_close(w);
        return;
    }
    strbuf_add(&w->input, bytes, count);
    uv_poll_start(&w->input_poll, UV_WRITABLE, on_input);
}

static bool input_open(struct worker *w, int fd)
{
    if (uv_poll_init(&w->agent->loop, &w->input_poll, fd) != 0) {
        close(fd);
        return false;
    }
    w->input_poll.data = w;
    w->input_fd = fd;
    return true;
}

void worker_close(struct worker *w)
{
    for (int i = 0; i < STREAM_COUNT; i++)
        stream_close(&w->streams[i]);
    input_close(w);
}

static void send_exit(struct agent *agent, uint32_t rank, int code, int signal,
                      const char *text)
{
    uint32_t words[3] = {rank, (uint32_t)code, (uint32_t)signal};

    agent_put_words(duplex_out(&agent->channel), AGENT_EXIT, words, 3, text,
                    strlen(text) + 1);
    duplex_flush(&agent->channel);
}

void worker_ended(struct worker *w, int code, int signal, const char *text)
{
    w->is_alive = false;
    w->agent->alive--;
    uv_timer_stop(&w->limit);
    if (w->agent->is_elastic)           /* what it has left would go on beside the others */
        kill(-w->pid, SIGKILL);
    for (int i = 0; i < STREAM_COUNT; i++) {
        size_t reads = 0;

        while (w->streams[i].fd >= 0 && stream_read(&w->streams[i]))
            if (++reads > DRAIN_LIMIT / AGENT_CHUNK)
                break;
    }
    input_close(w);
    send_exit(w->agent, w->rank, code, signal, text);
}

/* The environment of one worker: what all have, then its own, then its descriptors. */
static void make_env(struct agent *agent, const struct agent_start *start,
                     struct env *env)
{
    char self[PROCESS_NAME];

    env_copy(env, &agent->common);
    for (uint32_t i = 0; i < start->env_count; i++)
        env_put(env, start->env[i]);
    if (process_name(getpid(), self))
        env_set(env, "HOROVOD_AGENT", "%s", self);
    env_set(env, "HOROVOD_KEY_FD", "%d", SPAWN_KEY_FD);
    if (agent->desk_name[0] != '\0')
        env_set(env, "HOROVOD_KEY_SOCKET", "%s", agent->desk_name);
    if (agent->payload_fd >= 0) {
        env_set(env, "HOROVOD_RUN_FUNC_FD", "%d", SPAWN_PAYLOAD_FD);
        env_set(env, "HOROVOD_RUN_RESULT_FD", "%d", SPAWN_RESULT_FD);
    }
}

static enum hvd_status launch(struct agent *agent, const struct agent_start *start,
                              struct spawn_process *proc, int input[2], int *code_p,
                              struct hvd_error *err)
{
    struct spawn_request req = {.args = start->args, .stdin_fd = -1, .key_fd = agent->key_fd,
                                .payload_fd = agent->payload_fd};
    enum hvd_status status = HVD_OK;
    cpu_set_t cpus;
    struct env env;

    if (start->input && agent->stdin_fd >= 0)
        req.stdin_fd = agent->stdin_fd;
    else if (start->input && pipe2(input, O_CLOEXEC) != 0)
        return error_sys(err, -1, "cannot make the stdin of rank %u", start->rank);
    else if (start->input)
        req.stdin_fd = input[0];
    if (agent->bind &&
        bind_choose((int)start->place, (int)start->places, &cpus))
        req.cpus = &cpus;
    make_env(agent, start, &env);
    req.env = env.items;
    status = env.failed ? error_set(err, HVD_NOMEM, -1, "no memory for an environment")
                        : spawn_worker(&req, proc, code_p, err);
    env_release(&env);
    if (input[0] >= 0)
        close(input[0]);
    return status;
}

static void on_stop_limit(uv_timer_t *timer)
{
    struct worker *w = timer->data;

    if (w->is_alive)
        kill(-w->pid, SIGKILL);
}

void worker_stop(struct worker *w, uint32_t grace_ms)
{
    if (!w->is_alive)
        return;
    if (grace_ms > 0) {
        kill(-w->pid, SIGTERM);
        kill(-w->pid, SIGCONT);         /* a stopped one could not leave */
    }
    uv_timer_start(&w->limit, on_stop_limit, grace_ms, 0);
}

enum hvd_status worker_start(struct agent *agent, const struct agent_start *start,
                             struct hvd_error *err)
{
    struct hvd_error why = {.status = HVD_OK, .rank = -1};
    struct worker *w = calloc(1, sizeof *w);
    struct spawn_process proc;
    int code = 126, input[2] = {-1, -1};
    uint32_t words[2];

    if (w == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a worker");
    if (launch(agent, start, &proc, input, &code, &why) != HVD_OK) {
        free(w);
        if (input[1] >= 0)
            close(input[1]);
        send_exit(agent, start->rank, code, 0, why.text);
        return HVD_OK;
    }
    *w = (struct worker){.agent = agent, .rank = start->rank, .pid = proc.pid,
                         .is_alive = true, .input_fd = -1};
    strbuf_init(&w->input);
    uv_timer_init(&agent->loop, &w->limit);
    w->limit.data = w;
    list_append(&agent->workers, &w->node);
    agent->alive++;
    stream_open(w, STREAM_OUT, proc.out_fd);
    stream_open(w, STREAM_ERR, proc.err_fd);
    stream_open(w, STREAM_RESULT, proc.result_fd);
    if (input[1] >= 0)
        input_open(w, input[1]);
    words[0] = start->rank;
    words[1] = (uint32_t)proc.pid;
    agent_put_words(duplex_out(&agent->channel), AGENT_STARTED, words, 2, NULL, 0);
    duplex_flush(&agent->channel);
    return HVD_OK;
}
