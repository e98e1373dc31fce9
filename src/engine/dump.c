/*
 * dump.c: dumps of the flight recorder.
 *
 * 1. Folder and file are made anew, or are of ours and nobody else can write them: the
 *    temporary directory belongs to all.
 * 2. SIGUSR2 is taken only while its disposition is the default, and given back if it is
 *    still ours.
 * 3. The handler uses nothing but mkdir, open, fstat, write and close.  It counts itself in
 *    before it looks at `watched`, so that dump_free can wait until it is gone.
 */
#include "engine/dump.h"

#include "base/log.h"

#include <ctype.h>
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
    char *place, *folder, *path;        /* place/folder name, folder/name: one block */
    const char *name;                   /* of the file */
};

static struct dump *_Atomic watched;    /* the one that SIGUSR2 writes */
static atomic_int handlers;             /* under way */

/* Ranks that were started by hand, without a job id, have their parent in common. */
static void name_job(char *out, size_t capacity, const struct config *conf)
{
    if (conf->job_id[0] == '\0')
        snprintf(out, capacity, "parent%d", (int)getppid());
    else
        snprintf(out, capacity, "%s", conf->job_id);
    for (char *c = out; *c != '\0'; c++)
        if (!isalnum((unsigned char)*c) && *c != '-')
            *c = '_';
}

static bool name_files(struct dump *d, const struct config *conf, int rank)
{
    const char *place = conf->recorder_dir, *temporary = config_foreign("TMPDIR");
    char job[72];
    size_t room;

    if (place[0] == '\0')
        place = temporary != NULL && temporary[0] == '/' ? temporary : "/tmp";
    room = strlen(place) + 160;
    d->place = malloc(3 * room);
    if (d->place == NULL)
        return false;
    d->folder = d->place + room;
    d->path = d->folder + room;
    name_job(job, sizeof job, conf);
    snprintf(d->place, room, "%s", place);
    snprintf(d->folder, room, "%s/" DUMP_FOLDER "%s", place, job);
    snprintf(d->path, room, "%s/rank%d-%d.txt", d->folder, rank, (int)getpid());
    d->name = d->path + strlen(d->folder) + 1;
    return true;
}

struct dump *dump_new(const struct config *conf, const struct recorder *recorder, int rank,
                      int size, const char *host)
{
    struct dump *d = calloc(1, sizeof *d);

    if (d == NULL || !name_files(d, conf, rank)) {
        free(d);
        return NULL;
    }
    d->recorder = recorder;
    d->rank = rank;
    d->size = size;
    d->pid = getpid();
    snprintf(d->host, sizeof d->host, "%s", host);
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

bool dump_is_ours(int fd, mode_t kind)
{
    struct stat info;

    return fstat(fd, &info) == 0 && (info.st_mode & S_IFMT) == kind &&
           info.st_uid == geteuid() && (info.st_mode & 022) == 0 &&
           (kind == S_IFDIR || info.st_nlink == 1);
}

static int ours_or_none(int fd, mode_t kind)
{
    if (fd < 0 || dump_is_ours(fd, kind))
        return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

static int open_folder(const char *path)
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return -1;
    return ours_or_none(open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
                        S_IFDIR);
}

static int open_file(const struct dump *d)
{
    int flags = O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    int folder = open_folder(d->folder), fd, code;

    if (folder < 0)
        return -1;
    fd = openat(folder, d->name, flags | O_CREAT | O_EXCL, 0600);
    if (fd < 0 && errno == EEXIST)
        fd = ours_or_none(openat(folder, d->name, flags), S_IFREG);
    code = errno;
    close(folder);
    errno = code;
    return fd;
}

/* Async-signal-safe. */
static bool append(struct dump *d, const char *why)
{
    int fd = open_file(d), code;
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
    if (append(d, why)) {
        log_warn("flight recorder (%s) written to %s; read those of all ranks with: python -m "
                 "horovod.recorder %s", why, d->path, d->folder);
        dump_prune(d->place, d->folder);
    } else if (!atomic_exchange(&d->failed, true)) {
        log_warn("flight recorder not written: %s: %s", d->path, strerror(errno));
    }
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
    free(d->place);
    free(d);
}
