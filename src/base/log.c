/* log.c: levels per component and the one place that writes log lines. */
#include "base/log.h"

#include "base/warnings.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define COMPONENTS_MAX 16

static const char *const level_names[] = {"trace", "debug", "info",
                                          "warning", "error", "fatal"};
static const char letters[] = "TDIWEF";

/* Written by log_setup only, which runs before the threads of a job start. */
static atomic_int default_level = LOG_WARN;
static struct {
    char name[16];
    int level;
} components[COMPONENTS_MAX];
static atomic_int component_count;
static atomic_bool time_hidden;
static atomic_int shown_rank = -1;

static int level_from(const char *text, size_t length)
{
    for (int i = LOG_TRACE; i <= LOG_FATAL; i++)
        if (strlen(level_names[i]) == length &&
            strncasecmp(level_names[i], text, length) == 0)
            return i;
    if (length == 4 && strncasecmp(text, "warn", 4) == 0)
        return LOG_WARN;
    return -1;
}

static bool is_understood(const char *word, size_t length)
{
    const char *equals = memchr(word, '=', length);
    size_t name = equals == NULL ? 0 : (size_t)(equals - word) + 1;

    return name != 1 && name <= sizeof components[0].name &&
           level_from(word + name, length - name) >= 0;
}

bool log_understands(const char *levels)
{
    for (size_t length; *levels != '\0'; levels += length + (levels[length] == ',')) {
        length = strcspn(levels, ",");
        if (!is_understood(levels, length))
            return false;
    }
    return true;
}

static bool set_component(const char *name, size_t length, int level)
{
    int n = atomic_load(&component_count);

    if (level < 0 || n == COMPONENTS_MAX || length >= sizeof components[0].name)
        return false;
    memcpy(components[n].name, name, length);
    components[n].name[length] = '\0';
    components[n].level = level;
    atomic_store(&component_count, n + 1);
    return true;
}

static bool set_one(const char *word, size_t length)
{
    const char *equals = memchr(word, '=', length);
    int level;

    if (equals != NULL)
        return set_component(word, (size_t)(equals - word),
                             level_from(equals + 1,
                                        length - (size_t)(equals - word) - 1));
    level = level_from(word, length);
    if (level >= 0)
        atomic_store(&default_level, level);
    return level >= 0;
}

bool log_setup(const char *levels, bool hide_time)
{
    bool understood = true;

    atomic_store(&time_hidden, hide_time);
    atomic_store(&default_level, LOG_WARN);
    atomic_store(&component_count, 0);
    while (levels != NULL && *levels != '\0') {
        size_t length = strcspn(levels, ",");

        understood &= length == 0 || set_one(levels, length);
        levels += length + (levels[length] == ',');
    }
    return understood;
}

void log_set_rank(int rank)
{
    atomic_store(&shown_rank, rank);
}

bool log_is_on(enum log_level level, const char *component)
{
    int n = atomic_load_explicit(&component_count, memory_order_relaxed);

    for (int i = 0; i < n; i++)
        if (strcmp(components[i].name, component) == 0)
            return (int)level >= components[i].level;
    return (int)level >= atomic_load_explicit(&default_level, memory_order_relaxed);
}

static size_t put_time(char *at, size_t left)
{
    struct timespec now;
    struct tm parts;
    size_t used;

    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &parts);
    used = strftime(at, left, "%Y-%m-%d %H:%M:%S", &parts);
    return used + (size_t)snprintf(at + used, left - used, ".%06ld: ",
                                   now.tv_nsec / 1000);
}

/* Text that does not fit is rare (a stall report over many ranks) and worth a malloc. */
static char *format_long(const char *head, size_t head_bytes, const char *format,
                         va_list args, size_t need)
{
    char *text = malloc(head_bytes + need + 2);

    if (text == NULL)
        return NULL;
    memcpy(text, head, head_bytes);
    vsnprintf(text + head_bytes, need + 1, format, args);
    return text;
}

void log_line(enum log_level level, const char *file, int line, const char *format, ...)
{
    char text[2048], *whole = text, *longer;
    const char *slash = strrchr(file, '/');
    int rank = atomic_load(&shown_rank);
    size_t used = 1, head;
    va_list args, again;
    int need;

    text[0] = '[';
    if (!atomic_load(&time_hidden))
        used += put_time(text + used, 64);
    used += (size_t)snprintf(text + used, 96, "%c %.60s:%d] ", letters[level],
                             slash != NULL ? slash + 1 : file, line);
    if (rank >= 0)
        used += (size_t)snprintf(text + used, 32, "[%d]: ", rank);
    head = used;
    va_start(args, format);
    va_copy(again, args);
    need = vsnprintf(text + used, sizeof text - used - 1, format, args);
    va_end(args);
    if (need > (int)(sizeof text - used - 2)) {
        longer = format_long(text, used, format, again, (size_t)need);
        whole = longer != NULL ? longer : text;
    }
    va_end(again);
    if (level >= LOG_WARN)
        warnings_note(level, whole + head);
    used = strlen(whole);
    whole[used++] = '\n';
    /* A lost log line must not end the job. */
    if (write(STDERR_FILENO, whole, used) < 0)
        used = 0;
    if (whole != text)
        free(whole);
}
