/*
 * dashboard.c: an HTTP server for one reader.
 *
 * 1. It listens on 127.0.0.1 only, and every request has to name that host (a name that an
 *    attacker's server resolves to it is refused) and, if it names one, its own origin.
 * 2. The link that is printed holds a token that works once; it is exchanged for a cookie that
 *    scripts cannot read and other sites do not send.  Programs (Prometheus) send a token from
 *    a file.  Tokens are compared in constant time.
 * 3. Nothing can be changed: GET only, no body, one request a connection, READERS_MAX of them,
 *    LIMIT_MS each.
 * 4. A look at the jobs is taken when somebody asks, never by itself; those who ask meanwhile
 *    share the next one.
 * 5. A request for /api/end is answered when the job has ended, with the launcher's last
 *    words (or after LIMIT_MS with nothing).
 * 6. The page loads nothing from anywhere (Content-Security-Policy says so, too), and puts what
 *    it shows into text nodes only.
 */
#include "launch/dashboard.h"

#include "base/process.h"
#include "dashboard_page.h"
#include "launch/http.h"
#include "launch/launch_int.h"
#include "launch/looker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define READERS_MAX 32
#define LIMIT_MS 10000
#define TOKEN_TEXT 33                   /* 128 bits in hexadecimal */
#define RECENT_MS 5000                  /* of the timeline */

#define WORDS_MAX 2048
#define END_MS 500                      /* the launcher waits so long for the last answers */

enum page { PAGE_NONE, PAGE_STATUS, PAGE_TRACE, PAGE_METRICS, PAGE_END };

struct reader {
    struct dashboard *dashboard;
    uv_tcp_t tcp;
    uv_timer_t limit;
    uv_write_t write;
    int handles;
    bool is_used, is_closing, is_waiting, is_served;
    enum page wants;
    char head[HTTP_HEAD_MAX];
    size_t got;
    struct strbuf answer;
};

struct dashboard {
    uv_loop_t loop;
    uv_tcp_t server;
    uv_signal_t stops[2];
    struct looker *looker;
    bool is_looking;
    uv_pipe_t launcher;
    char words[WORDS_MAX];
    size_t word_count;
    bool has_ended;
    int port;
    char token[TOKEN_TEXT], session[TOKEN_TEXT];
    bool is_token_used;
    char bearer[256];                   /* of the file; "" none */
    struct reader readers[READERS_MAX];
};

