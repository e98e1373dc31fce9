/* survey.c: see survey.h.  Each answer is read to its end, and taken only if it is whole. */
#include "launch/survey.h"

#include "base/hatch.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define HATCHES_MAX 4096                  /* of one host */

struct asked {                          /* one process */
    struct survey *survey;
    uv_pipe_t pipe;
    struct strbuf answer;
    bool is_open;
};

struct survey {
    uv_timer_t limit;
    survey_fn on_done;
    void *owner;
    struct asked *asked;
    int count, open;
    int handles;                        /* of libuv, not closed yet */
    bool is_ending;
};

/* ---- The end ---------------------------------------------------------------------- */

static void on_closed(uv_handle_t *handle)
{
    struct survey *s = handle->type == UV_TIMER ? handle->data
                                                : ((struct asked *)handle->data)->survey;

    if (--s->handles > 0)
        return;
    for (int i = 0; i < s->count; i++)
        strbuf_release(&s->asked[i].answer);
    free(s->asked);
    free(s);
}

static void close_one(struct asked *a)
{
    if (!a->is_open)
        return;
    a->is_open = false;
    a->survey->open--;
    uv_close((uv_handle_t *)&a->pipe, on_closed);
}

static void end(struct survey *s)
{
    s->is_ending = true;
    for (int i = 0; i < s->count; i++)
        close_one(&s->asked[i]);
    uv_close((uv_handle_t *)&s->limit, on_closed);
}

/* All that has come whole, one after the other. */
static void collect(struct survey *s, struct strbuf *frames)
{
    struct hvd_error err;

    for (int i = 0; i < s->count; i++) {
        const struct strbuf *a = &s->asked[i].answer;

        if (!a->failed && look_is_whole(a->text, a->length, &err) == HVD_OK)
            strbuf_add(frames, a->text, a->length - LOOK_HEADER);
    }
}

static void finish(struct survey *s)
{
    struct strbuf frames;

    if (s->is_ending)
        return;
    strbuf_init(&frames);
    collect(s, &frames);
    end(s);
    s->on_done(s->owner, frames.text, frames.failed ? 0 : frames.length);
    strbuf_release(&frames);
}

static void on_limit(uv_timer_t *timer)
{
    finish(timer->data);
}

void survey_cancel(struct survey *s)
{
    if (s != NULL && !s->is_ending)
        end(s);
}

/* ---- Answers ---------------------------------------------------------------------- */

static void give_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    static char room[65536];            /* one loop a process, and on_bytes copies */

    (void)handle;
    (void)suggested;
    *buf = uv_buf_init(room, sizeof room);
}

static void on_bytes(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct asked *a = stream->data;
    struct survey *s = a->survey;

    if (n > 0 && a->answer.length + (size_t)n <= LOOK_ANSWER_MAX) {
        strbuf_add(&a->answer, buf->base, (size_t)n);
        return;
    }
    if (n == 0)
        return;
    close_one(a);
    if (s->open == 0)
        finish(s);
}

static void ask(struct survey *s, const char *name, const struct look_question *q,
                survey_wants_fn wants)
{
    struct asked *a = &s->asked[s->count];
    uint8_t question[LOOK_QUESTION_BYTES];
    pid_t pid;
    int fd = hatch_connect(name, &pid);

    if (fd < 0)
        return;
    put_look_question(q, question);
    /* An empty socket buffer takes it whole. */
    if ((wants != NULL && !wants(s->owner, pid)) ||
        send(fd, question, sizeof question, MSG_NOSIGNAL) != (ssize_t)sizeof question ||
        uv_pipe_init(s->limit.loop, &a->pipe, 0) != 0) {
        close(fd);
        return;
    }
    a->survey = s;
    a->pipe.data = a;
    a->is_open = true;
    strbuf_init(&a->answer);
    s->count++;
    s->handles++;
    s->open++;
    if (uv_pipe_open(&a->pipe, fd) != 0) {
        close(fd);
        close_one(a);
    } else if (uv_read_start((uv_stream_t *)&a->pipe, give_room, on_bytes) != 0) {
        close_one(a);
    }
}

struct survey *survey_start(uv_loop_t *loop, const char *kind,
                            const struct look_question *q, unsigned limit_ms,
                            survey_wants_fn wants, survey_fn on_done, void *owner)
{
    char (*names)[HATCH_NAME] = calloc(HATCHES_MAX, sizeof *names);
    int count = names != NULL ? hatch_list(kind, names, HATCHES_MAX) : 0;
    struct survey *s = calloc(1, sizeof *s);

    count = count < HATCHES_MAX ? count : HATCHES_MAX;
    if (s != NULL)
        s->asked = calloc((size_t)count + 1, sizeof *s->asked);
    if (names == NULL || s == NULL || s->asked == NULL) {
        if (s != NULL)
            free(s->asked);
        free(s);
        free(names);
        return NULL;
    }
    s->on_done = on_done;
    s->owner = owner;
    s->handles = 1;
    uv_timer_init(loop, &s->limit);
    s->limit.data = s;
    for (int i = 0; i < count; i++)
        ask(s, names[i], q, wants);
    free(names);
    uv_timer_start(&s->limit, on_limit, s->open > 0 ? limit_ms : 0, 0);
    return s;
}
