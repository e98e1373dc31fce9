/*
 * tether.c: the launcher's end of an agent: a forked agent for this machine, ssh for
 * others.  Frames come in, the job is told what they mean.
 */
#include "launch/agent.h"
#include "launch/launch_int.h"
#include "launch/remote.h"
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

static enum hvd_status take_hello(struct tether *tether, const char *body, size_t bytes,
                                  struct hvd_error *err)
{
    struct agent_hello hello;

    TRY(agent_get_hello(body, bytes, &hello, err));
    if (hello.protocol != AGENT_PROTOCOL || strcmp(hello.version, hvd_version()) != 0)
        return error_set(err, HVD_VERSION, -1,
                         "host %s has horovod %s (agent protocol %u), this is %s (%d)",
                         tether->host, hello.version, hello.protocol, hvd_version(),
                         AGENT_PROTOCOL);
    if (tether->state != TETHER_CONNECTING)
        return error_set(err, HVD_PROTO, -1, "host %s said hello twice", tether->host);
    tether->cpus = hello.cpus;
    tether->state = TETHER_READY;
    log_debug("host %s: agent on %s, %u cpus", tether->host, hello.host, hello.cpus);
    launch_tether_ready(tether->job);
    return HVD_OK;
}

static enum hvd_status take_reached(struct tether *tether, const char *body, size_t bytes,
                                    struct hvd_error *err)
{
    if (bytes == 0 || bytes > sizeof tether->addr || body[bytes - 1] != '\0')
        return error_set(err, HVD_PROTO, -1, "host %s: bad address", tether->host);
    if (bytes == 1) {
        /* Our failure to be reached, not a fault of the connection. */
        struct hvd_error why = {.rank = -1};

        error_set(&why, HVD_TIMEOUT, -1,
                  "host %s reaches none of the addresses of this machine (%s) at port %u; "
                  "check the network between them and --network-interface", tether->host,
                  tether->job->addrs.text, tether->job->port);
        launch_fail(tether->job, &why);
        return HVD_OK;
    }
    memcpy(tether->addr, body, bytes);
    tether->state = TETHER_REACHED;
    launch_tether_reached(tether->job);
    return HVD_OK;
}

static enum hvd_status take_text(struct tether *tether, const char *body, size_t bytes,
                                 struct hvd_error *err)
{
    if (bytes < 2 || body[bytes - 1] != '\0')
        return error_set(err, HVD_PROTO, -1, "host %s: bad text", tether->host);
    output_say(tether->job->output, 2, "horovodrun: host %s: %s", tether->host, body + 1);
    return HVD_OK;
}

static enum hvd_status take_exit(struct tether *tether, const char *body, size_t bytes,
                                 struct hvd_error *err)
{
    uint32_t words[3];
    const char *text;
    size_t text_bytes;

    TRY(agent_get_words(body, bytes, words, 3, &text, &text_bytes, err));
    if (text_bytes == 0 || text[text_bytes - 1] != '\0')
        return error_set(err, HVD_PROTO, -1, "host %s: bad exit", tether->host);
    if (words[0] < (uint32_t)tether->job->settings->np)
        launch_rank_ended(tether->job, (int)words[0], (int)(words[1] & 255), (int)words[2],
                       text);
    return HVD_OK;
}

/* Frames about a rank of this tether: u32 rank, u32 stream of OUTPUT, bytes. */
static enum hvd_status take_rank_frame(struct tether *tether, unsigned type,
                                       const char *body, size_t bytes,
                                       struct hvd_error *err)
{
    struct launch *job = tether->job;
    uint32_t words[2] = {0, 0};
    const char *rest;
    size_t count;

