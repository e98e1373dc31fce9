/*
 * look_desk.h: where viewers of the same user ask the launcher how its job is.  The launcher
 * asks the agents, over the connections it has, and these their workers: so a viewer here
 * sees all hosts, and no host has a port for it.
 */
#ifndef HVD_LAUNCH_LOOK_DESK_H
#define HVD_LAUNCH_LOOK_DESK_H

#include "launch/launch_int.h"

/* A job that cannot be looked at still runs: a failure is logged. */
void look_desk_open(struct launch *job);
void look_desk_close(struct launch *job);

/* SEEN frame of an agent. */
enum hvd_status look_desk_seen(struct agent_link *link, const char *body, size_t bytes,
                               struct hvd_error *err);

#endif
