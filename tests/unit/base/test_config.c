/* test_config.c: every row parses its own default; values, bounds, names, secrets. */
#include "base/config.h"

#include "base/log.h"
#include "check.h"

#include <stdlib.h>
#include <unistd.h>

static struct config conf;
static struct hvd_error err;

static void clear_environment(void)
{
    clearenv();
}

static int row(const char *name)
{
    int i = config_find(name);

    CHECK(i >= 0);
    return i;
}

static enum hvd_status set(const char *name, const char *value)
{
    return config_set(&conf, row(name), value, CONFIG_OPTION, &err);
}

static void read_defaults(void)
{
    clear_environment();
    CHECK_OK(config_read(&conf, &err), err);
}

TEST(defaults_are_valid_and_unset_by_anyone)
{
    read_defaults();
    for (int i = 0; i < config_row_count; i++)
        CHECK_EQ(conf.source[i], (unsigned char)CONFIG_DEFAULT);
    CHECK_EQ(conf.rank, 0);
    CHECK_EQ(conf.size, 1);
    CHECK_EQ(conf.fusion_threshold, (uint64_t)128 << 20);
    CHECK_EQ(conf.cycle_time_ms, 1.0);
    CHECK_STR(conf.controller, "gloo");
    CHECK(!conf.elastic);
    config_release(&conf);
    config_release(&conf);
}

TEST(rows_have_unique_names_options_and_keys)
{
    for (int i = 0; i < config_row_count; i++)
        for (int j = 0; j < i; j++) {
            const struct config_row *a = &config_rows[i], *b = &config_rows[j];

            CHECK(strcmp(a->name, b->name) != 0);
            CHECK(a->option[0] == '\0' || strcmp(a->option, b->option) != 0);
            CHECK(a->key[0] == '\0' || strcmp(a->key, b->key) != 0);
        }
}

TEST(the_environment_is_read)
{
    clear_environment();
    setenv("HOROVOD_RANK", "3", 1);
    setenv("HOROVOD_SIZE", "8", 1);
    setenv("HOROVOD_FUSION_THRESHOLD", "64mb", 1);
    setenv("HOROVOD_CYCLE_TIME", "3.5", 1);
    setenv("HOROVOD_TIMELINE", "/tmp/t.json", 1);
    setenv("HOROVOD_HOSTNAME", "", 1);
    CHECK_OK(config_read(&conf, &err), err);
    CHECK_EQ(conf.rank, 3);
    CHECK_EQ(conf.size, 8);
    CHECK_EQ(conf.fusion_threshold, (uint64_t)64 << 20);
    CHECK_EQ(conf.cycle_time_ms, 3.5);
    CHECK_STR(conf.timeline, "/tmp/t.json");
    CHECK_EQ(conf.source[row("RANK")], (unsigned char)CONFIG_ENVIRONMENT);
    CHECK_EQ(conf.source[row("HOSTNAME")], (unsigned char)CONFIG_DEFAULT);
    config_release(&conf);
}

TEST(a_bad_value_fails_with_what_is_allowed)
{
    clear_environment();
    setenv("HOROVOD_FUSION_THRESHOLD", "64 MB", 1);
    CHECK_EQ(config_read(&conf, &err), HVD_INVALID);
    CHECK_STR(err.text, "HOROVOD_FUSION_THRESHOLD: '64 MB' is not a size in 0..4gb; "
                        "write it as 64mb");
    config_release(&conf);
}

TEST(integers_have_bounds)
{
    read_defaults();
    CHECK_EQ(set("CACHE_CAPACITY", "0"), HVD_OK);
    CHECK_EQ(set("CACHE_CAPACITY", "-1"), HVD_INVALID);
    CHECK_HAS(err.text, "HOROVOD_CACHE_CAPACITY: '-1' is not an integer in 0..1048576");
    CHECK_EQ(set("CACHE_CAPACITY", "1048577"), HVD_INVALID);
    CHECK_EQ(set("CACHE_CAPACITY", "1.5"), HVD_INVALID);
    CHECK_EQ(set("CACHE_CAPACITY", "12x"), HVD_INVALID);
    CHECK_EQ(set("CACHE_CAPACITY", "nan"), HVD_INVALID);
    CHECK_EQ(set("CACHE_CAPACITY", "1e999"), HVD_INVALID);
    CHECK_EQ(conf.cache_capacity, 0);
    CHECK_EQ(conf.source[row("CACHE_CAPACITY")], (unsigned char)CONFIG_OPTION);
    config_release(&conf);
}

TEST(numbers_have_bounds)
{
    read_defaults();
    CHECK_EQ(set("HEARTBEAT_SECONDS", "0.2"), HVD_OK);
    CHECK_EQ(set("HEARTBEAT_SECONDS", "0.1"), HVD_INVALID);
    CHECK_HAS(err.text, "is not a number in 0.2..86400");
    CHECK_EQ(set("HEARTBEAT_SECONDS", "inf"), HVD_INVALID);
    CHECK_EQ(set("HEARTBEAT_SECONDS", ""), HVD_INVALID);
    CHECK_EQ(conf.heartbeat_s, 0.2);
    config_release(&conf);
}

TEST(sizes_take_units_in_any_case)
{
    read_defaults();
    CHECK_EQ(set("FUSION_THRESHOLD", "4096"), HVD_OK);
    CHECK_EQ(conf.fusion_threshold, (uint64_t)4096);
    CHECK_EQ(set("FUSION_THRESHOLD", "1KB"), HVD_OK);
    CHECK_EQ(conf.fusion_threshold, (uint64_t)1024);
    CHECK_EQ(set("FUSION_THRESHOLD", "1.5m"), HVD_OK);
    CHECK_EQ(conf.fusion_threshold, (uint64_t)1536 << 10);
    CHECK_EQ(set("FUSION_THRESHOLD", "5gb"), HVD_INVALID);
    CHECK_EQ(set("FUSION_THRESHOLD", "1tb"), HVD_INVALID);
    CHECK_EQ(set("FUSION_THRESHOLD", "-1"), HVD_INVALID);
    config_release(&conf);
}

