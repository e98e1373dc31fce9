/*
 * input.c: the launcher's stdin for a rank 0 on another host.  One chunk is under way at a
 * time; the next is read when the worker has taken it, so that nothing piles up.
 */
#include "launch/launch_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define CHUNK 32768

struct input {
    struct agent_link *link;
    uv_poll_t poll;
    bool has_poll;                      /* false: a file, which is always readable */
    int fd;
};

static void send_chunk(struct launch *job, const char *bytes, size_t count)
{
    uint32_t rank = 0;

    agent_put_words(duplex_out(&job->input->link->channel), AGENT_INPUT, &rank, 1, bytes,
                    count);
    duplex_flush(&job->input->link->channel);
}

static void read_chunk(struct launch *job)
{
    char bytes[CHUNK];
    ssize_t n = read(job->input->fd, bytes, sizeof bytes);

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (job->input->has_poll)
        uv_poll_stop(&job->input->poll);
    send_chunk(job, bytes, n > 0 ? (size_t)n : 0);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    read_chunk(poll->data);
}

static void wait_for_more(struct launch *job)
{
    if (job->input->has_poll)
        uv_poll_start(&job->input->poll, UV_READABLE, on_readable);
    else
        read_chunk(job);
}

void input_start(struct launch *job, struct agent_link *link)
{
    struct input *in = calloc(1, sizeof *in);
    int flags = fcntl(STDIN_FILENO, F_GETFL);

    if (in == NULL)
        return;
    in->link = link;
    in->fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    in->has_poll = in->fd >= 0 && uv_poll_init(&job->loop, &in->poll, in->fd) == 0;
    /* The open file is shared with the user's shell: it stays as it was. */
    if (flags >= 0)
        fcntl(STDIN_FILENO, F_SETFL, flags);
    in->poll.data = job;
    job->input = in;
    wait_for_more(job);
}

void input_taken(struct launch *job)
{
    if (job->input != NULL)
        wait_for_more(job);
}

static void on_closed(uv_handle_t *handle)
{
    free((char *)handle - offsetof(struct input, poll));
}

void input_stop(struct launch *job)
{
    struct input *in = job->input;

    if (in == NULL)
        return;
    job->input = NULL;
    if (in->has_poll)
        uv_close((uv_handle_t *)&in->poll, on_closed);
    if (in->fd >= 0)
        close(in->fd);
    if (!in->has_poll)
        free(in);
}
