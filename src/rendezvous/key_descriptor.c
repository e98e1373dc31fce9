/*
 * key_descriptor.c: how a launcher hands the job key to the processes it starts.
 *
 *    0   8  "HvdKey1\n"
 *    8  32  job key
 *
 * 1. HOROVOD_KEY_FD: a memfd that holds these 40 bytes and is sealed against every change.
 *    Nothing else is taken for it: a wrapper may have closed the descriptor, and then its
 *    number belongs to a file of the user, which is neither read nor closed.
 * 2. HOROVOD_KEY_SOCKET: the abstract name ("@...") of a unix socket, for processes behind
 *    such a wrapper.  The launcher asks the kernel who has come, and writes these 40 bytes
 *    to its user's processes that descend from it; to others it says nothing.
 */
#include "rendezvous/key_descriptor.h"

#include "horovod/driver.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)
#define ANSWER_S 5                      /* the launcher has nothing else to do */

enum { MAGIC = 8, ALL = MAGIC + HVD_KEY_BYTES };
static const char magic[MAGIC + 1] = "HvdKey1\n";

/* Out of the swap while this process lives: pages of a memfd are not locked otherwise. */
static void pin(int fd)
{
    void *page = mmap(NULL, ALL, PROT_READ, MAP_PRIVATE, fd, 0);

    if (page == MAP_FAILED)
        return;
    (void)madvise(page, ALL, MADV_DONTDUMP);
    (void)madvise(page, ALL, MADV_DONTFORK);
    (void)mlock(page, ALL);
}

enum hvd_status hvd_key_descriptor(const uint8_t key[HVD_KEY_BYTES], int *fd_p,
                                   struct hvd_error *err)
{
    struct iovec parts[] = {{(void *)magic, MAGIC}, {(void *)key, HVD_KEY_BYTES}};
    int fd = memfd_create("horovod-key", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || writev(fd, parts, 2) != ALL || fcntl(fd, F_ADD_SEALS, SEALS) != 0) {
        enum hvd_status status = error_sys(err, -1, "cannot keep the job key in memory");

        if (fd >= 0)
            close(fd);
        return status;
    }
    pin(fd);
    *fd_p = fd;
    return HVD_OK;
}

bool key_take_descriptor(int fd, uint8_t key[HVD_KEY_BYTES])
{
    char begin[MAGIC], more;
    struct iovec parts[] = {{begin, MAGIC}, {key, HVD_KEY_BYTES}, {&more, 1}};
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || (seals & SEALS) != SEALS || preadv(fd, parts, 3, 0) != ALL ||
        memcmp(begin, magic, MAGIC) != 0) {
        explicit_bzero(key, HVD_KEY_BYTES);
        return false;
    }
    close(fd);
    return true;
}

static int reach(const char *name)
{
    const struct timeval limit = {ANSWER_S, 0};
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    size_t n = strnlen(name, sizeof at.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int code;

    memcpy(at.sun_path, name, n);
    at.sun_path[0] = '\0';              /* instead of '@': a name, not a path */
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    do
        code = connect(fd, (struct sockaddr *)&at,
                       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
    while (code != 0 && errno == EINTR);
    if (code == 0)
        return fd;
    code = errno;
    close(fd);
    errno = code;
    return -1;
}

/* Whoever took the name after the launcher had gone is not believed. */
static bool is_same_user(int fd)
{
    struct ucred who;
    socklen_t n = sizeof who;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && who.uid == geteuid();
}

static ssize_t receive(int fd, char begin[MAGIC], uint8_t *key)
{
    struct iovec parts[] = {{begin, MAGIC}, {key, HVD_KEY_BYTES}};
    struct msghdr msg = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t n;

    do
        n = recvmsg(fd, &msg, MSG_WAITALL);
    while (n < 0 && errno == EINTR);
    return n;
}

enum hvd_status key_ask_socket(const char *name, uint8_t key[HVD_KEY_BYTES],
                               struct hvd_error *err)
{
    char begin[MAGIC];
    ssize_t n;
    int fd = name[0] == '@' ? reach(name) : -1;

    if (name[0] != '@')
        return error_set(err, HVD_INVALID, -1,
                         "HOROVOD_KEY_SOCKET: a name begins with '@'");
    if (fd < 0 && errno == ECONNREFUSED)
        return error_set(err, HVD_PEER_LOST, -1,
                         "HOROVOD_KEY_SOCKET: horovodrun, which started this process, has "
                         "gone, or runs in another network namespace");
    if (fd < 0)
        return error_sys(err, -1, "HOROVOD_KEY_SOCKET: cannot ask for the job key");
    n = is_same_user(fd) ? receive(fd, begin, key) : 0;
    close(fd);
    if (n == ALL && memcmp(begin, magic, MAGIC) == 0)
        return HVD_OK;
    explicit_bzero(key, HVD_KEY_BYTES);
    return error_set(err, HVD_INVALID, -1,
                     "HOROVOD_KEY_SOCKET: horovodrun gives the job key to processes of its "
                     "own user that it has started, and to what they start; this one (pid "
                     "%d, user %u) is none of them", (int)getpid(), (unsigned)geteuid());
}
