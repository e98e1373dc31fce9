/*
 * duplex.c: buffered frames over descriptors that poll can watch.
 *
 * 1. A write is tried at once; what the kernel does not take waits in `out` for the
 *    descriptor to become writable.
 * 2. After `lost` nothing is delivered and nothing is sent.
 * 3. A frame may hold the job key: what was sent or delivered is wiped.
 */
#include "launch/duplex.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define READ_BYTES 65536

static void drop_used(struct strbuf *buf, size_t *at_p)
{
    if (*at_p == 0)
        return;
    memmove(buf->text, buf->text + *at_p, buf->length - *at_p);
    buf->length -= *at_p;
    explicit_bzero(buf->text + buf->length, *at_p);
    buf->text[buf->length] = '\0';
    *at_p = 0;
}

static void lose(struct duplex *ch, const struct hvd_error *err)
{
    if (ch->lost)
        return;
    ch->lost = true;
    if (ch->in_fd >= 0)
        uv_poll_stop(&ch->reader);
    if (ch->out_fd >= 0)
        uv_poll_stop(&ch->writer);
    ch->on_lost(ch, err);
}

/* Skips what login scripts have printed before the agent's first bytes. */
static enum hvd_status skip_noise(struct duplex *ch, struct hvd_error *err)
{
    char *found = memmem(ch->in.text, ch->in.length, AGENT_MAGIC, AGENT_MAGIC_BYTES);

    if (found == NULL) {
        if (ch->in.length > AGENT_NOISE_MAX)
            return error_set(err, HVD_PROTO, -1,
                             "the remote side printed %zu bytes but no agent answered",
                             ch->in.length);
        return HVD_AGAIN;
    }
    ch->in_at = (size_t)(found - ch->in.text) + AGENT_MAGIC_BYTES;
    ch->expects_magic = false;
    return HVD_OK;
}

static enum hvd_status deliver_one(struct duplex *ch, struct hvd_error *err)
{
    const char *body;
    size_t bytes, used;
    unsigned type;

    TRY(agent_get_frame(ch->in.text + ch->in_at, ch->in.length - ch->in_at, &type, &body,
                        &bytes, &used, err));
    ch->in_at += used;
    return ch->on_frame(ch, type, body, bytes, err);
}

static void deliver(struct duplex *ch)
{
    struct hvd_error err = {.status = HVD_OK, .rank = -1};
    enum hvd_status status = HVD_OK;

    if (ch->expects_magic)
        status = skip_noise(ch, &err);
    while (status == HVD_OK && !ch->lost && ch->in_fd >= 0 && ch->is_reading)
        status = deliver_one(ch, &err);
    drop_used(&ch->in, &ch->in_at);
    if (status != HVD_OK && status != HVD_AGAIN)
        lose(ch, &err);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct duplex *ch = poll->data;
    char bytes[READ_BYTES];
    struct hvd_error err = {.status = HVD_OK, .rank = -1};
    ssize_t n = read(ch->in_fd, bytes, sizeof bytes);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        error_set(&err, HVD_PEER_LOST, -1, "%s",
                  n == 0 ? "the connection was closed" : strerror(errno));
        lose(ch, &err);
        return;
    }
    strbuf_add(&ch->in, bytes, (size_t)n);
    explicit_bzero(bytes, (size_t)n);
    if (ch->in.failed) {
        error_set(&err, HVD_NOMEM, -1, "no memory for a frame");
        lose(ch, &err);
        return;
    }
    deliver(ch);
}

static void write_some(struct duplex *ch)
{
    while (ch->out_at < ch->out.length) {
        ssize_t n = write(ch->out_fd, ch->out.text + ch->out_at,
                          ch->out.length - ch->out_at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            /* The reader tells of the loss, with what the peer said before. */
            ch->out_at = ch->out.length;
            break;
        }
        explicit_bzero(ch->out.text + ch->out_at, (size_t)n);
        ch->out_at += (size_t)n;
    }
    if (ch->out_at == ch->out.length ||
        (ch->out_at > (1u << 20) && ch->out_at > ch->out.length / 2))
        drop_used(&ch->out, &ch->out_at);
}

static void on_writable(uv_poll_t *poll, int status, int events)
{
    struct duplex *ch = poll->data;

    write_some(ch);
    if (ch->out.length == 0) {
        uv_poll_stop(&ch->writer);
        ch->is_writing = false;
    }
    if (ch->on_drained != NULL && duplex_unsent(ch) <= DUPLEX_LOW)
        ch->on_drained(ch);
}

void duplex_flush(struct duplex *ch)
{
    if (ch->lost || ch->out_fd < 0) {
        explicit_bzero(ch->out.text, ch->out.length);
        strbuf_clear(&ch->out);
        ch->out_at = 0;
        return;
    }
    if (ch->is_writing)
        return;
    write_some(ch);
    if (ch->out.length > 0) {
        ch->is_writing = true;
        uv_poll_start(&ch->writer, UV_WRITABLE, on_writable);
    }
}

void duplex_send_raw(struct duplex *ch, const void *bytes, size_t count)
{
    strbuf_add(&ch->out, bytes, count);
    duplex_flush(ch);
}

size_t duplex_unsent(const struct duplex *ch)
{
    return ch->out.length - ch->out_at;
}

void duplex_pause(struct duplex *ch)
{
    if (!ch->lost && ch->in_fd >= 0 && ch->is_reading)
        uv_poll_stop(&ch->reader);
    ch->is_reading = false;
}

void duplex_resume(struct duplex *ch)
{
    if (ch->lost || ch->in_fd < 0 || ch->is_reading)
        return;
    ch->is_reading = true;
    uv_poll_start(&ch->reader, UV_READABLE, on_readable);
    deliver(ch);
}

enum hvd_status duplex_open(struct duplex *ch, uv_loop_t *loop, int in_fd, int out_fd,
                             struct hvd_error *err)
{
    strbuf_init(&ch->in);
    strbuf_init(&ch->out);
    ch->in.is_secret = ch->out.is_secret = true;
    ch->loop = loop;
    ch->in_fd = in_fd;
    /* libuv watches a descriptor once. */
    ch->out_fd = in_fd == out_fd ? fcntl(out_fd, F_DUPFD_CLOEXEC, 3) : out_fd;
    if (ch->out_fd < 0 || uv_poll_init(loop, &ch->reader, in_fd) != 0)
        return error_sys(err, -1, "cannot watch descriptor %d", in_fd);
    ch->handles = 1;
    if (uv_poll_init(loop, &ch->writer, ch->out_fd) != 0)
        return error_sys(err, -1, "cannot watch descriptor %d", ch->out_fd);
    ch->handles = 2;
    ch->reader.data = ch->writer.data = ch;
    ch->is_reading = true;
    uv_poll_start(&ch->reader, UV_READABLE, on_readable);
    return HVD_OK;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct duplex *ch = handle->data;

    if (--ch->handles > 0)
        return;
    strbuf_release(&ch->in);
    strbuf_release(&ch->out);
    if (ch->on_closed != NULL)
        ch->on_closed(ch);
}

void duplex_close(struct duplex *ch)
{
    if (ch->in_fd < 0)
        return;
    ch->lost = true;
    uv_close((uv_handle_t *)&ch->reader, on_handle_closed);
    uv_close((uv_handle_t *)&ch->writer, on_handle_closed);
    close(ch->in_fd);
    close(ch->out_fd);
    ch->in_fd = ch->out_fd = -1;
}
