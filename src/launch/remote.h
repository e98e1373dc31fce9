/* remote.h: the process that carries the connection to the agent of another host. */
#ifndef HVD_LAUNCH_REMOTE_H
#define HVD_LAUNCH_REMOTE_H

#include "base/strbuf.h"
#include "launch/settings.h"

#include <sys/types.h>

#define REMOTE_ARGS_MAX 24

struct remote_process {
    pid_t pid;
    int in_fd, out_fd, err_fd;          /* its stdout, stdin, stderr */
};

/* The words of the command line for a host; texts live as long as `store`. */
void remote_args(const struct settings *s, const char *host, struct strbuf *store,
                 const char *args[REMOTE_ARGS_MAX]);
/* The same for another call of horovodrun there; words: of plain letters, nothing that a shell
 * reads as anything else. */
void remote_command_args(const struct settings *s, const char *host, const char *words,
                         struct strbuf *store, const char *args[REMOTE_ARGS_MAX]);
enum hvd_status remote_spawn(const char *const *args, struct remote_process *proc_p,
                             struct hvd_error *err);

#endif
