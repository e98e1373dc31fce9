/* test_timeline.c: the file is valid JSON at every moment, and its events are balanced. */
#include "engine/timeline.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/strbuf.h"
#include "check.h"
#include "json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/hvd-timeline-XXXXXX";
static char path[128];
static char *text;                      /* the file */

static struct timeline *open_timeline(bool mark_cycles)
{
    struct timeline *t;
    struct hvd_error err;

    if (path[0] == '\0') {
        CHECK(mkdtemp(dir) != NULL);
        snprintf(path, sizeof path, "%s/timeline.json", dir);
    }
    CHECK_OK(timeline_open(path, mark_cycles, &t, &err), err);
    return t;
}

static char *read_once(void)
{
    struct stat info;
    int fd = open(path, O_RDONLY);
    char *bytes;
    ssize_t n;

    CHECK(fd >= 0 && fstat(fd, &info) == 0);
    bytes = malloc((size_t)info.st_size + 1);
    n = pread(fd, bytes, (size_t)info.st_size, 0);
    CHECK(n >= 0);
    bytes[n] = '\0';
    close(fd);
    return bytes;
}

/* The file between two writes: what two reads in a row agree on, and is valid.  A writer
 * that loses its CPU between two pages of a write shows half of it for a while. */
static void read_file(void)
{
    uint64_t end_us = clock_us() + 10000000;
    bool whole;

    do {
        char *again;

        free(text);
        text = read_once();
        again = read_once();
        whole = strcmp(text, again) == 0 && json_is_valid(text);
        free(again);
    } while (!whole && clock_us() < end_us);
    CHECK(whole);
}

static void done(void)
{
    free(text);
    text = NULL;
    unlink(path);
    rmdir(dir);
}

/* Waits until the writer has put `part` into the file. */
static void read_until(const char *part)
{
    uint64_t end_us = clock_us() + 30000000;

    do {
        read_file();
        if (strstr(text, part) != NULL)
            return;
        usleep(10000);              /* as long as the writer gathers */
    } while (clock_us() < end_us);
    check_fail(__FILE__, __LINE__, "'%s' does not come in %s", part, text);
}

static int count(const char *part)
{
    int n = 0;

    for (const char *p = text; (p = strstr(p, part)) != NULL; p += strlen(part))
        n++;
    return n;
}

static struct timeline_key key(const char *name)
{
    return (struct timeline_key){name, (uint16_t)strlen(name), 0};
}

static void one_operation(struct timeline *t, const char *name)
{
    struct timeline_key k = key(name);

    timeline_negotiate(t, &k, "ALLREDUCE");
    timeline_ready(t, &k, "ALLREDUCE", 0);
    timeline_ready(t, &k, "ALLREDUCE", 1);
    timeline_begin(t, &k, "ALLREDUCE");
    timeline_activity(t, &k, "MEMCPY_IN_FUSION_BUFFER");
    timeline_activity(t, &k, "GLOO_ALLREDUCE");
    timeline_end(t, &k, "{\"dtype\": \"float32\", \"shape\": \"[3]\"}");
}

TEST(an_empty_timeline_has_its_header)
{
    struct timeline *t = open_timeline(false);

    read_file();
    timeline_close(t);
    read_file();
    CHECK_EQ(count("start_time_since_epoch_in_micros"), 1);
    CHECK_EQ(count("process_sort_index"), 1);
    done();
}

TEST(who_has_come_is_shown_once_while_it_waits)
{
    struct timeline *t = open_timeline(false);
    struct timeline_key k = key("allreduce.x");

    timeline_come(t, &k, 0);            /* nothing waits */
    for (int turn = 0; turn < 2; turn++) {
        timeline_negotiate(t, &k, "ALLREDUCE");
        for (int i = 0; i < 3; i++)
            timeline_come(t, &k, 7);
        timeline_come(t, &k, 2);
        timeline_begin(t, &k, "ALLREDUCE");
        timeline_come(t, &k, 3);        /* that is the next turn, which it will see */
        timeline_end(t, &k, NULL);
    }
    timeline_close(t);
    read_file();
    CHECK_EQ(count("\"ph\": \"X\", \"name\": \"7\""), 2);
    CHECK_EQ(count("\"ph\": \"X\", \"name\": \"2\""), 2);
    CHECK_EQ(count("\"ph\": \"X\""), 4);
    done();
}

TEST(an_operation_in_the_order_of_the_contract)
{
    struct timeline *t = open_timeline(false);
    static const char *const order[] = {
        "\"args\": {\"name\": \"allreduce.x\"}", "\"NEGOTIATE_ALLREDUCE\"",
        "\"ph\": \"X\", \"name\": \"0\"", "\"ph\": \"X\", \"name\": \"1\"",
        "\"ph\": \"E\"", "\"name\": \"ALLREDUCE\"", "MEMCPY_IN_FUSION_BUFFER",
        "\"ph\": \"E\"", "GLOO_ALLREDUCE", "\"ph\": \"E\"", "\"dtype\": \"float32\""};
    const char *at;

    one_operation(t, "allreduce.x");
    read_until("\"[3]\"");              /* while it is still recording */
    at = text;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        at = strstr(at, order[i]);
        if (at == NULL)
            check_fail(__FILE__, __LINE__, "no %s in its place in %s", order[i], text);
    }
    timeline_close(t);
    read_file();
    CHECK_EQ(count("\"ph\": \"B\""), 4);
    CHECK_EQ(count("\"ph\": \"E\""), 4);
    done();
}

