/*
 * sink.c: buffered writes to a descriptor others share.
 *
 * 1. O_NONBLOCK belongs to the open file, which the user's shell shares; so a terminal or
 *    pipe is opened again through /proc.  Where that is not possible, poll asks first and
 *    writes stay within PIPE_BUF.
 * 2. A regular file never blocks and is written at once.
 */
#include "launch/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static void on_writable(uv_poll_t *poll, int status, int events);

void sink_open(struct sink *sink, uv_loop_t *loop, int fd)
{
    struct stat info;
    char path[32];

    *sink = (struct sink){.fd = fd, .owner = -1, .last = '\n'};
    strbuf_init(&sink->buf);
    if (fstat(fd, &info) != 0) {
        sink->fd = -1;
        return;
    }
    sink->is_socket = S_ISSOCK(info.st_mode);
    if (S_ISREG(info.st_mode) || S_ISBLK(info.st_mode))
        return;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    sink->fd = sink->is_socket
                   ? -1
                   : open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    sink->is_ours = sink->fd >= 0;
    if (!sink->is_ours) {
        /* libuv would make the shared description non-blocking: watch a copy of the
         * number, and undo what it does to the flags. */
        int flags = fcntl(fd, F_GETFL);

        sink->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        sink->has_poll = sink->fd >= 0 && uv_poll_init(loop, &sink->poll, sink->fd) == 0;
        fcntl(fd, F_SETFL, flags);
    } else {
        sink->has_poll = uv_poll_init(loop, &sink->poll, sink->fd) == 0;
    }
    sink->poll.data = sink;
}

void sink_close(struct sink *sink)
{
    if (sink->has_poll)
        uv_close((uv_handle_t *)&sink->poll, NULL);
    if ((sink->has_poll || sink->is_ours) && sink->fd >= 0)
        close(sink->fd);
    sink->fd = -1;
    sink->has_poll = false;
    strbuf_release(&sink->buf);
}

static bool may_write(const struct sink *sink)
{
    struct pollfd p = {.fd = sink->fd, .events = POLLOUT};

    return sink->is_ours || !sink->has_poll || poll(&p, 1, 0) == 1;
}

/* The reader has gone (as `head` does), or the disk is full; the job goes on without it. */
static void give_up(struct sink *sink, int error)
{
    sink->error = error;
    if (sink->has_poll) {
        uv_poll_stop(&sink->poll);
        close(sink->fd);
        uv_close((uv_handle_t *)&sink->poll, NULL);
        sink->has_poll = false;
        sink->fd = -1;
    }
    strbuf_clear(&sink->buf);
    sink->at = 0;
    if (sink->on_broken != NULL)
        sink->on_broken(sink);
}

static void write_some(struct sink *sink)
{
    while (sink->at < sink->buf.length && may_write(sink)) {
        size_t count = sink->buf.length - sink->at;
        ssize_t n;

        if (!sink->is_ours && sink->has_poll && count > PIPE_BUF)
            count = PIPE_BUF;
        n = sink->is_socket
                ? send(sink->fd, sink->buf.text + sink->at, count, MSG_DONTWAIT)
                : write(sink->fd, sink->buf.text + sink->at, count);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            give_up(sink, errno);
            return;
        }
        sink->at += (size_t)n;
    }
    if (sink->at == sink->buf.length ||
        (sink->at > (1u << 20) && sink->at > sink->buf.length / 2)) {
        memmove(sink->buf.text, sink->buf.text + sink->at, sink->buf.length - sink->at);
        sink->buf.length -= sink->at;
        sink->at = 0;
    }
}

static void watch(struct sink *sink)
{
    bool wanted = sink->has_poll && sink->buf.length > 0;

    if (wanted == sink->is_watched)
        return;
    sink->is_watched = wanted;
    if (wanted)
        uv_poll_start(&sink->poll, UV_WRITABLE, on_writable);
    else if (sink->has_poll)
        uv_poll_stop(&sink->poll);
}

static void on_writable(uv_poll_t *poll, int status, int events)
{
    struct sink *sink = poll->data;

    write_some(sink);
    watch(sink);
    if (sink->on_drained != NULL && sink_unwritten(sink) <= SINK_LOW)
        sink->on_drained(sink);
}

void sink_put(struct sink *sink, int owner, const char *prefix, const char *bytes,
              size_t count)
{
    bool at_start = sink->last == '\n' || sink->last == '\r';
    /* "\n" after the same owner's "\r" ends the same line. */
    bool goes_on = sink->owner == owner &&
                   (!at_start || (sink->last == '\r' && bytes[0] == '\n'));

    if (sink->fd < 0 || sink->error != 0)
        return;
    if (!at_start && sink->owner != owner)
        strbuf_add(&sink->buf, "\n", 1);
    if (!goes_on)
        strbuf_add(&sink->buf, prefix, strlen(prefix));
    strbuf_add(&sink->buf, bytes, count);
    sink->owner = owner;
    sink->last = bytes[count - 1];
    if (!sink->is_watched)
        write_some(sink);
    watch(sink);
}

size_t sink_unwritten(const struct sink *sink)
{
    return sink->buf.length - sink->at;
}
