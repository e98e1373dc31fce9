/*
 * coll_case.h: one collective on one team, checked against a naive reference that
 * combines in the documented order.  Every rank knows what every other rank puts in.
 */
#ifndef TESTS_COLL_CASE_H
#define TESTS_COLL_CASE_H

#include "collective/collective.h"
#include "support/mesh_harness.h"

/* A team and the turn of each board that its tests have used. */
struct coll_bed {
    struct harness_rank *r;
    struct coll_team *team;
    int count, me;                      /* members, our team rank */
    int ranks[HARNESS_RANKS];
    uint32_t turns[8];                  /* by board */
    uint32_t barriers[8];               /* of them */
    unsigned seed;                      /* of this rank's delays */
    void *place;                        /* of the output of the case with open sizes */
    _Atomic uint64_t *words;            /* by board: members that came to barriers */
};

struct coll_case {
    enum coll_op op;
    enum hvd_dtype dtype;
    enum red_op reduce;
    size_t count;                       /* of one member, about: uneven ones vary it */
    bool in_place, mapped, uneven, agreed, asleep, waited;
    bool open;                          /* nobody is told what the others bring */
    double prescale, postscale;         /* 0: 1.0 */
    int64_t divisor;
    int root;
    uint32_t board;
};

/* Members: those of `mask`; 0: all. */
void bed_open(struct coll_bed *bed, struct harness_rank *r, unsigned mask, int slot,
              uint32_t epoch);
void bed_close(struct coll_bed *bed);

/* A case under way on one rank. */
struct coll_live {
    struct coll_bed *bed;
    const struct coll_case *c;
    struct coll_call call;
    uint64_t counts[HARNESS_RANKS], recv_counts[HARNESS_RANKS];
    struct coll_task *task;
    char *in, *out, *want;
    uint64_t want_count;                /* elements of out */
    uint64_t in_count;
    uint64_t arrivals;                  /* of a barrier: at least so many at its end */
};

/* Fills the buffers and knows the result; starts the task; and when it is done, checks
 * the output (the test ends when it is not what it should be) and frees all. */
void case_open(struct coll_live *live, struct coll_bed *bed, const struct coll_case *c);
void case_start(struct coll_live *live);
void case_close(struct coll_live *live);
/* The last part of it, for a task that the caller ends. */
void case_check(struct coll_live *live);

/* All of it, with the task driven to its end. */
void case_run(struct coll_bed *bed, const struct coll_case *c);

/* What member `member` puts in. */
void case_fill(void *data, size_t count, enum hvd_dtype dtype, int member, unsigned salt);

/* Steps until the task is done; asleep: in mesh_sleep instead of polling. */
enum hvd_status case_drive(struct coll_bed *bed, struct coll_task *task, bool asleep,
                           struct hvd_error *err);

#endif
