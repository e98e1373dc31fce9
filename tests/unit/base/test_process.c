/* test_process.c: a process is known by its name as long as it lives, and no longer. */
#include "base/process.h"

#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

TEST(the_end_of_a_process_is_seen)
{
    pid_t pid = fork();
    char name[PROCESS_NAME];
    struct pollfd at = {.events = POLLIN};

    if (pid == 0) {
        pause();
        _exit(0);
    }
    CHECK(process_name(pid, name));
    at.fd = process_open(name);
    CHECK(at.fd >= 0);
    CHECK_EQ(poll(&at, 1, 0), 0);
    kill(pid, SIGKILL);
    CHECK_EQ(poll(&at, 1, 30000), 1);
    close(at.fd);
    waitpid(pid, NULL, 0);
    CHECK_EQ(process_open(name), -1);
    CHECK(!process_name(pid, name));
}

TEST(another_process_with_that_number_is_not_taken)
{
    char name[PROCESS_NAME];

    snprintf(name, sizeof name, "%d:1", (int)getpid());
    CHECK_EQ(process_open(name), -1);
    CHECK_EQ(process_open(""), -1);
    CHECK_EQ(process_open("-1:5"), -1);
}

TEST(signals_have_names)
{
    CHECK_STR(signal_name(SIGKILL), "KILL");
    CHECK_STR(signal_name(SIGUSR2), "USR2");
    CHECK_STR(signal_name(SIGSYS), "SYS");
    CHECK(signal_name(0) == NULL && signal_name(-1) == NULL && signal_name(99) == NULL);
    for (int i = 1; i < 32; i++)
        CHECK(signal_name(i) != NULL);
}

static void check_closed_from(int first)
{
    int fds[200];

    for (int i = 0; i < 200; i++)
        fds[i] = dup(2);
    CHECK(fds[199] > first);
    close_from(first);
    for (int i = 0; i < 200; i++)
        CHECK_EQ(fcntl(fds[i], F_GETFD) >= 0, fds[i] < first);
    CHECK(fcntl(2, F_GETFD) >= 0);
}

TEST(descriptors_from_a_number_on_are_closed)
{
    check_closed_from(40);
}

/* As kernels before 5.9 answer. */
TEST(descriptors_are_closed_without_the_call_for_it)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = 4, .filter = code};

    CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    CHECK_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
    CHECK_EQ(syscall(SYS_close_range, 900, 901, 0), -1);
    check_closed_from(40);
}
