/* config.c: the only file that reads the environment; everything follows config.def. */
#include "base/config.h"

#include "base/log.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define LOG_COMPONENT "base"
#define PREFIX "HOROVOD_"

/* libc's own name of the environment.  `environ` may be a copy of its own in a program that
 * holds a library of non-PIC code (libuv) and was linked against a stub of libc. */
extern char **__environ;

#define T_boolean CONFIG_BOOLEAN
#define T_integer CONFIG_INTEGER
#define T_number CONFIG_NUMBER
#define T_bytes CONFIG_BYTES
#define T_text CONFIG_TEXT
#define TUNABLE CONFIG_TUNABLE
#define IDENTITY CONFIG_IDENTITY
#define SECRET CONFIG_SECRET
#define HIDDEN CONFIG_HIDDEN
#define IGNORED CONFIG_IGNORED
#define MB CONFIG_MB

const struct config_row config_rows[] = {
#define CONFIG(type, field, name, initial, low, high, flags, option, key, text)        \
    {T_##type, offsetof(struct config, field), name, initial, (double)(low),           \
     (double)(high), flags, option, key, text},
#include "base/config.def"
#undef CONFIG
};
const int config_row_count = sizeof config_rows / sizeof config_rows[0];

/* Names that the launcher and other parts read; known, but not of this table. */
static const char *const other_names[] = {
    "START_TIMEOUT", "ELASTIC_TIMEOUT", "MIXED_INSTALL", "NO_AUTOLOAD",
};

static void *field(struct config *conf, int row)
{
    return (char *)conf + config_rows[row].offset;
}

static bool parse_boolean(const char *text, bool *value_p)
{
    static const char *const words[][4] = {{"0", "false", "no", "off"},
                                           {"1", "true", "yes", "on"}};
    char *end;
    long number;

    for (int value = 0; value < 2; value++)
        for (int i = 0; i < 4; i++)
            if (strcasecmp(text, words[value][i]) == 0) {
                *value_p = value;
                return true;
            }
    number = strtol(text, &end, 10);
    *value_p = number > 0;
    return end != text && *end == '\0';
}

static bool parse_number(const char *text, double *value_p)
{
    char *end;

    errno = 0;
    *value_p = strtod(text, &end);
    return end != text && *end == '\0' && errno == 0 && isfinite(*value_p);
}

static bool parse_bytes(const char *text, double *value_p)
{
    static const struct {
        const char *unit;
        double factor;
    } units[] = {{"", 1}, {"b", 1}, {"kb", 1 << 10}, {"mb", 1 << 20}, {"gb", 1 << 30},
                 {"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}};
    char *end;

    errno = 0;
    *value_p = strtod(text, &end);
    if (end == text || errno != 0 || !isfinite(*value_p))
        return false;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcasecmp(end, units[i].unit) == 0) {
            *value_p *= units[i].factor;
            return true;
        }
    return false;
}

static void format_bytes(double value, char *buffer, size_t capacity)
{
    static const char *const units[] = {"", "kb", "mb", "gb"};
    uint64_t n = (uint64_t)value;
    int unit = 0;

    while (unit < 3 && n != 0 && n % 1024 == 0) {
        n /= 1024;
        unit++;
    }
    snprintf(buffer, capacity, "%llu%s", (unsigned long long)n, units[unit]);
}

static enum hvd_status out_of_range(const struct config_row *r, const char *value,
                                    struct hvd_error *err)
{
    char low[32], high[32];

    if (r->type == CONFIG_BYTES) {
        format_bytes(r->low, low, sizeof low);
        format_bytes(r->high, high, sizeof high);
        return error_set(err, HVD_INVALID, -1,
                         PREFIX "%s: '%.64s' is not a size in %s..%s; write it as 64mb",
                         r->name, value, low, high);
    }
    return error_set(err, HVD_INVALID, -1, PREFIX "%s: '%.64s' is not %s in %.12g..%.12g",
                     r->name, value,
                     r->type == CONFIG_INTEGER ? "an integer" : "a number", r->low,
                     r->high);
}

static enum hvd_status set_text(config_text *at, const struct config_row *r,
                                const char *value, struct hvd_error *err)
{
    char *copy;

    if (strlen(value) > (size_t)r->high)
        return error_set(err, HVD_INVALID, -1,
                         PREFIX "%s: longer than %.0f characters", r->name, r->high);
    copy = strdup(value);
    if (copy == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for " PREFIX "%s", r->name);
    free(*at);
    *at = copy;
    return HVD_OK;
}

static enum hvd_status set_number(void *at, const struct config_row *r,
                                  const char *value, struct hvd_error *err)
{
    double number;
    bool ok = r->type == CONFIG_BYTES ? parse_bytes(value, &number)
                                      : parse_number(value, &number);

    if (!ok || number < r->low || number > r->high ||
        (r->type == CONFIG_INTEGER && number != floor(number)))
        return out_of_range(r, value, err);
    if (r->type == CONFIG_INTEGER)
        *(config_integer *)at = (int64_t)number;
    else if (r->type == CONFIG_BYTES)
        *(config_bytes *)at = (uint64_t)number;
    else
        *(config_number *)at = number;
    return HVD_OK;
}

enum hvd_status config_set(struct config *conf, int row, const char *value,
                           enum config_source source, struct hvd_error *err)
{
    const struct config_row *r = &config_rows[row];

    if (r->type == CONFIG_TEXT)
        TRY(set_text(field(conf, row), r, value, err));
    else if (r->type != CONFIG_BOOLEAN)
        TRY(set_number(field(conf, row), r, value, err));
    else if (!parse_boolean(value, field(conf, row)))
        return error_set(err, HVD_INVALID, -1,
                         PREFIX "%s: '%.64s' is not one of 1/0, true/false, yes/no, "
                                "on/off", r->name, value);
    conf->source[row] = (unsigned char)source;
    return HVD_OK;
}

int config_find(const char *name)
{
    for (int i = 0; i < config_row_count; i++)
        if (strcmp(config_rows[i].name, name) == 0)
            return i;
    return -1;
}

bool config_is_identity(const char *variable)
{
    int row = strncmp(variable, "HOROVOD_", 8) == 0 ? config_find(variable + 8) : -1;

    return row >= 0 && (config_rows[row].flags & CONFIG_IDENTITY) != 0;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Names longer than the row buffer count as far away. */
int config_distance(const char *a, const char *b)
{
    int row[65];
    int n = (int)strlen(b);

    if (n > 64)
        return n;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1] != '\0'; i++) {
        int corner = row[0];

        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int keep = row[j];

            row[j] = least(least(row[j] + 1, row[j - 1] + 1),
                           corner + (a[i - 1] != b[j - 1]));
            corner = keep;
        }
    }
    return row[n];
}

