/* test_key_desk.c: who gets the job key from its socket, and who does not. */
#include "check.h"

#include "horovod/driver.h"
#include "launch/key_desk.h"
#include "rendezvous/key_descriptor.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static uint8_t secret[HVD_KEY_BYTES] = "thirty-two bytes of a job's key";
static char name[KEY_DESK_NAME];

/* Serves until it is killed. */
static _Noreturn void serve(int desk_fd, int key_fd)
{
    struct pollfd p = {.fd = desk_fd, .events = POLLIN};

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (poll(&p, 1, -1) > 0)
        key_desk_serve(desk_fd, key_fd);
    _exit(1);
}

static void open_desk(int *desk_fd_p, int *key_fd_p)
{
    struct hvd_error err;

    CHECK_OK(hvd_key_descriptor(secret, key_fd_p, &err), err);
    CHECK_OK(key_desk_open(name, desk_fd_p, &err), err);
}

static enum hvd_status ask(void)
{
    uint8_t key[HVD_KEY_BYTES];
    struct hvd_error err;
    enum hvd_status status = key_ask_socket(name, key, &err);

    if (status == HVD_OK && memcmp(key, secret, sizeof key) != 0)
        return HVD_PROTO;
    return status;
}

/* This process holds the desk; how it ends for a child with so many shells in between. */
static int ask_as_descendant(int generations, uid_t uid)
{
    struct pollfd p;
    pid_t pid, done;
    int status, desk_fd, key_fd;

    open_desk(&desk_fd, &key_fd);
    p = (struct pollfd){.fd = desk_fd, .events = POLLIN};
    pid = fork();
    if (pid == 0) {
        for (int i = 0; i < generations; i++) {
            pid = fork();
            if (pid == 0)
                continue;
            waitpid(pid, &status, 0);
            _exit(WEXITSTATUS(status));
        }
        if (uid != 0)
            CHECK_EQ(setuid(uid), 0);
        _exit((int)ask());
    }
    while ((done = waitpid(pid, &status, WNOHANG)) == 0)
        if (poll(&p, 1, 10) > 0)
            key_desk_serve(desk_fd, key_fd);
    close(desk_fd);
    close(key_fd);
    return WEXITSTATUS(status);
}

TEST(descendants_get_the_key)
{
    CHECK_EQ(ask_as_descendant(0, 0), HVD_OK);
    CHECK_EQ(ask_as_descendant(3, 0), HVD_OK);
}

TEST(another_user_does_not_get_the_key)
{
    if (geteuid() != 0)
        check_skip("only root can become another user");
    CHECK_EQ(ask_as_descendant(0, 65534), HVD_INVALID);
}

/* The desk is a child of ours: we are its parent, not its descendant. */
TEST(others_of_this_user_do_not_get_the_key)
{
    int desk_fd, key_fd;
    pid_t pid;

    open_desk(&desk_fd, &key_fd);
    pid = fork();
    if (pid == 0)
        serve(desk_fd, key_fd);
    close(desk_fd);
    CHECK_EQ((int)ask(), HVD_INVALID);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    CHECK_EQ((int)ask(), HVD_PEER_LOST);        /* it has left nothing behind */
}
