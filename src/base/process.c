/* process.c: names of processes and signals; see process.h. */
#include "base/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* In /proc/<pid>/stat, counted from the state, which follows the command in brackets. */
#define START_FIELD 19

static bool read_start(pid_t pid, unsigned long long *start_p)
{
    char path[32], text[1024], *at;
    int fd;
    ssize_t n;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    at = strrchr(text, ')');
    for (int i = 0; at != NULL && i <= START_FIELD; i++)
        at = strchr(at + 1, ' ');
    return at != NULL && sscanf(at, " %llu", start_p) == 1;
}

bool process_name(pid_t pid, char name[PROCESS_NAME])
{
    unsigned long long start;

    if (!read_start(pid, &start))
        return false;
    snprintf(name, PROCESS_NAME, "%d:%llu", (int)pid, start);
    return true;
}

int process_open(const char *name)
{
    char now[PROCESS_NAME];
    pid_t pid = (pid_t)strtol(name, NULL, 10);
    int fd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;

    /* What has this number now, had it when the descriptor was made. */
    if (fd >= 0 && (!process_name(pid, now) || strcmp(now, name) != 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

const char *signal_name(int number)
{
#define NAME(name) [SIG##name] = #name
    static const char *const names[] = {
        NAME(HUP), NAME(INT), NAME(QUIT), NAME(ILL), NAME(TRAP), NAME(ABRT), NAME(BUS),
        NAME(FPE), NAME(KILL), NAME(USR1), NAME(SEGV), NAME(USR2), NAME(PIPE), NAME(ALRM),
        NAME(TERM), NAME(STKFLT), NAME(CHLD), NAME(CONT), NAME(STOP), NAME(TSTP),
        NAME(TTIN), NAME(TTOU), NAME(URG), NAME(XCPU), NAME(XFSZ), NAME(VTALRM),
        NAME(PROF), NAME(WINCH), NAME(POLL), NAME(PWR), NAME(SYS)};
#undef NAME

    return number > 0 && (size_t)number < sizeof names / sizeof names[0] ? names[number]
                                                                         : NULL;
}

/* Before Linux 5.9: what the kernel lists, without a FILE or a DIR, which would allocate. */
static void close_listed(int first)
{
    _Alignas(struct dirent64) char entries[4096];
    int dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool closed = true;

    while (dir >= 0 && closed) {        /* the list changes while it is read */
        long n;

        closed = false;
        lseek(dir, 0, SEEK_SET);
        while ((n = syscall(SYS_getdents64, dir, entries, sizeof entries)) > 0)
            for (long at = 0; at < n;) {
                const struct dirent64 *entry = (const void *)(entries + at);
                int fd = atoi(entry->d_name);

                if (entry->d_name[0] != '.' && fd >= first && fd != dir)
                    closed |= close(fd) == 0;
                at += entry->d_reclen;
            }
    }
    if (dir >= 0)
        close(dir);
}

void close_from(int first)
{
    if (syscall(SYS_close_range, first, UINT_MAX, 0) != 0)
        close_listed(first);
}
