/* agent.h: the process that owns the workers of one host. */
#ifndef HVD_LAUNCH_AGENT_H
#define HVD_LAUNCH_AGENT_H

/* Serves the launcher at the other end of the descriptors until it has gone or says
 * STOP; then nothing this process has started is left.  stdin_fd is what the worker with
 * `input` reads, -1: what INPUT frames bring.  Returns the exit code. */
int agent_run(int in_fd, int out_fd, int stdin_fd);

#endif
