/* check.c: runs the tests of one program, each in a child with a time limit. */
#include "check.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SKIPPED 77

static struct check_test *first, **last = &first;

void check_register(struct check_test *test)
{
    *last = test;
    last = &test->next;
}

void check_fail(const char *file, int line, const char *format, ...)
{
    va_list args;

    fprintf(stderr, "%s:%d: ", file, line);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    fflush(NULL);
    _exit(1);
}

void check_skip(const char *why)
{
    fprintf(stderr, "skipped: %s\n", why);
    fflush(NULL);
    _exit(SKIPPED);
}

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

unsigned check_limit_s(int limit_s)
{
    const char *factor = getenv("CHECK_LIMIT_FACTOR");
    int n = factor != NULL ? atoi(factor) : 1;

    return (unsigned)(limit_s * (n > 0 ? n : 1));
}

void check_side_by_side(void (*run)(int number), int count)
{
    int status, failed = 0;

    for (int i = 0; i < count; i++) {
        pid_t pid = fork();

        CHECK(pid >= 0);
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            run(i);
            fflush(NULL);
            exit(0);
        }
    }
    for (int i = 0; i < count; i++)
        failed += wait(&status) < 0 || status != 0;
    CHECK_EQ(failed, 0);
}

/* The test leads a process group, so that what it started dies with it. */
static int run_child(const struct check_test *test)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(check_limit_s(test->limit_s > 0 ? test->limit_s : 60));
        test->run();
        fflush(NULL);
        exit(0);
    }
    setpgid(pid, pid);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    kill(-pid, SIGKILL);
    return status;
}

static bool report(const struct check_test *test)
{
    double start = now_s();
    int status = run_child(test);
    const char *verdict = "ok";
    char text[64];

    if (WIFSIGNALED(status)) {
        snprintf(text, sizeof text, "FAILED: %s",
                 WTERMSIG(status) == SIGALRM ? "time limit"
                                             : strsignal(WTERMSIG(status)));
        verdict = text;
    } else if (WEXITSTATUS(status) == SKIPPED) {
        verdict = "skipped";
    } else if (WEXITSTATUS(status) != 0) {
        verdict = "FAILED";
    }
    printf("%-60s %s (%.2f s)\n", test->name, verdict, now_s() - start);
    fflush(stdout);
    return verdict[0] != 'F';
}

static bool is_chosen(const struct check_test *test, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], test->name) == 0)
            return true;
    return argc < 2;
}

int main(int argc, char **argv)
{
    bool here = argc > 1 && strcmp(argv[1], "--here") == 0;
    int failed = 0, run = 0;

    for (struct check_test *t = first; t != NULL; t = t->next) {
        if (argc > 1 && strcmp(argv[1], "--list") == 0) {
            puts(t->name);
            continue;
        }
        if (!is_chosen(t, argc, argv))
            continue;
        run++;
        if (here)
            t->run();
        else
            failed += !report(t);
    }
    if (run == 0 && (argc < 2 || strcmp(argv[1], "--list") != 0))
        return 2;
    return failed > 0;
}
