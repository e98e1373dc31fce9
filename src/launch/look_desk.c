/*
 * look_desk.c: viewers of one job.
 *
 * 1. One round of questions to the agents at a time; viewers that come meanwhile share the
 *    next one.
 * 2. A round ends when all agents have answered, or after LIMIT_MS; hosts that have not are
 *    named as such.
 * 3. The clock of a host is compared with ours as NTP does: our times of LOOK and SEEN, and
 *    those of the agent, of which the network takes its share on both ways.
 */
#include "launch/look_desk.h"

#include "base/clock.h"
#include "base/hatch.h"
#include "base/log.h"
#include "wire/look_message.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOG_COMPONENT "launch"
#define LIMIT_MS 1500                   /* agents have 800 ms */
#define VIEWER_MS 5000                  /* to say what it wants and to take the answer */
#define VIEWERS_MAX 16

struct viewer {
    struct look_desk *desk;
    uv_pipe_t pipe;
    uv_timer_t limit;
    uv_write_t write;
    bool is_used, is_asking, is_served, is_closing;
    int handles;
    uint8_t question[LOOK_QUESTION_BYTES];
    size_t got;
    struct look_question q;
    struct strbuf answer;
};

struct look_desk {
    struct launch *job;
    uv_poll_t poll;
    int fd;
    uv_timer_t limit;                   /* of the round */
    struct viewer viewers[VIEWERS_MAX];
    bool is_asking;
    uint32_t round;
    uint64_t asked_us;
    int expected, answered;
    bool *has_answered;                 /* by link */
    int link_count;
    struct strbuf frames;               /* of this round */
    int handles;
    bool is_closing;
};

static void begin_round(struct look_desk *d);

/* ---- Life ------------------------------------------------------------------------- */

static void release_if_last(struct look_desk *d)
{
    if (--d->handles > 0 || !d->is_closing)
        return;
    strbuf_release(&d->frames);
    free(d->has_answered);
    free(d);
}

static void on_desk_closed(uv_handle_t *handle)
{
    release_if_last(handle->data);
}

static void on_viewer_closed(uv_handle_t *handle)
{
    struct viewer *v = handle->data;

    if (--v->handles == 0) {
        strbuf_release(&v->answer);
        v->is_used = v->is_asking = false;
    }
    release_if_last(v->desk);
}

static void close_viewer(struct viewer *v)
{
    if (!v->is_used || v->is_closing)
        return;
    v->is_closing = true;
    v->is_asking = false;
    uv_close((uv_handle_t *)&v->pipe, on_viewer_closed);
    uv_close((uv_handle_t *)&v->limit, on_viewer_closed);
}

static void on_viewer_limit(uv_timer_t *timer)
{
    close_viewer(timer->data);
}

/* ---- The answer ------------------------------------------------------------------- */

static const char *link_text(const struct agent_link *link)
{
    static const char *const texts[] = {
        [AGENT_LINK_CLOSED] = "not asked for yet", [AGENT_LINK_CONNECTING] = "being reached",
        [AGENT_LINK_READY] = "checks the network", [AGENT_LINK_REACHED] = "ready",
        [AGENT_LINK_DONE] = "has finished", [AGENT_LINK_LOST] = "lost"};

    return texts[link->state];
}

static const char *job_text(const struct launch *job)
{
    static const char *const texts[] = {
        [JOB_CONNECTING] = "reaching the hosts", [JOB_PROBING] = "checking the network",
        [JOB_RUNNING] = "running", [JOB_ENDING] = "ending", [JOB_DONE] = "done"};

    return texts[job->state];
}

static void put_job(const struct launch *job, struct strbuf *out)
{
    struct look_job j = {.pid = (uint32_t)getpid(), .np = (uint32_t)job->settings->np,
                         .generation = job->generation,
                         .is_elastic = job->elastic != NULL, .now_us = clock_us(),
                         .wall_us = clock_wall_us()};
    struct strbuf words;

    j.since_us = j.now_us - (uv_now(&job->loop) - job->since_ms) * 1000;
    snprintf(j.job, sizeof j.job, "%s", job->job_id);
    snprintf(j.state, sizeof j.state, "%s", job_text(job));
    gethostname(j.host, sizeof j.host - 1);
    strbuf_init(&words);
    for (int i = 0; job->settings->command[i] != NULL; i++)
        strbuf_addf(&words, "%s%s", i > 0 ? " " : "", job->settings->command[i]);
    snprintf(j.command, sizeof j.command, "%s", words.text);
    strbuf_release(&words);
    put_look_job(out, &j);
}

