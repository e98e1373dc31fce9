/*
 * timeline.c: the events of the timeline and who writes them.
 *
 * Per tensor ("process" of the trace), the only order there is:
 *
 *   IDLE -> NEGOTIATING -> IDLE | RUNNING -> ACTIVE (one activity) -> RUNNING ... -> IDLE
 *
 * The file: a JSON array, one event per line.
 * 1. It ends with "\n]" after every write: the next event overwrites these two bytes.
 * 2. Events are written in pieces of at most PIECE bytes, each by one call, so that a
 *    process that is killed leaves a file that can be read.
 * 3. A write that fails is taken back (the file ends before it), one warning is logged,
 *    and nothing more is written.
 */
#include "engine/timeline.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/strbuf.h"
#include "wire/message.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOG_COMPONENT "engine"
#define PIECE 4096
/* The writer gathers events so long before it writes: few wake-ups, and a reader who comes
 * 0.1 s after an operation finds it. */
#define GATHER_NS 10000000
/* Events that wait for a disk; beyond it the recording ends. */
#define BACKLOG (64u << 20)

enum track_state { TRACK_IDLE, TRACK_NEGOTIATING, TRACK_RUNNING, TRACK_ACTIVE };

struct track {
    enum track_state state;
    int pid;
    int *early;                         /* members that are ready for the next turn */
    int early_count;
    size_t key_bytes;
    char key[];                         /* set id, then name */
};

struct timeline {
    int fd;
    char *path;
    bool mark_cycles;
    uint64_t start_us, next_cycle_us;
    atomic_uint_fast64_t events;
    struct hash tracks;
    int pids;
    struct strbuf line;                 /* of the producer */

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

static void give_up(struct timeline *t, const char *why)
{
    pthread_mutex_lock(&t->lock);
    if (!t->dead)
        log_warn("timeline %s: %s; nothing more is recorded", t->path, why);
    t->dead = true;
    pthread_mutex_unlock(&t->lock);
}

/* Lines [text, text + n): each becomes an element of the array. */
static bool write_piece(struct timeline *t, const char *text, size_t n, struct strbuf *out)
{
    off_t before = t->end;

    strbuf_clear(out);
    for (const char *end = text + n; text < end;) {
        size_t length = (size_t)((const char *)memchr(text, '\n', (size_t)(end - text)) -
                                 text);

        strbuf_addf(out, t->empty ? "\n" : ",\n");
        strbuf_add(out, text, length);
        t->empty = false;
        text += length + 1;
    }
    strbuf_add(out, "\n]", 2);
    if (!out->failed && write_at(t->fd, out->text, out->length, t->end)) {
        t->end += (off_t)out->length - 2;
        return true;
    }
    if (ftruncate(t->fd, before) != 0 || pwrite(t->fd, "\n]", 2, before) != 2)
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

static void write_lines(struct timeline *t, const struct strbuf *lines)
{
    struct strbuf out;

    strbuf_init(&out);
    for (size_t at = 0; at < lines->length;) {
        size_t n = piece_of(lines->text + at, lines->length - at);

        if (!write_piece(t, lines->text + at, n, &out)) {
            give_up(t, out.failed ? "out of memory" : strerror(errno));
            break;
        }
        at += n;
    }
    strbuf_release(&out);
}

static void gather(struct timeline *t)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += GATHER_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    while (!t->stop && pthread_cond_timedwait(&t->changed, &t->lock, &until) != ETIMEDOUT)
        ;
}

static void *writer_main(void *context)
{
    struct timeline *t = context;
    struct strbuf mine;
    bool last = false;

    strbuf_init(&mine);
    while (!last) {
        struct strbuf taken;

        pthread_mutex_lock(&t->lock);
        while (t->pending.length == 0 && !t->stop)
            pthread_cond_wait(&t->changed, &t->lock);
        gather(t);
        last = t->stop;
        taken = t->pending;
        t->pending = mine;
        mine = taken;
        pthread_mutex_unlock(&t->lock);
        write_lines(t, &mine);
        strbuf_clear(&mine);
    }
    strbuf_release(&mine);
    return NULL;
}

/* ---- Opening and closing --------------------------------------------------------------- */

static enum hvd_status open_file(struct timeline *t, struct hvd_error *err)
{
    struct stat info;

