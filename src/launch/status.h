/* status.h: horovodrun --status: shows the jobs of this user. */
#ifndef HVD_LAUNCH_STATUS_H
#define HVD_LAUNCH_STATUS_H

#include "launch/settings.h"

/* Returns the exit code: 0, 1 (no such job, or standard output is gone), 2 (usage). */
int status_run(const struct settings *s);

#endif
