/*
 * driver.h: the job side of libhvd, for horovodrun, horovod.run and Ray.
 *
 * A job has an id, a 32-byte key and generations.  The rendezvous server collects the
 * hello of every worker of a generation and pushes the complete table to all of them
 * when the last one has come.
 */
#ifndef HOROVOD_DRIVER_H
#define HOROVOD_DRIVER_H

#include "horovod/horovod.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define HVD_KEY_BYTES 32
#define HVD_HOST_MAX 254
#define HVD_ADDR_MAX 64                 /* text of one numeric address */

/* Fills key with random bytes from the kernel. */
enum hvd_status hvd_key_generate(uint8_t key[HVD_KEY_BYTES], struct hvd_error *err);

/* A descriptor that holds the key, for a process that gets it as HOROVOD_KEY_FD: a sealed
 * memfd, close-on-exec.  Owns: the caller.  Errors: HVD_SYS. */
enum hvd_status hvd_key_descriptor(const uint8_t key[HVD_KEY_BYTES], int *fd_p,
                                   struct hvd_error *err);

/* The key of every later hvd_init of this process that finds no HOROVOD_KEY_FD, _FILE or
 * HOROVOD_KEY; kept like one that came through those.  Thread: any.  Errors: HVD_SYS. */
enum hvd_status hvd_key_set(const uint8_t key[HVD_KEY_BYTES], struct hvd_error *err);

/*
 * The key of a job whose launcher hands over none: derived from the job's name, the same on
 * all its ranks, and the user's own key, ~/.horovod/key, which is made if there is none.
 * one_host: all ranks are on this host, so that TMPDIR/horovod-UID serves where the home
 * cannot.  Owns: the caller; key should be secret memory.  Thread: any.
 * Errors: HVD_INVALID (others can read or write it), HVD_SYS (no home, not writable); the
 * text says what to type.
 */
enum hvd_status hvd_key_of_user(const char *job, bool one_host, uint8_t key[HVD_KEY_BYTES],
                                struct hvd_error *err);

/* The same from a key that somebody else has handed over: a copy of ~/.horovod/key. */
enum hvd_status hvd_key_derive(const uint8_t own[HVD_KEY_BYTES], const char *job,
                               uint8_t key[HVD_KEY_BYTES], struct hvd_error *err);

struct hvd_server;

struct hvd_server_options {
    uint32_t size;                      /* sizeof(struct hvd_server_options) */
    const uint8_t *key;                 /* HVD_KEY_BYTES */
    const char *job_id;                 /* "" allowed */
    const char *const *listen_addrs;    /* numeric; NULL: 127.0.0.1 only */
    int listen_addr_count;
    uint16_t port;                      /* 0: any */
    int worker_count;                   /* size of the first generation */
    double timeout_s;                   /* from the first hello until the last; 0: the
                                         * workers' own limits only */
    uint32_t generation;                /* number of the first generation */
    /* A worker of the present generation has reported a failure, or its connection has ended
     * and what it had to report has been read.  NULL: none.  Called with the server locked:
     * it must not call the server. */
    void (*heard)(void *context);
    void *context;
};

/* Starts the server in a thread of its own.  Owns: the caller, hvd_server_free; nothing of
 * opt is kept.  Errors: HVD_INVALID, HVD_SYS (a port in use is named with its owner). */
enum hvd_status hvd_server_new(const struct hvd_server_options *opt,
                               struct hvd_server **server_p, struct hvd_error *err);
void hvd_server_free(struct hvd_server *server);

uint16_t hvd_server_port(const struct hvd_server *server);

/* A new generation of worker_count workers, numbered one higher; table entries of older
 * ones are refused, and workers that wait in an older one are told.  A worker_count that is
 * impossible (below 1), or no memory, is an abort. */
void hvd_server_next_generation(struct hvd_server *server, int worker_count);

