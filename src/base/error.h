/*
 * error.h: how a failure travels.  The function that recognises it describes it once with
 * error_set; everybody else passes it on with TRY; one place turns it into a completion.
 */
#ifndef HVD_BASE_ERROR_H
#define HVD_BASE_ERROR_H

#include "horovod/horovod.h"

#include <stdarg.h>

/* Describes a failure and returns its status.  rank is the rank at fault or -1.  err may
 * be NULL.  Control bytes in the text become '?', so that it is safe in a terminal. */
enum hvd_status error_set(struct hvd_error *err, enum hvd_status status, int rank,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));

/* As error_set with HVD_SYS, and appends the text of errno. */
enum hvd_status error_sys(struct hvd_error *err, int rank, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the text of an error that is already described. */
void error_prefix(struct hvd_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Impossible state: prints where and why, and aborts, in release builds as well. */
_Noreturn void bug_at(const char *file, int line, const char *condition);

#define BUG_ON(condition)                                                              \
    do {                                                                               \
        if (__builtin_expect(!!(condition), 0))                                        \
            bug_at(__FILE__, __LINE__, #condition);                                    \
    } while (0)

/* Hands any status other than HVD_OK to the caller, HVD_AGAIN included. */
#define TRY(call)                                                                      \
    do {                                                                               \
        enum hvd_status try_status_ = (call);                                          \
        if (try_status_ != HVD_OK)                                                     \
            return try_status_;                                                        \
    } while (0)

/* As TRY for functions that clean up at `out:` and keep their result in `status`. */
#define TRY_OUT(call)                                                                  \
    do {                                                                               \
        status = (call);                                                               \
        if (status != HVD_OK)                                                          \
            goto out;                                                                  \
    } while (0)

#endif
