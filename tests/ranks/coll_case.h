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
};

struct coll_case {
    enum coll_op op;
    enum hvd_dtype dtype;
    enum red_op reduce;
    size_t count;                       /* of one member, about: uneven ones vary it */
    bool in_place, mapped, uneven, agreed, asleep;
    double prescale, postscale;         /* 0: 1.0 */
    int64_t divisor;
    int root;
    uint32_t board;
};

/* Members: those of `mask`; 0: all. */
void bed_open(struct coll_bed *bed, struct harness_rank *r, unsigned mask, int slot,
              uint32_t epoch);
void bed_close(struct coll_bed *bed);

/* Runs it and checks the output; ends the test when it is not what it should be. */
void case_run(struct coll_bed *bed, const struct coll_case *c);

/* What member `member` puts in. */
void case_fill(void *data, size_t count, enum hvd_dtype dtype, int member, unsigned salt);

/* Steps until the task is done; asleep: in mesh_sleep instead of polling. */
enum hvd_status case_drive(struct coll_bed *bed, struct coll_task *task, bool asleep,
                           struct hvd_error *err);

#endif
