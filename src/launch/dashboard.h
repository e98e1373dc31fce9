/*
 * dashboard.h: a page in the browser that shows the jobs of this user: --status as a server on
 * the loopback interface.  It runs in a process of its own, which has no key of any job.
 */
#ifndef HVD_LAUNCH_DASHBOARD_H
#define HVD_LAUNCH_DASHBOARD_H

#include "launch/settings.h"

struct launch;

/* Serves until SIGINT or SIGTERM.  job: NULL or what view_keep takes; port: 0: any free one;
 * token_file: NULL, or a file of this user whose content is accepted as a bearer token;
 * words_fd: -1, or where the launcher will say how the job ended, and that is the end.
 * Returns the exit code. */
int dashboard_run(const char *job, int port, const char *token_file, int words_fd);

/* As a child of this launcher, for its job; it ends with the launcher. */
void dashboard_start(struct launch *job);
/* The job has ended: the page is told how.  Blocks: a moment at most, and not at all without
 * a dashboard. */
void dashboard_end(struct launch *job);

#endif
