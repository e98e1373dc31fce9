/*
 * agent_link.c: the launcher's end of an agent: a forked agent for this machine, ssh for
 * others.  Frames come in, the job is told what they mean.
 */
#include "launch/guard.h"
#include "launch/launch_int.h"
#include "launch/look_desk.h"
#include "launch/remote.h"
#include "launch/spawn.h"
#include "launch/worker_env.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOG_COMPONENT "launch"
#define ERRORS_MAX 8192
#define PAYLOAD_CHUNK (1u << 20)

/* ---- frames ----------------------------------------------------------------------- */

static enum hvd_status take_hello(struct agent_link *link, const char *body, size_t bytes,
                                  struct hvd_error *err)
{
    struct agent_hello hello;

    TRY(agent_get_hello(body, bytes, &hello, err));
    if (hello.protocol != AGENT_PROTOCOL || strcmp(hello.version, hvd_version()) != 0)
        return error_set(err, HVD_VERSION, -1,
                         "host %s has horovod %s (agent protocol %u), this is %s (%d)",
                         link->host, hello.version, hello.protocol, hvd_version(),
                         AGENT_PROTOCOL);
    if (link->state != AGENT_LINK_CONNECTING)
        return error_set(err, HVD_PROTO, -1, "host %s said hello twice", link->host);
    link->cpus = hello.cpus;
    link->state = AGENT_LINK_READY;
    log_debug("host %s: agent on %s, %u cpus", link->host, hello.host, hello.cpus);
    launch_agent_ready(link->job);
    return HVD_OK;
}

static enum hvd_status take_reached(struct agent_link *link, const char *body, size_t bytes,
                                    struct hvd_error *err)
{
    if (bytes == 0 || bytes > sizeof link->addr || body[bytes - 1] != '\0')
        return error_set(err, HVD_PROTO, -1, "host %s: bad address", link->host);
    if (bytes == 1) {
        /* Our failure to be reached, not a fault of the connection. */
        struct hvd_error why = {.rank = -1};

        error_set(&why, HVD_TIMEOUT, -1,
                  "host %s reaches none of the addresses of this machine (%s) at port %u; "
                  "check the network between them and --network-interface", link->host,
                  link->job->addrs.text, link->job->port);
        if (link->job->elastic != NULL)
            elastic_agent_lost(link->job, link, why.text);
        else
            launch_fail(link->job, &why);
        return HVD_OK;
    }
    memcpy(link->addr, body, bytes);
    link->state = AGENT_LINK_REACHED;
    launch_agent_reached(link->job);
    return HVD_OK;
}

static enum hvd_status take_text(struct agent_link *link, const char *body, size_t bytes,
                                 struct hvd_error *err)
{
    if (bytes < 2 || body[bytes - 1] != '\0')
        return error_set(err, HVD_PROTO, -1, "host %s: bad text", link->host);
    output_say(link->job->output, 2, "horovodrun: host %s: %s", link->host, body + 1);
    return HVD_OK;
}

static enum hvd_status take_exit(struct agent_link *link, const char *body, size_t bytes,
                                 struct hvd_error *err)
{
    uint32_t words[3];
    const char *text;
    size_t text_bytes;

    TRY(agent_get_words(body, bytes, words, 3, &text, &text_bytes, err));
    if (text_bytes == 0 || text[text_bytes - 1] != '\0')
        return error_set(err, HVD_PROTO, -1, "host %s: bad exit", link->host);
    if (words[0] < (uint32_t)link->job->rank_count)
        launch_rank_ended(link->job, (int)words[0], (int)(words[1] & 255), (int)words[2],
                       text);
    return HVD_OK;
}

/* Frames about a rank of this link: u32 rank, u32 stream of OUTPUT, bytes. */
static enum hvd_status take_rank_frame(struct agent_link *link, unsigned type,
                                       const char *body, size_t bytes,
                                       struct hvd_error *err)
{
    struct launch *job = link->job;
    uint32_t words[2] = {0, 0};
    const char *rest;
    size_t count;

    TRY(agent_get_words(body, bytes, words, type == AGENT_RESULT || type == AGENT_TAKEN
                                                ? 1 : 2, &rest, &count, err));
    if (words[0] >= (uint32_t)job->rank_count || job->ranks[words[0]].link != link)
        return error_set(err, HVD_PROTO, -1, "host %s speaks of rank %u", link->host,
                         words[0]);
    if (type == AGENT_STARTED)
        job->ranks[words[0]].pid = words[1];
    else if (type == AGENT_OUTPUT && words[1] >= 1 && words[1] <= 2)
        output_take(job->output, (int)words[0], (int)words[1], rest, count);
    else if (type == AGENT_RESULT)
        launch_rank_result(job, (int)words[0], rest, count);
    else if (type == AGENT_TAKEN)
        input_taken(job);
    return HVD_OK;
}

