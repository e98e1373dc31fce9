/*
 * mesh_harness.h: N ranks that form a real mesh, without a rendezvous server: as threads
 * of the test, or as processes of their own.
 *
 *   static void body(struct harness_rank *r) { ... mesh_send(r->mesh, ...) ... }
 *   harness_run(&(struct harness){.size = 4, .hosts = 2}, body);
 *
 * Ranks of different hosts (host = rank % hosts, by forced host names) talk TCP.
 */
#ifndef TESTS_MESH_HARNESS_H
#define TESTS_MESH_HARNESS_H

#include "transport/transport.h"

#include <pthread.h>

#define HARNESS_RANKS 64

struct harness_rank;

struct harness {
    int size;
    int hosts;                          /* 0: one */
    const int *host_of;                 /* by rank, instead of rank % hosts */
    bool shm_disable;
    bool processes;                     /* instead of threads */
    bool connect;                       /* data links to all, before the body */
    bool no_goodbye;                    /* close without one */
    const char *security;               /* NULL: auth */
    double heartbeat_s;                 /* 0: default */
    double timeout_s;                   /* of forming; 0: 50 */
    size_t board_bytes;                 /* 0: 1 MiB */
    const char *fault;                  /* of all ranks; the spec may name one */
    bool may_fail;                      /* forming: the body looks at r->opened */
    void (*prepare)(struct harness_rank *r);    /* before the listeners are opened */
    void *context;
};

struct harness_shared;

struct harness_rank {
    int rank, size;
    const struct harness *harness;
    struct mesh *mesh;
    struct config conf;
    uint8_t key[32];                    /* equal on all ranks; prepare may change it */
    enum hvd_status opened;             /* HVD_OK, or why there is no mesh */
    struct hvd_error err;
    struct harness_shared *shared;
    void *context;
};

typedef void (*harness_fn)(struct harness_rank *r);

/* Runs body on all ranks and returns when all are done.  A rank that fails ends the test.
 * With processes: exit statuses by rank (as of waitpid), if statuses is given; else a
 * rank that fails ends the test. */
void harness_run(const struct harness *h, harness_fn body);
void harness_run_processes(const struct harness *h, harness_fn body, int *statuses);

/* All ranks of the run, thread or process. */
void harness_barrier(struct harness_rank *r);
/* What rank tells the others about itself; known after all have listened. */
const struct table_entry *harness_entry(struct harness_rank *r, int rank);
/* A word that all ranks share, also between processes. */
_Atomic uint64_t *harness_word(struct harness_rank *r, int index);   /* 0 .. 63 */
/* The pid of each rank, known after forming. */
pid_t harness_pid(struct harness_rank *r, int rank);

/* Progress, asleep in between, until x is done or the mesh has failed. */
enum hvd_status harness_wait(struct mesh *m, struct mesh_xfer *x);
/* Progress until *done or a verdict. */
void harness_wait_flag(struct mesh *m, const volatile bool *done);
/* Until there is a verdict; the time it took, in us. */
uint64_t harness_wait_verdict(struct mesh *m);

#endif
