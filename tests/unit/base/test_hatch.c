/* test_hatch.c: who finds a hatch, who is let in, and what is left of it. */
#include "check.h"

#include "base/hatch.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static char names[512][HATCH_NAME];
static struct hvd_error err;

/* A kind of its own, so that tests do not meet. */
static const char *own_kind(void)
{
    static char kind[16];

    snprintf(kind, sizeof kind, "t%d", (int)getpid());
    return kind;
}

TEST(the_same_user_finds_it_and_is_let_in)
{
    pid_t pid = 0;
    char byte = 'x';
    int hatch, in, out;

    CHECK_OK(hatch_open(own_kind(), &hatch, &err), err);
    CHECK_EQ(hatch_list(own_kind(), names, 512), 1);
    CHECK_EQ(hatch_accept(hatch), -1);
    out = hatch_connect(names[0], &pid);
    CHECK(out >= 0);
    CHECK_EQ(pid, getpid());
    in = hatch_accept(hatch);
    CHECK(in >= 0);
    CHECK_EQ(send(out, "y", 1, 0), 1);
    CHECK_EQ(recv(in, &byte, 1, 0), 1);
    CHECK_EQ(byte, 'y');
}

TEST(nothing_is_left_of_a_process_that_was_killed)
{
    int status, hatch;
    pid_t pid = fork();

    if (pid == 0) {
        CHECK_OK(hatch_open("gone", &hatch, &err), err);
        raise(SIGKILL);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status));
    CHECK_EQ(hatch_list("gone", names, 512), 0);
}

TEST(a_name_that_is_no_door_is_refused)
{
    pid_t pid;

    CHECK_EQ(hatch_connect("", &pid), -1);
    CHECK_EQ(hatch_connect("@", &pid), -1);
    CHECK_EQ(hatch_connect("@horovod-nobody-0-0000000000000000", &pid), -1);
}

/* What a child of another user sees: 0 refused, 1 let in. */
static int knock_as_stranger(int hatch, const char *name)
{
    int status, in = -1;
    pid_t pid = fork(), owner;
    char byte;

    if (pid == 0) {
        int fd;

        if (setuid(65534) != 0)
            _exit(2);
        fd = hatch_connect(name, &owner);        /* it sees that we are another user */
        _exit(fd >= 0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status));
    in = hatch_accept(hatch);
    CHECK(in < 0 || recv(in, &byte, 1, MSG_DONTWAIT) <= 0);
    return WEXITSTATUS(status) + (in >= 0);
}

TEST(another_user_is_not_let_in)
{
    int hatch;

    if (geteuid() != 0)
        return;                         /* only root can be somebody else */
    CHECK_OK(hatch_open(own_kind(), &hatch, &err), err);
    CHECK_EQ(hatch_list(own_kind(), names, 512), 1);
    CHECK_EQ(knock_as_stranger(hatch, names[0]), 0);
}

TEST(the_door_of_another_user_is_not_asked)
{
    int pipes[2], status, hatch;
    char name[HATCH_NAME];
    pid_t pid, owner;

    if (geteuid() != 0)
        return;
    CHECK_EQ(pipe(pipes), 0);
    pid = fork();
    if (pid == 0) {
        char look[64];

        if (setuid(65534) != 0)
            _exit(1);
        CHECK_OK(hatch_open("stranger", &hatch, &err), err);
        CHECK_EQ(hatch_list("stranger", names, 512), 1);
        CHECK_EQ(write(pipes[1], names[0], HATCH_NAME), HATCH_NAME);
        close(pipes[1]);
        (void)!read(pipes[0], look, 0);
        pause();
    }
    CHECK_EQ(read(pipes[0], name, HATCH_NAME), HATCH_NAME);
    CHECK_EQ(hatch_list("stranger", names, 512), 0);
    CHECK_EQ(hatch_connect(name, &owner), -1);
    kill(pid, SIGKILL);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
}
