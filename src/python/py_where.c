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
 * 3. The callback has no context, so signal, pipe and the directories are kept per process
 *    here.  They are set once.
 * 4. What helps is the innermost line of the user's own code; where a library is inside of
 *    it (a data loader, autograd), its line is told as well.  Our own frames are left out.
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
#define TRACE_BYTES 16384               /* 100 frames, as many as faulthandler prints */

static atomic_int where_signal;         /* 0: not set up */
static int where_pipe = -1;
static char where_skip[1024];           /* our own directory */
static char where_installed[4096];      /* directories of installed code, a line each */

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

static bool is_below(const char *path, const char *directory, size_t length)
{
    return length > 0 && strncmp(path, directory, length) == 0;
}

static bool is_installed(const char *path)
{
    if (path[0] == '<')                 /* <frozen importlib> */
        return true;
    for (const char *at = where_installed; *at != 0;) {
        size_t length = strcspn(at, "\n");

        if (is_below(path, at, length))
            return true;
        at += length + (at[length] != 0);
    }
    return false;
}

/* Rule 4.  A frame is `  File "train.py", line 33 in train`, the innermost comes first.
 * *own_p and *library_p stay NULL if there is none. */
static void pick_frames(char *trace, const char **own_p, const char **library_p)
{
    char *rest = trace, *line;

    while (*own_p == NULL && (line = strsep(&rest, "\n")) != NULL) {
        char *quote = strstr(line, "File \"");

        if (quote == NULL || rest == NULL ||    /* the last line may be cut off */
            is_below(quote + 6, where_skip, strlen(where_skip)))
            continue;
        if (!is_installed(quote + 6))
            *own_p = quote;
        else if (*library_p == NULL)
            *library_p = quote;
    }
}

/* Thread: any, without the GIL. */
static size_t where_main_thread(char *buffer, size_t capacity)
{
    const char *own = NULL, *library = NULL;
    char trace[TRACE_BYTES];
    int written;

    while (read(where_pipe, trace, sizeof(trace)) > 0)
        ;                               /* an answer that came too late */
    if (syscall(SYS_tgkill, getpid(), getpid(), atomic_load(&where_signal)) != 0 ||
        read_trace(trace, sizeof(trace)) == 0)
        return 0;
    pick_frames(trace, &own, &library);
    if ((own == NULL && library == NULL) || capacity == 0)
        return 0;
    written = snprintf(buffer, capacity, "%s%s%s", own != NULL ? own : "",
                       own != NULL && library != NULL ? ", in " : "",
                       library != NULL ? library : "");
    return (size_t)written < capacity ? (size_t)written : capacity - 1;
}

/* set_where(signal, reading end of the pipe, our directory, directories of installed code) */
PyObject *py_set_where(PyObject *mod, PyObject *args)
{
    const char *skip, *installed;
    int number;

    if (!PyArg_ParseTuple(args, "iiss", &number, &where_pipe, &skip, &installed))
        return NULL;
    snprintf(where_skip, sizeof(where_skip), "%s", skip);
    snprintf(where_installed, sizeof(where_installed), "%s", installed);
    atomic_store(&where_signal, number);
    hvd_set_where(where_main_thread);
    Py_RETURN_NONE;
}
