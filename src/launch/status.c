/*
 * status.c: horovodrun --status [JOB] [--watch] [--json].
 *
 * JOB is the beginning of a job's id, the number of one of its processes, or @HOST: then ssh
 * asks the horovodrun of that host.  Without --watch two looks, GAP_MS apart, give the rates.
 */
#include "launch/status.h"

#include "launch/dashboard.h"
#include "launch/looker.h"
#include "launch/remote.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define GAP_MS 400
#define WATCH_MS 1000

struct status {
    uv_loop_t loop;
    uv_timer_t next;
    uv_signal_t stop;
    struct looker *looker;
    const char *job;                    /* NULL: all */
    bool is_watching, is_json, is_terminal;
    int views;                          /* taken so far */
    int code;
};

static const struct look_question question = {.what = LOOK_WITH_PLACE};

static int terminal_width(void)
{
    struct winsize size;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return 0;
    return size.ws_col;
}

/* The screen is written over from its upper left corner, line by line: no flicker. */
static void add_screen(struct strbuf *out, const char *text)
{
    strbuf_addf(out, "\033[H");
    while (*text != '\0') {
        size_t n = strcspn(text, "\n");

        strbuf_add(out, text, n);
        strbuf_addf(out, "\033[K\n");
        text += n + (text[n] == '\n');
    }
    strbuf_addf(out, "\033[J");
}

static bool show(struct status *s, const struct view *view)
{
    struct strbuf text, out;
    bool is_written;

    strbuf_init(&text);
    strbuf_init(&out);
    if (s->is_json)
        view_add_json(view, &text);
    else if (view->count == 0)
        strbuf_addf(&text, s->job != NULL ? "no job of this user here is %s\n"
                                          : "no job of this user runs here\n", s->job);
    else
        view_add_text(view, s->is_terminal ? terminal_width() : 0, &text);
    if (s->is_watching && s->is_terminal && !s->is_json)
        add_screen(&out, text.text);
    else
        strbuf_addf(&out, "%s%s", text.text, s->is_watching && !s->is_json ? "\n" : "");
    is_written = fwrite(out.text, 1, out.length, stdout) == out.length && fflush(stdout) == 0;
    strbuf_release(&text);
    strbuf_release(&out);
    return is_written;
}

static void end(struct status *s)
{
    uv_timer_stop(&s->next);
    uv_stop(&s->loop);
}

static void on_view(void *owner, const struct view *view)
{
    struct status *s = owner;

    if (s->views++ == 0) {
        uv_timer_start(&s->next, s->next.timer_cb, GAP_MS, 0);
        return;
    }
    s->code = !show(s, view) || (s->job != NULL && view->count == 0);
    if (s->is_watching && (s->code == 0 || view->count == 0) && !ferror(stdout))
        uv_timer_start(&s->next, s->next.timer_cb, WATCH_MS, 0);
    else
        end(s);
}

static void on_time(uv_timer_t *timer)
{
    struct status *s = timer->data;

    looker_ask(s->looker, &question);
}

static void on_stop(uv_signal_t *handle, int number)
{
    (void)number;
    end(handle->data);
}

static int look_here(struct status *s)
{
    if (uv_loop_init(&s->loop) != 0)
        return 1;
    s->looker = looker_new(&s->loop, s->job, on_view, s);
    if (s->looker == NULL)
        return 1;
    uv_timer_init(&s->loop, &s->next);
    uv_signal_init(&s->loop, &s->stop);
    s->next.data = s->stop.data = s;
    uv_signal_start(&s->stop, on_stop, SIGINT);
    uv_timer_start(&s->next, on_time, 0, 0);
    if (s->is_watching && s->is_terminal && !s->is_json)
        printf("\033[2J");
    uv_run(&s->loop, UV_RUN_DEFAULT);
    looker_free(s->looker);
    uv_close((uv_handle_t *)&s->next, NULL);
    uv_close((uv_handle_t *)&s->stop, NULL);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    uv_loop_close(&s->loop);
    return s->code;
}

/* ---- Another host ----------------------------------------------------------------- */

/* Only what no shell reads as anything but a word. */
static bool is_word(const char *text)
{
    return text[0] != '\0' && text[0] != '-' &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                        "._-") == strlen(text);
}

static int look_there(const struct settings *s, const char *host, const char *job)
{
    const char *args[REMOTE_ARGS_MAX];
    struct strbuf command, store;

    strbuf_init(&command);
    strbuf_init(&store);
    strbuf_addf(&command, "--status%s%s%s%s",
                options_has(&s->options, OPTION_ID_WATCH) ? " --watch" : "",
                options_has(&s->options, OPTION_ID_JSON) ? " --json" : "",
                job != NULL ? " " : "", job != NULL ? job : "");
    remote_command_args(s, host, command.text, &store, args);
    execvp(args[0], (char *const *)args);
    fprintf(stderr, "horovodrun: error: cannot run %s: %s\n", args[0], strerror(errno));
    strbuf_release(&command);
    strbuf_release(&store);
    return 1;
}

static int show_dashboard(const struct settings *s, const char *host, const char *job)
{
    const char *words_fd = s->options.values[OPTION_ID_DASHBOARD_FD];
    long port = atol(s->options.values[OPTION_ID_DASHBOARD]);

    if (host != NULL || port < 0 || port > 65535) {
        fprintf(stderr, "horovodrun: error: --dashboard: %s\n",
                host != NULL ? "start it on that host, and forward its port: ssh -L"
                             : "a port is 0 to 65535");
        return 2;
    }
    return dashboard_run(job, (int)port, s->options.values[OPTION_ID_DASHBOARD_TOKEN_FILE],
                         words_fd != NULL ? atoi(words_fd) : -1);
}

int status_run(const struct settings *s)
{
    struct status status = {.is_watching = options_has(&s->options, OPTION_ID_WATCH),
                            .is_json = options_has(&s->options, OPTION_ID_JSON),
                            .is_terminal = isatty(STDOUT_FILENO) == 1};
    const char *const *words = s->options.command;
    int count = s->options.command_count;
    const char *host = NULL;

    if (count > 0 && words[0][0] == '@') {
        host = words[0] + 1;
        words++;
        count--;
    }
    if (count > 1 || (host != NULL && !is_word(host)) || (count > 0 && !is_word(words[0]))) {
        fprintf(stderr, "usage: horovodrun --status [--watch] [--json] [@HOST] [JOB]\n"
                        "horovodrun: error: JOB is the beginning of a job's id, or the number "
                        "of one of its processes\n");
        return 2;
    }
    status.job = count > 0 ? words[0] : NULL;
    if (options_has(&s->options, OPTION_ID_DASHBOARD))
        return show_dashboard(s, host, status.job);
    if (host != NULL)
        return look_there(s, host, status.job);
    return look_here(&status);
}
