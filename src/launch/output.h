/*
 * output.h: what the workers print, on the launcher's terminal and in files.
 */
#ifndef HVD_LAUNCH_OUTPUT_H
#define HVD_LAUNCH_OUTPUT_H

#include "base/error.h"
#include "launch/sink.h"

struct output;

struct output_options {
    int ranks;
    const char *directory;              /* of the files, NULL: none */
    bool timestamps;                    /* before each prefix */
    int stdout_fd, stderr_fd;
    /* The terminal takes nothing: stop handing in (true), go on (false). */
    void (*on_pressure)(void *owner, bool is_high);
    void *owner;
};

/* Owns: the caller, output_free. */
enum hvd_status output_new(uv_loop_t *loop, const struct output_options *opt,
                           struct output **output_p, struct hvd_error *err);
void output_free(struct output *output);

/* One more, at the end, with this rank in its prefix and in the name of its files. */
enum hvd_status output_add(struct output *output, int label, struct hvd_error *err);
void output_label(struct output *output, int rank, int label);

/* Bytes of a rank; stream 1 is stdout, 2 stderr; none: its end. */
void output_take(struct output *output, int rank, int stream, const char *bytes,
                 size_t count);
/* Ends the partial lines of a rank. */
void output_end(struct output *output, int rank);

/* A line of the launcher itself. */
void output_say(struct output *output, int stream, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

size_t output_unwritten(const struct output *output);

/* Whether a file, or the launcher's own stdout or stderr, has not taken something. */
bool output_is_lost(const struct output *output);

/* The last bytes of a rank's stderr, and the file of its stderr ("" if none). */
size_t output_tail(const struct output *output, int rank, char *buffer, size_t capacity);
const char *output_path(const struct output *output, int rank);

#endif