static bool make_token(char out[TOKEN_TEXT])
{
    unsigned char bytes[16];

    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return false;
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

/* ---- Answers ---------------------------------------------------------------------- */

static void stop_when_told(struct dashboard *d);

static void on_reader_closed(uv_handle_t *handle)
{
    struct reader *r = handle->data;

    if (--r->handles > 0)
        return;
    strbuf_release(&r->answer);
    r->is_used = false;
    stop_when_told(r->dashboard);
}

static void close_reader(struct reader *r)
{
    if (r->is_closing)
        return;
    r->is_closing = true;
    r->is_waiting = false;
    uv_close((uv_handle_t *)&r->tcp, on_reader_closed);
    uv_close((uv_handle_t *)&r->limit, on_reader_closed);
}

static void on_written(uv_write_t *write, int status)
{
    (void)status;
    close_reader(write->data);
}

/* headers: further ones, each with its line end; "" none. */
static void answer(struct reader *r, const char *status, const char *type,
                   const char *headers, const char *body, size_t n)
{
    uv_buf_t buf;

    r->is_waiting = false;
    strbuf_addf(&r->answer,
                "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s"
                "Connection: close\r\nCache-Control: no-store\r\n"
                "X-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n"
                "Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n"
                "\r\n", status, type, n, headers);
    strbuf_add(&r->answer, body, n);
    buf = uv_buf_init(r->answer.text, (unsigned)r->answer.length);
    r->write.data = r;
    if (r->answer.failed ||
        uv_write(&r->write, (uv_stream_t *)&r->tcp, &buf, 1, on_written) != 0)
        close_reader(r);
}

static void refuse(struct reader *r, const char *status, const char *why)
{
    answer(r, status, "text/plain; charset=utf-8", "", why, strlen(why));
}

/* The page's own script and style are known by a number that is new each time. */
static void send_page(struct reader *r)
{
    char nonce[TOKEN_TEXT], headers[512];
    const char *at = (const char *)dashboard_page, *end = at + dashboard_page_bytes;
    static const char mark[] = "@NONCE@";
    struct strbuf page;

    if (!make_token(nonce)) {
        refuse(r, "500 Internal Server Error", "no random numbers\n");
        return;
    }
    snprintf(headers, sizeof headers,
             "Content-Security-Policy: default-src 'none'; script-src 'nonce-%s'; style-src "
             "'nonce-%s'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
             "form-action 'none'; frame-ancestors 'none'\r\n", nonce, nonce);
    strbuf_init(&page);
    while (at < end) {
        const char *next = memmem(at, (size_t)(end - at), mark, sizeof mark - 1);

        strbuf_add(&page, at, (size_t)((next != NULL ? next : end) - at));
        if (next != NULL)
            strbuf_add(&page, nonce, strlen(nonce));
        at = next != NULL ? next + sizeof mark - 1 : end;
    }
    answer(r, "200 OK", "text/html; charset=utf-8", headers, page.text, page.length);
    strbuf_release(&page);
}

static void send_view(struct reader *r, const struct view *v)
{
    struct strbuf out;

    strbuf_init(&out);
    if (r->wants == PAGE_METRICS)
        view_add_metrics(v, &out);
    else if (r->wants == PAGE_TRACE)
        view_add_trace(v, &out);
    else
        view_add_json(v, &out);
    answer(r, "200 OK", r->wants == PAGE_METRICS ? "text/plain; version=0.0.4; charset=utf-8"
                                                 : "application/json; charset=utf-8",
           r->wants == PAGE_TRACE
               ? "Content-Disposition: attachment; filename=\"horovod-trace.json\"\r\n" : "",
           out.text, out.length);
    strbuf_release(&out);
}

/* ---- Looks (rule 4) --------------------------------------------------------------- */

static void look(struct dashboard *d)
{
    struct look_question q = {.recent_ms = RECENT_MS};
    bool any = false;

    if (d->is_looking)
        return;
    for (int i = 0; i < READERS_MAX; i++) {
        struct reader *r = &d->readers[i];

        if (!r->is_waiting || r->wants == PAGE_END)
            continue;
        any = r->is_served = true;
        q.what |= r->wants == PAGE_TRACE ? LOOK_WITH_RECORDS
                  : r->wants == PAGE_STATUS ? LOOK_WITH_PLACE : 0;
    }
    d->is_looking = any;
    if (any)
        looker_ask(d->looker, &q);
}

static void on_view(void *owner, const struct view *view)
{
    struct dashboard *d = owner;

    d->is_looking = false;
    for (int i = 0; i < READERS_MAX; i++)
        if (d->readers[i].is_waiting && d->readers[i].is_served &&
            d->readers[i].wants != PAGE_END)
            send_view(&d->readers[i], view);
    look(d);
}

/* ---- The end (rule 5) -------------------------------------------------------------- */

static void send_end(struct reader *r)
{
    struct strbuf out;

    strbuf_init(&out);
    strbuf_addf(&out, "{\"ended\": ");
    strbuf_add_json(&out, r->dashboard->words);
    strbuf_addf(&out, "}\n");
    answer(r, "200 OK", "application/json; charset=utf-8", "", out.text, out.length);
    strbuf_release(&out);
}

static void stop_when_told(struct dashboard *d)
{
    for (int i = 0; i < READERS_MAX; i++)
        if (d->readers[i].is_used)
            return;
    if (d->has_ended)
        uv_stop(&d->loop);
}

static void end_readers(struct dashboard *d)
{
    d->has_ended = true;
    for (int i = 0; i < READERS_MAX; i++) {
        struct reader *r = &d->readers[i];

        if (r->is_used && r->is_waiting && r->wants == PAGE_END)
            send_end(r);
        else if (r->is_used && !r->is_closing && r->answer.length == 0)
            close_reader(r);
    }
    stop_when_told(d);
}

static void give_word_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct dashboard *d = handle->data;

    (void)suggested;
    *buf = uv_buf_init(d->words + d->word_count,
                       (unsigned)(sizeof d->words - 1 - d->word_count));
}