/* What the server knows: one line per rank, for status lines and for the names of those
 * who are missing:
 *   rank 3 host node1 pid 4242 waiting since 0.8 s      waiting | running | gone | missing
 *   rank 4 missing                                      it has never come
 * Returns the length of the whole text; the buffer gets what fits, and always a 0. */
size_t hvd_server_status(struct hvd_server *server, char *buffer, size_t capacity);

/* Why the job has failed, as the first worker of this generation tells it: report->rank is
 * the one at fault or -1.  HVD_SHUTDOWN: all that is told is that this rank has left in
 * order, and others needed it.  A worker tells it before its own operations fail; all that
 * it has told is known when hvd_server_hears it no more.  False: none has told anything. */
bool hvd_server_report(struct hvd_server *server, struct hvd_error *report);
/* Whether this rank of the present generation is connected, so may have more to tell. */
bool hvd_server_hears(struct hvd_server *server, int rank);

/* Tells all connected workers, and those who still come in this generation, that the job is
 * over because of `why`; rank is the one at fault or -1. */
void hvd_server_abort(struct hvd_server *server, int rank, const char *why);

/* ---- Elastic jobs ------------------------------------------------------------------ */

/*
 * The driver of an elastic job: it decides who belongs to the job and gives ranks, and its
 * owner (horovodrun, Ray, Spark) says which hosts there are and starts and ends processes.
 *
 *   owner                                       driver
 *   hvd_driver_hosts: what discovery found  ->
 *                                           <-  START worker 7 on node1, slot 0
 *   starts a process with the variables that hvd_driver_environment gives, and the key
 *   hvd_driver_worker_ended(7, code ...)    ->
 *                                           <-  STOP worker 9; SAY a line; END
 *
 * Everything else goes over the connection that each worker opens to the driver in
 * hvd_init.  Thread: any; one thread takes the actions.  docs/design/004-elastic.md.
 */
struct hvd_driver;

struct hvd_driver_options {
    uint32_t size;                      /* sizeof(struct hvd_driver_options) */
    const uint8_t *key;                 /* HVD_KEY_BYTES */
    const char *job_id;                 /* "" allowed */
    const char *const *listen_addrs;    /* numeric; NULL: 127.0.0.1 only */
    int listen_addr_count;
    uint16_t port;                      /* 0: any */
    int np;                             /* slots needed before the job starts */
    int min_np;                         /* fewest workers; 0: np */
    int max_np;                         /* most workers; 0: no limit */
    int reset_limit;                    /* changes of membership; -1: no limit */
    int restarts_per_slot;              /* of a failed worker, before its host is given up */
    double elastic_timeout_s;           /* too few slots, or late members; 0: 600 */
    double cooldown_lo_s, cooldown_hi_s;        /* of a failed host; 0: for ever */
    double grace_s;                     /* from STOP to force; < 0: 5 */
    double heartbeat_s;                 /* a worker silent for so long is lost; 0: 10 */
    double gone_s;                      /* so long after its connection a worker's end must
                                         * be known, or it counts as failed; 0: 1 */
    const uint8_t *join_key;            /* HVD_KEY_BYTES: who proves it may bring a machine
                                         * (hvd_join); NULL: nobody */
};

/* Starts listening, in a thread of its own.  Owns: the caller, hvd_driver_free; nothing of
 * opt is kept.  Errors: HVD_INVALID, HVD_SYS. */
enum hvd_status hvd_driver_new(const struct hvd_driver_options *opt,
                               struct hvd_driver **driver_p, struct hvd_error *err);
/* Workers that are still connected lose their driver; they are not ended by this. */
void hvd_driver_free(struct hvd_driver *driver);

uint16_t hvd_driver_port(const struct hvd_driver *driver);

struct hvd_host {
    char name[HVD_HOST_MAX];
    int slots;
};

/* All hosts that can be used now, in the order of preference.  Copied.  Places of one machine
 * that come and go one by one (tasks of Spark, say) are hosts of their own, named "node1#7",
 * "node1#8": their workers are local to each other, and each one fails for itself. */
