/*
 * tf_ops.h: what the files of the op library share.
 *
 * Rules
 * 1. Operations on data are stateless and asynchronous for TensorFlow: it may run them in any
 *    order and at the same time, and no thread of its pools ever waits for another rank.
 *    (Stateful ones would run one after the other, in an order that ranks need not share.)
 * 2. What must not be folded, merged or dropped by the optimizer of graphs is said by the
 *    Python layer: an input that is known at run time only (`guard`), a name of its own, and
 *    a stateful HorovodKeep that uses the result.
 * 3. A failure is reported with the code that the table in tf_error.c gives, and a text that
 *    begins with "[horovod STATUS RANK]", from which Python makes its exception.
 */
#ifndef HVD_TENSORFLOW_TF_OPS_H
#define HVD_TENSORFLOW_TF_OPS_H

#include "python/calls.h"
#include "tensorflow/tf_api.h"

/* The functions of `_core`, NULL until horovod.tensorflow has handed them over. */
extern const struct hvd_calls *hvd;

/* One op of a graph, or one combination of attributes in eager mode. */
struct kernel {
    enum hvd_op op;
    enum hvd_reduce reduce;
    int root, process_set;
    int guards;                         /* inputs at the end that are only waited for */
    bool has_splits;
    bool eager;                         /* nothing else runs meanwhile */
    bool pass;                          /* not a member: the inputs are the results */
    double prescale, postscale;
    int name_count;                     /* 0: the engine counts */
    char **name;                        /* wire names of the tensors */
};

enum { QUERY_RANK, QUERY_SIZE, QUERY_LOCAL_RANK, QUERY_LOCAL_SIZE, QUERY_INCLUDED,
       QUERY_SET_RANK };

/* tf_define.c: NULL, or why TensorFlow does not take our ops. */
const char *ops_define(char *text, size_t capacity);

/* tf_kernel.c: reads the attributes. */
#define KERNEL_CREATORS(X)                                                             \
    X(allreduce, ALLREDUCE) X(allgather, ALLGATHER) X(broadcast, BROADCAST)            \
    X(alltoall, ALLTOALL) X(reducescatter, REDUCESCATTER) X(join, JOIN)
#define KERNEL_CREATOR(word, op) void *kernel_create_##word(struct tf_construction *c);
KERNEL_CREATORS(KERNEL_CREATOR)
#undef KERNEL_CREATOR
void kernel_delete(void *kernel);

/* tf_run.c */
void kernel_run(void *kernel, struct tf_context *ctx, struct tf_done *done);

/* tf_query.c */
void *query_create(struct tf_construction *c);
void query_run(void *query, struct tf_context *ctx);
void query_delete(void *query);

/* tf_error.c */
void error_to_context(struct tf_context *ctx, const struct hvd_error *err);
void error_internal(struct hvd_error *err, const struct tf_status *status);

/* tf_done.c: a copy that done_run_kept runs and frees, or NULL where that is not possible. */
struct tf_done *done_keep(const struct tf_done *done);
void done_run_kept(struct tf_done *copy);
void done_refuse(bool all);             /* from now on done_keep says no; for tests */

/* tf_dtype.c: -1 if we have no such type. */
int dtype_to_hvd(enum tf_dtype dtype);

#endif