static enum hvd_status on_frame(struct duplex *ch, unsigned type, const char *body,
                                size_t bytes, struct hvd_error *err)
{
    struct agent_link *link = ch->owner;

    link->heard_ms = uv_now(&link->job->loop);
    switch (type) {
    case AGENT_HELLO:
        return take_hello(link, body, bytes, err);
    case AGENT_REACHED:
        return take_reached(link, body, bytes, err);
    case AGENT_TEXT:
        return take_text(link, body, bytes, err);
    case AGENT_EXIT:
        return take_exit(link, body, bytes, err);
    case AGENT_STARTED:
    case AGENT_OUTPUT:
    case AGENT_RESULT:
    case AGENT_TAKEN:
        return take_rank_frame(link, type, body, bytes, err);
    case AGENT_DONE:
        link->state = AGENT_LINK_DONE;
        launch_agent_done(link->job, link);
        return HVD_OK;
    case AGENT_SEEN:
        return look_desk_seen(link, body, bytes, err);
    case AGENT_NOTICE:
        elastic_agent_notice(link->job, link);
        return HVD_OK;
    case AGENT_PING:
        return HVD_OK;
    default:
        return error_set(err, HVD_PROTO, -1, "host %s: unexpected %s", link->host,
                         agent_frame_name(type));
    }
}

static void on_lost(struct duplex *ch, const struct hvd_error *err)
{
    struct agent_link *link = ch->owner;

    if (link->state == AGENT_LINK_DONE)
        return;
    /* Before its hello, the end of ssh tells more than the end of its pipe. */
    if (link->state == AGENT_LINK_CONNECTING && !link->is_local && !link->is_joined &&
        err->status == HVD_PEER_LOST)
        return;
    link->state = AGENT_LINK_LOST;
    launch_agent_lost(link->job, link, err->text);
}

/* ---- opening ---------------------------------------------------------------------- */

/* The handles lie in the link: it can be opened again when the last one is closed. */
static void handle_closed(struct agent_link *link)
{
    struct hvd_error err = {.rank = -1};

    if (--link->handles > 0 || !link->is_retrying)
        return;
    link->is_retrying = false;
    if (link->job->state >= JOB_ENDING || agent_link_open_remote(link, &err) == HVD_OK)
        return;
    if (link->job->elastic != NULL)
        elastic_agent_lost(link->job, link, err.text);
    else
        launch_fail(link->job, &err);
}

static void on_channel_closed(struct duplex *ch)
{
    handle_closed(ch->owner);
}

static void on_errors_closed(uv_handle_t *handle)
{
    handle_closed(handle->data);
}

static enum hvd_status open_channel(struct agent_link *link, int in_fd, int out_fd,
                                    struct hvd_error *err)
{
    memset(&link->channel, 0, sizeof link->channel);
    link->channel.owner = link;
    link->channel.on_frame = on_frame;
    link->channel.on_lost = on_lost;
    link->channel.on_closed = on_channel_closed;
    link->channel.expects_magic = true;
    link->has_channel = true;
    link->handles++;
    link->state = AGENT_LINK_CONNECTING;
    return duplex_open(&link->channel, &link->job->loop, in_fd, out_fd, err);
}

enum hvd_status agent_link_open_local(struct agent_link *link, struct hvd_error *err)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return error_sys(err, -1, "cannot make a socket pair");
    link->pid = fork();
    if (link->pid < 0)
        return error_sys(err, -1, "cannot start the local agent");
    if (link->pid == 0) {
        close(pair[0]);
        /* Out of reach of the terminal and of kill(-group) at the launcher. */
        setsid();
        _exit(guard_run(pair[1], pair[1], STDIN_FILENO));
    }
    close(pair[1]);
    return open_channel(link, pair[0], pair[0], err);
}

enum hvd_status agent_link_open_joined(struct agent_link *link, int fd,
                                       struct hvd_error *err)
{
    link->heard_ms = uv_now(&link->job->loop);
    return open_channel(link, fd, fd, err);
}

static void on_errors(uv_poll_t *poll, int status, int events)
{
    struct agent_link *link = poll->data;
    char bytes[1024];
    ssize_t n = read(link->error_fd, bytes, sizeof bytes);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        uv_poll_stop(poll);
        return;
    }
    if (link->errors.length < ERRORS_MAX)
        strbuf_add(&link->errors, bytes, (size_t)n);
}

enum hvd_status agent_link_open_remote(struct agent_link *link, struct hvd_error *err)
{
    const char *args[REMOTE_ARGS_MAX];
    struct remote_process proc;
    enum hvd_status status;
    struct strbuf store;

    strbuf_init(&store);
    strbuf_clear(&link->errors);
    remote_args(link->job->settings, link->host, &store, args);
    status = remote_spawn(args, &proc, err);
    strbuf_release(&store);
    TRY(status);
    link->tries++;
    link->pid = proc.pid;
    link->heard_ms = uv_now(&link->job->loop);
    link->error_fd = proc.err_fd;
    if (uv_poll_init(&link->job->loop, &link->error_poll, proc.err_fd) == 0) {
        link->handles++;
        link->error_poll.data = link;
        uv_poll_start(&link->error_poll, UV_READABLE, on_errors);
    }
    return open_channel(link, proc.in_fd, proc.out_fd, err);
}