    TRY(agent_get_words(body, bytes, words, type == AGENT_RESULT || type == AGENT_TAKEN
                                                ? 1 : 2, &rest, &count, err));
    if (words[0] >= (uint32_t)job->settings->np || job->ranks[words[0]].tether != tether)
        return error_set(err, HVD_PROTO, -1, "host %s speaks of rank %u", tether->host,
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
    struct tether *tether = ch->owner;

    tether->heard_ms = uv_now(&tether->job->loop);
    switch (type) {
    case AGENT_HELLO:
        return take_hello(tether, body, bytes, err);
    case AGENT_REACHED:
        return take_reached(tether, body, bytes, err);
    case AGENT_TEXT:
        return take_text(tether, body, bytes, err);
    case AGENT_EXIT:
        return take_exit(tether, body, bytes, err);
    case AGENT_STARTED:
    case AGENT_OUTPUT:
    case AGENT_RESULT:
    case AGENT_TAKEN:
        return take_rank_frame(tether, type, body, bytes, err);
    case AGENT_DONE:
        tether->state = TETHER_DONE;
        launch_tether_done(tether->job);
        return HVD_OK;
    case AGENT_PING:
        return HVD_OK;
    default:
        return error_set(err, HVD_PROTO, -1, "host %s: unexpected %s", tether->host,
                         agent_frame_name(type));
    }
}

static void on_lost(struct duplex *ch, const struct hvd_error *err)
{
    struct tether *tether = ch->owner;

    if (tether->state == TETHER_DONE)
        return;
    /* Before its hello, the end of ssh tells more than the end of its pipe. */
    if (tether->state == TETHER_CONNECTING && !tether->is_local &&
        err->status == HVD_PEER_LOST)
        return;
    tether->state = TETHER_LOST;
    launch_tether_lost(tether->job, tether, err->text);
}

/* ---- opening ---------------------------------------------------------------------- */

/* The handles lie in the tether: it can be opened again when the last one is closed. */
static void handle_closed(struct tether *tether)
{
    struct hvd_error err = {.rank = -1};

    if (--tether->handles > 0 || !tether->is_retrying)
        return;
    tether->is_retrying = false;
    if (tether->job->state == JOB_CONNECTING && tether_open_remote(tether, &err) != HVD_OK)
        launch_fail(tether->job, &err);
}

static void on_channel_closed(struct duplex *ch)
{
    handle_closed(ch->owner);
}

static void on_errors_closed(uv_handle_t *handle)
{
    handle_closed(handle->data);
}

static enum hvd_status open_channel(struct tether *tether, int in_fd, int out_fd,
                                    struct hvd_error *err)
{
    memset(&tether->channel, 0, sizeof tether->channel);
    tether->channel.owner = tether;
    tether->channel.on_frame = on_frame;
    tether->channel.on_lost = on_lost;
    tether->channel.on_closed = on_channel_closed;
    tether->channel.expects_magic = true;
    tether->has_channel = true;
    tether->handles++;
    tether->state = TETHER_CONNECTING;
    return duplex_open(&tether->channel, &tether->job->loop, in_fd, out_fd, err);
}

enum hvd_status tether_open_local(struct tether *tether, struct hvd_error *err)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return error_sys(err, -1, "cannot make a socket pair");
    tether->pid = fork();
    if (tether->pid < 0)
        return error_sys(err, -1, "cannot start the local agent");
    if (tether->pid == 0) {
        close(pair[0]);
        /* Out of reach of the terminal and of kill(-group) at the launcher. */
        setsid();
        _exit(agent_run(pair[1], pair[1], STDIN_FILENO));
    }
    close(pair[1]);
    return open_channel(tether, pair[0], pair[0], err);
}

static void on_errors(uv_poll_t *poll, int status, int events)
{
    struct tether *tether = poll->data;
    char bytes[1024];
    ssize_t n = read(tether->error_fd, bytes, sizeof bytes);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        uv_poll_stop(poll);
        return;
    }
    if (tether->errors.length < ERRORS_MAX)
        strbuf_add(&tether->errors, bytes, (size_t)n);
}

enum hvd_status tether_open_remote(struct tether *tether, struct hvd_error *err)
{
    const char *args[REMOTE_ARGS_MAX];
    struct remote_process proc;
    enum hvd_status status;
    struct strbuf store;

    strbuf_init(&store);
    strbuf_clear(&tether->errors);
    remote_args(tether->job->settings, tether->host, &store, args);
    status = remote_spawn(args, &proc, err);
    strbuf_release(&store);
    TRY(status);
    tether->tries++;
    tether->pid = proc.pid;
    tether->heard_ms = uv_now(&tether->job->loop);
    tether->error_fd = proc.err_fd;
    if (uv_poll_init(&tether->job->loop, &tether->error_poll, proc.err_fd) == 0) {
        tether->handles++;
        tether->error_poll.data = tether;
        uv_poll_start(&tether->error_poll, UV_READABLE, on_errors);
    }
    return open_channel(tether, proc.in_fd, proc.out_fd, err);
}