static void on_words(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct dashboard *d = stream->data;

    (void)buf;
    if (n > 0)
        d->word_count += (size_t)n;
    if (n < 0) {
        uv_read_stop(stream);
        end_readers(d);
    }
}

/* ---- Requests --------------------------------------------------------------------- */

/* Rule 1. */
static bool is_from_here(const struct dashboard *d, const struct http_request *q)
{
    static const char *const names[] = {"127.0.0.1", "localhost"};
    char expected[64], origin[80];

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(expected, sizeof expected, "%s:%d", names[i], d->port);
        snprintf(origin, sizeof origin, "http://%s", expected);
        if (strcmp(q->host, expected) == 0)
            return q->origin[0] == '\0' || strcmp(q->origin, origin) == 0;
    }
    return false;
}

/* Rule 2. */
static bool is_admitted(const struct dashboard *d, const struct http_request *q)
{
    char name[32], value[TOKEN_TEXT];

    snprintf(name, sizeof name, "horovod-%d", d->port);
    if (http_find(q->cookie, ';', name, value, sizeof value) &&
        http_same_secret(d->session, value))
        return true;
    return d->bearer[0] != '\0' && strncmp(q->authorization, "Bearer ", 7) == 0 &&
           http_same_secret(d->bearer, q->authorization + 7);
}

static void exchange_token(struct reader *r, const struct http_request *q)
{
    struct dashboard *d = r->dashboard;
    char given[TOKEN_TEXT], headers[256];
    bool is_good = http_find(q->query, '&', "token", given, sizeof given) &&
                   http_same_secret(d->token, given) && !d->is_token_used;

    if (!is_good) {
        refuse(r, "403 Forbidden",
               "This link has been used, or was never good. Links work once; horovodrun "
               "--status --dashboard prints a new one for a running job.\n");
        return;
    }
    d->is_token_used = true;
    snprintf(headers, sizeof headers,
             "Set-Cookie: horovod-%d=%s; HttpOnly; SameSite=Strict; Path=/\r\n"
             "Location: /\r\n", d->port, d->session);
    answer(r, "303 See Other", "text/plain", headers, "", 0);
}

static enum page page_of(const char *path)
{
    if (strcmp(path, "/api/status") == 0)
        return PAGE_STATUS;
    if (strcmp(path, "/api/trace") == 0)
        return PAGE_TRACE;
    if (strcmp(path, "/api/end") == 0)
        return PAGE_END;
    return strcmp(path, "/metrics") == 0 ? PAGE_METRICS : PAGE_NONE;
}

static void serve(struct reader *r, const struct http_request *q)
{
    struct dashboard *d = r->dashboard;
    bool is_root = strcmp(q->path, "/") == 0, is_in = is_admitted(d, q);

    /* A link in a mail is a cross-site navigation; only the first page may be one. */
    if (!is_from_here(d, q) || (strcmp(q->site, "cross-site") == 0 && !is_root)) {
        refuse(r, "403 Forbidden", "Requests from other sites are refused.\n");
    } else if (is_root && q->query[0] != '\0' && !is_in) {
        exchange_token(r, q);
    } else if (!is_in) {
        refuse(r, "403 Forbidden", "Open the link that horovodrun has printed.\n");
    } else if (is_root && q->query[0] != '\0') {
        answer(r, "303 See Other", "text/plain", "Location: /\r\n", "", 0);
    } else if (is_root) {
        send_page(r);
    } else if (page_of(q->path) != PAGE_NONE) {
        r->wants = page_of(q->path);
        r->is_waiting = true;
        look(d);
    } else {
        refuse(r, "404 Not Found", "There is no such page.\n");
    }
}

static void give_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct reader *r = handle->data;

    (void)suggested;
    *buf = uv_buf_init(r->head + r->got, (unsigned)(sizeof r->head - r->got));
}

static void on_bytes(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct reader *r = stream->data;
    struct http_request request;
    struct hvd_error err;
    enum hvd_status status;

    (void)buf;
    if (n == 0)
        return;
    if (n < 0) {
        close_reader(r);
        return;
    }
    r->got += (size_t)n;
    status = http_parse(r->head, r->got, &request, &err);
    if (status == HVD_AGAIN)
        return;
    uv_read_stop(stream);
    if (status == HVD_OK)
        serve(r, &request);
    else
        refuse(r, status == HVD_INVALID ? "405 Method Not Allowed" : "400 Bad Request",
               status == HVD_INVALID ? "Only GET.\n" : "This is no request.\n");
}

