/*
 * job_harness.h: jobs of real processes for C tests.  The parent runs the rendezvous
 * server; each rank is a child that calls `body`, in which it calls hvd_init itself.
 */
#ifndef TESTS_JOB_HARNESS_H
#define TESTS_JOB_HARNESS_H

#include "horovod/horovod.h"

#include <sys/types.h>

#define JOB_RANKS_MAX 256

struct job_options {
    int size;
    int hosts;                          /* ranks are spread over so many host names, 0: 1 */
    const char *const *env;             /* "NAME=value", NULL at the end; may be NULL */
    int limit_s;                        /* 0: 50 */
};

typedef void (*job_body_fn)(int rank, int size, void *context);

/* Starts the ranks and waits until all have ended; fails the test if one did not end with
 * exit code 0. */
void job_run(const struct job_options *opt, job_body_fn body, void *context);

/* The same in pieces, for tests that kill ranks. */
struct job {
    int size;
    pid_t pids[JOB_RANKS_MAX];
    struct hvd_server *server;
    char dir[32];                       /* of the job, removed with its files by job_end;
                                         * flight recorders go there */
};
void job_start(struct job *job, const struct job_options *opt, job_body_fn body,
               void *context);
/* Exit code of the rank, or minus the signal that ended it. */
int job_wait(struct job *job, int rank);
void job_end(struct job *job);

/* Inside a rank: hvd_init or fail; allreduce sum of one double by name. */
void job_init(void);
double job_sum(const char *name, double value);

#endif