void agent_link_close(struct agent_link *link)
{
    if (link->has_channel)
        duplex_close(&link->channel);
    link->has_channel = false;
    if (link->error_fd >= 0) {
        uv_close((uv_handle_t *)&link->error_poll, on_errors_closed);
        close(link->error_fd);
    }
    link->error_fd = -1;
}

void agent_link_retry(struct agent_link *link)
{
    link->is_retrying = true;
    link->state = AGENT_LINK_CONNECTING;
    agent_link_close(link);
}

void agent_link_reaped(struct agent_link *link, int status)
{
    char why[ERRORS_MAX + 128];

    link->pid = 0;
    if (link->state == AGENT_LINK_DONE || link->state == AGENT_LINK_LOST)
        return;
    if (link->error_fd >= 0)
        on_errors(&link->error_poll, 0, 0);
    /* The guard is gone before its agent, which has to notice, should it be stopped. */
    if (link->is_local)
        spawn_signal_descendants(SIGCONT);
    if (link->is_local || link->state != AGENT_LINK_CONNECTING)
        return;                         /* the channel tells */
    snprintf(why, sizeof why, "%s", link->errors.text);
    why[strcspn(why, "\r\n")] = '\0';
    if (why[0] == '\0')
        snprintf(why, sizeof why, "ssh ended with code %d before the agent answered",
                 WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    link->state = AGENT_LINK_LOST;
    launch_agent_lost(link->job, link, why);
}

/* ---- sending ---------------------------------------------------------------------- */

void agent_link_send_job(struct agent_link *link)
{
    struct launch *job = link->job;
    struct agent_job msg = {
        .key = job->key, .directory = ".", .keep_environment = !link->is_local,
        .heartbeat_ms = link->is_local
                            ? 0 : (uint32_t)(job->settings->heartbeat_s * 1000) + 1000,
        .leave_ms = (uint32_t)job->settings->leave_ms,
        .has_payload = job->settings->payload_fd >= 0, .bind = !job->settings->no_bind,
        .addrs = job->addrs.length > 0 ? job->addrs.text : "127.0.0.1",
        .port = link->is_local ? 0 : (uint32_t)job->port};
    char *directory = link->is_local ? NULL : getcwd(NULL, 0);
    struct env env;

    if (directory != NULL)
        msg.directory = directory;
    worker_env_common(job->settings, link->is_local, job->nics, link->threads, &env);
    if (job->elastic != NULL)
        env_set(&env, "HOROVOD_ELASTIC", "1");
    msg.env = (const char **)env.items;
    msg.env_count = (uint32_t)env.count;
    agent_put_job(duplex_out(&link->channel), &msg);
    env_release(&env);
    free(directory);
    duplex_flush(&link->channel);
    if (link->is_local) {
        snprintf(link->addr, sizeof link->addr, "%s",
                 job->settings->node.count > 0 ? job->settings->node.host : "127.0.0.1");
        link->state = AGENT_LINK_REACHED;
    }
}

void agent_link_send_payload(struct agent_link *link)
{
    char *chunk = malloc(PAYLOAD_CHUNK);
    off_t at = 0;
    ssize_t n;

    if (chunk == NULL)
        return;
    while ((n = pread(link->job->settings->payload_fd, chunk, PAYLOAD_CHUNK, at)) > 0) {
        agent_put_frame(duplex_out(&link->channel), AGENT_PAYLOAD, chunk, (size_t)n);
        duplex_flush(&link->channel);
        at += n;
    }
    free(chunk);
}

void agent_link_start(struct agent_link *link, int rank, const struct env *env, int place)
{
    struct launch *job = link->job;
    struct agent_start start = {
        .rank = (uint32_t)rank, .place = (uint32_t)place,
        .places = (uint32_t)link->rank_count, .input = rank == 0,
        .args = (const char **)job->settings->command,
        .env = (const char **)env->items, .env_count = (uint32_t)env->count};

    while (job->settings->command[start.arg_count] != NULL)
        start.arg_count++;
    agent_put_start(duplex_out(&link->channel), &start);
    duplex_flush(&link->channel);
    job->ranks[rank].is_started = true;
}

void agent_link_start_rank(struct agent_link *link, int rank)
{
    struct launch *job = link->job;
    struct env env;

    worker_env_identity(&job->slots[rank],
                        job->settings->hosts.items[job->slots[rank].host].name, link->addr,
                        job->port, job->job_id, job->generation, &env);
    agent_link_start(link, rank, &env, link->started++);
    env_release(&env);
}

void agent_link_end_rank(struct agent_link *link, int rank, uint32_t grace_ms)
{
    uint32_t words[2] = {(uint32_t)rank, grace_ms};

    if (!link->has_channel)
        return;
    agent_put_words(duplex_out(&link->channel), AGENT_END, words, 2, NULL, 0);
    duplex_flush(&link->channel);
}

void agent_link_stop(struct agent_link *link, uint32_t grace_ms)
{
    if (!link->has_channel)
        return;
    agent_put_words(duplex_out(&link->channel), AGENT_STOP, &grace_ms, 1, NULL, 0);
    duplex_flush(&link->channel);
    /* A stopped agent would not read it. */
    if (link->is_local && link->pid > 0)
        kill(link->pid, SIGCONT);
}
