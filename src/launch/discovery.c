/*
 * discovery.c: runs --host-discovery-script, one run after another.
 *
 * 1. What a run prints counts only if it ends with 0 within LIMIT_MS and every line is
 *    understood; else the run has failed and the hosts stay as they are.
 * 2. Its stderr is the launcher's; its stdin is empty.  A run that does not end is killed
 *    with everything in its group.
 */
#include "launch/discovery.h"

#include "base/strbuf.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT_MS 10000
#define OUTPUT_MAX (1u << 20)

struct discovery {
    struct discovery_options opt;
    uv_timer_t timer;                   /* of the limit, or until the next run */
    uv_poll_t poll;
    int handles;                        /* of libuv, not closed yet */
    int fd;                             /* its stdout; -1: at its end */
    pid_t pid;                          /* 0: none runs */
    bool has_ended, is_late, is_freed;
    int status;
    struct strbuf output;
};

/* ---- What it prints ----------------------------------------------------------------- */

static struct host *find(struct host_list *hosts, const char *name, size_t bytes)
{
    for (int i = 0; i < hosts->count; i++)
        if (strlen(hosts->items[i].name) == bytes &&
            memcmp(hosts->items[i].name, name, bytes) == 0)
            return &hosts->items[i];
    return NULL;
}

static enum hvd_status add_host(struct host_list *hosts, const char *name, size_t bytes,
                                int slots, char *warning, size_t capacity,
                                struct hvd_error *err)
{
    struct host *h = find(hosts, name, bytes);

    if (h == NULL && hosts->count == hosts->capacity) {
        int room = hosts->capacity == 0 ? 16 : 2 * hosts->capacity;
        struct host *items = realloc(hosts->items, (size_t)room * sizeof *items);

        if (items == NULL || room > HOSTS_MAX)
            return error_set(err, HVD_NOMEM, -1, "no memory for %d hosts", room);
        hosts->items = items;
        hosts->capacity = room;
    }
    if (h == NULL) {
        h = &hosts->items[hosts->count++];
        memcpy(h->name, name, bytes);
        h->name[bytes] = '\0';
    } else if (h->slots != slots) {
        snprintf(warning, capacity, "host %s is named twice, with %d and %d slots; the last "
                 "line counts", h->name, h->slots, slots);
    }
    h->slots = slots;
    return HVD_OK;
}

/* "name:slots" or "name"; a colon within an IPv6 address needs brackets. */
static enum hvd_status take_line(struct host_list *hosts, const char *line, size_t bytes,
                                 int slots, char *warning, size_t capacity,
                                 struct hvd_error *err)
{
    const char *colon = memrchr(line, ':', bytes), *name = line;
    size_t name_bytes = bytes;
    char *end = NULL;
    char number[16] = "";

    if (colon != NULL && memchr(line, ']', bytes) > (void *)colon)
        colon = NULL;
    if (colon != NULL) {
        size_t digits = bytes - (size_t)(colon + 1 - line);

        memcpy(number, colon + 1, digits < 15 ? digits : 15);
        slots = (int)strtol(number, &end, 10);
        name_bytes = (size_t)(colon - line);
        if (digits == 0 || digits > 7 || *end != '\0' || slots < 1 || slots > HOST_SLOTS_MAX)
            return error_set(err, HVD_INVALID, -1, "'%.*s' is not name:slots",
                             bytes > 64 ? 64 : (int)bytes, line);
    }
    if (name_bytes > 2 && name[0] == '[' && name[name_bytes - 1] == ']') {
        name++;
        name_bytes -= 2;
    }
    if (!host_name_is_valid(name, name_bytes))
        return error_set(err, HVD_INVALID, -1, "'%.*s' is not a host",
                         bytes > 64 ? 64 : (int)bytes, line);
    if (slots < 1)
        return error_set(err, HVD_INVALID, -1, "host %.*s has no number of slots; print "
                         "name:slots or give --slots-per-host", (int)name_bytes, name);
    return add_host(hosts, name, name_bytes, slots, warning, capacity, err);
}

/* Lines "name:slots" or "name"; empty ones are skipped.  A name that occurs again: the last
 * line wins, `warning` says so.  Errors: HVD_INVALID. */
static enum hvd_status discovery_parse(const char *text, size_t bytes,
                                       int slots_per_host, struct host_list *hosts,
                                       char *warning, size_t capacity,
                                       struct hvd_error *err)
{
    const char *end = text + bytes;

    warning[0] = '\0';
    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const char *stop = newline != NULL ? newline : end;
        const char *next = newline != NULL ? newline + 1 : end;

        while (text < stop && (*text == ' ' || *text == '\t'))
            text++;
        while (stop > text && (stop[-1] == ' ' || stop[-1] == '\t' || stop[-1] == '\r'))
            stop--;
        if (stop > text)
            TRY(take_line(hosts, text, (size_t)(stop - text), slots_per_host, warning,
                          capacity, err));
        text = next;
    }
    return HVD_OK;
}

/* ---- A run -------------------------------------------------------------------------- */

static void begin_run(struct discovery *d);

static void on_interval(uv_timer_t *timer)
{
    begin_run(timer->data);
}