    t->fd = open(t->path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0644);
    if (t->fd < 0)
        return error_sys(err, -1, "timeline %.500s", t->path);
    if (fstat(t->fd, &info) != 0 || !S_ISREG(info.st_mode))
        return error_set(err, HVD_SYS, -1, "timeline %.500s: not a plain file", t->path);
    if (ftruncate(t->fd, 0) != 0 || pwrite(t->fd, "[\n]", 3, 0) != 3)
        return error_sys(err, -1, "timeline %.500s", t->path);
    t->end = 1;
    t->empty = true;
    return HVD_OK;
}

static enum hvd_status start_writer(struct timeline *t, struct hvd_error *err)
{
    sigset_t all, before;
    int code;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(&t->writer, NULL, writer_main, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0)
        return error_set(err, HVD_SYS, -1, "timeline: no thread: %s", strerror(code));
    return HVD_OK;
}

static void release(struct timeline *t)
{
    for (size_t i = 0; i < t->tracks.capacity; i++) {
        struct track *track = t->tracks.slots[i].value;

        if (track != NULL)
            free(track->early);
        free(track);
    }
    hash_release(&t->tracks);
    strbuf_release(&t->line);
    strbuf_release(&t->pending);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    if (t->fd >= 0)
        close(t->fd);
    free(t->path);
    free(t);
}

static void put_header(struct timeline *t);

enum hvd_status timeline_open(const char *path, bool mark_cycles,
                              struct timeline **timeline_p, struct hvd_error *err)
{
    struct timeline *t = calloc(1, sizeof *t);
    enum hvd_status status = HVD_OK;
    pthread_condattr_t attributes;

    if (t == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the timeline");
    t->fd = -1;
    t->mark_cycles = mark_cycles;
    t->start_us = clock_us();
    strbuf_init(&t->line);
    strbuf_init(&t->pending);
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    t->path = strdup(path);
    if (t->path == NULL)
        TRY_OUT(error_set(err, HVD_NOMEM, -1, "no memory for the timeline"));
    TRY_OUT(open_file(t, err));
    put_header(t);
    TRY_OUT(start_writer(t, err));
    *timeline_p = t;
out:
    if (status != HVD_OK)
        release(t);
    return status;
}

static void end_track(struct timeline *t, struct track *track, const char *args);

void timeline_close(struct timeline *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; i < t->tracks.capacity; i++)
        if (t->tracks.slots[i].value != NULL)
            end_track(t, t->tracks.slots[i].value, NULL);
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->writer, NULL);
    release(t);
}

const char *timeline_path(const struct timeline *t)
{
    return t->path;
}

uint64_t timeline_event_count(const struct timeline *t)
{
    return atomic_load_explicit(&t->events, memory_order_relaxed);
}

/* ---- Events ---------------------------------------------------------------------------- */

/* Hands t->line, one event, to the writer. */
static void put_line(struct timeline *t)
{
    bool was_empty, full;

    strbuf_add(&t->line, "\n", 1);
    pthread_mutex_lock(&t->lock);
    was_empty = t->pending.length == 0;
    full = t->pending.length + t->line.length > BACKLOG;
    if (!t->dead && !full && !t->line.failed)
        strbuf_add(&t->pending, t->line.text, t->line.length);
    if (was_empty)
        pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
    if (full)
        give_up(t, "the disk is too slow");
    strbuf_clear(&t->line);
    atomic_fetch_add_explicit(&t->events, 1, memory_order_relaxed);
}

static void put_header(struct timeline *t)
{
    strbuf_addf(&t->line,
                "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 0, \"args\": "
                "{\"start_time_since_epoch_in_micros\": %llu}}",
                (unsigned long long)clock_wall_us());
    put_line(t);
    strbuf_addf(&t->line, "{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": 0, "
                          "\"args\": {\"sort_index\": 0}}");
    put_line(t);
}

static uint64_t now_us(const struct timeline *t)
{
    return clock_us() - t->start_us;
}

static void put_begin(struct timeline *t, const struct track *track, const char *prefix,
                      const char *name)
{
    strbuf_addf(&t->line, "{\"ph\": \"B\", \"name\": \"%s%s\", \"ts\": %llu, \"pid\": %d}",
                prefix, name, (unsigned long long)now_us(t), track->pid);
    put_line(t);
}

static void put_end(struct timeline *t, const struct track *track, const char *args)
{
    strbuf_addf(&t->line, "{\"ph\": \"E\", \"ts\": %llu, \"pid\": %d%s%s}",
                (unsigned long long)now_us(t), track->pid,
                args != NULL ? ", \"args\": " : "", args != NULL ? args : "");
    put_line(t);
}

static void put_tick(struct timeline *t, const struct track *track, int member)
{
    strbuf_addf(&t->line, "{\"ph\": \"X\", \"name\": \"%d\", \"ts\": %llu, \"pid\": %d, "
                          "\"dur\": 0}", member, (unsigned long long)now_us(t), track->pid);
    put_line(t);
}

static void introduce(struct timeline *t, const struct track *track, const char *name)
{
    strbuf_addf(&t->line, "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, "
                          "\"args\": {\"name\": ", track->pid);
    strbuf_add_json(&t->line, name);
    strbuf_addf(&t->line, "}}");
    put_line(t);
    strbuf_addf(&t->line, "{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": %d, "
                          "\"args\": {\"sort_index\": %d}}", track->pid, track->pid);
    put_line(t);
}

