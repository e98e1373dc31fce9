/*
 * settings.h: what a launch is asked to do, merged from the command line, the config file
 * and the environment (in this order of priority).
 */
#ifndef HVD_LAUNCH_SETTINGS_H
#define HVD_LAUNCH_SETTINGS_H

#include "launch/env.h"
#include "launch/hosts.h"
#include "launch/options.h"

enum controller { CONTROLLER_NATIVE, CONTROLLER_MPI, CONTROLLER_JSRUN };

/* --rendezvous: this launcher starts the ranks of one node only. */
struct node_settings {
    int count;                          /* of nodes; 0: not this way of launching */
    int rank;                           /* of this node; it is the index of its host */
    char host[HVD_HOST_MAX];            /* of the rendezvous */
    int port;
    uint8_t *key;                       /* HVD_KEY_BYTES of secret memory; NULL: none */
};

/* --join: this machine becomes a part of somebody's elastic job. */
struct join_settings {
    char host[HVD_HOST_MAX];            /* where its launcher is; "": not asked for */
    int port;
    int slots;                          /* that this machine brings */
};

struct settings {
    struct options options;             /* the words this was made of */
    int np;
    struct host_list hosts;
    const char *const *command;         /* NULL-terminated */
    enum controller controller;
    bool verbose, timestamps, no_bind, skip_host_keys, is_elastic;
    struct node_settings node;
    struct join_settings join;
    int join_port;                      /* 0: any, and only where the job is reached anyway */
    const char *key_file;               /* NULL: none given */
    const char *output_dir;             /* NULL: none */
    const char *discovery;              /* command that prints the hosts; NULL: `hosts` */
    double discovery_s;                 /* between two runs of it */
    int slots_per_host;                 /* of hosts without a number; 0: not given */
    int min_np, max_np;                 /* elastic; max_np 0: no limit */
    int reset_limit;                    /* -1: none */
    int restarts_per_slot;
    int elastic_timeout_s;
    int cooldown_lo_s, cooldown_hi_s;   /* 0: none */
    int start_timeout_s;
    double timeout_s;                   /* rendezvous, from the first hello to the last */
    double heartbeat_s;
    int grace_ms;                       /* SIGTERM to SIGKILL */
    int leave_ms;                       /* elastic: from a host's notice to its end */
    int ssh_port;                       /* 0: ssh's own */
    const char *ssh_identity;           /* NULL: ssh's own */
    const char *remote_shell;           /* kubexec.sh, NULL: ssh */
    char **nics;                        /* NULL-terminated, in the user's order */
    int nic_count;
    struct env base;                    /* the launcher's environment, less secrets */
    struct env knobs;                   /* variables behind options and config file */
    struct env assigned;                /* NAME=VALUE words of the command, --env */
    const char *const *forward;         /* --env NAME: host-bound names to send anyway */
    int forward_count;
    char **file_values;                 /* texts of the config file that are in use */
    int file_value_count;
    int payload_fd, result_fd;          /* of horovod.run; -1: none */
};

/* Errors: HVD_INVALID with a text for the user; *usage_p: it is a usage error. */
enum hvd_status settings_read(int argc, char **argv, struct settings *s, bool *usage_p,
                              struct hvd_error *err);
void settings_release(struct settings *s);

#endif
