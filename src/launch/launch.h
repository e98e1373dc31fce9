/* launch.h: one launch with our own agents, from the first process to the last. */
#ifndef HVD_LAUNCH_LAUNCH_H
#define HVD_LAUNCH_LAUNCH_H

#include "launch/settings.h"

/* Starts the workers and waits for them.  Returns the exit code of horovodrun.
 * Errors before a worker runs are printed. */
int launch_run(const struct settings *settings);

#endif
