/*
 * looker.h: takes a view of all jobs of this user that can be seen from here: launchers first,
 * which tell of all hosts, then workers that no launcher has told of.
 * Thread: that of the loop.
 */
#ifndef HVD_LAUNCH_LOOKER_H
#define HVD_LAUNCH_LOOKER_H

#include "launch/survey.h"
#include "launch/view.h"

struct looker;

typedef void (*looker_fn)(void *owner, const struct view *view);

/* job: NULL or what view_keep takes.  NULL: out of memory. */
struct looker *looker_new(uv_loop_t *loop, const char *job, looker_fn on_view, void *owner);
void looker_free(struct looker *l);

/* on_view is called once, with rates since the view before.  While a view is being taken
 * another call has no effect. */
void looker_ask(struct looker *l, const struct look_question *q);

#endif
