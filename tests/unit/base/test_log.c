/* test_log.c: levels by component, and the form of a line. */
#include "base/log.h"

#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define LOG_COMPONENT "base"

/* stderr into a file for the time of a test; a pipe could fill up. */
static FILE *captured;

static void capture(void)
{
    captured = tmpfile();
    CHECK(captured != NULL);
    fflush(stderr);
    dup2(fileno(captured), STDERR_FILENO);
}

static size_t captured_text(char *text, size_t capacity)
{
    ssize_t n = pread(fileno(captured), text, capacity - 1, 0);

    CHECK(n >= 0);
    text[n] = '\0';
    return (size_t)n;
}

TEST(warnings_are_on_by_default)
{
    CHECK(log_is_on(LOG_WARN, "engine"));
    CHECK(!log_is_on(LOG_INFO, "engine"));
    CHECK(log_setup(NULL, false));
    CHECK(log_is_on(LOG_ERROR, "engine"));
}

TEST(levels_in_any_case_and_by_component)
{
    CHECK(log_setup("ERROR,transport=Debug,engine=trace", false));
    CHECK(!log_is_on(LOG_WARN, "api"));
    CHECK(log_is_on(LOG_DEBUG, "transport"));
    CHECK(!log_is_on(LOG_TRACE, "transport"));
    CHECK(log_is_on(LOG_TRACE, "engine"));
    CHECK(log_setup("warn", false));
    CHECK(log_is_on(LOG_WARN, "transport"));
    CHECK(!log_is_on(LOG_DEBUG, "transport"));
}

TEST(what_is_not_understood_is_ignored_and_reported)
{
    CHECK(!log_setup("loud", false));
    CHECK(log_is_on(LOG_WARN, "api"));
    CHECK(!log_setup("info,transport=loud", false));
    CHECK(log_is_on(LOG_INFO, "transport"));
    CHECK(!log_setup("a-component-name-too-long=debug", false));
    CHECK(log_setup("info,,", false));
    CHECK(!log_setup("=", false));
}

TEST(too_many_components_are_refused)
{
    char levels[512] = "";

    for (int i = 0; i < 20; i++)
        snprintf(levels + strlen(levels), 16, "c%d=info,", i);
    CHECK(!log_setup(levels, false));
    CHECK(log_is_on(LOG_INFO, "c0"));
    CHECK(!log_is_on(LOG_INFO, "c19"));
}

TEST(a_line_names_level_file_and_rank)
{
    char text[512];

    capture();
    log_setup("info", true);
    log_info("host %s", "a");
    log_set_rank(3);
    log_warn("size %d", 5);
    log_debug("not shown");
    captured_text(text, sizeof text);
    CHECK_HAS(text, "[I test_log.c:");
    CHECK_HAS(text, "] host a\n[W test_log.c:");
    CHECK_HAS(text, "] [3]: size 5\n");
    CHECK(strstr(text, "not shown") == NULL);
}

TEST(a_line_has_the_time_unless_it_is_hidden)
{
    char text[256];
    int year, month, day, hour, minute, used = 0;
    double second;

    capture();
    log_setup("info", false);
    log_info("x");
    captured_text(text, sizeof text);
    CHECK_EQ(sscanf(text, "[%4d-%2d-%2d %2d:%2d:%9lf: I test_log.c:%n", &year, &month,
                    &day, &hour, &minute, &second, &used), 6);
    CHECK(used > 0 && year >= 2020);
}

TEST(a_long_line_is_written_whole)
{
    static char big[5000], text[8000];
    size_t length;

    memset(big, 'x', sizeof big - 1);
    capture();
    log_setup("info", true);
    log_info("%s", big);
    length = captured_text(text, sizeof text);
    CHECK(length > sizeof big - 1);
    CHECK_EQ(text[length - 1], '\n');
}

static void *write_lines(void *arg)
{
    for (int i = 0; i < 200; i++)
        log_info("thread %c%c%c%c", *(char *)arg, *(char *)arg, *(char *)arg,
                 *(char *)arg);
    return NULL;
}

TEST(lines_of_threads_do_not_mix)
{
    static char text[200000];
    pthread_t threads[4];
    char letters[] = "abcd";
    int lines = 0;

    capture();
    log_setup("info", true);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, write_lines, &letters[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    captured_text(text, sizeof text);
    for (char *save, *at = strtok_r(text, "\n", &save); at != NULL;
         at = strtok_r(NULL, "\n", &save), lines++) {
        const char *word = strstr(at, "thread ");

        CHECK(at[0] == '[' && word != NULL && strlen(word) == 11);
        CHECK(word[7] == word[8] && word[8] == word[9] && word[9] == word[10]);
    }
    CHECK_EQ(lines, 800);
}
