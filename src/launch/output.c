/*
 * output.c: lines of the workers.
 *
 * 1. A line ends at \n or \r.  Text without an end is held until the end comes, 1 MiB of
 *    it has gathered, or the stream ends; then it goes out without a newline.
 * 2. Bytes pass untouched; before each line stands "[rank]<stdout>:".
 * 3. No line is broken into by another: whoever follows an unfinished line ends it first.
 * 4. When the terminal has taken nothing for a second, lines are dropped, and a marker
 *    tells how many.
 * 5. Files are DIR/rank.R/stdout and stderr, 0600, R padded to the digits of the highest
 *    rank.  A worker of an elastic job that follows another one as rank R goes on in its
 *    files.  No symbolic link is followed below DIR.
 * 6. Output that a file does not take (a full disk) is told once, with the path and the
 *    cause, and output_is_lost.  A reader that has gone (EPIPE) is none of it.
 */
#include "launch/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HELD_MAX (1u << 20)
#define TAIL_BYTES 4096
#define STALL_MS 1000

struct stream_lines {
    struct strbuf held;                 /* text without an end */
    struct sink file;
};

struct rank_output {
    struct stream_lines streams[2];     /* stdout, stderr */
    char tail[TAIL_BYTES];              /* a ring of the last bytes of stderr */
    size_t tail_at;                     /* bytes ever put into it */
    char path[4096];                    /* of its stderr, "" without files */
    int label;                          /* rank in its prefix */
};

struct output {
    uv_loop_t *loop;
    struct output_options opt;
    struct sink sinks[2];
    bool is_shared;                     /* both are one terminal: all goes to sinks[0],
                                         * so that lines stay whole */
    uv_timer_t stall;
    bool is_blocked;                    /* SINK_HIGH was reached */
    bool is_dropping;                   /* ... a second ago */
    uint64_t dropped_lines, dropped_bytes;
    bool is_lost;                       /* rule 6 */
    struct rank_output **ranks;         /* opt.ranks of them, each stays where it is */
};

static struct sink *console(struct output *o, int stream)
{
    return &o->sinks[o->is_shared ? 0 : stream - 1];
}

/* ---- a slow terminal -------------------------------------------------------------- */

static void on_stalled(uv_timer_t *timer)
{
    struct output *o = timer->data;

    o->is_dropping = true;
    o->opt.on_pressure(o->opt.owner, false);
}

static void check_pressure(struct output *o, struct sink *sink)
{
    if (o->is_blocked || sink_unwritten(sink) < SINK_HIGH)
        return;
    o->is_blocked = true;
    uv_timer_start(&o->stall, on_stalled, STALL_MS, 0);
    o->opt.on_pressure(o->opt.owner, true);
}

static void on_drained(struct sink *sink)
{
    struct output *o = sink->data;

    if (!o->is_blocked || sink_unwritten(&o->sinks[0]) > SINK_LOW ||
        sink_unwritten(&o->sinks[1]) > SINK_LOW)
        return;
    uv_timer_stop(&o->stall);
    o->is_blocked = o->is_dropping = false;
    if (o->dropped_lines > 0)
        output_say(o, 2, "horovodrun: %llu lines (%llu bytes) of output dropped, nobody "
                   "took them for a second", (unsigned long long)o->dropped_lines,
                   (unsigned long long)o->dropped_bytes);
    o->dropped_lines = o->dropped_bytes = 0;
    o->opt.on_pressure(o->opt.owner, false);
}

/* ---- a full disk ------------------------------------------------------------------ */

static void lose(struct output *o, int stream, const char *path, int error)
{
    bool was_lost = o->is_lost;

    o->is_lost = true;
    if (!was_lost)
        output_say(o, stream, "horovodrun: %s: %s; what is written there from now on is "
                   "lost, and the exit code will not be 0", path, strerror(error));
}

static void on_console_broken(struct sink *sink)
{
    struct output *o = sink->data;
    int stream = sink == &o->sinks[0] ? 1 : 2;

    if (sink->error != EPIPE)
        lose(o, 3 - stream, stream == 1 ? "stdout" : "stderr", sink->error);
}

