/*
 * failure.c: the last words of a failed job: who failed first, where, how, what it said.
 */
#include "launch/launch_int.h"

#include "base/process.h"

#include <string.h>

#define LINES_MAX 12

/* Where the last LINES_MAX lines begin. */
static const char *last_lines(const char *text, size_t bytes)
{
    const char *at = text + bytes;
    int lines = 0;

    if (bytes > 0 && at[-1] == '\n')
        at--;
    while (at > text) {
        if (at[-1] == '\n' && ++lines == LINES_MAX)
            break;
        at--;
    }
    return at;
}

static void print_tail(struct launch *job, int rank)
{
    char text[4096], line[512];
    size_t bytes = output_tail(job->output, rank, text, sizeof text), used = 0;
    const char *at = last_lines(text, bytes), *end = text + bytes;

    if (at == end)
        return;
    output_say(job->output, 2, "Last lines of its stderr:");
    for (; at < end; at++) {
        /* Shown a second time, so nothing a terminal would obey. */
        if (*at != '\n' && used < sizeof line - 1)
            line[used++] = (unsigned char)*at < ' ' && *at != '\t' ? '?' : *at;
        if (*at == '\n' || at + 1 == end) {
            line[used] = '\0';
            output_say(job->output, 2, "    %s", line);
            used = 0;
        }
    }
}

void failure_print(struct launch *job)
{
    int rank = job->first_failed;
    const struct rank_state *r = &job->ranks[rank];
    const char *name = r->signal > 0 ? signal_name(r->signal) : NULL;

    output_say(job->output, 2,
               "Horovod detected that one or more processes exited with non-zero status, "
               "thus causing the job to be terminated. The first process to do so was:\n"
               "Process name: %s\n"
               "Exit code: %d", r->name, r->code);
    if (job->elastic == NULL)
        output_say(job->output, 2, "Host: %s", launch_rank_host(job, rank));
    if (name != NULL)
        output_say(job->output, 2, "Signal: SIG%s (%s)", name, strsignal(r->signal));
    if (r->text[0] != '\0')
        output_say(job->output, 2, "Reason: %s", r->text);
    if (job->signal != 0)
        output_say(job->output, 2, "The launcher was told to stop by SIG%s.",
                   signal_name(job->signal));
    else
        print_tail(job, rank);
    if (output_path(job->output, rank)[0] != '\0')
        output_say(job->output, 2, "Log: %s", output_path(job->output, rank));
}
