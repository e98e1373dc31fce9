/*
 * hier_int.h: algorithms composed of tasks on sub-teams.  The steps of such a task are
 * told apart by `part`; local parts of one turn alternate in parity (board.c, rule 4).
 */
#ifndef HVD_COLLECTIVE_HIER_INT_H
#define HVD_COLLECTIVE_HIER_INT_H

#include "collective/collective_int.h"

/* First member of every composed task's state. */
struct hier {
    struct coll_task *child;            /* under way, or NULL */
    int phase;                          /* what the child does; counted by the owner */
};

/* Host of the first member order of ours; our place among the members of our host. */
int hier_host(const struct coll_team *team);
int hier_place(const struct coll_team *team);

/* Steps the child, if there is one, to its end. */
enum hvd_status hier_drive(struct coll_task *t, struct hvd_error *err);
void hier_drop(struct coll_task *t);            /* cancels the child */
bool hier_needs_us(const struct coll_task *t);
bool hier_has_come(const struct coll_task *t, int member);

/* As t->call, with another operation, nothing scaled and nothing counted. */
struct coll_call hier_call(const struct coll_task *t, enum coll_op op);

/* The part of step k of a task: of its own, or, when it is itself a part of Adasum (which
 * has fewer than 64), beyond those. */
uint32_t hier_part(const struct coll_task *t, uint32_t k);

bool hier_can(const struct coll_team *team);

#endif
