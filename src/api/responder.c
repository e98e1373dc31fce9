/*
 * responder.c: the thread that answers viewers.
 *
 * 1. Who asks is of the same user, by the word of the kernel (base/hatch.h); only then are 16
 *    bytes read.
 * 2. One viewer at a time, and none for long: LIMIT_MS for its question and for its reading.
 * 3. The engine is asked through a reference (job_use), as by any other thread of the user;
 *    shutdown waits for it.
 * 4. A forked child closes the hatch: else it would keep it open for nobody.
 */
#include "api/responder.h"

#include "api/job.h"
#include "base/clock.h"
#include "base/hatch.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/warnings.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define LOG_COMPONENT "api"
#define LIMIT_MS 2000

_Static_assert(WARNINGS_KEPT <= LOOK_WARNINGS && WARNING_TEXT <= LOOK_TEXT, "they fit");

static struct {
    pthread_mutex_t lock;               /* guards all but thread and runs */
    int hatch, wake;                     /* -1: none */
    struct look_rank shown;             /* while there is no engine */
    pthread_t thread;
    bool runs;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .hatch = -1, .wake = -1};

/* ---- Forks (rule 4) -------------------------------------------------------------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&state.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&state.lock);
}

static void close_both(void)
{
    if (state.hatch >= 0)
        close(state.hatch);
    if (state.wake >= 0)
        close(state.wake);
    state.hatch = state.wake = -1;
}

static void in_child(void)
{
    close_both();
    state.runs = false;
    pthread_mutex_unlock(&state.lock);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, in_child);
}

/* ---- The answer ------------------------------------------------------------------------ */

static uint64_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long long pages = 0;

    if (file == NULL)
        return 0;
    if (fscanf(file, "%*u %llu", &pages) != 1)
        pages = 0;
    fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void look_at_process(struct look_rank *r)
{
    struct warning warnings[WARNINGS_KEPT];
    struct rusage use;

    r->pid = (uint32_t)getpid();
    r->wall_us = clock_wall_us();
    r->rss_bytes = resident_bytes();
    if (getrusage(RUSAGE_SELF, &use) == 0) {
        r->cpu_us = (uint64_t)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000000u +
                    (uint64_t)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
        r->peak_bytes = (uint64_t)use.ru_maxrss * 1024;
    }
    r->warning_count = (uint32_t)warnings_read(warnings);
    for (uint32_t i = 0; i < r->warning_count; i++) {
        r->warnings[i].wall_us = warnings[i].wall_us;
        r->warnings[i].level = (uint8_t)warnings[i].level;
        memcpy(r->warnings[i].text, warnings[i].text, WARNING_TEXT);
    }
}

static void fill(const struct look_question *q, struct look_rank *r)
{
    struct hvd_error err;
    struct job *job;

    pthread_mutex_lock(&state.lock);
    *r = state.shown;
    pthread_mutex_unlock(&state.lock);
    r->now_us = clock_us();
    look_at_process(r);
    job = job_use(&err);
    if (job == NULL)
        return;
    engine_look(job->engine, q, r);
    r->generation = (uint32_t)job->conf.generation;
    job_done();
}

static bool wait_for(int fd, short events, uint64_t until_us)
{
    uint64_t now_us = clock_us();
    struct pollfd p = {.fd = fd, .events = events};

    return now_us < until_us && poll(&p, 1, (int)((until_us - now_us) / 1000) + 1) == 1;
}

