/* spawn.h: starts one worker process and ends process trees. */
#ifndef HVD_LAUNCH_SPAWN_H
#define HVD_LAUNCH_SPAWN_H

#include "base/error.h"
#include "horovod/driver.h"

#include <sched.h>
#include <sys/types.h>

/* Descriptors of a worker, beside its stdin, stdout and stderr. */
enum { SPAWN_KEY_FD = 3, SPAWN_PAYLOAD_FD = 4, SPAWN_RESULT_FD = 5 };

struct spawn_request {
    const char *const *args;            /* NULL-terminated */
    char **env;                         /* NULL-terminated; PATH is looked up here */
    int stdin_fd;                       /* -1: /dev/null; the caller closes it */
    int key_fd;                         /* of hvd_key_descriptor; -1: none */
    int payload_fd;                     /* -1: none, and no result; else reopened for
                                         * reading by each worker */
    const cpu_set_t *cpus;              /* NULL: as inherited */
};

struct spawn_process {
    pid_t pid;                          /* leader of its own group */
    int out_fd, err_fd, result_fd;      /* read ends, not blocking; result may be -1 */
};

/* Runs the command.  Blocks: until the kernel has accepted or refused it.
 * Errors: HVD_SYS with *code_p 127 (not found) or 126, as a shell would report it. */
enum hvd_status spawn_worker(const struct spawn_request *req,
                             struct spawn_process *proc_p, int *code_p,
                             struct hvd_error *err);

/* Sends a signal to every descendant of this process, whatever session it is in; returns
 * how many there are.  signal 0 only counts. */
int spawn_signal_descendants(int signal);

/* Sends a signal to those who handle it: `top`, else the nearest of its descendants (what
 * a wrapper has started, but not what that has forked).  Nobody dies of it.  Returns how
 * many got it. */
int spawn_pass_signal(pid_t top, int signal);

bool spawn_is_descendant(pid_t pid);

#endif
