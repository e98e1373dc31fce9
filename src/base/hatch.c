/* hatch.c: see hatch.h. */
#include "base/hatch.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 16                      /* viewers at a time; more are refused */
#define STRANGERS 16                    /* sent away in one call */

static socklen_t address_of(const char *name, struct sockaddr_un *at)
{
    size_t n = strnlen(name, HATCH_NAME - 1);

    *at = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(at->sun_path + 1, name + 1, n - 1);          /* '@' stands for the 0 */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
}

static bool is_of_us(int fd, pid_t *pid_p)
{
    struct ucred who;
    socklen_t n = sizeof who;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) != 0 || who.uid != geteuid())
        return false;
    *pid_p = who.pid;
    return true;
}

enum hvd_status hatch_open(const char *kind, int *fd_p, struct hvd_error *err)
{
    struct sockaddr_un at;
    char name[HATCH_NAME];
    uint64_t random;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 && getrandom(&random, sizeof random, 0) == sizeof random) {
        snprintf(name, sizeof name, "@horovod-%.16s-%u-%016llx", kind, (unsigned)geteuid(),
                 (unsigned long long)random);
        if (bind(fd, (struct sockaddr *)&at, address_of(name, &at)) == 0 &&
            listen(fd, BACKLOG) == 0) {
            *fd_p = fd;
            return HVD_OK;
        }
    }
    error_sys(err, -1, "cannot make the socket that tells how this process is");
    if (fd >= 0)
        close(fd);
    return HVD_SYS;
}

int hatch_accept(int fd)
{
    pid_t pid;

    for (int i = 0; i < STRANGERS; i++) {
        int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (peer < 0)
            return -1;
        if (is_of_us(peer, &pid))
            return peer;
        close(peer);
    }
    return -1;
}

/* A line of /proc/net/unix: "... 00010000 0001 01 12345 @name"; flags 00010000: it listens.
 * False: the hatch of somebody else, or none. */
static bool read_line(const char *line, const char *prefix, char name[HATCH_NAME])
{
    const char *at = strrchr(line, ' ');
    size_t n;

    if (at == NULL || strstr(line, " 00010000 ") == NULL)
        return false;
    n = strcspn(at + 1, "\n");
    if (n >= HATCH_NAME || n <= strlen(prefix) ||
        strncmp(at + 1, prefix, strlen(prefix)) != 0)
        return false;
    memcpy(name, at + 1, n);
    name[n] = '\0';
    return true;
}

int hatch_list(const char *kind, char (*names)[HATCH_NAME], int capacity)
{
    FILE *file = fopen("/proc/net/unix", "re");
    char prefix[HATCH_NAME], line[512], name[HATCH_NAME];
    int count = 0;

    if (file == NULL)
        return 0;
    snprintf(prefix, sizeof prefix, "@horovod-%.16s-%u-", kind, (unsigned)geteuid());
    while (fgets(line, sizeof line, file) != NULL)
        if (read_line(line, prefix, name)) {
            if (count < capacity)
                memcpy(names[count], name, sizeof name);
            count++;
        }
    fclose(file);
    return count;
}

int hatch_connect(const char *name, pid_t *pid_p)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un at;

    if (fd < 0)
        return -1;
    if (name[0] == '@' && name[1] != '\0' &&
        connect(fd, (struct sockaddr *)&at, address_of(name, &at)) == 0 &&
        is_of_us(fd, pid_p))
        return fd;
    close(fd);
    return -1;
}