static void on_limit(uv_timer_t *timer)
{
    struct reader *r = timer->data;

    if (r->is_waiting && r->wants == PAGE_END)
        answer(r, "204 No Content", "text/plain", "", "", 0);
    else
        close_reader(r);
}

static void on_connection(uv_stream_t *server, int status)
{
    struct dashboard *d = server->data;
    struct reader *r = NULL;

    for (int i = 0; i < READERS_MAX && r == NULL; i++)
        if (!d->readers[i].is_used)
            r = &d->readers[i];
    if (status < 0 || r == NULL)
        return;                         /* it stays in the backlog */
    memset(r, 0, sizeof *r);
    r->dashboard = d;
    r->is_used = true;
    r->handles = 2;
    strbuf_init(&r->answer);
    uv_tcp_init(&d->loop, &r->tcp);
    uv_timer_init(&d->loop, &r->limit);
    r->tcp.data = r->limit.data = r;
    uv_timer_start(&r->limit, on_limit, LIMIT_MS, 0);
    if (uv_accept(server, (uv_stream_t *)&r->tcp) != 0 ||
        uv_read_start((uv_stream_t *)&r->tcp, give_room, on_bytes) != 0)
        close_reader(r);
}

/* ---- Life ------------------------------------------------------------------------- */

/* The first line of a file that nobody else can read. */
static bool read_bearer(struct dashboard *d, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat info;
    ssize_t n = -1;

    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
        info.st_uid == geteuid() && (info.st_mode & 077) == 0)
        n = read(fd, d->bearer, sizeof d->bearer - 1);
    if (fd >= 0)
        close(fd);
    d->bearer[n > 0 ? n : 0] = '\0';
    d->bearer[strcspn(d->bearer, "\r\n")] = '\0';
    if (strlen(d->bearer) >= 16)
        return true;
    fprintf(stderr, "horovodrun: error: --dashboard-token-file %s: a file of yours that nobody "
                    "else can read (chmod 600), with at least 16 characters, is needed\n", path);
    return false;
}

static int listen_here(struct dashboard *d, int port)
{
    struct sockaddr_in at;
    int n = sizeof at, code = uv_ip4_addr("127.0.0.1", port, &at);

    uv_tcp_init(&d->loop, &d->server);
    d->server.data = d;
    if (code == 0)
        code = uv_tcp_bind(&d->server, (struct sockaddr *)&at, 0);
    if (code == 0)
        code = uv_listen((uv_stream_t *)&d->server, READERS_MAX, on_connection);
    if (code == 0)
        code = uv_tcp_getsockname(&d->server, (struct sockaddr *)&at, &n);
    d->port = code == 0 ? ntohs(at.sin_port) : 0;
    if (code != 0)
        fprintf(stderr, "horovodrun: error: the dashboard cannot listen on 127.0.0.1 port %d: "
                        "%s\n", port, uv_strerror(code));
    return code;
}

static void on_stop(uv_signal_t *handle, int number)
{
    (void)number;
    uv_stop(handle->loop);
}