static void put_ranks(const struct launch *job, struct strbuf *out)
{
    for (int i = 0; i < job->rank_count; i++) {
        const struct rank_state *r = &job->ranks[i];
        struct look_process p = {.rank = r->label, .pid = r->pid,
                                 .is_started = r->is_started, .is_ended = r->is_ended,
                                 .code = (uint32_t)r->code, .signal = (uint32_t)r->signal};

        if (r->link == NULL)
            continue;
        snprintf(p.host, sizeof p.host, "%s", r->link->host);
        snprintf(p.text, sizeof p.text, "%s", r->text);
        put_look_process(out, &p);
    }
}

static void put_host(const struct agent_link *link, int64_t offset_us, bool has_answered,
                     struct strbuf *out)
{
    struct look_host h = {.offset_us = offset_us, .has_answered = has_answered};

    snprintf(h.name, sizeof h.name, "%s", link->host);
    snprintf(h.state, sizeof h.state, "%s", link_text(link));
    put_look_host(out, &h);
}

static void on_written(uv_write_t *write, int status)
{
    (void)status;
    close_viewer(write->data);
}

static void send_answer(struct viewer *v, const struct strbuf *answer)
{
    uv_buf_t buf;

    v->is_asking = false;
    v->is_served = true;
    strbuf_add(&v->answer, answer->text, answer->length);
    if (v->answer.failed || answer->failed) {
        close_viewer(v);
        return;
    }
    buf = uv_buf_init(v->answer.text, (unsigned)v->answer.length);
    v->write.data = v;
    if (uv_write(&v->write, (uv_stream_t *)&v->pipe, &buf, 1, on_written) != 0)
        close_viewer(v);
}

static void end_round(struct look_desk *d)
{
    struct launch *job = d->job;
    struct strbuf out;

    uv_timer_stop(&d->limit);
    d->is_asking = false;
    strbuf_init(&out);
    put_job(job, &out);
    put_ranks(job, &out);
    for (int i = 0; i < job->link_count; i++)
        if (i >= d->link_count || !d->has_answered[i])
            put_host(&job->links[i], 0, false, &out);
    strbuf_add(&out, d->frames.text, d->frames.length);
    put_look_end(&out);
    for (int i = 0; i < VIEWERS_MAX; i++)
        if (d->viewers[i].is_asking && d->viewers[i].is_served)
            send_answer(&d->viewers[i], &out);
    strbuf_release(&out);
    begin_round(d);
}

static void on_round_limit(uv_timer_t *timer)
{
    end_round(timer->data);
}

enum hvd_status look_desk_seen(struct agent_link *link, const char *body, size_t bytes,
                               struct hvd_error *err)
{
    struct look_desk *d = link->job->look_desk;
    ptrdiff_t at = link - link->job->links;
    uint64_t asked_us, told_us, now_us = clock_us();
    uint32_t words[5];
    const char *rest;
    size_t n;

    TRY(agent_get_words(body, bytes, words, 5, &rest, &n, err));
    if (d == NULL || !d->is_asking || words[0] != d->round || at >= d->link_count ||
        d->has_answered[at])
        return HVD_OK;                  /* of a round that is over */
    asked_us = words[1] | (uint64_t)words[2] << 32;
    told_us = words[3] | (uint64_t)words[4] << 32;
    d->has_answered[at] = true;
    /* On this machine there is one clock. */
    put_host(link, link->is_local ? 0 : ((int64_t)(asked_us - d->asked_us) +
                                         (int64_t)(told_us - now_us)) / 2, true, &d->frames);
    if (d->frames.length + n < LOOK_ANSWER_MAX)
        strbuf_add(&d->frames, rest, n);
    if (++d->answered == d->expected)
        end_round(d);
    return HVD_OK;
}

/* ---- The question ----------------------------------------------------------------- */

static bool union_of_questions(struct look_desk *d, struct look_question *q)
{
    bool any = false;

    *q = (struct look_question){0, 0};
    for (int i = 0; i < VIEWERS_MAX; i++) {
        struct viewer *v = &d->viewers[i];

        if (!v->is_asking)
            continue;
        v->is_served = any = true;      /* by this round */
        q->what |= v->q.what;
        q->recent_ms = v->q.recent_ms > q->recent_ms ? v->q.recent_ms : q->recent_ms;
    }
    return any;
}

