/* main.c: horovodrun. */
#include "launch/agent.h"
#include "launch/job.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

static int print_usage_error(const char *text)
{
    fprintf(stderr, "usage: horovodrun [-h] [-v] -np N [options] command ...\n"
                    "horovodrun: error: %s\n", text);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    struct hvd_error err = {.rank = -1};
    struct settings settings;
    bool is_usage = false;
    int code;

    if (argc == 2 && strcmp(argv[1], "--agent") == 0)
        return agent_run(STDIN_FILENO, STDOUT_FILENO, -1);
    if (settings_read(argc, argv, &settings, &is_usage, &err) != HVD_OK) {
        if (is_usage)
            code = print_usage_error(err.text);
        else
            fprintf(stderr, "horovodrun: error: %s\n", err.text), code = EXIT_FAILED;
    } else {
        code = job_run(&settings);
    }
    settings_release(&settings);
    return code;
}