TEST(booleans_take_words_and_numbers)
{
    static const char *const on[] = {"1", "true", "YES", "On", "2"};
    static const char *const off[] = {"0", "False", "no", "OFF", "-1"};

    read_defaults();
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(set("AUTOTUNE", on[i]), HVD_OK);
        CHECK(conf.autotune);
        CHECK_EQ(set("AUTOTUNE", off[i]), HVD_OK);
        CHECK(!conf.autotune);
    }
    CHECK_EQ(set("AUTOTUNE", "maybe"), HVD_INVALID);
    CHECK_HAS(err.text, "true/false");
    config_release(&conf);
}

TEST(texts_have_a_length)
{
    char text[300];

    memset(text, 'x', sizeof text);
    text[254] = '\0';
    read_defaults();
    CHECK_EQ(set("HOSTNAME", text), HVD_INVALID);
    CHECK_HAS(err.text, "HOROVOD_HOSTNAME: longer than 253 characters");
    text[253] = '\0';
    CHECK_EQ(set("HOSTNAME", text), HVD_OK);
    CHECK_STR(conf.hostname, text);
    config_release(&conf);
}

TEST(format_shows_what_the_user_would_write)
{
    char text[64];

    read_defaults();
    config_format(&conf, row("FUSION_THRESHOLD"), text, sizeof text);
    CHECK_STR(text, "128mb");
    CHECK_EQ(set("FUSION_THRESHOLD", "1000"), HVD_OK);
    config_format(&conf, row("FUSION_THRESHOLD"), text, sizeof text);
    CHECK_STR(text, "1000");
    config_format(&conf, row("AUTOTUNE_GAUSSIAN_PROCESS_NOISE"), text, sizeof text);
    CHECK_STR(text, "0.8");
    config_format(&conf, row("ELASTIC"), text, sizeof text);
    CHECK_STR(text, "0");
    config_release(&conf);
}

/* What config_format gives can be read back, for every row. */
TEST(format_and_set_agree)
{
    char text[4200], again[4200];

    read_defaults();
    for (int i = 0; i < config_row_count; i++) {
        if (config_rows[i].flags & CONFIG_SECRET)
            continue;
        config_format(&conf, i, text, sizeof text);
        CHECK_OK(config_set(&conf, i, text, CONFIG_FILE, &err), err);
        config_format(&conf, i, again, sizeof again);
        CHECK_STR(again, text);
    }
    config_release(&conf);
}

TEST(secrets_are_never_shown)
{
    char text[64];

    read_defaults();
    CHECK_EQ(set("KEY", "00112233"), HVD_OK);
    config_format(&conf, row("KEY"), text, sizeof text);
    CHECK_STR(text, "(hidden)");
    config_release(&conf);
}

TEST(a_secret_can_be_taken_out_of_the_environment)
{
    const char *value;

    clear_environment();
    setenv("HOROVOD_KEY", "00112233", 1);
    value = getenv("HOROVOD_KEY");
    config_wipe_environment("HOROVOD_KEY");
    CHECK_EQ(value[0], '\0');
    CHECK(getenv("HOROVOD_KEY") == NULL);
    config_wipe_environment("HOROVOD_KEY");
}

static void warnings_of_read(char *text, size_t capacity)
{
    FILE *file = tmpfile();
    ssize_t n;

    dup2(fileno(file), STDERR_FILENO);
    CHECK_OK(config_read(&conf, &err), err);
    n = pread(fileno(file), text, capacity - 1, 0);
    CHECK(n >= 0);
    text[n] = '\0';
    config_release(&conf);
}

TEST(unknown_names_warn_with_the_nearest_one)
{
    char text[1024];

    clear_environment();
    setenv("HOROVOD_FUSION_TRESHOLD", "1", 1);
    setenv("HOROVOD_SPARK_PYTHON", "x", 1);
    setenv("HOROVOD_START_TIMEOUT", "5", 1);
    warnings_of_read(text, sizeof text);
    CHECK_HAS(text, "HOROVOD_FUSION_TRESHOLD is not known");
    CHECK_HAS(text, "nearest name is HOROVOD_FUSION_THRESHOLD");
    CHECK(strstr(text, "SPARK") == NULL && strstr(text, "START_TIMEOUT") == NULL);
}

TEST(only_rank_0_warns)
{
    char text[1024];

    clear_environment();
    setenv("HOROVOD_RANK", "1", 1);
    setenv("HOROVOD_NONSENSE", "1", 1);
    warnings_of_read(text, sizeof text);
    CHECK_STR(text, "");
}

TEST(the_log_level_takes_effect)
{
    char text[1024];

    clear_environment();
    setenv("HOROVOD_LOG_LEVEL", "info,transport=trace", 1);
    warnings_of_read(text, sizeof text);
    CHECK_STR(text, "");
    CHECK(log_is_on(LOG_TRACE, "transport"));
    CHECK(log_is_on(LOG_INFO, "api"));
    setenv("HOROVOD_LOG_LEVEL", "loud", 1);
    warnings_of_read(text, sizeof text);
    CHECK_HAS(text, "log level 'loud' is not understood");
}

TEST(names_are_found_exactly)
{
    CHECK(config_find("RANK") >= 0);
    CHECK_EQ(config_find("rank"), -1);
    CHECK_EQ(config_find("HOROVOD_RANK"), -1);
    CHECK_EQ(config_find(""), -1);
}