/* ---- Tracks ---------------------------------------------------------------------------- */

static struct track *track_new(struct timeline *t, const char *key, size_t key_bytes)
{
    struct track *track = calloc(1, sizeof *track + key_bytes + 1);

    if (track == NULL)
        return NULL;
    memcpy(track->key, key, key_bytes);
    track->key_bytes = key_bytes;
    if (hash_put(&t->tracks, track->key, key_bytes, track) != 0) {
        free(track);
        return NULL;
    }
    track->pid = ++t->pids;
    introduce(t, track, track->key + sizeof(int));
    return track;
}

/* NULL: not known (make false) or no memory, and the tensor is not shown. */
static struct track *track_of(struct timeline *t, const struct timeline_key *key, bool make)
{
    char text[sizeof(int) + NAME_LIMIT];
    size_t name_bytes = key->name_bytes < NAME_LIMIT ? key->name_bytes : NAME_LIMIT;
    size_t n = sizeof key->set + name_bytes;
    struct track *track;

    memcpy(text, &key->set, sizeof key->set);
    memcpy(text + sizeof key->set, key->name, name_bytes);
    track = hash_get(&t->tracks, text, n);
    return track != NULL || !make ? track : track_new(t, text, n);
}

static void end_track(struct timeline *t, struct track *track, const char *args)
{
    if (track->state == TRACK_ACTIVE) {
        put_end(t, track, NULL);
        track->state = TRACK_RUNNING;
    }
    if (track->state != TRACK_IDLE)
        put_end(t, track, track->state == TRACK_RUNNING ? args : NULL);
    track->state = TRACK_IDLE;
}

static void keep_early(struct track *track, int member)
{
    int *grown = realloc(track->early, (size_t)(track->early_count + 1) * sizeof *grown);

    if (grown == NULL)
        return;
    track->early = grown;
    track->early[track->early_count++] = member;
}

static void negotiate(struct timeline *t, struct track *track, const char *kind)
{
    if (track->state != TRACK_IDLE)
        return;
    put_begin(t, track, "NEGOTIATE_", kind);
    track->state = TRACK_NEGOTIATING;
    for (int i = 0; i < track->early_count; i++)
        put_tick(t, track, track->early[i]);
    track->early_count = 0;
}

void timeline_negotiate(struct timeline *t, const struct timeline_key *key,
                        const char *kind)
{
    struct track *track = track_of(t, key, true);

    if (track != NULL)
        negotiate(t, track, kind);
}

void timeline_ready(struct timeline *t, const struct timeline_key *key, const char *kind,
                    int member)
{
    struct track *track = track_of(t, key, true);

    if (track == NULL)
        return;
    if (track->state >= TRACK_RUNNING) {
        keep_early(track, member);
        return;
    }
    negotiate(t, track, kind);
    put_tick(t, track, member);
}

void timeline_negotiated(struct timeline *t, const struct timeline_key *key)
{
    struct track *track = track_of(t, key, false);

    if (track != NULL && track->state == TRACK_NEGOTIATING)
        end_track(t, track, NULL);
}

bool timeline_begin(struct timeline *t, const struct timeline_key *key, const char *kind)
{
    struct track *track = track_of(t, key, true);

    if (track == NULL || track->state >= TRACK_RUNNING)
        return false;
    end_track(t, track, NULL);
    put_begin(t, track, "", kind);
    track->state = TRACK_RUNNING;
    return true;
}

void timeline_activity(struct timeline *t, const struct timeline_key *key,
                       const char *activity)
{
    struct track *track = track_of(t, key, false);

    if (track == NULL || track->state < TRACK_RUNNING)
        return;
    if (track->state == TRACK_ACTIVE)
        put_end(t, track, NULL);
    track->state = activity != NULL ? TRACK_ACTIVE : TRACK_RUNNING;
    if (activity != NULL)
        put_begin(t, track, "", activity);
}

void timeline_end(struct timeline *t, const struct timeline_key *key, const char *args)
{
    struct track *track = track_of(t, key, false);

    if (track != NULL)
        end_track(t, track, args);
}

void timeline_cycle(struct timeline *t, uint64_t period_us)
{
    uint64_t at = t->mark_cycles ? now_us(t) : 0;

    if (!t->mark_cycles || at < t->next_cycle_us)
        return;
    t->next_cycle_us = at + period_us;
    strbuf_addf(&t->line, "{\"ph\": \"i\", \"name\": \"CYCLE_START\", \"ts\": %llu, "
                          "\"s\": \"g\"}", (unsigned long long)at);
    put_line(t);
}
