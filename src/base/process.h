/* process.h: a process by a name that no other process ever has on this machine, so that one
 * can be told of by its environment and be watched; signals by their names, and descriptors.
 * The last two exist in libc, too, but not in those that our wheel still runs on. */
#ifndef HVD_BASE_PROCESS_H
#define HVD_BASE_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

#define PROCESS_NAME 40                 /* "<pid>:<start in clock ticks since boot>" */

/* False: there is none. */
bool process_name(pid_t pid, char name[PROCESS_NAME]);

/* A pidfd, readable from its end on; -1: it is gone, its numbers are those of another
 * namespace, or the kernel has no pidfds.  The caller closes it. */
int process_open(const char *name);

/* "KILL"; NULL: a signal without a name of its own. */
const char *signal_name(int number);

/* Closes every descriptor from `first` on.  Safe after fork. */
void close_from(int first);

#endif