static void run_failed(struct discovery *d, const char *why)
{
    char text[1400];

    snprintf(text, sizeof text, "host discovery script %.256s: %s", d->opt.command, why);
    d->opt.on_failed(d->opt.owner, text);
}

static void take_result(struct discovery *d)
{
    struct host_list hosts = {0};
    struct hvd_error err;
    char text[128], warning[512];

    if (d->is_late) {
        snprintf(text, sizeof text, "did not end within %d s", LIMIT_MS / 1000);
        run_failed(d, text);
    } else if (WIFSIGNALED(d->status)) {
        snprintf(text, sizeof text, "was killed by signal %d", WTERMSIG(d->status));
        run_failed(d, text);
    } else if (WEXITSTATUS(d->status) != 0) {
        snprintf(text, sizeof text, "ended with code %d", WEXITSTATUS(d->status));
        run_failed(d, text);
    } else if (discovery_parse(d->output.text, d->output.length, d->opt.slots_per_host,
                               &hosts, warning, sizeof warning, &err) != HVD_OK) {
        run_failed(d, err.text);
    } else {
        if (warning[0] != '\0')
            d->opt.on_warning(d->opt.owner, warning);
        d->opt.on_hosts(d->opt.owner, &hosts);
    }
    hosts_release(&hosts);
}

/* It has ended, and its output, too. */
static void check_end(struct discovery *d)
{
    if (!d->has_ended || d->fd >= 0 || d->is_freed)
        return;
    d->has_ended = false;
    d->pid = 0;
    uv_timer_start(&d->timer, on_interval, (uint64_t)(d->opt.interval_s * 1000), 0);
    take_result(d);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct discovery *d = handle->data;

    if (--d->handles > 0)
        return;
    if (d->is_freed) {
        strbuf_release(&d->output);
        free(d);
    }
}

static void close_output(struct discovery *d)
{
    if (d->fd < 0)
        return;
    uv_poll_stop(&d->poll);
    close(d->fd);
    d->fd = -1;
    uv_close((uv_handle_t *)&d->poll, on_handle_closed);
}

/* False: nothing more for now. */
static bool read_output(struct discovery *d)
{
    char bytes[4096];
    ssize_t n = d->fd >= 0 ? read(d->fd, bytes, sizeof bytes) : 0;

    if (n < 0 && errno == EINTR)
        return true;
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n <= 0 || d->output.length > OUTPUT_MAX) {
        close_output(d);
        return false;
    }
    strbuf_add(&d->output, bytes, (size_t)n);
    return true;
}

static void on_output(uv_poll_t *poll, int status, int events)
{
    read_output(poll->data);
}

static void on_limit(uv_timer_t *timer)
{
    struct discovery *d = timer->data;

    d->is_late = true;
    if (d->pid > 0)
        kill(-d->pid, SIGKILL);
    close_output(d);
}

/* Between fork and exec: async-signal-safe calls only. */
static void run_child(const char *command, int out_fd)
{
    int null_fd = open("/dev/null", O_RDONLY);

    setpgid(0, 0);
    dup2(null_fd, STDIN_FILENO);
    dup2(out_fd, STDOUT_FILENO);
    for (int i = 1; i < 32; i++)
        signal(i, SIG_DFL);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

static void begin_run(struct discovery *d)
{
    int pipe_fds[2];

    strbuf_clear(&d->output);
    d->is_late = false;
    if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
        run_failed(d, strerror(errno));
        uv_timer_start(&d->timer, on_interval, (uint64_t)(d->opt.interval_s * 1000), 0);
        return;
    }
    d->pid = fork();
    if (d->pid == 0)
        run_child(d->opt.command, pipe_fds[1]);
    close(pipe_fds[1]);
    fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK);
    d->fd = pipe_fds[0];
    uv_poll_init(d->timer.loop, &d->poll, d->fd);
    d->poll.data = d;
    d->handles++;
    uv_poll_start(&d->poll, UV_READABLE, on_output);
    uv_timer_start(&d->timer, on_limit, LIMIT_MS, 0);
}

bool discovery_reaped(struct discovery *d, pid_t pid, int status)
{
    if (d == NULL || d->pid != pid || pid <= 0)
        return false;
    d->status = status;
    d->has_ended = true;
    while (read_output(d))              /* what it has left behind may keep the pipe open */
        ;
    close_output(d);
    check_end(d);
    return true;
}

enum hvd_status discovery_new(uv_loop_t *loop, const struct discovery_options *opt,
                              struct discovery **discovery_p, struct hvd_error *err)
{
    struct discovery *d = calloc(1, sizeof *d);

    if (d == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for host discovery");
    d->opt = *opt;
    d->fd = -1;
    strbuf_init(&d->output);
    uv_timer_init(loop, &d->timer);
    d->timer.data = d;
    d->handles = 1;
    *discovery_p = d;
    begin_run(d);
    return HVD_OK;
}

void discovery_free(struct discovery *d)
{
    if (d == NULL)
        return;
    d->is_freed = true;
    if (d->pid > 0)
        kill(-d->pid, SIGKILL);
    close_output(d);
    uv_close((uv_handle_t *)&d->timer, on_handle_closed);
}
