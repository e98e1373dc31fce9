/* test_recorder.c: order, wrap-around, and readers beside a writer. */
#include "base/recorder.h"

#include "check.h"
#include "horovod/horovod.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static char text[1 << 18];

static int dump(const struct recorder *r)
{
    FILE *file = tmpfile();
    int written;
    ssize_t length;

    CHECK(file != NULL);
    written = recorder_write(r, fileno(file));
    length = pread(fileno(file), text, sizeof text - 1, 0);
    CHECK(length >= 0);
    text[length] = '\0';
    fclose(file);
    return written;
}

TEST(an_empty_recorder_writes_nothing)
{
    struct recorder *r = recorder_new();

    CHECK_EQ(dump(r), 0);
    CHECK_STR(text, "");
    recorder_free(r);
    recorder_free(NULL);
}

TEST(a_record_is_a_line)
{
    struct recorder *r = recorder_new();

    recorder_add(r, RECORDER_SUBMIT, HVD_ALLREDUCE, 2, 4096, HVD_OK, "grad/7");
    recorder_add(r, RECORDER_FAIL, HVD_BARRIER, 0, 0, HVD_PEER_LOST, NULL);
    recorder_add(r, RECORDER_NOTE, -1, 0, 0, HVD_OK, "odd\nname\x1b");
    CHECK_EQ(dump(r), 3);
    CHECK_HAS(text, "submit allreduce set 2 4096 bytes OK grad/7\n");
    CHECK_HAS(text, "fail barrier set 0 0 bytes PEER_LOST \n");
    CHECK_HAS(text, "note - set 0 0 bytes OK odd?name?\n");
    CHECK(strncmp(text, "1 -", 3) == 0);
    recorder_free(r);
}

TEST(long_names_are_cut)
{
    struct recorder *r = recorder_new();
    char name[200], expected[RECORDER_NAME + 8];

    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    recorder_add(r, RECORDER_DONE, HVD_ALLGATHER, 0, 1, HVD_OK, name);
    CHECK_EQ(dump(r), 1);
    snprintf(expected, sizeof expected, "OK %.*s\n", RECORDER_NAME - 1, name);
    CHECK_HAS(text, expected);
    recorder_free(r);
}

/* What stands in front of a line: its age in microseconds. */
static long age_of(const char *line)
{
    long s, us;

    CHECK_EQ(sscanf(line, "%*d -%ld.%6lds", &s, &us), 2);
    return s * 1000000 + us;
}

TEST(a_prepared_record_is_the_same_line)
{
    static const char *const names[] = {NULL, "x", "grad/7", "12345678", "123456789",
                                        "a name that is longer than the room there is for "
                                        "names, so that it must be cut"};
    struct recorder *r = recorder_new();
    struct recorder_form f;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *second, name[RECORDER_NAME];

        recorder_add(r, RECORDER_DONE, HVD_ALLGATHER, 3, 77, HVD_OK, names[i]);
        recorder_prepare(&f, RECORDER_DONE, HVD_ALLGATHER, 3, 77, HVD_OK, names[i]);
        recorder_repeat(r, &f);
        CHECK_EQ(dump(r), 2 * (int)i + 2);
        second = text;
        for (size_t k = 0; k < 2 * i + 1; k++)
            second = strchr(second, '\n') + 1;
        *strrchr(text, '\n') = '\0';
        CHECK_HAS(second, "done allgather set 3 77 bytes OK ");
        snprintf(name, sizeof name, "%s", names[i] != NULL ? names[i] : "");
        CHECK_STR(strstr(second, "OK ") + 3, name);
    }
    CHECK_EQ(recorder_count(r), 2 * sizeof names / sizeof names[0]);
    recorder_free(r);
}

TEST(a_prepared_record_has_the_time_of_the_last_look)
{
    struct recorder *r = recorder_new();
    struct recorder_form f;

    recorder_prepare(&f, RECORDER_DONE, HVD_ALLREDUCE, 0, 4, HVD_OK, "x");
    recorder_add(r, RECORDER_DONE, HVD_ALLREDUCE, 0, 4, HVD_OK, "x");
    usleep(20000);
    recorder_repeat(r, &f);
    recorder_look(r);
    recorder_repeat(r, &f);
    CHECK_EQ(dump(r), 3);
    CHECK_EQ(age_of(text), age_of(strchr(text, '\n') + 1));
    CHECK(age_of(text) >= age_of(strchr(strchr(text, '\n') + 1, '\n') + 1) + 20000);
    recorder_free(r);
}

TEST(the_ring_keeps_the_last_ones)
{
    struct recorder *r = recorder_new();
    char name[32], *line = text;

    for (int i = 1; i <= 3000; i++) {
        snprintf(name, sizeof name, "op%d", i);
        recorder_add(r, RECORDER_DONE, HVD_ALLREDUCE, 0, (uint64_t)i, HVD_OK, name);
    }
    CHECK_EQ(dump(r), RECORDER_SLOTS);
    for (int i = 3000 - RECORDER_SLOTS + 1; i <= 3000; i++) {
        CHECK_EQ(atoi(line), i);
        line = strchr(line, '\n') + 1;
    }
    recorder_free(r);
}

TEST(a_full_disk_is_reported)
{
    struct recorder *r = recorder_new();

    recorder_add(r, RECORDER_DONE, HVD_ALLREDUCE, 0, 1, HVD_OK, "x");
    CHECK_EQ(recorder_write(r, -1), -1);
    recorder_free(r);
}

/* Each record says its number three times (bytes, set, name): a torn one would differ. */
static struct recorder *shared;
static atomic_bool stop;

static void *write_records(void *unused)
{
    char name[32];

    for (unsigned n = 1; !atomic_load(&stop); n++) {
        snprintf(name, sizeof name, "%u", n);
        recorder_add(shared, RECORDER_DONE, HVD_ALLREDUCE, (int)(n % 10000), n, HVD_OK,
                     name);
    }
    return unused;
}

static void check_line(const char *line)
{
    unsigned long long number, bytes, name;
    int set;

    CHECK_EQ(sscanf(line, "%llu -%*fs done allreduce set %d %llu bytes OK %llu", &number,
                    &set, &bytes, &name), 4);
    CHECK_EQ(bytes, number);
    CHECK_EQ(name, number);
    CHECK_EQ((unsigned long long)set, number % 10000);
}

TEST(torn_records_are_left_out)
{
    pthread_t writer;
    int seen = 0;

    shared = recorder_new();
    CHECK_EQ(pthread_create(&writer, NULL, write_records, NULL), 0);
    while (seen < 20 * RECORDER_SLOTS) {
        CHECK(dump(shared) >= 0);
        for (char *save, *line = strtok_r(text, "\n", &save); line != NULL;
             line = strtok_r(NULL, "\n", &save), seen++)
            check_line(line);
    }
    atomic_store(&stop, true);
    pthread_join(writer, NULL);
    CHECK_EQ(dump(shared), RECORDER_SLOTS);
    recorder_free(shared);
}
