/*
 * timeline_file.c: the file of a timeline and the thread that writes it.
 *
 * A JSON array, one event per line.
 * 1. It ends with "\n]" after every write: the next event overwrites these two bytes.
 * 2. Events are written in pieces of at most PIECE bytes, each by one call, so that a
 *    process that is killed leaves a file that can be read.
 * 3. A write that fails is taken back (the file ends before it), one warning is logged,
 *    and nothing more is written.
 */
#include "engine/timeline_file.h"
#include "base/thread.h"

#include "base/fault.h"
#include "base/log.h"
#include "base/strbuf.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOG_COMPONENT "engine"
#define PIECE 4096
/* The writer gathers events so long before it writes: few wake-ups, and a reader who comes
 * 0.1 s after an operation finds it. */
#define GATHER_NS 10000000
/* Events that wait for a disk; beyond it the recording ends. */
#define BACKLOG (64u << 20)

struct timeline_file {
    int fd;
    char *path;
    pthread_mutex_t lock;               /* guards the three that follow */
    pthread_cond_t changed;
    struct strbuf pending;              /* whole lines */
    bool stop;
    bool dead;                          /* nothing more is taken */

    pthread_t writer;
    off_t end;                          /* of the file without its last "\n]" */
    bool empty;                         /* no event in the file yet */
};

/* ---- The writer ------------------------------------------------------------------------ */

static bool write_at(int fd, const char *bytes, size_t n, off_t at)
{
    if (FAULT("timeline.write"))
        return false;
    while (n > 0) {
        ssize_t done = pwrite(fd, bytes, n, at);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        bytes += done;
        n -= (size_t)done;
        at += done;
    }
    return true;
}

static void give_up(struct timeline_file *f, const char *why)
{
    pthread_mutex_lock(&f->lock);
    if (!f->dead)
        log_warn("timeline %s: %s; nothing more is recorded", f->path, why);
    f->dead = true;
    pthread_mutex_unlock(&f->lock);
}

/* Lines [text, text + n): each becomes an element of the array. */
static bool write_piece(struct timeline_file *f, const char *text, size_t n, struct strbuf *out)
{
    off_t before = f->end;

    strbuf_clear(out);
    for (const char *end = text + n; text < end;) {
        size_t length = (size_t)((const char *)memchr(text, '\n', (size_t)(end - text)) -
                                 text);

        strbuf_addf(out, f->empty ? "\n" : ",\n");
        strbuf_add(out, text, length);
        f->empty = false;
        text += length + 1;
    }
    strbuf_add(out, "\n]", 2);
    if (!out->failed && write_at(f->fd, out->text, out->length, f->end)) {
        f->end += (off_t)out->length - 2;
        return true;
    }
    if (ftruncate(f->fd, before) != 0 || pwrite(f->fd, "\n]", 2, before) != 2)
        return false;                   /* nothing left to try */
    return false;
}

static size_t piece_of(const char *text, size_t left)
{
    size_t n = left < PIECE ? left : PIECE;
    const char *last = memrchr(text, '\n', n);

    if (last == NULL)
        last = memchr(text, '\n', left);
    return (size_t)(last - text) + 1;
}

static void write_lines(struct timeline_file *f, const struct strbuf *lines)
{
    struct strbuf out;

    strbuf_init(&out);
    for (size_t at = 0; at < lines->length;) {
        size_t n = piece_of(lines->text + at, lines->length - at);

        if (!write_piece(f, lines->text + at, n, &out)) {
            give_up(f, out.failed ? "out of memory" : strerror(errno));
            break;
        }
        at += n;
    }
    strbuf_release(&out);
}

static void gather(struct timeline_file *f)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += GATHER_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    while (!f->stop && pthread_cond_timedwait(&f->changed, &f->lock, &until) != ETIMEDOUT)
        ;
}

static void *writer_main(void *context)
{
    struct timeline_file *f = context;
    struct strbuf mine;
    bool last = false;

    strbuf_init(&mine);
    while (!last) {
        struct strbuf taken;

        pthread_mutex_lock(&f->lock);
        while (f->pending.length == 0 && !f->stop)
            pthread_cond_wait(&f->changed, &f->lock);
        gather(f);
        last = f->stop;
        taken = f->pending;
        f->pending = mine;
        mine = taken;
        pthread_mutex_unlock(&f->lock);
        write_lines(f, &mine);
        strbuf_clear(&mine);
    }
    strbuf_release(&mine);
    return NULL;
}

/* ---- Opening and closing --------------------------------------------------------------- */

static enum hvd_status open_file(struct timeline_file *f, struct hvd_error *err)
{
    struct stat info;

    f->fd = open(f->path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0644);
    if (f->fd < 0)
        return error_sys(err, -1, "timeline %.500s", f->path);
    if (fstat(f->fd, &info) != 0 || !S_ISREG(info.st_mode))
        return error_set(err, HVD_SYS, -1, "timeline %.500s: not a plain file", f->path);
    if (ftruncate(f->fd, 0) != 0 || pwrite(f->fd, "[\n]", 3, 0) != 3)
        return error_sys(err, -1, "timeline %.500s", f->path);
    f->end = 1;
    f->empty = true;
    return HVD_OK;
}

static enum hvd_status start_writer(struct timeline_file *f, struct hvd_error *err)
{
    int code;

    code = thread_start(&f->writer, writer_main, f);
    if (code != 0)
        return error_set(err, HVD_SYS, -1, "timeline: no thread: %s", strerror(code));
    return HVD_OK;
}

static void release(struct timeline_file *f)
{
    strbuf_release(&f->pending);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    if (f->fd >= 0)
        close(f->fd);
    free(f->path);
    free(f);
}

enum hvd_status timeline_file_open(const char *path, struct timeline_file **file_p,
                                   struct hvd_error *err)
{
    struct timeline_file *f = calloc(1, sizeof *f);
    enum hvd_status status = HVD_OK;
    pthread_condattr_t attributes;

    if (f == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the timeline");
    f->fd = -1;
    strbuf_init(&f->pending);
    pthread_mutex_init(&f->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&f->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    f->path = strdup(path);
    if (f->path == NULL)
        TRY_OUT(error_set(err, HVD_NOMEM, -1, "no memory for the timeline"));
    TRY_OUT(open_file(f, err));
    TRY_OUT(start_writer(f, err));
    *file_p = f;
out:
    if (status != HVD_OK)
        release(f);
    return status;
}

void timeline_file_close(struct timeline_file *f)
{
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->writer, NULL);
    release(f);
}

const char *timeline_file_path(const struct timeline_file *f)
{
    return f->path;
}

void timeline_file_put(struct timeline_file *f, const char *line, size_t n)
{
    bool was_empty, full;

    pthread_mutex_lock(&f->lock);
    was_empty = f->pending.length == 0;
    full = f->pending.length + n > BACKLOG;
    if (!f->dead && !full)
        strbuf_add(&f->pending, line, n);
    if (was_empty)
        pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->lock);
    if (full)
        give_up(f, "the disk is too slow");
}