void tether_close(struct tether *tether)
{
    if (tether->has_channel)
        duplex_close(&tether->channel);
    tether->has_channel = false;
    if (tether->error_fd >= 0) {
        uv_close((uv_handle_t *)&tether->error_poll, on_errors_closed);
        close(tether->error_fd);
    }
    tether->error_fd = -1;
}

void tether_retry(struct tether *tether)
{
    tether->is_retrying = true;
    tether->state = TETHER_CONNECTING;
    tether_close(tether);
}

void tether_reaped(struct tether *tether, int status)
{
    char why[ERRORS_MAX + 128];

    tether->pid = 0;
    if (tether->state == TETHER_DONE || tether->state == TETHER_LOST)
        return;
    if (tether->error_fd >= 0)
        on_errors(&tether->error_poll, 0, 0);
    if (tether->is_local || tether->state != TETHER_CONNECTING)
        return;                         /* the channel tells */
    snprintf(why, sizeof why, "%s", tether->errors.text);
    why[strcspn(why, "\r\n")] = '\0';
    if (why[0] == '\0')
        snprintf(why, sizeof why, "ssh ended with code %d before the agent answered",
                 WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    tether->state = TETHER_LOST;
    launch_tether_lost(tether->job, tether, why);
}

/* ---- sending ---------------------------------------------------------------------- */

void tether_send_job(struct tether *tether)
{
    struct launch *job = tether->job;
    struct agent_job msg = {
        .directory = ".", .keep_environment = !tether->is_local,
        .heartbeat_ms = tether->is_local
                            ? 0 : (uint32_t)(job->settings->heartbeat_s * 1000) + 1000,
        .has_payload = job->settings->payload_fd >= 0, .bind = !job->settings->no_bind,
        .addrs = job->addrs.text,
        .port = tether->is_local ? 0 : (uint32_t)job->port};
    char *directory = tether->is_local ? NULL : getcwd(NULL, 0);
    struct env env;

    if (directory != NULL)
        msg.directory = directory;
    worker_env_common(job->settings, tether->is_local, job->nics, tether->threads, &env);
    msg.env = (const char **)env.items;
    msg.env_count = (uint32_t)env.count;
    memcpy(msg.key, job->key, HVD_KEY_BYTES);
    agent_put_job(duplex_out(&tether->channel), &msg);
    explicit_bzero(msg.key, HVD_KEY_BYTES);
    env_release(&env);
    free(directory);
    duplex_flush(&tether->channel);
    if (tether->is_local) {
        snprintf(tether->addr, sizeof tether->addr, "%s",
                 job->settings->node.count > 0 ? job->settings->node.host : "127.0.0.1");
        tether->state = TETHER_REACHED;
    }
}

void tether_send_payload(struct tether *tether)
{
    char *chunk = malloc(PAYLOAD_CHUNK);
    off_t at = 0;
    ssize_t n;

    if (chunk == NULL)
        return;
    while ((n = pread(tether->job->settings->payload_fd, chunk, PAYLOAD_CHUNK, at)) > 0) {
        agent_put_frame(duplex_out(&tether->channel), AGENT_PAYLOAD, chunk, (size_t)n);
        duplex_flush(&tether->channel);
        at += n;
    }
    free(chunk);
}

void tether_start_rank(struct tether *tether, int rank)
{
    struct launch *job = tether->job;
    struct agent_start start = {
        .rank = (uint32_t)rank, .place = (uint32_t)tether->started++,
        .places = (uint32_t)tether->rank_count, .input = rank == 0,
        .args = (const char **)job->settings->command};
    struct env env;

    while (job->settings->command[start.arg_count] != NULL)
        start.arg_count++;
    worker_env_identity(&job->slots[rank],
                        job->settings->hosts.items[job->slots[rank].host].name, tether->addr,
                        job->port, job->job_id, job->generation, &env);
    start.env = (const char **)env.items;
    start.env_count = (uint32_t)env.count;
    agent_put_start(duplex_out(&tether->channel), &start);
    env_release(&env);
    duplex_flush(&tether->channel);
    job->ranks[rank].is_started = true;
}

void tether_stop(struct tether *tether, uint32_t grace_ms)
{
    if (!tether->has_channel)
        return;
    agent_put_words(duplex_out(&tether->channel), AGENT_STOP, &grace_ms, 1, NULL, 0);
    duplex_flush(&tether->channel);
}
