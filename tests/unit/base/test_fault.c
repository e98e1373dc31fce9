/* test_fault.c: the language of fault rules, and which passes they hit. */
#include "base/fault.h"

#include "base/clock.h"
#include "check.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

TEST(nothing_is_armed_at_first)
{
    CHECK(!FAULT("tcp.recv"));
    CHECK_EQ(fault_count("tcp.recv"), -1L);
    CHECK(fault_setup(NULL, 0));
    CHECK(fault_setup("", 0));
    CHECK(!FAULT("tcp.recv"));
}

TEST(a_rule_hits_once_with_its_errno)
{
    CHECK(fault_setup("tcp.recv", 0));
    CHECK(!FAULT("tcp.send"));
    errno = 0;
    CHECK(FAULT("tcp.recv"));
    CHECK_EQ(errno, ECONNRESET);
    CHECK(!FAULT("tcp.recv"));
    CHECK_EQ(fault_count("tcp.recv"), 2L);
}

TEST(after_and_times_count_passes)
{
    const char *expected = "..xxx...";

    CHECK(fault_setup("p after=2 times=3 nospc", 0));
    for (int i = 0; expected[i] != '\0'; i++) {
        errno = 0;
        CHECK_EQ(FAULT("p"), expected[i] == 'x');
        CHECK_EQ(errno, expected[i] == 'x' ? ENOSPC : 0);
    }
}

TEST(times_below_zero_has_no_end)
{
    CHECK(fault_setup("p times=-1 mfile", 0));
    for (int i = 0; i < 100; i++)
        CHECK(FAULT("p"));
}

TEST(a_rule_may_be_for_another_rank)
{
    CHECK(fault_setup("p rank=2;q rank=1 nomem", 1));
    CHECK(!FAULT("p"));
    CHECK(FAULT("q"));
    CHECK_EQ(errno, ENOMEM);
}

TEST(rules_of_one_point_take_turns)
{
    CHECK(fault_setup("p nomem; p nospc", 0));
    CHECK(FAULT("p"));
    CHECK_EQ(errno, ENOMEM);
    CHECK(FAULT("p"));
    CHECK_EQ(errno, ENOSPC);
    CHECK(!FAULT("p"));
}

TEST(setup_again_forgets_the_old_rules)
{
    CHECK(fault_setup("p", 0));
    CHECK(fault_setup("q", 0));
    CHECK(!FAULT("p"));
    CHECK(FAULT("q"));
}

TEST(words_it_does_not_know_are_refused)
{
    CHECK(!fault_setup("p explode", 0));
    CHECK(!fault_setup("p after=x", 0));
    CHECK(!fault_setup("a-name-that-is-far-too-long-for-any-fault-point-there-is", 0));
    CHECK(!FAULT("p"));
}

TEST(delay_waits_and_passes)
{
    uint64_t start = clock_us();

    CHECK(fault_setup("p delay=30", 0));
    CHECK(!FAULT("p"));
    CHECK(clock_us() - start >= 30000);
}

TEST(kill_and_stop_end_the_process_as_a_user_would)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        fault_setup("p stop; q kill", 0);
        _exit(FAULT("p") || FAULT("q"));
    }
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    CHECK_EQ(kill(pid, SIGCONT), 0);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}
