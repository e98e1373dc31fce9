/*
 * driver_int.h: the elastic driver: the membership machine, the connections of the workers
 * (through rendezvous/guests.h), and the actions for the owner.  Everything is guarded by the
 * lock of the server.
 *
 *   driver.c          the public functions of driver.h, actions, time
 *   driver_worker.c   one worker's connection: what it says and what it is told
 *   joiner.c          machines that join: both ends
 */
#ifndef HVD_ELASTIC_DRIVER_INT_H
#define HVD_ELASTIC_DRIVER_INT_H

#include "elastic/membership.h"
#include "rendezvous/guests.h"
#include "wire/elastic_message.h"

#include <pthread.h>
#include <stdatomic.h>

/* A worker, from START on; never freed before the driver. */
struct driver_worker {
    struct hvd_driver *driver;
    int number;
    struct guest *guest;                /* NULL: not connected */
    struct table_entry *entry;          /* of its last READY */
    bool said;                          /* something since the last PING */
    int missed;                         /* PINGs in a row without an answer */
};

/* A machine that joins: a thread carries bytes between its connection and the owner. */
struct joiner {
    struct hvd_driver *driver;
    pthread_t thread;
    struct channel channel;             /* closed by who joins the thread */
    int fd;                             /* our end of the owner's; -1: none yet */
    atomic_bool is_done;
    struct joiner *next;
};

struct hvd_driver {
    struct hvd_server *server;
    struct membership *membership;
    char job_id[65];
    double heartbeat_s;
    struct driver_worker **workers;     /* [number - 1] */
    int worker_count, worker_capacity;
    struct hvd_driver_action *queue;    /* for the owner, from queue_at on */
    int queue_at, queue_count, queue_capacity;
    int event;                          /* eventfd: readable while the queue is not empty */
    uint64_t ping_us;                   /* of the next round of PINGs */
    bool is_over;
    struct joiner *joiners;
};

/* driver.c */
void driver_put(struct hvd_driver *d, const struct hvd_driver_action *action);

/* driver_worker.c */
struct driver_worker *driver_worker_add(struct hvd_driver *d, int number);
bool driver_worker_came(void *context, struct guest *guest, int32_t number, void **tag_p);
void driver_worker_said(void *context, void *tag, const struct channel_message *m);
void driver_worker_left(void *context, void *tag, const char *why);
void driver_ping(struct hvd_driver *d, uint64_t now_us);
void driver_assign(struct hvd_driver *d, const struct member_action *a);
void driver_tell(struct hvd_driver *d, int worker, enum rdv_kind kind, const void *body,
                 size_t n);
void driver_tell_end(struct hvd_driver *d, const char *why);

/* joiner.c */
void driver_take_joiner(struct hvd_driver *d, struct guest *guest);
void driver_end_joiners(struct hvd_driver *d);

#endif