static void on_file_broken(struct sink *sink)
{
    struct output *o = sink->data;

    for (int r = 0; r < o->opt.ranks; r++)
        for (int i = 0; i < 2; i++)
            if (sink == &o->ranks[r]->streams[i].file) {
                char path[sizeof o->ranks[r]->path];

                snprintf(path, sizeof path, "%.*s%s",
                         (int)(strlen(o->ranks[r]->path) - strlen("stderr")),
                         o->ranks[r]->path, i == 0 ? "stdout" : "stderr");
                lose(o, 2, path, sink->error);
            }
}

bool output_is_lost(const struct output *o)
{
    return o->is_lost;
}

/* ---- lines ------------------------------------------------------------------------ */

static void make_prefix(const struct output *o, int rank, int stream, char *prefix,
                        size_t capacity)
{
    char when[32] = "";
    time_t now = time(NULL);
    struct tm parts;

    if (o->opt.timestamps && localtime_r(&now, &parts) != NULL) {
        asctime_r(&parts, when);
        when[strcspn(when, "\n")] = '\0';
    }
    snprintf(prefix, capacity, "%s[%d]<%s>:", when, rank,
             stream == 1 ? "stdout" : "stderr");
}

static void put_line(struct output *o, int rank, int stream, const char *bytes,
                     size_t count)
{
    struct sink *file = &o->ranks[rank]->streams[stream - 1].file;
    struct sink *sink = console(o, stream);
    int owner = rank * 2 + stream - 1;
    char prefix[80];

    make_prefix(o, o->ranks[rank]->label, stream, prefix, sizeof prefix);
    if (o->opt.directory != NULL)
        sink_put(file, owner, prefix, bytes, count);
    if (o->is_dropping) {
        o->dropped_lines++;
        o->dropped_bytes += count;
        return;
    }
    sink_put(sink, owner, prefix, bytes, count);
    check_pressure(o, sink);
}

/* The length of the first line with its end; 0: no end. */
static size_t line_length(const char *bytes, size_t count)
{
    const char *newline = memchr(bytes, '\n', count);
    size_t length = newline == NULL ? 0 : (size_t)(newline - bytes) + 1;
    const char *ret = memchr(bytes, '\r', newline == NULL ? count : length - 1);

    if (ret == NULL)
        return length;
    length = (size_t)(ret - bytes) + 1;
    return length < count && bytes[length] == '\n' ? length + 1 : length;
}

static void flush_held(struct output *o, int rank, int stream)
{
    struct strbuf *held = &o->ranks[rank]->streams[stream - 1].held;

    if (held->length > 0)
        put_line(o, rank, stream, held->text, held->length);
    strbuf_clear(held);
}

static void keep_tail(struct rank_output *r, const char *bytes, size_t count)
{
    if (count > TAIL_BYTES) {
        bytes += count - TAIL_BYTES;
        r->tail_at += count - TAIL_BYTES;
        count = TAIL_BYTES;
    }
    for (size_t i = 0; i < count; i++)
        r->tail[(r->tail_at + i) % TAIL_BYTES] = bytes[i];
    r->tail_at += count;
}

void output_take(struct output *o, int rank, int stream, const char *bytes, size_t count)
{
    struct strbuf *held = &o->ranks[rank]->streams[stream - 1].held;

    if (count == 0) {
        flush_held(o, rank, stream);
        return;
    }
    if (stream == 2)
        keep_tail(o->ranks[rank], bytes, count);
    for (size_t length; count > 0; bytes += length, count -= length) {
        length = line_length(bytes, count);
        if (length > 0 && held->length == 0) {
            put_line(o, rank, stream, bytes, length);
            continue;
        }
        if (length == 0) {
            strbuf_add(held, bytes, count);
            length = count;
            if (held->length < HELD_MAX)
                continue;
        } else {
            strbuf_add(held, bytes, length);
        }
        flush_held(o, rank, stream);
    }
}

