/* test_config_file.c: YAML, settings and what workers see of them. */
#include "launch/config_file.h"
#include "launch/settings.h"

#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct hvd_error err;
static struct settings s;
static char path[64];

static void write_yaml(const char *text)
{
    int fd;

    snprintf(path, sizeof path, "/tmp/test-config-XXXXXX");
    fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

static enum hvd_status read_with(const char *yaml, const char *option)
{
    /* Static: the settings point to the words. */
    static const char *argv[8] = {"horovodrun", "-np", "2", "--config-file", path};
    bool is_usage;
    enum hvd_status status;

    write_yaml(yaml);
    argv[5] = option != NULL ? option : "true";
    argv[6] = option != NULL ? "true" : NULL;
    status = settings_read(option == NULL ? 6 : 7, (char **)argv, &s, &is_usage, &err);
    unlink(path);
    return status;
}

static const char *knob(const char *name)
{
    const char *value = env_get(&s.knobs, name);

    return value != NULL ? value : "unset";
}

TEST(every_section_is_known)
{
    CHECK_OK(read_with("params:\n  fusion_threshold_mb: 32\n  cycle_time_ms: 20\n"
                       "  cache_capacity: 2048\n  hierarchical_allreduce: true\n"
                       "  hierarchical_allgather: false\n  torus_allreduce: false\n"
                       "autotune:\n  enabled: true\n  log_file: a.txt\n"
                       "  warmup_samples: 5\n  gaussian_process_noise: 0.2\n"
                       "timeline:\n  filename: t.json\n  mark_cycles: true\n"
                       "stall_check:\n  enabled: false\n  warning_time_seconds: 120\n"
                       "library_options:\n  num_nccl_streams: 2\n  thread_affinity: 1\n"
                       "  gloo_timeout_seconds: 60\n"
                       "logging:\n  level: INFO\n  with_timestamp: false\n", NULL), err);
    CHECK_STR(knob("HOROVOD_FUSION_THRESHOLD"), "33554432");
    CHECK_STR(knob("HOROVOD_CYCLE_TIME"), "20.0");
    CHECK_STR(knob("HOROVOD_CACHE_CAPACITY"), "2048");
    CHECK_STR(knob("HOROVOD_HIERARCHICAL_ALLREDUCE"), "1");
    CHECK_STR(knob("HOROVOD_HIERARCHICAL_ALLGATHER"), "0");
    CHECK_STR(knob("HOROVOD_AUTOTUNE"), "1");
    CHECK_STR(knob("HOROVOD_AUTOTUNE_LOG"), "a.txt");
    CHECK_STR(knob("HOROVOD_AUTOTUNE_WARMUP_SAMPLES"), "5");
    CHECK_STR(knob("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE"), "0.2");
    CHECK_STR(knob("HOROVOD_TIMELINE"), "t.json");
    CHECK_STR(knob("HOROVOD_TIMELINE_MARK_CYCLES"), "1");
    CHECK_STR(knob("HOROVOD_STALL_CHECK_DISABLE"), "1");
    CHECK_STR(knob("HOROVOD_STALL_CHECK_TIME_SECONDS"), "120");
    CHECK_STR(knob("HOROVOD_NUM_NCCL_STREAMS"), "2");
    CHECK_STR(knob("HOROVOD_THREAD_AFFINITY"), "1");
    CHECK_STR(knob("HOROVOD_GLOO_TIMEOUT_SECONDS"), "60");
    CHECK_STR(knob("HOROVOD_LOG_LEVEL"), "INFO");
    CHECK_STR(knob("HOROVOD_LOG_HIDE_TIME"), "1");
    settings_release(&s);
}

TEST(the_command_line_wins)
{
    CHECK_OK(read_with("params:\n  cycle_time_ms: 20\n", "--cycle-time-ms=10"), err);
    CHECK_STR(knob("HOROVOD_CYCLE_TIME"), "10.0");
    settings_release(&s);
    CHECK_OK(read_with("stall_check:\n  enabled: false\n", "--stall-check"), err);
    CHECK_STR(knob("HOROVOD_STALL_CHECK_DISABLE"), "0");
    settings_release(&s);
    CHECK_OK(read_with("controller: mpi\n", "--gloo"), err);
    CHECK_EQ((int)s.controller, (int)CONTROLLER_NATIVE);
    settings_release(&s);
}

TEST(what_was_not_given_is_not_set)
{
    CHECK_OK(read_with("autotune:\n  log_file: a\ntimeline:\n  mark_cycles: true\n", NULL),
             err);
    CHECK_EQ(s.knobs.count, 0);
    settings_release(&s);
    CHECK_OK(read_with("stall_check:\n  warning_time_seconds: 5\n", NULL), err);
    CHECK_STR(knob("HOROVOD_STALL_CHECK_DISABLE"), "0");
    settings_release(&s);
    CHECK_OK(read_with("", NULL), err);
    settings_release(&s);
}

TEST(controllers)
{
    CHECK_OK(read_with("controller: MPI\n", NULL), err);
    CHECK_EQ((int)s.controller, (int)CONTROLLER_MPI);
    settings_release(&s);
    CHECK_EQ((int)read_with("controller: smoke\n", NULL), (int)HVD_INVALID);
    CHECK_HAS(err.text, "smoke");
    settings_release(&s);
}

TEST(values_are_checked_after_merging)
{
    static const char *const bad[][2] = {
        {"params:\n  fusion_threshold_mb: -1\n", "fusion_threshold_mb=-1 must be >= 0"},
        {"params:\n  cycle_time_ms: fast\n", "not a number"},
        {"params:\n  hierarchical_allreduce: maybe\n", "not true or false"},
        {"autotune:\n  enabled: true\n  gaussian_process_noise: 2\n", "[0, 1]"},
        {"params: [1, 2\n", "line"},
        {"- a\n- b\n", "expected"},
        {"a: &x 1\nb: *x\n", "alias"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_EQ((int)read_with(bad[i][0], NULL), (int)HVD_INVALID);
        CHECK_HAS(err.text, bad[i][1]);
        settings_release(&s);
    }
}

TEST(floats_are_written_as_python_writes_them)
{
    static const char *const values[][2] = {
        {"1", "1.0"}, {"0", "0.0"}, {"0.5", "0.5"}, {"2.50", "2.5"}, {"10", "10.0"},
        {"100", "100.0"}, {"0.1", "0.1"}, {"3e2", "300.0"}};
    char option[64];

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        snprintf(option, sizeof option, "--cycle-time-ms=%s", values[i][0]);
        CHECK_OK(read_with("", option), err);
        CHECK_STR(knob("HOROVOD_CYCLE_TIME"), values[i][1]);
        settings_release(&s);
    }
}
