/* discovery.h: the hosts of an elastic job, as the user's script tells them now and then. */
#ifndef HVD_LAUNCH_DISCOVERY_H
#define HVD_LAUNCH_DISCOVERY_H

#include "launch/hosts.h"

#include <sys/types.h>
#include <uv.h>

struct discovery;

struct discovery_options {
    const char *command;                /* for the shell */
    double interval_s;                  /* from the end of a run to the next */
    int slots_per_host;                 /* of names without a number; 0: they are refused */
    void (*on_hosts)(void *owner, const struct host_list *hosts);
    void (*on_failed)(void *owner, const char *why);
    void (*on_warning)(void *owner, const char *text);
    void *owner;
};

/* Starts the first run.  Owns: the caller, discovery_free; opt is copied, its texts stay. */
enum hvd_status discovery_new(uv_loop_t *loop, const struct discovery_options *opt,
                              struct discovery **discovery_p, struct hvd_error *err);
void discovery_free(struct discovery *d);
/* True: pid was a run. */
bool discovery_reaped(struct discovery *d, pid_t pid, int status);


#endif
