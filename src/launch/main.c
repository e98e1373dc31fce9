/* main.c: horovodrun. */
#include "launch/check_build.h"
#include "launch/guard.h"
#include "launch/help.h"
#include "launch/join.h"
#include "launch/launch.h"
#include "launch/mpi.h"
#include "launch/status.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

static int print(struct strbuf *text)
{
    bool is_written = fwrite(text->text, 1, text->length, stdout) == text->length &&
                      fflush(stdout) == 0;

    strbuf_release(text);
    return is_written ? 0 : EXIT_FAILED;
}

static int print_error(const char *text, bool is_usage)
{
    char shown[HVD_ERROR_TEXT + 64];
    struct strbuf usage;

    strbuf_init(&usage);
    if (is_usage)
        help_add_usage(&usage);
    hvd_error_show(text, shown, sizeof shown);
    fprintf(stderr, "%shorovodrun: error: %s\n", usage.text, shown);
    strbuf_release(&usage);
    return is_usage ? EXIT_USAGE : EXIT_FAILED;
}

static void add_algorithms(struct strbuf *out)
{
    char text[16384];
    size_t length = hvd_algorithms_text(text, sizeof text);

    strbuf_add(out, text, length < sizeof text ? length : sizeof text - 1);
}

/* Options that answer and end.  False: there is a job to start. */
static bool answer(const struct settings *s, int *code_p)
{
    struct hvd_error err = {.rank = -1};
    struct strbuf out;

    strbuf_init(&out);
    if (options_has(&s->options, OPTION_ID_HELP))
        help_add_page(&out);
    else if (options_has(&s->options, OPTION_ID_VERSION))
        strbuf_addf(&out, "%s\n", hvd_version());
    else if (options_has(&s->options, OPTION_ID_CHECK_BUILD))
        check_build_add(&out, s->verbose);
    else if (options_has(&s->options, OPTION_ID_LIST_ALGORITHMS))
        add_algorithms(&out);
    else if (options_has(&s->options, OPTION_ID_PRINT_ARGS))
        help_add_args(&s->options, &out);
    else if (options_has(&s->options, OPTION_ID_PRINT_CONFIG)) {
        if (help_add_config(s, &out, &err) != HVD_OK) {
            strbuf_release(&out);
            *code_p = print_error(err.text, false);
            return true;
        }
    } else
        return false;
    *code_p = print(&out);
    return true;
}

static int run(const struct settings *s)
{
    struct hvd_error err = {.rank = -1};
    int code = EXIT_FAILED;

    if (s->join.port > 0)
        return join_run(s);
    if (s->controller == CONTROLLER_NATIVE)
        return launch_run(s);
    if (options_has(&s->options, OPTION_ID_DASHBOARD))
        return print_error("--dashboard is for our own agents (--gloo); of a job of mpirun or "
                           "jsrun: horovodrun --status --dashboard, on each host", true);
    if (mpi_run(s, &code, &err) != HVD_OK)
        return print_error(err.text, false);
    return code;
}

/* A descriptor of ours must not get the number of one that our caller has closed: it
 * would be taken for a terminal, or closed with one. */
static void open_standard(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0)
            return;
}

int main(int argc, char **argv)
{
    struct hvd_error err = {.rank = -1};
    struct settings settings;
    bool is_usage = false;
    int code;

    open_standard();
    guard_keep_arguments(argc, argv);
    if (argc == 2 && strcmp(argv[1], "--agent") == 0)
        return guard_run(STDIN_FILENO, STDOUT_FILENO, -1);
    if (argc >= 2 && strcmp(argv[1], "status") == 0)
        argv[1] = "--status";
    if (settings_read(argc, argv, &settings, &is_usage, &err) != HVD_OK)
        code = print_error(err.text, is_usage);
    else if (options_has(&settings.options, OPTION_ID_STATUS) &&
             !options_has(&settings.options, OPTION_ID_HELP))
        code = status_run(&settings);
    else if (!answer(&settings, &code))
        code = run(&settings);
    settings_release(&settings);
    return code;
}
