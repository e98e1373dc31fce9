/* program.c: see program.h. */
#include "launch/program.h"

#include "base/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static bool is_program(const char *path)
{
    return access(path, X_OK) == 0;
}

bool program_find(const char *name, char *path, size_t capacity)
{
    const char *at = config_foreign("PATH");

    while (at != NULL && *at != '\0') {
        size_t bytes = strcspn(at, ":");

        snprintf(path, capacity, "%.*s/%s", (int)bytes, at, name);
        if (bytes > 0 && is_program(path))
            return true;
        at += bytes + (at[bytes] == ':');
    }
    return false;
}

bool program_ask(const char *const *args, char *answer, size_t capacity)
{
    int ends[2], status = -1;
    size_t used = 0;
    pid_t pid;

    answer[0] = '\0';
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);

        dup2(null, 0);
        dup2(ends[1], 1);
        dup2(null, 2);
        execv(args[0], (char *const *)args);
        _exit(127);
    }
    close(ends[1]);
    for (ssize_t n = 1; pid > 0 && n > 0 && used < capacity - 1;) {
        n = read(ends[0], answer + used, capacity - 1 - used);
        used += n > 0 ? (size_t)n : 0;
    }
    answer[used] = '\0';
    close(ends[0]);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
