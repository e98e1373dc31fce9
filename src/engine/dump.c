/*
 * dump.c: dumps of the flight recorder.
 *
 * 1. The file is made with O_EXCL; one that is there already is appended to only if it is
 *    a plain file of ours that nobody else can write.
 * 2. SIGUSR2 is taken only while its disposition is the default, and given back if it is
 *    still ours.
 * 3. The handler uses nothing but open, fstat, write and close.  It counts itself in
 *    before it looks at `watched`, so that dump_free can wait until it is gone.
 */
#include "engine/dump.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOG_COMPONENT "engine"

struct dump {
    const struct recorder *recorder;
    int rank, size;
    pid_t pid;
    char host[64];
    atomic_int count;
    atomic_bool failed;                 /* said so already */
    char path[];
};

static struct dump *_Atomic watched;    /* the one that SIGUSR2 writes */
static atomic_int handlers;             /* under way */

struct dump *dump_new(const struct config *conf, const struct recorder *recorder, int rank,
                      int size, const char *host)
{
    const char *dir = conf->recorder_dir, *temporary = config_foreign("TMPDIR");
    size_t capacity;
    struct dump *d;

    if (dir[0] == '\0')
        dir = temporary != NULL && temporary[0] == '/' ? temporary : "/tmp";
    capacity = strlen(dir) + 80;
    d = calloc(1, sizeof *d + capacity);
    if (d == NULL)
        return NULL;
    d->recorder = recorder;
    d->rank = rank;
    d->size = size;
    d->pid = getpid();
    snprintf(d->host, sizeof d->host, "%s", host);
    snprintf(d->path, capacity, "%s/horovod-recorder-rank%d-%d.txt", dir, rank, d->pid);
    return d;
}

const char *dump_path(const struct dump *d)
{
    return d->path;
}

int dump_count(const struct dump *d)
{
    return atomic_load(&d->count);
}

static bool is_ours(int fd)
{
    struct stat info;

    return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
           info.st_nlink == 1 && (info.st_mode & 022) == 0;
}

static int open_file(const char *path)
{
    int flags = O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    int fd = open(path, flags | O_CREAT | O_EXCL, 0600);

    if (fd >= 0 || errno != EEXIST)
        return fd;
    fd = open(path, flags);
    if (fd >= 0 && !is_ours(fd)) {
        close(fd);
        errno = EPERM;
        return -1;
    }
    return fd;
}

/* Async-signal-safe. */
static bool append(struct dump *d, const char *why)
{
    int fd = open_file(d->path), code;
    bool written;

    if (fd < 0)
        return false;
    written = recorder_write_head(fd, d->rank, d->size, d->host, why) &&
              recorder_write(d->recorder, fd) >= 0;
    code = errno;
    close(fd);
    errno = code;
    if (written)
        atomic_fetch_add(&d->count, 1);
    return written;
}

void dump_write(struct dump *d, const char *why)
{
    if (append(d, why))
        log_warn("flight recorder (%s) written to %s; read it with: python -m "
                 "horovod.recorder %s", why, d->path, d->path);
    else if (!atomic_exchange(&d->failed, true))
        log_warn("flight recorder not written: %s: %s", d->path, strerror(errno));
}

/* ---- SIGUSR2 ------------------------------------------------------------------------- */

static void say(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        return;                         /* nobody to tell */
}

static void on_signal(int number)
{
    int code = errno;
    struct dump *d;

    (void)number;
    atomic_fetch_add(&handlers, 1);
    d = atomic_load(&watched);
    if (d != NULL && d->pid == getpid()) {
        say(append(d, "SIGUSR2") ? "horovod: flight recorder written to "
                                 : "horovod: flight recorder not written to ");
        say(d->path);
        say("\n");
    }
    atomic_fetch_sub(&handlers, 1);
    errno = code;
}

void dump_on_signal(struct dump *d)
{
    struct sigaction old, ours = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct dump *nobody = NULL;

    if (!atomic_compare_exchange_strong(&watched, &nobody, d))
        return;
    sigemptyset(&ours.sa_mask);
    if (sigaction(SIGUSR2, NULL, &old) == 0 && (old.sa_flags & SA_SIGINFO) == 0 &&
        old.sa_handler == SIG_DFL)
        sigaction(SIGUSR2, &ours, NULL);
}

static void give_signal_back(struct dump *d)
{
    struct sigaction old, initial = {.sa_handler = SIG_DFL};
    struct dump *expected = d;

    if (atomic_load(&watched) != d)
        return;
    if (d->pid == getpid() && sigaction(SIGUSR2, NULL, &old) == 0 &&
        (old.sa_flags & SA_SIGINFO) == 0 && old.sa_handler == on_signal)
        sigaction(SIGUSR2, &initial, NULL);
    atomic_compare_exchange_strong(&watched, &expected, NULL);
    while (atomic_load(&handlers) > 0)
        sched_yield();
}

void dump_free(struct dump *d)
{
    if (d == NULL)
        return;
    give_signal_back(d);
    free(d);
}
