/* msg_int.h: transfers of a task, for the algorithms that move messages. */
#ifndef HVD_COLLECTIVE_MSG_INT_H
#define HVD_COLLECTIVE_MSG_INT_H

#include "collective/collective_int.h"

/* Transfers that belong to one task; those that were never asked for count as done. */
struct msg_pack {
    struct mesh_xfer *x;
    int count;
};

enum hvd_status msg_take(struct coll_task *t, int count, struct msg_pack *pack,
                         struct hvd_error *err);
/* Cancels what is under way and gives the memory back.  Accepts a zeroed pack. */
void msg_drop(struct coll_task *t, struct msg_pack *pack);

/* To and from a member of the team.  `stage` < 8 and `index` < 2^18 tell the transfers
 * between two members apart within a task.  No bytes: nothing is sent. */
void msg_send(struct coll_task *t, int member, unsigned stage, unsigned index,
              const void *data, size_t bytes, struct mesh_xfer *x);
void msg_recv(struct coll_task *t, int member, unsigned stage, unsigned index,
              void *data, size_t bytes, struct mesh_xfer *x);

/* HVD_OK: these are done; HVD_AGAIN; or the failure. */
enum hvd_status msg_check(struct coll_task *t, const struct mesh_xfer *x, int count,
                          struct hvd_error *err);

/* needs_us of all that move messages. */
bool msg_needs_us(const struct coll_task *t);
/* has_come of all that move messages: nothing is known. */
bool msg_has_come(const struct coll_task *t, int member);

/* exchange.c: reduce-scatter by pairwise exchange, and the way back ------------------- */

struct exchange {
    size_t *begin, *length;             /* by member: slice in elements */
    size_t segment;                     /* elements that travel at once */
    unsigned segments;                  /* of the longest slice */
    unsigned low, next;                 /* segments [low, next) are under way */
    bool way_back;                      /* results go to all members (allreduce) */
    struct msg_pack pack;
    unsigned char *asked;               /* by window place and member */
    bool *reduced;                      /* by window place */
    char *room;                         /* what the others sent us */
    void *block;
};

/* counts: elements of each slice, NULL: equal ones of `total` elements. */
enum hvd_status exchange_start(struct coll_task *t, struct exchange *e,
                               const uint64_t *counts, size_t total, bool way_back,
                               struct hvd_error *err);
enum hvd_status exchange_step(struct coll_task *t, struct exchange *e,
                              struct hvd_error *err);
void exchange_release(struct coll_task *t, struct exchange *e);

#endif
