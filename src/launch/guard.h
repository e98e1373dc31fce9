/* guard.h: the process above an agent, which cleans up when the agent cannot. */
#ifndef HVD_LAUNCH_GUARD_H
#define HVD_LAUNCH_GUARD_H

/* Remembers where the command line lies; once, in main. */
void guard_keep_arguments(int argc, char **argv);

/* Runs agent_run(in_fd, out_fd, stdin_fd) in a child and watches over it.
 * Blocks: until the agent and everything it has started are gone.  Returns: the exit code
 * of the agent. */
int guard_run(int in_fd, int out_fd, int stdin_fd);

#endif
