/*
 * model_job.h: a job of any size on a modelled network (model_net.h): one real engine per rank,
 * all driven by one thread in virtual time.
 */
#ifndef TESTS_MODEL_JOB_H
#define TESTS_MODEL_JOB_H

#include "engine/engine.h"
#include "support/model_net.h"

struct model_job;

/* What a step has cost. */
struct model_cost {
    uint64_t time_ns;                   /* from its start to the end on the last rank */
    uint64_t messages, bytes;           /* between hosts, all ranks */
    int busiest;                        /* rank with the most of these, in and out */
    uint64_t busiest_messages;          /* its messages and transfers, in and out */
    uint64_t busiest_bytes;             /* of the rank with the most, in or out */
    uint64_t posts;                     /* messages of engines only: most of a rank */
    uint64_t sum;                       /* of the bits of the results, with `rough` */
    int peers;                          /* ranks of other hosts that a rank has met so far, most */
};

struct model_step {
    enum hvd_op op;
    uint64_t bytes;                     /* of a tensor, float32; alltoall, allgather: per rank */
    int tensors;                        /* at once; 0: one */
    const char *name;                   /* the same again: cached */
};

struct model_job *model_job_new(const struct model_options *opt, const struct config *conf);
/* All ranks do it at once.  Ends the program if it does not complete, or with wrong values (of an
 * allreduce, alltoall, reducescatter; without phantom), or other bits on another rank (allreduce,
 * rough). */
void model_job_step(struct model_job *job, const struct model_step *step,
                    struct model_cost *cost);
/* hvd_join of all ranks. */
void model_job_join(struct model_job *job, struct model_cost *cost);
void model_job_free(struct model_job *job);

/* The least time that any algorithm needs in this model for an allreduce between hosts: every
 * host must hear of every other, and send and receive its share of the vector twice. */
uint64_t model_allreduce_bound_ns(const struct model_options *opt, uint64_t bytes);

#endif