void output_end(struct output *o, int rank)
{
    flush_held(o, rank, 1);
    flush_held(o, rank, 2);
}

void output_say(struct output *o, int stream, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    int n;

    va_start(args, format);
    n = vasprintf(&text, format, args);
    va_end(args);
    if (n < 0)
        return;
    text[n] = '\n';                     /* takes the place of the final 0 */
    sink_put(console(o, stream), -1 - stream, "", text, (size_t)n + 1);
    free(text);
}

size_t output_unwritten(const struct output *o)
{
    return sink_unwritten(&o->sinks[0]) + sink_unwritten(&o->sinks[1]);
}

size_t output_tail(const struct output *o, int rank, char *buffer, size_t capacity)
{
    const struct rank_output *r = o->ranks[rank];
    size_t count = r->tail_at < TAIL_BYTES ? r->tail_at : TAIL_BYTES;

    if (count > capacity)
        count = capacity;
    for (size_t i = 0; i < count; i++)
        buffer[i] = r->tail[(r->tail_at - count + i) % TAIL_BYTES];
    return count;
}

const char *output_path(const struct output *o, int rank)
{
    return o->ranks[rank]->path;
}

/* ---- files ------------------------------------------------------------------------ */

static int open_directory(const char *path, struct hvd_error *err)
{
    char part[4096];
    size_t length = strlen(path);
    int fd;

    if (length == 0 || length >= sizeof part - 64) {
        error_set(err, HVD_INVALID, -1, "--output-filename: '%.64s' is not a directory "
                                        "name", path);
        return -1;
    }
    for (size_t i = 1; i <= length; i++)
        if (path[i] == '/' || path[i] == '\0') {
            memcpy(part, path, i);
            part[i] = '\0';
            if (mkdir(part, 0700) != 0 && errno != EEXIST) {
                error_sys(err, -1, "--output-filename: cannot make %s", part);
                return -1;
            }
        }
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        error_sys(err, -1, "--output-filename: %s", path);
    return fd;
}

static enum hvd_status open_file(struct output *o, int dir_fd, const char *name,
                                 const char *rank_name, int again, struct sink *sink,
                                 struct hvd_error *err)
{
    int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | again | O_NOFOLLOW | O_CLOEXEC |
                                      O_NONBLOCK, 0600);
    struct stat info;

    if (fd < 0)
        return error_sys(err, -1, "--output-filename: %s/%s", rank_name, name);
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return error_set(err, HVD_INVALID, -1,
                         "--output-filename: %s/%s is not an ordinary file", rank_name,
                         name);
    }
    sink_open(sink, o->loop, fd);
    sink->data = o;
    sink->on_broken = on_file_broken;
    return HVD_OK;
}

static enum hvd_status open_rank(struct output *o, int dir_fd, int rank, int digits,
                                 struct hvd_error *err)
{
    struct rank_output *r = o->ranks[rank];
    enum hvd_status status;
    char name[64];
    int fd, again = O_TRUNC;

    for (int i = 0; i < rank; i++)      /* a worker in the place of another one */
        if (o->ranks[i]->label == r->label)
            again = O_APPEND;
    snprintf(name, sizeof name, "rank.%0*d", digits < 10 ? digits : 10, r->label);
    if (mkdirat(dir_fd, name, 0700) != 0 && errno != EEXIST)
        return error_sys(err, -1, "--output-filename: cannot make %s", name);
    fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return error_sys(err, -1, "--output-filename: %s/%s", o->opt.directory, name);
    status = open_file(o, fd, "stdout", name, again, &r->streams[0].file, err);
    if (status == HVD_OK)
        status = open_file(o, fd, "stderr", name, again, &r->streams[1].file, err);
    snprintf(r->path, sizeof r->path, "%.4000s/%s/stderr", o->opt.directory, name);
    close(fd);
    return status;
}

static int digits_of(int number)
{
    int digits = 1;

    for (; number >= 10; number /= 10)
        digits++;
    return digits;
}

