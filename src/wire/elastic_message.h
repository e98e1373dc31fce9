/*
 * elastic_message.h: what a worker of an elastic job and its driver say to each other once
 * both have proved the job key, over one connection that lives as long as the worker.  In
 * frames of rdv_message.h; byte formats at the top of elastic_message.c.
 *
 *   worker                          driver
 *   READY                   ->              I want an assignment
 *                           <-      ASSIGN  a generation: table, own rank, sync or not
 *                           <-      RETIRE  not needed any more: leave with code 0
 *   PROGRESS                ->              the generation was formed, has committed
 *   NOTICE                  ->              this process was told to leave
 *                           <-      UPDATE  the membership is about to change
 *                           <-      PING
 *   PONG                    ->
 *                           <-      VERDICT the job is over
 *
 * A machine that joins (purpose HS_JOIN, under the join key):
 *   JOIN                    ->              its name and slots
 *   BYTES                   <>      BYTES   what its agent and the launcher say
 */
#ifndef HVD_WIRE_ELASTIC_MESSAGE_H
#define HVD_WIRE_ELASTIC_MESSAGE_H

#include "wire/rdv_message.h"

#define ELASTIC_READY_FIXED 24
#define ELASTIC_READY_MAX (ELASTIC_READY_FIXED + TABLE_ENTRY_MAX)
#define ELASTIC_PAIR 8                  /* bytes of PROGRESS and UPDATE */
#define ELASTIC_RETIRE_MAX 512
#define ELASTIC_JOIN_FIXED 4
#define ELASTIC_HOST_MAX 254            /* HVD_HOST_MAX of driver.h */
#define ELASTIC_JOIN_MAX (ELASTIC_JOIN_FIXED + ELASTIC_HOST_MAX)
#define ELASTIC_BYTES_MAX 32768         /* of one BYTES */
#define ELASTIC_JOIN_SLOTS 4096
#define ELASTIC_JOIN_ID "join"          /* job id of HS_JOIN: the joiner knows no other */

struct elastic_ready {
    uint32_t generation;                /* it was in; 0: none yet */
    uint64_t commits;                   /* of its state */
    int32_t lost_rank;                  /* of that generation, as its verdict says; -1 */
    enum hvd_status status;             /* why that generation ended for it; HVD_OK: no
                                         * failure */
    struct table_entry entry;           /* ranks and sizes are placeholders: 0 of 1 */
};

struct elastic_assign {
    bool sync;                          /* somebody does not have the state */
    int32_t rank;                       /* own */
    uint32_t version;                   /* of the newest UPDATE that it contains */
    struct table table;
    int32_t *workers;                   /* by rank: numbers of the processes */
};

struct elastic_join {
    int slots;
    char host[ELASTIC_HOST_MAX];        /* letters, digits, '.', '-', '_' */
};

enum elastic_progress { ELASTIC_FORMED = 1, ELASTIC_COMMITTED };

/* Bits of an UPDATE. */
enum { ELASTIC_REMOVED = 1, ELASTIC_ADDED = 2, ELASTIC_LEAVE = 4 };

/* Owns: the caller frees *bytes_p.  Errors of all: HVD_PROTO, HVD_NOMEM. */
enum hvd_status put_elastic_ready(const struct elastic_ready *m, uint8_t **bytes_p,
                                  size_t *n_p, struct hvd_error *err);
enum hvd_status get_elastic_ready(struct elastic_ready *m, const uint8_t *bytes, size_t n,
                                  struct hvd_error *err);
/* Owns: the caller, elastic_assign_release; nothing after a failure. */
enum hvd_status put_elastic_assign(const struct elastic_assign *m, uint8_t **bytes_p,
                                   size_t *n_p, struct hvd_error *err);
enum hvd_status get_elastic_assign(struct elastic_assign *m, const uint8_t *bytes, size_t n,
                                   struct hvd_error *err);
void elastic_assign_release(struct elastic_assign *m);

/* PROGRESS: generation and enum elastic_progress; UPDATE: version and bits. */
void put_elastic_pair(uint8_t bytes[ELASTIC_PAIR], uint32_t first, uint32_t second);
enum hvd_status get_elastic_pair(uint32_t *first_p, uint32_t *second_p, uint32_t highest,
                                 const uint8_t *bytes, size_t n, struct hvd_error *err);

/* The number of bytes; a host name that does not fit the rules is an error of get. */
size_t put_elastic_join(const struct elastic_join *m, uint8_t bytes[ELASTIC_JOIN_MAX]);
enum hvd_status get_elastic_join(struct elastic_join *m, const uint8_t *bytes, size_t n,
                                 struct hvd_error *err);

/* The text of a RETIRE: printable, cut to fit; text has ELASTIC_RETIRE_MAX bytes. */
enum hvd_status get_elastic_retire(char *text, const uint8_t *bytes, size_t n,
                                   struct hvd_error *err);

#endif
