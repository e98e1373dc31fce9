/*
 * log.h: log lines by component.  A component is a folder of src/; a source file names its
 * own before the first use: `#define LOG_COMPONENT "transport"`.
 *
 * HOROVOD_LOG_LEVEL is a level (trace debug info warning error fatal, any case) or a list
 * such as "info,transport=debug".  Lines go to stderr, one write each:
 *   [2026-11-15 18:01:05.000123: W mesh.c:88] [3]: text
 */
#ifndef HVD_BASE_LOG_H
#define HVD_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_TRACE, LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_FATAL };

/* Whether log_setup would take the text: levels in any case, "level" or "component=level",
 * separated by commas. */
bool log_understands(const char *levels);

/* Sets levels and form.  levels may be NULL (warning).  False: not understood, and the
 * part that was not is ignored. */
bool log_setup(const char *levels, bool hide_time);
void log_set_rank(int rank);            /* shown in every line; -1: none */

bool log_is_on(enum log_level level, const char *component);
void log_line(enum log_level level, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define log_at(level, ...)                                                             \
    do {                                                                               \
        if (log_is_on(level, LOG_COMPONENT))                                           \
            log_line(level, __FILE__, __LINE__, __VA_ARGS__);                          \
    } while (0)
#define log_trace(...) log_at(LOG_TRACE, __VA_ARGS__)
#define log_debug(...) log_at(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_at(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_at(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_at(LOG_ERROR, __VA_ARGS__)

#endif
