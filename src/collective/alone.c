/* alone.c: all operations in a team of one. */
#include "collective/collective_int.h"

static bool is_alone(const struct coll_team *team)
{
    return team->count == 1;
}

static void copy_out(struct coll_task *task, uint64_t count)
{
    if (task->call.out != task->call.in && count > 0)
        red_copy(task->call.out, task->call.in,
                 count * task_type_bytes(task->call.dtype));
}

static enum hvd_status reduce_start(struct coll_task *task, struct hvd_error *err)
{
    const struct coll_call *c = &task->call;
    size_t count = c->op == COLL_REDUCESCATTER ? c->counts[0] : c->count;

    return order_reduce(task, &c->in, &c->out, 1, count, false, err);
}

static enum hvd_status adasum_start(struct coll_task *task, struct hvd_error *err)
{
    const struct coll_call *c = &task->call;

    (void)err;
    copy_out(task, c->count);
    if (c->prescale != 1.0)
        red_scale(c->out, c->count, c->dtype, c->prescale);
    if (c->postscale != 1.0)
        red_scale(c->out, c->count, c->dtype, c->postscale);
    return HVD_OK;
}

static enum hvd_status copy_start(struct coll_task *task, struct hvd_error *err)
{
    const struct coll_call *c = &task->call;

    (void)err;
    copy_out(task, c->op == COLL_BROADCAST ? c->count : c->counts[0]);
    return HVD_OK;
}

static enum hvd_status nothing(struct coll_task *task, struct hvd_error *err)
{
    (void)task, (void)err;
    return HVD_OK;
}

static bool never(const struct coll_task *task)
{
    (void)task;
    return false;
}

#define ALONE(variable, operation, begin)                                               \
    const struct coll_alg variable = {                                                 \
        .op = operation, .name = "alone", .text = "a team of one", .can = is_alone,     \
        .start = begin, .step = nothing, .needs_us = never}

extern const struct coll_alg allreduce_alone, allgather_alone, broadcast_alone,
    alltoall_alone, reducescatter_alone, barrier_alone, adasum_alone;

ALONE(allreduce_alone, COLL_ALLREDUCE, reduce_start);
ALONE(allgather_alone, COLL_ALLGATHER, copy_start);
ALONE(broadcast_alone, COLL_BROADCAST, copy_start);
ALONE(alltoall_alone, COLL_ALLTOALL, copy_start);
ALONE(reducescatter_alone, COLL_REDUCESCATTER, reduce_start);
ALONE(barrier_alone, COLL_BARRIER, nothing);
ALONE(adasum_alone, COLL_ADASUM, adasum_start);
