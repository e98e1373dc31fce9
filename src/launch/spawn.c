/*
 * spawn.c: fork and exec of a worker.
 *
 * libuv's uv_spawn has no step between fork and exec; a worker needs one: it dies with
 * its agent (PR_SET_PDEATHSIG), may be bound to CPUs, and gets the descriptor that holds
 * the key.
 *
 * 1. The child leads a group of its own in the session of its agent, which has no
 *    terminal: no terminal's signals reach it, and its whole group can be signalled.  A
 *    session each would be a scheduling group each (autogroup), and then sched_yield does
 *    not hand over to the next worker: 0.5 ms instead of 2 us with more workers than CPUs.
 * 2. Between fork and exec only async-signal-safe calls.
 * 3. A close-on-exec pipe tells the parent why exec failed; its end of file means that
 *    exec worked.
 */
#include "launch/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>


struct ends {
    int in, out[2], err[2], key, result[2], payload, failure[2];
};

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void close_ends(struct ends *e)
{
    int *all[] = {&e->in,     &e->out[0], &e->out[1],    &e->err[0],
                  &e->err[1], &e->key,    &e->result[0],
                  &e->result[1], &e->payload, &e->failure[0], &e->failure[1]};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        close_fd(all[i]);
}

static bool open_key(struct ends *e, int key_fd)
{
    if (key_fd < 0)
        return true;
    e->key = fcntl(key_fd, F_DUPFD_CLOEXEC, 3);
    return e->key >= 0;
}

static bool open_payload(struct ends *e, int payload_fd)
{
    char path[64];

    if (payload_fd < 0)
        return true;
    /* A description of its own: workers do not share the file position. */
    snprintf(path, sizeof path, "/proc/self/fd/%d", payload_fd);
    e->payload = open(path, O_RDONLY | O_CLOEXEC);
    return e->payload >= 0 && pipe2(e->result, O_CLOEXEC) == 0;
}

static enum hvd_status open_ends(struct ends *e, const struct spawn_request *req,
                                 struct hvd_error *err)
{
    *e = (struct ends){-1, {-1, -1}, {-1, -1}, -1, {-1, -1}, -1, {-1, -1}};
    e->in = req->stdin_fd >= 0 ? fcntl(req->stdin_fd, F_DUPFD_CLOEXEC, 3)
                               : open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (e->in < 0 || pipe2(e->out, O_CLOEXEC) != 0 || pipe2(e->err, O_CLOEXEC) != 0 ||
        pipe2(e->failure, O_CLOEXEC) != 0 || !open_key(e, req->key_fd) ||
        !open_payload(e, req->payload_fd)) {
        enum hvd_status status = error_sys(err, -1, "cannot make the pipes of a worker");

        close_ends(e);
        return status;
    }
    return HVD_OK;
}

/* Two steps, because a source may have the number of another one's target. */
static bool place_descriptors(const struct ends *e)
{
    const int source[] = {e->in, e->out[1], e->err[1], e->key, e->payload,
                          e->result[1]};
    int high[6];

    for (int i = 0; i < 6; i++)
        high[i] = source[i] < 0 ? -1 : fcntl(source[i], F_DUPFD_CLOEXEC, 16);
    for (int i = 0; i < 6; i++)
        if (source[i] >= 0 && (high[i] < 0 || dup2(high[i], i) < 0))
            return false;
    return true;
}

static void reset_signals(void)
{
    sigset_t none;

    signal(SIGPIPE, SIG_DFL);
    signal(SIGUSR1, SIG_DFL);
    signal(SIGUSR2, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static _Noreturn void run_child(const struct spawn_request *req, const struct ends *e,
                                pid_t parent)
{
    /* Above every target of place_descriptors. */
    int failure = fcntl(e->failure[1], F_DUPFD_CLOEXEC, 16);
    int number;

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    if (req->cpus != NULL)
        sched_setaffinity(0, sizeof *req->cpus, req->cpus);
    reset_signals();
    if (place_descriptors(e)) {
        __environ = req->env;           /* config.c says why this name */
        execvp(req->args[0], (char *const *)req->args);
    }
    number = errno;
    if (write(failure, &number, sizeof number) < 0)
        _exit(126);
    _exit(number == ENOENT ? 127 : 126);
}

static size_t bytes_of(const char *const *strings)
{
    size_t sum = 0;

    for (; *strings != NULL; strings++)
        sum += strlen(*strings) + 1 + sizeof *strings;
    return sum;
}

static enum hvd_status describe_refusal(const struct spawn_request *req, int number,
                                        int *code_p, struct hvd_error *err)
{
    *code_p = number == ENOENT ? 127 : 126;
    if (number == E2BIG)
        return error_set(err, HVD_SYS, -1,
                         "cannot run '%.200s': its environment of %zu bytes and "
                         "arguments of %zu bytes are more than the kernel takes (%ld in "
                         "all, 131072 for one string; ulimit -s raises it)",
                         req->args[0], bytes_of((const char *const *)req->env),
                         bytes_of(req->args), sysconf(_SC_ARG_MAX));
    errno = number;
    return error_sys(err, -1, "cannot run '%.200s'", req->args[0]);
}

static void set_nonblocking(int fd)
{
    if (fd >= 0)
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

enum hvd_status spawn_worker(const struct spawn_request *req,
                             struct spawn_process *proc_p, int *code_p,
                             struct hvd_error *err)
{
    enum hvd_status status = HVD_OK;
    pid_t parent = getpid(), pid;
    struct ends e;
    int number = 0;
    ssize_t n;

    *code_p = 126;
    TRY(open_ends(&e, req, err));
    pid = fork();
    if (pid == 0)
        run_child(req, &e, parent);
    if (pid < 0) {
        status = error_sys(err, -1, "cannot start a process for '%.200s'", req->args[0]);
        close_ends(&e);
        return status;
    }
    close_fd(&e.failure[1]);
    do {
        n = read(e.failure[0], &number, sizeof number);
    } while (n < 0 && errno == EINTR);
    if (n == sizeof number) {
        status = describe_refusal(req, number, code_p, err);
    } else {
        *proc_p = (struct spawn_process){pid, e.out[0], e.err[0], e.result[0]};
        set_nonblocking(e.out[0]);
        set_nonblocking(e.err[0]);
        set_nonblocking(e.result[0]);
        e.out[0] = e.err[0] = e.result[0] = -1;
    }
    /* A refused child is reaped as an orphan nobody knows. */
    close_ends(&e);
    return status;
}