static void close_handle(uv_handle_t *handle, void *unused)
{
    (void)unused;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

static void release(struct dashboard *d)
{
    looker_free(d->looker);
    d->has_ended = false;               /* nobody stops the loop any more */
    for (int i = 0; i < READERS_MAX; i++)
        if (d->readers[i].is_used)
            close_reader(&d->readers[i]);
    uv_walk(&d->loop, close_handle, NULL);
    uv_run(&d->loop, UV_RUN_DEFAULT);
    uv_loop_close(&d->loop);
    explicit_bzero(d, sizeof *d);
    free(d);
}

static void hear_launcher(struct dashboard *d, int fd)
{
    uv_pipe_init(&d->loop, &d->launcher, 0);
    d->launcher.data = d;
    if (uv_pipe_open(&d->launcher, fd) == 0)
        uv_read_start((uv_stream_t *)&d->launcher, give_word_room, on_words);
}

int dashboard_run(const char *job, int port, const char *token_file, int words_fd)
{
    struct dashboard *d = calloc(1, sizeof *d);
    static const int stops[2] = {SIGINT, SIGTERM};
    int code = 1;

    if (d == NULL || uv_loop_init(&d->loop) != 0)
        return 1;
    signal(SIGPIPE, SIG_IGN);
    d->looker = looker_new(&d->loop, job, on_view, d);
    if (d->looker == NULL || !make_token(d->token) || !make_token(d->session) ||
        (token_file != NULL && !read_bearer(d, token_file)) || listen_here(d, port) != 0)
        goto out;
    for (int i = 0; i < 2; i++) {
        uv_signal_init(&d->loop, &d->stops[i]);
        uv_signal_start(&d->stops[i], on_stop, stops[i]);
    }
    if (words_fd >= 0)
        hear_launcher(d, words_fd);
    fprintf(stderr, "horovodrun: dashboard: http://127.0.0.1:%d/?token=%s (works once)\n",
            d->port, d->token);
    uv_run(&d->loop, UV_RUN_DEFAULT);
    code = 0;
out:
    release(d);
    return code;
}

/* ---- Beside a job ----------------------------------------------------------------- */

static _Noreturn void run_child(const char *job, const struct settings *s, int words_fd,
                                pid_t parent)
{
    const char *port = s->options.values[OPTION_ID_DASHBOARD];
    const char *file = s->options.values[OPTION_ID_DASHBOARD_TOKEN_FILE];
    const char *args[10] = {"horovodrun", "--status", "--dashboard", port, "--dashboard-fd",
                            "0"};
    int n = 6, null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    sigset_t none;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || null_fd < 0)
        _exit(1);
    setsid();                           /* Ctrl-C is for the launcher, which ends us */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    dup2(words_fd, 0);
    dup2(null_fd, 1);
    if (file != NULL) {
        args[n++] = "--dashboard-token-file";
        args[n++] = file;
    }
    args[n++] = job;
    args[n] = NULL;
    execv("/proc/self/exe", (char *const *)args);
    _exit(1);
}

void dashboard_start(struct launch *job)
{
    pid_t parent = getpid(), pid = -1;
    int pipes[2] = {-1, -1};

    if (!options_has(&job->settings->options, OPTION_ID_DASHBOARD))
        return;
    if (pipe2(pipes, O_CLOEXEC) == 0)
        pid = fork();
    if (pid == 0)
        run_child(job->job_id, job->settings, pipes[0], parent);
    if (pid < 0)
        output_say(job->output, 2, "horovodrun: no dashboard: %s", strerror(errno));
    if (pipes[0] >= 0)
        close(pipes[0]);
    if (pid < 0 && pipes[1] >= 0)
        close(pipes[1]);
    job->dashboard = pid > 0 ? pid : 0;
    job->dashboard_fd = pipes[1];
}

static void describe_end(const struct launch *job, char *text, size_t capacity)
{
    const struct rank_state *r = job->first_failed >= 0 ? &job->ranks[job->first_failed] : NULL;

    if (r != NULL && r->signal > 0)
        snprintf(text, capacity, "The job has failed: rank %d on %s was ended by SIG%s. %s",
                 r->label, launch_rank_host(job, job->first_failed), signal_name(r->signal),
                 r->text);
    else if (r != NULL)
        snprintf(text, capacity, "The job has failed: rank %d on %s ended with code %d. %s",
                 r->label, launch_rank_host(job, job->first_failed), r->code, r->text);
    else if (job->has_error)
        snprintf(text, capacity, "The job has failed: %s", job->error.text);
    else if (job->signal != 0)
        snprintf(text, capacity, "The job was stopped by SIG%s.", signal_name(job->signal));
    else
        snprintf(text, capacity, "The job has ended well.");
}

void dashboard_end(struct launch *job)
{
    char text[WORDS_MAX - 1];
    struct pollfd p;

    if (job->dashboard == 0)
        return;
    describe_end(job, text, sizeof text);
    (void)!write(job->dashboard_fd, text, strlen(text));
    close(job->dashboard_fd);
    p = (struct pollfd){.fd = (int)syscall(SYS_pidfd_open, job->dashboard, 0),
                        .events = POLLIN};
    if (p.fd < 0)
        return;
    poll(&p, 1, END_MS);                /* then it is killed with all that is left */
    close(p.fd);
}
