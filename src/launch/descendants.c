/*
 * descendants.c: every descendant of this process, found by the parent numbers in /proc.
 * Together with PR_SET_CHILD_SUBREAPER nothing a worker has started can hide: a process
 * whose parent dies becomes our child.
 */
#include "launch/spawn.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct pair {
    pid_t pid, parent;
    bool is_ours, is_zombie, is_done;
};

static bool read_stat(const char *pid, struct pair *p)
{
    char path[64], text[512];
    const char *end;
    char state;
    int fd, parent;
    ssize_t n;

    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return false;
    text[n] = '\0';
    /* "pid (name) state parent": the name may hold anything, ')' too. */
    end = strrchr(text, ')');
    if (end == NULL || sscanf(end + 1, " %c %d", &state, &parent) != 2)
        return false;
    *p = (struct pair){.pid = atoi(pid), .parent = parent, .is_zombie = state == 'Z'};
    return true;
}

static struct pair *read_processes(int *count_p)
{
    DIR *dir = opendir("/proc");
    struct pair *pairs = NULL;
    int capacity = 0;

    *count_p = 0;
    for (struct dirent *d; dir != NULL && (d = readdir(dir)) != NULL;) {
        if (d->d_name[0] < '1' || d->d_name[0] > '9')
            continue;
        if (*count_p == capacity) {
            struct pair *more = realloc(pairs, (size_t)(capacity * 2 + 256) * sizeof *more);

            if (more == NULL)
                break;
            pairs = more;
            capacity = capacity * 2 + 256;
        }
        if (read_stat(d->d_name, &pairs[*count_p]))
            (*count_p)++;
    }
    if (dir != NULL)
        closedir(dir);
    return pairs;
}

static int compare_pids(const void *a, const void *b)
{
    pid_t x = ((const struct pair *)a)->pid, y = ((const struct pair *)b)->pid;

    return (x > y) - (x < y);
}

static bool is_parent_ours(const struct pair *pairs, int count, pid_t parent, pid_t self)
{
    struct pair key = {.pid = parent};
    const struct pair *found;

    if (parent == self)
        return true;
    found = bsearch(&key, pairs, (size_t)count, sizeof key, compare_pids);
    return found != NULL && found->is_ours;
}

/* Marks generation after generation; every pass but the last finds somebody new. */
static void mark(struct pair *pairs, int count)
{
    pid_t self = getpid();
    bool found;

    qsort(pairs, (size_t)count, sizeof *pairs, compare_pids);
    do {
        found = false;
        for (int i = 0; i < count; i++)
            if (!pairs[i].is_ours &&
                is_parent_ours(pairs, count, pairs[i].parent, self)) {
                pairs[i].is_ours = true;
                found = true;
            }
    } while (found);
}

int spawn_signal_descendants(int signal)
{
    siginfo_t info = {0};
    int count, living = 0;
    struct pair *pairs;

    /* A subreaper without children has no descendants: the usual case, and cheap. */
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0)
        return 0;
    pairs = read_processes(&count);
    if (pairs == NULL)
        return 0;
    mark(pairs, count);
    for (int i = 0; i < count; i++) {
        if (!pairs[i].is_ours || pairs[i].is_zombie)
            continue;
        living++;
        if (signal != 0)
            kill(pairs[i].pid, signal);
    }
    free(pairs);
    return living;
}

/* Whether a signal does what the process wants it to do: it has a handler, or it is
 * blocked, as sigwait and signalfd need it. */
static bool handles(pid_t pid, int signal)
{
    static const char *const names[] = {"SigBlk:", "SigCgt:"};
    char path[64], text[4096];
    unsigned long long mask = 0;
    ssize_t n = 0;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/status", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, text, sizeof text - 1);
        close(fd);
    }
    text[n > 0 ? n : 0] = '\0';
    for (int i = 0; i < 2; i++) {
        const char *at = strstr(text, names[i]);

        if (at != NULL)
            mask |= strtoull(at + strlen(names[i]), NULL, 16);
    }
    return (mask >> (signal - 1)) & 1;
}

int spawn_pass_signal(pid_t top, int signal)
{
    int count, sent = 0;
    struct pair *pairs;
    bool found = true;

    if (handles(top, signal))
        return kill(top, signal) == 0;
    pairs = read_processes(&count);
    if (pairs == NULL)
        return 0;
    qsort(pairs, (size_t)count, sizeof *pairs, compare_pids);
    /* `is_ours`: it does not handle the signal, so its children are asked. */
    while (found) {
        found = false;
        for (int i = 0; i < count; i++) {
            if (pairs[i].is_done || !is_parent_ours(pairs, count, pairs[i].parent, top))
                continue;
            found = pairs[i].is_done = true;
            if (!handles(pairs[i].pid, signal))
                pairs[i].is_ours = true;
            else
                sent += kill(pairs[i].pid, signal) == 0;
        }
    }
    free(pairs);
    return sent;
}

/* Up the parents of one process.  One of them may end while we look: then its children are
 * somebody else's, and we look again. */
bool spawn_is_descendant(pid_t pid)
{
    pid_t self = getpid();

    for (int tries = 0; tries < 3; tries++) {
        pid_t at = pid;
        struct pair p = {0};
        char text[24];

        while (at > 1 && at != self) {
            snprintf(text, sizeof text, "%d", (int)at);
            if (!read_stat(text, &p))
                break;
            at = p.parent;
        }
        if (at == self)
            return pid != self;
        if (at <= 1)
            return false;
    }
    return false;
}
