/* test_error.c: the map of statuses, and texts that are safe in a terminal. */
#include "base/error.h"

#include "check.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

TEST(names_texts_and_scopes_follow_the_map)
{
    CHECK_STR(hvd_status_name(HVD_OK), "OK");
    CHECK_STR(hvd_status_name(HVD_PEER_LOST), "PEER_LOST");
    CHECK_STR(hvd_status_text(HVD_SYS), "system call failed");
    CHECK_EQ(hvd_status_scope(HVD_MISMATCH), HVD_SCOPE_OP);
    CHECK_EQ(hvd_status_scope(HVD_REMOVED), HVD_SCOPE_SET);
    CHECK_EQ(hvd_status_scope(HVD_PEER_LOST), HVD_SCOPE_JOB);
    for (int s = 0; s < HVD_STATUS_COUNT; s++)
        CHECK(hvd_status_text((enum hvd_status)s)[0] != '\0');
}

TEST(unknown_codes_have_an_answer)
{
    CHECK_STR(hvd_status_name((enum hvd_status)-1), "UNKNOWN");
    CHECK_STR(hvd_status_text(HVD_STATUS_COUNT), "unknown status");
    CHECK_EQ(hvd_status_scope((enum hvd_status)1000), HVD_SCOPE_PROCESS);
    CHECK_EQ(hvd_dtype_bytes((enum hvd_dtype)-1), (size_t)0);
    CHECK_STR(hvd_dtype_name(HVD_DTYPE_COUNT), "unknown");
}

TEST(dtypes_follow_the_map)
{
    CHECK_EQ(hvd_dtype_bytes(HVD_BF16), (size_t)2);
    CHECK_EQ(hvd_dtype_bytes(HVD_F64), (size_t)8);
    CHECK_STR(hvd_dtype_name(HVD_BOOL), "bool");
    CHECK_EQ(HVD_BF16, 10);
}

TEST(set_describes_and_returns)
{
    struct hvd_error err = {0};

    CHECK_EQ(error_set(&err, HVD_PEER_LOST, 3, "rank %d on %s", 3, "a"), HVD_PEER_LOST);
    CHECK_EQ(err.status, HVD_PEER_LOST);
    CHECK_EQ(err.rank, 3);
    CHECK_STR(err.text, "rank 3 on a");
    CHECK_EQ(error_set(NULL, HVD_PROTO, -1, "nobody listens"), HVD_PROTO);
}

TEST(control_bytes_become_question_marks)
{
    struct hvd_error err;

    error_set(&err, HVD_INVALID, -1, "name %s.", "a\x1b[31m\n\x7f");
    CHECK_STR(err.text, "name a?[31m??.");
    error_prefix(&err, "%s", "x\ty");
    CHECK_STR(err.text, "x?y: name a?[31m??.");
}

TEST(sys_appends_the_reason)
{
    struct hvd_error err;

    errno = ECONNRESET;
    CHECK_EQ(error_sys(&err, 2, "recv from rank %d", 2), HVD_SYS);
    CHECK_STR(err.text, "recv from rank 2: Connection reset by peer");
}

TEST(long_texts_are_cut)
{
    char big[3000];
    struct hvd_error err;

    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    error_set(&err, HVD_INVALID, -1, "%s", big);
    CHECK_EQ(strlen(err.text), (size_t)HVD_ERROR_TEXT - 1);
    error_prefix(&err, "allreduce %s", "grad/7");
    CHECK(strncmp(err.text, "allreduce grad/7: xxx", 21) == 0);
    CHECK(strlen(err.text) < HVD_ERROR_TEXT);
    error_prefix(&err, "%s", big);
    CHECK_EQ(strlen(err.text), (size_t)HVD_ERROR_TEXT - 1);
    errno = EIO;
    error_sys(&err, -1, "%s", big);
    CHECK_HAS(err.text, ": Input/output error");
}

static enum hvd_status second(int *passed, enum hvd_status first)
{
    TRY(first);
    *passed = 1;
    return HVD_OK;
}

TEST(try_hands_up_everything_but_ok)
{
    int passed = 0;

    CHECK_EQ(second(&passed, HVD_AGAIN), HVD_AGAIN);
    CHECK_EQ(passed, 0);
    CHECK_EQ(second(&passed, HVD_OK), HVD_OK);
    CHECK_EQ(passed, 1);
}

TEST(a_bug_aborts_and_says_where)
{
    int status, ends[2];
    char text[256] = {0};
    pid_t pid;

    CHECK_EQ(pipe(ends), 0);
    pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        BUG_ON(1 + 1 == 2);
    }
    close(ends[1]);
    CHECK(read(ends[0], text, sizeof text - 1) > 0);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    CHECK_HAS(text, "test_error.c");
    CHECK_HAS(text, "1 + 1 == 2");
}

TEST(an_error_is_shown_with_the_number_of_its_entry)
{
    char text[256];
    size_t n = hvd_error_show("rank 2: no job key: start the job with horovodrun, or give ...",
                              text, sizeof text);

    CHECK_STR(text, "rank 2: no job key: start the job with horovodrun, or give ... "
                    "[HVD-101, docs/troubleshooting.md]");
    CHECK_EQ(n, strlen(text));
    hvd_error_show("something else", text, sizeof text);
    CHECK_STR(text, "something else");
    hvd_error_show("rank 1 aborted the job: mismatched x [HVD-201, docs/troubleshooting.md]", text,
                   sizeof text);
    CHECK_STR(text, "rank 1 aborted the job: mismatched x [HVD-201, docs/troubleshooting.md]");
    CHECK_EQ(hvd_error_show("aborted the job: x", text, 8), 53);    /* as snprintf */
    CHECK_STR(text, "aborted");
}
