/*
 * survey.h: asks all processes of this user behind hatches of one kind how they are, at once,
 * and waits for none of them longer than for the others (a stopped process never answers).
 * Thread: that of the loop.
 */
#ifndef HVD_LAUNCH_SURVEY_H
#define HVD_LAUNCH_SURVEY_H

#include "wire/look_message.h"

#include <sys/types.h>
#include <uv.h>

struct survey;

/* The frames of all whole answers, without their ENDs; valid during the call, after which
 * the survey is gone. */
typedef void (*survey_fn)(void *owner, const char *frames, size_t n);

/* Whether a process is to be asked. */
typedef bool (*survey_wants_fn)(void *owner, pid_t pid);

/* wants: NULL: all of them.  on_done is called from the loop, once,
 * after limit_ms at the latest.  NULL: out of memory. */
struct survey *survey_start(uv_loop_t *loop, const char *kind,
                            const struct look_question *q, unsigned limit_ms,
                            survey_wants_fn wants, survey_fn on_done, void *owner);
/* on_done is not called.  NULL: nothing. */
void survey_cancel(struct survey *s);

#endif