static void begin_round(struct look_desk *d)
{
    struct launch *job = d->job;
    struct look_question q;
    uint32_t words[3];

    if (d->is_asking || d->is_closing || !union_of_questions(d, &q))
        return;
    d->is_asking = true;
    d->round++;
    d->expected = d->answered = 0;
    strbuf_clear(&d->frames);
    free(d->has_answered);
    d->has_answered = calloc((size_t)job->link_count + 1, sizeof *d->has_answered);
    d->link_count = d->has_answered != NULL ? job->link_count : 0;
    d->asked_us = clock_us();
    words[0] = d->round;
    words[1] = q.what;
    words[2] = q.recent_ms;
    for (int i = 0; i < d->link_count; i++) {
        struct agent_link *link = &job->links[i];

        if (link->state != AGENT_LINK_REACHED || !link->has_channel)
            continue;
        d->expected++;
        agent_put_words(duplex_out(&link->channel), AGENT_LOOK, words, 3, NULL, 0);
        duplex_flush(&link->channel);
    }
    uv_timer_start(&d->limit, on_round_limit, d->expected > 0 ? LIMIT_MS : 0, 0);
}

static void give_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct viewer *v = handle->data;

    (void)suggested;
    *buf = uv_buf_init((char *)v->question + v->got,
                       (unsigned)(sizeof v->question - v->got));
}

static void on_question(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct viewer *v = stream->data;
    struct hvd_error err;

    (void)buf;
    if (n == 0)
        return;
    if (n < 0) {
        close_viewer(v);
        return;
    }
    v->got += (size_t)n;
    if (v->got < sizeof v->question)
        return;
    uv_read_stop(stream);
    if (get_look_question(&v->q, v->question, &err) != HVD_OK) {
        close_viewer(v);
        return;
    }
    v->is_asking = true;
    begin_round(v->desk);
}

static bool admit(struct look_desk *d, struct viewer *v, int fd)
{
    memset(v, 0, sizeof *v);
    v->desk = d;
    if (uv_pipe_init(&d->job->loop, &v->pipe, 0) != 0)
        return false;
    v->is_used = true;
    v->handles = 2;
    d->handles += 2;
    v->pipe.data = v->limit.data = v;
    strbuf_init(&v->answer);
    uv_timer_init(&d->job->loop, &v->limit);
    uv_timer_start(&v->limit, on_viewer_limit, VIEWER_MS, 0);
    if (uv_pipe_open(&v->pipe, fd) != 0) {
        close_viewer(v);
        return false;
    }
    if (uv_read_start((uv_stream_t *)&v->pipe, give_room, on_question) != 0)
        close_viewer(v);
    return true;
}

static void on_knock(uv_poll_t *poll, int status, int events)
{
    struct look_desk *d = poll->data;
    int fd = hatch_accept(d->fd);

    (void)status;
    (void)events;
    for (int i = 0; fd >= 0 && i < VIEWERS_MAX; i++)
        if (!d->viewers[i].is_used) {
            if (!admit(d, &d->viewers[i], fd))
                close(fd);
            return;
        }
    if (fd >= 0)
        close(fd);
}

void look_desk_open(struct launch *job)
{
    struct look_desk *d = calloc(1, sizeof *d);
    struct hvd_error err = {.rank = -1};

    if (d == NULL)
        return;
    d->job = job;
    strbuf_init(&d->frames);
    if (hatch_open("job", &d->fd, &err) != HVD_OK ||
        uv_poll_init(&job->loop, &d->poll, d->fd) != 0) {
        log_info("horovodrun --status will not see this job: %s", err.text);
        free(d);
        return;
    }
    uv_timer_init(&job->loop, &d->limit);
    d->handles = 2;
    d->poll.data = d->limit.data = d;
    uv_poll_start(&d->poll, UV_READABLE, on_knock);
    job->look_desk = d;
}

void look_desk_close(struct launch *job)
{
    struct look_desk *d = job->look_desk;

    if (d == NULL)
        return;
    job->look_desk = NULL;
    d->is_closing = true;
    for (int i = 0; i < VIEWERS_MAX; i++)
        close_viewer(&d->viewers[i]);
    uv_close((uv_handle_t *)&d->poll, on_desk_closed);
    uv_close((uv_handle_t *)&d->limit, on_desk_closed);
    close(d->fd);
}