static bool read_question(int fd, uint8_t bytes[LOOK_QUESTION_BYTES])
{
    uint64_t until_us = clock_us() + LIMIT_MS * 1000;

    for (size_t got = 0; got < LOOK_QUESTION_BYTES;) {
        ssize_t n = recv(fd, bytes + got, LOOK_QUESTION_BYTES - got, 0);

        if (n == 0 || (n < 0 && (errno != EAGAIN || !wait_for(fd, POLLIN, until_us))))
            return false;
        got += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static void write_answer(int fd, const struct strbuf *out)
{
    uint64_t until_us = clock_us() + LIMIT_MS * 1000;

    for (size_t sent = 0; sent < out->length;) {
        ssize_t n = send(fd, out->text + sent, out->length - sent, MSG_NOSIGNAL);

        if (n < 0 && (errno != EAGAIN || !wait_for(fd, POLLOUT, until_us)))
            return;
        sent += n > 0 ? (size_t)n : 0;
    }
}

static void serve(int fd)
{
    uint8_t bytes[LOOK_QUESTION_BYTES];
    struct look_rank *r = calloc(1, sizeof *r);
    struct look_question q;
    struct hvd_error err;
    struct strbuf out;

    if (r != NULL && read_question(fd, bytes) && get_look_question(&q, bytes, &err) == HVD_OK) {
        fill(&q, r);
        strbuf_init(&out);
        put_look_rank(&out, r);
        put_look_end(&out);
        if (!out.failed)
            write_answer(fd, &out);
        strbuf_release(&out);
        look_rank_release(r);
    }
    free(r);
}

/* ---- Life ------------------------------------------------------------------------------ */

static void *run(void *unused)
{
    struct pollfd p[2] = {{.fd = state.hatch, .events = POLLIN},
                          {.fd = state.wake, .events = POLLIN}};

    (void)unused;
    for (;;) {
        int fd;

        if (poll(p, 2, -1) < 0 && errno != EINTR)
            return NULL;
        if (p[1].revents != 0)
            return NULL;
        fd = hatch_accept(p[0].fd);
        if (fd < 0)
            continue;
        serve(fd);
        close(fd);
    }
}

static enum hvd_status open_both(struct hvd_error *err)
{
    TRY(hatch_open("rank", &state.hatch, err));
    state.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (state.wake < 0)
        return error_sys(err, -1, "cannot make an eventfd");
    return HVD_OK;
}

void responder_start(const struct config *conf)
{
    struct hvd_error err;
    enum hvd_status status;
    int code = 0;

    if (state.runs || !conf->status)
        return;
    pthread_mutex_lock(&state.lock);
    status = open_both(&err);
    pthread_mutex_unlock(&state.lock);
    responder_enter(LOOK_PHASE_FORMING, conf);
    if (status == HVD_OK) {
        code = thread_start(&state.thread, run, NULL);
        state.runs = code == 0;
    }
    if (state.runs)
        return;
    log_info("horovodrun --status will not see this process: %s",
             status != HVD_OK ? err.text : strerror(code));
    pthread_mutex_lock(&state.lock);
    close_both();
    pthread_mutex_unlock(&state.lock);
}

/* The rank of an elastic worker is not known before the driver has said it. */
void responder_enter(enum look_phase phase, const struct config *conf)
{
    struct look_rank *r = &state.shown;
    bool is_known = !conf->elastic || phase != LOOK_PHASE_FORMING;

    pthread_mutex_lock(&state.lock);
    r->phase = (uint8_t)phase;
    r->phase_us = clock_us();
    r->rank = is_known ? (int32_t)conf->rank : -1;
    r->size = is_known ? (int32_t)conf->size : 0;
    r->local_rank = (int32_t)conf->local_rank;
    r->generation = (uint32_t)conf->generation;
    snprintf(r->job, sizeof r->job, "%s", conf->job_id);
    if (conf->hostname[0] != '\0')
        snprintf(r->host, sizeof r->host, "%s", conf->hostname);
    else if (gethostname(r->host, sizeof r->host - 1) != 0)
        r->host[0] = '\0';
    pthread_mutex_unlock(&state.lock);
}

void responder_stop(void)
{
    uint64_t one = 1;

    if (!state.runs)
        return;
    if (write(state.wake, &one, sizeof one) == (ssize_t)sizeof one)
        pthread_join(state.thread, NULL);
    state.runs = false;
    pthread_mutex_lock(&state.lock);
    close_both();
    pthread_mutex_unlock(&state.lock);
}
