/* agent_look.h: the agent of a host collects what its workers tell of themselves. */
#ifndef HVD_LAUNCH_AGENT_LOOK_H
#define HVD_LAUNCH_AGENT_LOOK_H

#include "launch/agent_int.h"

/* LOOK frame: the answer, SEEN, goes to the launcher when it is complete.  A question that
 * comes before the last one is answered takes its place. */
enum hvd_status agent_look_take(struct agent *agent, const char *body, size_t bytes,
                                struct hvd_error *err);
void agent_look_stop(struct agent *agent);

#endif
