/*
 * meeting.h: who of a generation has come.  A pure state machine: no sockets, no clock
 * of its own, so that it can be tested with plain numbers.  One thread at a time.
 *
 * Each rank has a seat:
 *
 *   EMPTY    nobody has come, or who had come left before all were there
 *   WAITING  its entry is here, the table is not complete
 *   RUNNING  it has the table and is still connected
 *   GONE     it had the table and has closed its connection
 *
 * EMPTY, GONE -> WAITING (meeting_enter) -> RUNNING when all are WAITING (meeting_form);
 * meeting_leave: WAITING -> EMPTY, RUNNING -> GONE.  So the same processes may meet again
 * in the same generation once they have closed their connections (shutdown, init).
 */
#ifndef HVD_RENDEZVOUS_MEETING_H
#define HVD_RENDEZVOUS_MEETING_H

#include "base/strbuf.h"
#include "wire/table.h"

enum seat_state { SEAT_EMPTY, SEAT_WAITING, SEAT_RUNNING, SEAT_GONE };

struct seat {
    enum seat_state state;
    bool told;                          /* has heard the verdict of the failed round */
    uint64_t since_us;                  /* of the state */
    struct table_entry *entry;          /* the last one; NULL: never came */
};

struct meeting {
    uint32_t generation;
    int count;                          /* of seats */
    uint64_t timeout_us;                /* from the first entry on; 0: none */
    struct seat *seats;                 /* by rank */
    int waiting;                        /* seats in that state */
    uint64_t first_us;                  /* when the first of those who wait came; 0 */
    struct hvd_error verdict;           /* of the round that failed; HVD_OK: none did */
    bool over;                          /* the verdict is for everybody who still comes */
};

enum meeting_result {
    MEETING_WAITING,                    /* it has a seat, others are missing */
    MEETING_COMPLETE,                   /* it was the last: meeting_form is next */
    MEETING_REFUSED,                    /* err is for the newcomer */
    MEETING_FAILED,                     /* err is for all who wait: meeting_fail is next */
};

enum hvd_status meeting_init(struct meeting *m, uint32_t generation, int count,
                             uint64_t timeout_us, struct hvd_error *err);
void meeting_release(struct meeting *m);

enum meeting_result meeting_enter(struct meeting *m, const struct table_entry *e,
                                  uint64_t now_us, struct hvd_error *err);
void meeting_leave(struct meeting *m, int rank, uint64_t now_us);

/* The table of those who wait, who run from now on.  Owns: the caller. */
enum hvd_status meeting_form(struct meeting *m, uint64_t now_us, struct table *table_p,
                             struct hvd_error *err);
/* All who wait, and the newcomer (a rank, -1: none), have heard the verdict and leave; who
 * comes late hears it, too, once (always, if `over`), instead of waiting in vain. */
void meeting_fail(struct meeting *m, const struct hvd_error *verdict, int newcomer,
                  bool over);

/* When meeting_timed_out is due; UINT64_MAX: nobody waits. */
uint64_t meeting_deadline_us(const struct meeting *m);
/* Describes who is missing and who has come, and returns HVD_TIMEOUT. */
enum hvd_status meeting_timed_out(const struct meeting *m, uint64_t now_us,
                                  struct hvd_error *err);
/* A line per rank: "rank 3 host node1 pid 4242 waiting since 0.8 s". */
void meeting_describe(const struct meeting *m, uint64_t now_us, struct strbuf *text);

#endif