TEST(what_is_open_ends_when_the_file_is_closed)
{
    struct timeline *t = open_timeline(false);
    struct timeline_key a = key("a"), b = key("b");

    timeline_negotiate(t, &a, "ALLGATHER");
    timeline_begin(t, &b, "BROADCAST");
    timeline_activity(t, &b, "GLOO_BCAST");
    timeline_close(t);
    read_file();
    CHECK_EQ(count("\"ph\": \"B\""), 3);
    CHECK_EQ(count("\"ph\": \"E\""), 3);
    done();
}

TEST(a_tick_during_the_operation_belongs_to_the_next)
{
    struct timeline *t = open_timeline(false);
    struct timeline_key a = key("a");
    const char *second;

    timeline_begin(t, &a, "ALLREDUCE");
    timeline_ready(t, &a, "ALLREDUCE", 1);
    timeline_end(t, &a, NULL);
    timeline_negotiate(t, &a, "ALLREDUCE");
    timeline_close(t);
    read_file();
    second = strstr(text, "NEGOTIATE_ALLREDUCE");
    CHECK(second != NULL);
    CHECK_EQ(count("\"ph\": \"X\""), 1);
    CHECK(strstr(second, "\"ph\": \"X\"") != NULL);
    done();
}

TEST(sets_with_the_same_name_are_apart)
{
    struct timeline *t = open_timeline(false);
    struct timeline_key a = {"x", 1, 0}, b = {"x", 1, 1};

    timeline_begin(t, &a, "ALLREDUCE");
    timeline_begin(t, &b, "ALLREDUCE");
    timeline_end(t, &a, NULL);
    timeline_end(t, &b, NULL);
    timeline_close(t);
    read_file();
    CHECK_EQ(count("\"args\": {\"name\": \"x\"}"), 2);
    CHECK_EQ(count("\"pid\": 2"), 4);
    done();
}

TEST(cycles_are_marked_once_per_period)
{
    struct timeline *t = open_timeline(true);

    for (int i = 0; i < 100; i++)
        timeline_cycle(t, 60000000);
    timeline_close(t);
    read_file();
    CHECK_EQ(count("CYCLE_START"), 1);
    t = open_timeline(false);
    timeline_cycle(t, 0);
    timeline_close(t);
    read_file();
    CHECK_EQ(count("CYCLE_START"), 0);
    done();
}

TEST(starts_and_stops_any_number_of_times)
{
    for (int i = 0; i < 50; i++) {
        struct timeline *t = open_timeline(i % 2 == 0);

        one_operation(t, "x");
        timeline_close(t);
        read_file();
        CHECK_EQ(count("GLOO_ALLREDUCE"), 1);
    }
    done();
}

/* Any bytes as names, in any order of calls: valid and balanced all the time. */
TEST(random_names_and_calls, .limit_s = 60)
{
    struct timeline *t = open_timeline(true);
    unsigned seed = 42;
    char names[8][32];
    int begins, ends;

    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 31; k++)
            names[i][k] = (char)(rand_r(&seed) % 255 + 1);
    for (int i = 0; i < 20000; i++) {
        struct timeline_key k = {names[rand_r(&seed) % 8], (uint16_t)(rand_r(&seed) % 31 + 1),
                                 rand_r(&seed) % 2};

        switch (rand_r(&seed) % 7) {
        case 0: timeline_negotiate(t, &k, "ALLREDUCE"); break;
        case 1: timeline_ready(t, &k, "ALLREDUCE", rand_r(&seed) % 8); break;
        case 2: timeline_negotiated(t, &k); break;
        case 3: timeline_begin(t, &k, "ALLREDUCE"); break;
        case 4: timeline_activity(t, &k, rand_r(&seed) % 2 ? "GLOO_BCAST" : NULL); break;
        case 5: timeline_end(t, &k, NULL); break;
        case 6: timeline_cycle(t, 100); break;
        }
        if (i % 500 == 0) {
            char marker[32];

            snprintf(marker, sizeof marker, "flush %d.", i);
            one_operation(t, marker);
            read_until(marker);
        }
    }
    timeline_close(t);
    read_file();
    begins = count("\"ph\": \"B\"");
    ends = count("\"ph\": \"E\"");
    CHECK(begins > 1000);
    CHECK_EQ(begins, ends);
    done();
}

TEST(a_full_disk_leaves_a_valid_file)
{
    struct timeline *t = open_timeline(false);

    one_operation(t, "before");
    read_until("\"[3]\"");
    CHECK(fault_setup("timeline.write nospc", 0));
    for (int i = 0; i < 100; i++)
        one_operation(t, "after");
    timeline_close(t);
    fault_setup(NULL, 0);
    read_file();
    CHECK_EQ(count("before"), 1);
    CHECK_EQ(count("after"), 0);
    done();
}

TEST(a_link_is_not_followed_and_a_pipe_not_waited_for)
{
    struct timeline *t = open_timeline(false);
    struct hvd_error err;
    char other[160];

    timeline_close(t);
    snprintf(other, sizeof other, "%s/other", dir);
    CHECK_EQ(symlink(path, other), 0);
    CHECK_EQ(timeline_open(other, false, &t, &err), HVD_SYS);
    CHECK_HAS(err.text, other);
    unlink(other);
    CHECK_EQ(mkfifo(other, 0600), 0);
    CHECK_EQ(timeline_open(other, false, &t, &err), HVD_SYS);
    unlink(other);
    CHECK_EQ(timeline_open("/nowhere/at/all", false, &t, &err), HVD_SYS);
    done();
}