static bool is_foreign_name(const char *name)
{
    static const char *const prefixes[] = {"SPARK_", "WITH", "GPU_", "CUDA_", "NCCL_",
                                           "RAY_", "RUN_", "TEST_", "BENCH_"};

    for (size_t i = 0; i < sizeof other_names / sizeof other_names[0]; i++)
        if (strcmp(name, other_names[i]) == 0)
            return true;
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

static void warn_if_unknown(const char *assignment)
{
    char name[64];
    size_t length = strcspn(assignment, "=");
    int best = -1, best_distance = 1000;

    if (length >= sizeof name)
        return;
    memcpy(name, assignment, length);
    name[length] = '\0';
    if (config_find(name) >= 0 || is_foreign_name(name))
        return;
    for (int i = 0; i < config_row_count; i++) {
        int d = config_distance(name, config_rows[i].name);

        if (d < best_distance && !(config_rows[i].flags & CONFIG_HIDDEN))
            best = i, best_distance = d;
    }
    log_warn("variable " PREFIX "%s is not known and has no effect; the nearest name is "
             PREFIX "%s", name, config_rows[best].name);
}

static void warn_of_unknown_names(void)
{
    for (char **e = __environ; e != NULL && *e != NULL; e++)
        if (strncmp(*e, PREFIX, strlen(PREFIX)) == 0)
            warn_if_unknown(*e + strlen(PREFIX));
}

enum hvd_status config_read(struct config *conf, struct hvd_error *err)
{
    char name[80];

    memset(conf, 0, sizeof *conf);
    conf->source = calloc((size_t)config_row_count, 1);
    if (conf->source == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the configuration");
    for (int i = 0; i < config_row_count; i++) {
        const char *value;

        TRY(config_set(conf, i, config_rows[i].initial, CONFIG_DEFAULT, err));
        snprintf(name, sizeof name, PREFIX "%s", config_rows[i].name);
        value = secure_getenv(name);
        if (value != NULL && *value != '\0')
            TRY(config_set(conf, i, value, CONFIG_ENVIRONMENT, err));
    }
    if (!log_setup(conf->log_level, conf->log_hide_time))
        log_warn("log level '%.64s' is not understood; known: trace debug info warning "
                 "error fatal", conf->log_level);
    if (conf->rank == 0)
        warn_of_unknown_names();
    return HVD_OK;
}

void config_release(struct config *conf)
{
    for (int i = 0; i < config_row_count; i++) {
        config_text *at = field(conf, i);

        if (config_rows[i].type != CONFIG_TEXT || *at == NULL)
            continue;
        if (config_rows[i].flags & CONFIG_SECRET)
            explicit_bzero(*at, strlen(*at));
        free(*at);
        *at = NULL;
    }
    free(conf->source);
    conf->source = NULL;
}

void config_format(const struct config *conf, int row, char *buffer, size_t capacity)
{
    const struct config_row *r = &config_rows[row];
    const void *at = (const char *)conf + r->offset;

    if (r->flags & CONFIG_SECRET)
        snprintf(buffer, capacity, "(hidden)");
    else if (r->type == CONFIG_TEXT)
        snprintf(buffer, capacity, "%s", *(const config_text *)at);
    else if (r->type == CONFIG_BOOLEAN)
        snprintf(buffer, capacity, "%d", *(const config_boolean *)at);
    else if (r->type == CONFIG_INTEGER)
        snprintf(buffer, capacity, "%lld", (long long)*(const config_integer *)at);
    else if (r->type == CONFIG_BYTES)
        format_bytes((double)*(const config_bytes *)at, buffer, capacity);
    else
        snprintf(buffer, capacity, "%.12g", *(const config_number *)at);
}

const char *config_foreign(const char *variable)
{
    return secure_getenv(variable);
}

char **config_environment(void)
{
    static char *nothing[1];

    return __environ != NULL ? __environ : nothing;
}

void config_wipe_environment(const char *variable)
{
    char *value = secure_getenv(variable);

    if (value == NULL)
        return;
    explicit_bzero(value, strlen(value));
    unsetenv(variable);
}
