/* tf_query.c: HorovodQuery, the numbers of this process as they are when the graph runs. */
#include "tensorflow/tf_ops.h"

#include <stdio.h>
#include <stdlib.h>

struct query {
    int32_t what, process_set;
};

void *query_create(struct tf_construction *c)
{
    struct tf_status *status = tf.NewStatus();
    struct query *q = calloc(1, sizeof *q);

    if (q == NULL)
        tf.SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory for a kernel");
    else
        tf.OpKernelConstruction_GetAttrInt32(c, "what", &q->what, status);
    if (tf.GetCode(status) == TF_OK)
        tf.OpKernelConstruction_GetAttrInt32(c, "process_set", &q->process_set, status);
    if (tf.GetCode(status) != TF_OK)
        tf.OpKernelConstruction_Failure(c, status);
    tf.DeleteStatus(status);
    return q;
}

void query_delete(void *query)
{
    free(query);
}

static int answer(const struct query *q)
{
    switch (q->what) {
    case QUERY_RANK: return hvd->rank();
    case QUERY_SIZE: return hvd->process_set_size(q->process_set);
    case QUERY_LOCAL_RANK: return hvd->local_rank();
    case QUERY_LOCAL_SIZE: return hvd->local_size();
    case QUERY_SET_RANK: return hvd->process_set_rank(q->process_set);
    case QUERY_INCLUDED: {
        int rank = hvd->process_set_rank(q->process_set);

        return rank == -1 ? -1 : rank >= 0;
    }
    }
    return -1;
}

/* Why a query has no answer. */
static void describe(const struct query *q, struct hvd_error *err)
{
    bool running = hvd != NULL && hvd->size() > 0;

    err->rank = -1;
    err->status = running ? HVD_INVALID : HVD_NOT_INIT;
    if (running)
        snprintf(err->text, sizeof err->text,
                 "process set %d does not exist, or this rank is not a member",
                 q->process_set);
    else
        snprintf(err->text, sizeof err->text,
                 "Horovod has not been initialized; use hvd.init()");
}

void query_run(void *query, struct tf_context *ctx)
{
    const struct query *q = query;
    int32_t value = hvd != NULL ? answer(q) : -1;
    struct tf_status *status;
    struct tf_tensor *output;
    struct hvd_error err;

    if (value < 0) {
        describe(q, &err);
        error_to_context(ctx, &err);
        return;
    }
    status = tf.NewStatus();
    output = tf.AllocateOutput(ctx, 0, TF_INT32, NULL, 0, sizeof value, status);
    if (tf.GetCode(status) == TF_OK)
        *(int32_t *)tf.TensorData(output) = value;
    else
        tf.OpKernelContext_Failure(ctx, status);
    if (output != NULL)
        tf.DeleteTensor(output);
    tf.DeleteStatus(status);
}
