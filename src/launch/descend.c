/*
 * descend.c: every descendant of this process, found by the parent numbers in /proc.
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
    bool is_ours, is_zombie;
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
