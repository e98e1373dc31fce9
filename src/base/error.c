/* error.c: status names and the text of a failure; both come from HVD_STATUS_MAP. */
#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *text;
    enum hvd_scope scope;
} statuses[] = {
#define ROW(n, s, t) {#n, t, HVD_SCOPE_##s},
    HVD_STATUS_MAP(ROW)
#undef ROW
};

static bool is_known(enum hvd_status status)
{
    return (unsigned)status < HVD_STATUS_COUNT;
}

const char *hvd_status_name(enum hvd_status status)
{
    return is_known(status) ? statuses[status].name : "UNKNOWN";
}

const char *hvd_status_text(enum hvd_status status)
{
    return is_known(status) ? statuses[status].text : "unknown status";
}

enum hvd_scope hvd_status_scope(enum hvd_status status)
{
    return is_known(status) ? statuses[status].scope : HVD_SCOPE_PROCESS;
}

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
#define ROW(n, b, t) {t, b},
    HVD_DTYPE_MAP(ROW)
#undef ROW
};

size_t hvd_dtype_bytes(enum hvd_dtype dtype)
{
    return (unsigned)dtype < HVD_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

const char *hvd_op_name(enum hvd_op op)
{
    static const char *const names[] = {
#define OP_TEXT(name, text) text,
        HVD_OP_MAP(OP_TEXT)
#undef OP_TEXT
    };

    return (unsigned)op < HVD_OP_COUNT ? names[op] : "-";
}

const char *hvd_dtype_name(enum hvd_dtype dtype)
{
    return (unsigned)dtype < HVD_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}

const char *hvd_version(void)
{
    return VERSION_TEXT;
}

/* The entry of the page that explains it; 0: there is none, or the text names one already, as
 * that of another rank's error does. */
static int code_of(const char *text)
{
    static const struct {
        int code;
        const char *piece;
    } rows[] = {
#define ADVICE(number, piece) {number, piece},
#include "base/advice.def"
#undef ADVICE
    };

    if (strstr(text, "[HVD-") != NULL)
        return 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strstr(text, rows[i].piece) != NULL)
            return rows[i].code;
    return 0;
}

size_t hvd_error_show(const char *text, char *buffer, size_t capacity)
{
    int code = code_of(text);

    return (size_t)(code == 0 ? snprintf(buffer, capacity, "%s", text)
                              : snprintf(buffer, capacity,
                                         "%s [HVD-%d, docs/troubleshooting.md]", text, code));
}

static void make_printable(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

enum hvd_status error_set(struct hvd_error *err, enum hvd_status status, int rank,
                          const char *format, ...)
{
    va_list args;

    if (err == NULL)
        return status;
    err->status = status;
    err->rank = rank;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    make_printable(err->text);
    return status;
}

enum hvd_status error_sys(struct hvd_error *err, int rank, const char *format, ...)
{
    char what[HVD_ERROR_TEXT / 2];
    char reason[128];
    int code = errno;
    va_list args;

    if (err == NULL)
        return HVD_SYS;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return error_set(err, HVD_SYS, rank, "%s: %s", what,
                     strerror_r(code, reason, sizeof reason));
}

void error_prefix(struct hvd_error *err, const char *format, ...)
{
    char what[HVD_ERROR_TEXT];
    va_list args;
    size_t used;

    if (err == NULL)
        return;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    used = strlen(what);
    if (used + 3 < sizeof what)
        snprintf(what + used, sizeof what - used, ": %.*s",
                 (int)(sizeof what - used - 3), err->text);
    memcpy(err->text, what, sizeof what);
    make_printable(err->text);
}

void bug_at(const char *file, int line, const char *condition)
{
    fprintf(stderr, "horovod: bug at %s:%d: %s\n", file, line, condition);
    abort();
}
