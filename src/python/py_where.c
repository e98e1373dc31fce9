/*
 * py_where.c: tells the stall report at which Python line the main thread is, without the
 * GIL, which the main thread may hold for ever.
 *
 * Rules
 * 1. horovod.common.where has registered Python's own faulthandler for a signal: its
 *    handler runs in the interrupted thread and writes the thread's traceback into a pipe,
 *    using nothing but async-signal-safe calls.  This is the one way to a Python line that
 *    CPython supports without the GIL.
 * 2. The question is asked by sending that signal to the main thread; the answer is what
 *    comes out of the pipe within WAIT_MS.  No answer (signal blocked, thread in an
 *    uninterruptible call): nothing is reported.
 * 3. The callback has no context, so signal, pipe and the frames to skip are kept per
 *    process here.  They are set once.
 */
#include "python/py_core.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WAIT_MS 50                      /* a signal reaches a running thread in far less */
#define TRACE_BYTES 4096

static atomic_int where_signal;         /* 0: not set up */
static int where_pipe = -1;
static char where_skip[1024];           /* frames of files below this directory */

static size_t read_trace(char *trace, size_t capacity)
{
    struct pollfd p = {.fd = where_pipe, .events = POLLIN};
    size_t length = 0;

    /* The traceback comes in several writes: the first may take a while. */
    while (length < capacity - 1 && poll(&p, 1, length == 0 ? WAIT_MS : 1) == 1) {
        ssize_t n = read(where_pipe, trace + length, capacity - 1 - length);

        if (n <= 0)
            break;
        length += (size_t)n;
    }
    trace[length] = 0;
    return length;
}

/* The first frame that is not ours: `  File "train.py", line 33 in train`. */
static const char *pick_frame(char *trace)
{
    char *rest = trace, *line;

    while ((line = strsep(&rest, "\n")) != NULL) {
        char *quote = strstr(line, "File \"");

        if (quote == NULL || rest == NULL)      /* the last line may be cut off */
            continue;
        if (where_skip[0] == 0 ||
            strncmp(quote + 6, where_skip, strlen(where_skip)) != 0)
            return quote;
    }
    return NULL;
}

/* Thread: any, without the GIL. */
static size_t where_main_thread(char *buffer, size_t capacity)
{
    char trace[TRACE_BYTES];
    const char *frame;
    int written;

    while (read(where_pipe, trace, sizeof(trace)) > 0)
        ;                               /* an answer that came too late */
    if (syscall(SYS_tgkill, getpid(), getpid(), atomic_load(&where_signal)) != 0 ||
        read_trace(trace, sizeof(trace)) == 0)
        return 0;
    frame = pick_frame(trace);
    if (frame == NULL || capacity == 0)
        return 0;
    written = snprintf(buffer, capacity, "%s", frame);
    return (size_t)written < capacity ? (size_t)written : capacity - 1;
}

/* set_where(signal, reading end of the pipe, directory to skip) */
PyObject *py_set_where(PyObject *mod, PyObject *args)
{
    const char *skip;
    int number;

    if (!PyArg_ParseTuple(args, "iis", &number, &where_pipe, &skip))
        return NULL;
    snprintf(where_skip, sizeof(where_skip), "%s", skip);
    atomic_store(&where_signal, number);
    hvd_set_where(where_main_thread);
    Py_RETURN_NONE;
}