static enum hvd_status open_files(struct output *o, struct hvd_error *err)
{
    int fd = open_directory(o->opt.directory, err);
    enum hvd_status status = HVD_OK;

    if (fd < 0)
        return err->status;
    for (int r = 0; r < o->opt.ranks && status == HVD_OK; r++)
        status = open_rank(o, fd, r, digits_of(o->opt.ranks - 1), err);
    close(fd);
    return status;
}

/* ---- life ------------------------------------------------------------------------- */

static bool is_one_terminal(int a, int b)
{
    struct stat x, y;

    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

static struct rank_output *rank_new(int label)
{
    struct rank_output *r = calloc(1, sizeof *r);

    if (r == NULL)
        return NULL;
    r->label = label;
    for (int i = 0; i < 2; i++) {
        strbuf_init(&r->streams[i].held);
        r->streams[i].file.fd = -1;
        strbuf_init(&r->streams[i].file.buf);
    }
    return r;
}

enum hvd_status output_add(struct output *o, int label, struct hvd_error *err)
{
    struct rank_output **ranks = realloc(o->ranks, ((size_t)o->opt.ranks + 1) *
                                                       sizeof *ranks);
    enum hvd_status status;
    int fd;

    if (ranks != NULL) {
        o->ranks = ranks;
        ranks[o->opt.ranks] = rank_new(label);
    }
    if (ranks == NULL || ranks[o->opt.ranks] == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the output of a worker");
    o->opt.ranks++;
    if (o->opt.directory == NULL)
        return HVD_OK;
    fd = open_directory(o->opt.directory, err);
    if (fd < 0)
        return err->status;
    status = open_rank(o, fd, o->opt.ranks - 1, 1, err);
    close(fd);
    return status;
}

void output_label(struct output *o, int rank, int label)
{
    o->ranks[rank]->label = label;
}

enum hvd_status output_new(uv_loop_t *loop, const struct output_options *opt,
                           struct output **output_p, struct hvd_error *err)
{
    struct output *o = calloc(1, sizeof *o);
    bool has_all;

    if (o != NULL)
        o->ranks = calloc((size_t)opt->ranks + 1, sizeof *o->ranks);
    has_all = o != NULL && o->ranks != NULL;
    for (int r = 0; has_all && r < opt->ranks; r++) {
        o->ranks[r] = rank_new(r);
        has_all = o->ranks[r] != NULL;
    }
    if (!has_all)
        return error_set(err, HVD_NOMEM, -1, "no memory for the output of %d ranks",
                         opt->ranks);
    o->loop = loop;
    o->opt = *opt;
    sink_open(&o->sinks[0], loop, opt->stdout_fd);
    sink_open(&o->sinks[1], loop, opt->stderr_fd);
    o->sinks[0].data = o->sinks[1].data = o;
    o->sinks[0].on_drained = o->sinks[1].on_drained = on_drained;
    o->sinks[0].on_broken = o->sinks[1].on_broken = on_console_broken;
    o->is_shared = is_one_terminal(opt->stdout_fd, opt->stderr_fd);
    uv_timer_init(loop, &o->stall);
    o->stall.data = o;
    *output_p = o;
    return opt->directory != NULL && opt->ranks > 0 ? open_files(o, err) : HVD_OK;
}

void output_free(struct output *o)
{
    if (o == NULL)
        return;
    for (int r = 0; r < o->opt.ranks; r++)
        for (int i = 0; i < 2; i++) {
            struct stream_lines *s = &o->ranks[r]->streams[i];

            strbuf_release(&s->held);
            if (s->file.fd >= 0)
                close(s->file.fd);
            if (o->opt.directory != NULL)
                sink_close(&s->file);
        }
    sink_close(&o->sinks[0]);
    sink_close(&o->sinks[1]);
    uv_close((uv_handle_t *)&o->stall, NULL);
    /* The handles lie in o, which the loop must let go first. */
    uv_run(o->loop, UV_RUN_NOWAIT);
    for (int r = 0; r < o->opt.ranks; r++)
        free(o->ranks[r]);
    free(o->ranks);
    free(o);
}
