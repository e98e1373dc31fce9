/*
 * key_desk.c: gives the job key to descendants of this process, and to nobody else.
 *
 * The name is random and has no place in the file system.  Everybody on the machine can
 * see it; who comes is known from the kernel (SO_PEERCRED), and nothing is read from it.
 */
#include "launch/key_desk.h"

#include "launch/spawn.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define BURST 16
#define FORM_MAX 64                     /* of what hvd_key_descriptor holds */

enum hvd_status key_desk_open(char name[KEY_DESK_NAME], int *fd_p, struct hvd_error *err)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    uint64_t random[2];
    socklen_t n;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 && getrandom(random, sizeof random, 0) == sizeof random) {
        snprintf(name, KEY_DESK_NAME, "@horovod-key-%016llx%016llx",
                 (unsigned long long)random[0], (unsigned long long)random[1]);
        memcpy(at.sun_path + 1, name + 1, strlen(name) - 1);
        n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
        if (bind(fd, (struct sockaddr *)&at, n) == 0 && listen(fd, SOMAXCONN) == 0) {
            *fd_p = fd;
            return HVD_OK;
        }
    }
    error_sys(err, -1, "cannot make the socket that hands out the job key");
    if (fd >= 0)
        close(fd);
    return HVD_SYS;
}

static bool is_ours(int fd)
{
    struct ucred who;
    socklen_t n = sizeof who;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 &&
           who.uid == geteuid() && spawn_is_descendant(who.pid);
}

static void answer(int fd, int key_fd)
{
    char form[FORM_MAX];
    ssize_t n = pread(key_fd, form, sizeof form, 0);

    /* An empty socket buffer takes it whole. */
    if (n > 0)
        (void)!send(fd, form, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    explicit_bzero(form, sizeof form);
}

void key_desk_serve(int desk_fd, int key_fd)
{
    for (int i = 0; i < BURST; i++) {
        int fd = accept4(desk_fd, NULL, NULL, SOCK_CLOEXEC);

        if (fd < 0)
            return;
        if (is_ours(fd))
            answer(fd, key_fd);
        close(fd);
    }
}