void hvd_driver_hosts(struct hvd_driver *driver, const struct hvd_host *hosts, int count);
/* Discovery did not work; before it ever has, that is the end of the job. */
void hvd_driver_discovery_failed(struct hvd_driver *driver, const char *why);
/* The process of this worker has ended: exit code, or 128 + signal; `text` says why, if the
 * code does not ("" or NULL). */
void hvd_driver_worker_ended(struct hvd_driver *driver, int worker, int code, int signal,
                             const char *text);
/* This host is about to go: its workers leave at their next commit. */
void hvd_driver_host_notice(struct hvd_driver *driver, const char *host);
/* The same for one worker. */
void hvd_driver_worker_notice(struct hvd_driver *driver, int worker);
/* The owner itself is about to go: all workers leave at their next commit, then the job ends
 * (END).  How long that may take is the owner's to decide. */
void hvd_driver_leave(struct hvd_driver *driver);
/* Tells all workers that the job is over because of `why`. */
void hvd_driver_abort(struct hvd_driver *driver, const char *why);

enum hvd_driver_kind {
    HVD_DRIVER_START,                   /* start a process: worker, host, slot, numbers */
    HVD_DRIVER_STOP,                    /* end it: SIGTERM, SIGKILL after grace_s */
    HVD_DRIVER_RANK,                    /* worker has this rank from now on (-1: none) */
    HVD_DRIVER_SAY,                     /* a line for the user: text */
    HVD_DRIVER_END,                     /* the job is over: ok, text, worker at fault */
    HVD_DRIVER_JOIN,                    /* a machine has come: host, its slots in `slot`, and
                                         * `fd`, the owner's: what its agent says.  It is used
                                         * when hvd_driver_hosts names it */
};

struct hvd_driver_action {
    uint32_t size;                      /* sizeof(struct hvd_driver_action) */
    enum hvd_driver_kind kind;
    int worker;                         /* from 1 on, never given twice; END: 0: none */
    char host[HVD_HOST_MAX];
    int slot;                           /* of that host, from 0 on */
    /* START: what HOROVOD_RANK and so on say, a first guess; RANK: what is true. */
    int rank, job_size, local_rank, local_size, cross_rank, cross_size;
    double grace_s;
    bool ok;
    char text[HVD_ERROR_TEXT];
    int fd;                             /* of JOIN */
};

/* The next thing to do.  HVD_AGAIN: nothing now.  After END there is nothing more. */
enum hvd_status hvd_driver_next(struct hvd_driver *driver,
                                struct hvd_driver_action *action);
/* Readable when there may be an action; for poll, never to be read from. */
int hvd_driver_fd(const struct hvd_driver *driver);

/* The variables that the process of a START needs beside the key, as "NAME=VALUE" lines;
 * addrs: where it reaches the driver, separated by commas.  As snprintf. */
size_t hvd_driver_environment(const struct hvd_driver *driver,
                              const struct hvd_driver_action *start, const char *addrs,
                              char *buffer, size_t capacity);

/* A line per worker: number, host and slot, state.  As hvd_server_status. */
size_t hvd_driver_status(struct hvd_driver *driver, char *buffer, size_t capacity);

struct hvd_join_options {
    uint32_t size;                      /* sizeof(struct hvd_join_options) */
    const char *addrs;                  /* of the driver, separated by commas */
    uint16_t port;
    const uint8_t *key;                 /* HVD_KEY_BYTES, the driver's join_key */
    const char *host;                   /* name of this machine */
    int slots;                          /* that it brings */
    double timeout_s;                   /* to reach the driver; 0: 30 */
};

/* Joins a running elastic job and carries bytes between fd, which is borrowed, and the owner
 * of its driver.  Blocks: until fd is at its end (HVD_OK), or the driver has gone.
 * Errors: HVD_INVALID, HVD_AUTH, HVD_TIMEOUT, HVD_VERSION, HVD_PEER_LOST, HVD_SYS. */
enum hvd_status hvd_join(const struct hvd_join_options *opt, int fd, struct hvd_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
