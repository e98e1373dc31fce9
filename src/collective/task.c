/*
 * task.c: the life of one operation: start, step, finish or cancel.  Tasks are kept in a
 * list of the team; in the steady state nothing is allocated.
 */
#include "collective/board_int.h"

#include <stdlib.h>
#include <string.h>

size_t task_type_bytes(enum hvd_dtype dtype)
{
    static const unsigned char bytes[] = {
#define TYPE_BYTES(name, size, text) [HVD_##name] = size,
        HVD_DTYPE_MAP(TYPE_BYTES)
#undef TYPE_BYTES
    };

    return bytes[dtype];
}

bool task_can_always(const struct coll_team *team)
{
    (void)team;
    return true;
}

bool task_can_direct(const struct coll_team *team)
{
    return team->direct;
}

static uint64_t sum_counts(const struct coll_team *team, const struct coll_call *call)
{
    uint64_t sum = 0;

    for (int i = 0; i < team->count; i++)
        sum += call->counts[i];
    return sum;
}

/* Alltoall has none: what a member sends is not known to the others. */
uint64_t task_size(const struct coll_team *team, const struct coll_call *call)
{
    size_t unit = task_type_bytes(call->dtype);

    switch (call->op) {
    case COLL_ALLGATHER:
    case COLL_REDUCESCATTER:
        return sum_counts(team, call) * unit;
    case COLL_ALLTOALL:
        return call->most > 0 ? call->most * unit * (uint64_t)team->count : UINT64_MAX;
    case COLL_BARRIER:
        return 0;
    default:
        return call->count * unit;
    }
}

static enum hvd_status check_reduction(const struct coll_call *call,
                                       struct hvd_error *err)
{
    if (call->op == COLL_ADASUM) {
        if (call->dtype != HVD_F16 && call->dtype != HVD_BF16 &&
            call->dtype != HVD_F32 && call->dtype != HVD_F64)
            return error_set(err, HVD_UNSUPPORTED, -1, "adasum of %s is not supported",
                             hvd_dtype_name(call->dtype));
        return HVD_OK;
    }
    if (!red_can(call->dtype, call->reduce))
        return error_set(err, HVD_UNSUPPORTED, -1, "reduction %d of %s is not supported",
                         (int)call->reduce, hvd_dtype_name(call->dtype));
    return HVD_OK;
}

static enum hvd_status check_call(const struct coll_team *team,
                                  const struct coll_call *call, struct hvd_error *err)
{
    bool reduces = call->op == COLL_ALLREDUCE || call->op == COLL_REDUCESCATTER ||
                   call->op == COLL_ADASUM;
    bool counted = call->op == COLL_ALLGATHER || call->op == COLL_ALLTOALL ||
                   call->op == COLL_REDUCESCATTER;

    if ((unsigned)call->op >= COLL_OP_COUNT || (unsigned)call->dtype >= HVD_DTYPE_COUNT)
        return error_set(err, HVD_INVALID, -1, "operation %d of type %d", (int)call->op,
                         (int)call->dtype);
    if (call->board >= TEAM_BOARDS || call->turn == 0)
        return error_set(err, HVD_INVALID, -1, "board %u, turn %u", call->board,
                         call->turn);
    if (call->count > SIZE_MAX / 16)
        return error_set(err, HVD_INVALID, -1, "%zu elements", call->count);
    if (call->op == COLL_BROADCAST && (call->root < 0 || call->root >= team->count))
        return error_set(err, HVD_INVALID, -1, "root %d of %d members", call->root,
                         team->count);
    if (call->open && !coll_can_open(team, call->op))
        return error_set(err, HVD_INVALID, -1, "open sizes");
    if (counted && (call->counts == NULL || (call->op == COLL_ALLTOALL && !call->open &&
                                             call->recv_counts == NULL)))
        return error_set(err, HVD_INVALID, -1, "no counts");
    return reduces ? check_reduction(call, err) : HVD_OK;
}

/* counts, recv_counts and segments belong to the caller only until coll_start returns. */
static enum hvd_status copy_counts(struct coll_task *task, struct hvd_error *err)
{
    struct coll_call *c = &task->call;
    size_t n = (size_t)task->team->count, segments = 0;
    uint64_t *copy;

    if (c->op == COLL_ADASUM && c->segments != NULL)
        segments = (size_t)c->segment_count;
    if (c->counts == NULL && segments == 0)
        return HVD_OK;
    copy = scratch_get(task->team->scratch, (2 * n + segments) * sizeof *copy);
    if (copy == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the counts of a task");
    task->copied = copy;
    if (c->counts != NULL)
        c->counts = memcpy(copy, c->counts, n * sizeof *copy);
    if (c->open)
        c->recv_counts = copy + n;
    else if (c->recv_counts != NULL)
        c->recv_counts = memcpy(copy + n, c->recv_counts, n * sizeof *copy);
    if (segments > 0)
        c->segments = memcpy(copy + 2 * n, c->segments, segments * sizeof *copy);
    return HVD_OK;
}

static struct coll_task *take_task(struct coll_team *team)
{
    struct coll_task *task = team->free_tasks;

    if (task == NULL)
        return aligned_alloc(64, (sizeof *task + catalog_state_bytes() + 63) / 64 * 64);
    team->free_tasks = task->next;
    return task;
}

static void put_task(struct coll_task *task)
{
    scratch_put(task->team->scratch, task->copied);
    task->next = task->team->free_tasks;
    task->team->free_tasks = task;
}

enum hvd_status task_start(struct coll_team *team, const struct coll_call *call,
                           uint32_t part, enum hvd_dtype out_type,
                           struct coll_task **task_p, struct hvd_error *err)
{
    struct coll_task *task;
    enum hvd_status status;

    TRY(check_call(team, call, err));
    task = take_task(team);
    if (task == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a task");
    *task = (struct coll_task){.team = team, .call = *call, .out_type = out_type,
                               .part = part,
                               .bytes = call->count * task_type_bytes(call->dtype)};
    TRY_OUT(copy_counts(task, err));
    task->alg = select_choose(team, &task->call);
    TRY_OUT(task->alg->start(task, err));
    *task_p = task;
    return HVD_OK;
out:
    put_task(task);
    return status;
}

enum hvd_status coll_start(struct coll_team *team, const struct coll_call *call,
                           struct coll_task **task_p, struct hvd_error *err)
{
    return task_start(team, call, 0, call->dtype, task_p, err);
}

/* A member that cannot do its part would leave the others waiting: the job ends. */
static enum hvd_status unfinished(struct coll_task *task, enum hvd_status status,
                                  struct hvd_error *err)
{
    const struct hvd_error *why = mesh_verdict(task->team->mesh);

    if (why != NULL) {
        *err = *why;
        return why->status;
    }
    if (status != HVD_AGAIN)
        mesh_fail(task->team->mesh, err);
    return status;
}

enum hvd_status coll_step(struct coll_task *task, struct hvd_error *err)
{
    struct hvd_error own;
    enum hvd_status status;

    err = err != NULL ? err : &own;
    status = task->alg->step(task, err);
    if (status == HVD_OK) {
        if (task->published)
            board_leave(task, false);
        return HVD_OK;
    }
    return unfinished(task, status, err);
}

/* The algorithm must not follow from the size, which no member knows. */
bool coll_can_open(const struct coll_team *team, enum coll_op op)
{
    return (op == COLL_ALLGATHER || op == COLL_ALLTOALL) &&
           team->select[op]->limit == UINT64_MAX && team->select[op]->alg->opens;
}

uint64_t *task_open_sizes(struct coll_task *task)
{
    return (uint64_t *)task->copied + task->team->count;
}

const uint64_t *coll_sizes(const struct coll_task *task)
{
    return task->sized && !task->placed ? task->call.recv_counts : NULL;
}

void coll_place(struct coll_task *task, void *out)
{
    task->call.out = out;
    task->placed = true;
}

bool coll_needs_us(const struct coll_task *task)
{
    if (task->alg->needs_us != NULL)
        return task->alg->needs_us(task);
    return !task->published;
}

bool coll_has_come(const struct coll_task *task, int member)
{
    if (member == task->team->me)
        return true;
    if (task->alg->has_come != NULL)
        return task->alg->has_come(task, member);
    return task->team->direct && task->board != NULL && board_has_come(task, member);
}

/* Tasks that move messages have changed something from the start. */
bool coll_is_committed(const struct coll_task *task)
{
    if (task->alg->is_committed != NULL)
        return task->alg->is_committed(task);
    if (task->board == NULL)
        return true;
    for (int i = 0; i < task->team->count; i++)
        if (!board_has_come(task, i))
            return false;
    return true;
}

void coll_keep(struct coll_task *task)
{
    if (task->published)
        board_leave(task, true);
    if (task->alg->release != NULL)
        task->alg->release(task);
}

enum hvd_status coll_restart(struct coll_task *task, const void *in, void *out,
                             const uint64_t *counts, uint32_t turn, struct hvd_error *err)
{
    if (task->call.open)
        memcpy(task->copied, counts, (size_t)task->team->count * sizeof *counts);
    task->call.in = in;
    task->call.out = out;
    task->call.turn = turn;
    task->seen = 0;
    task->published = task->committed = task->left = false;
    task->sized = task->placed = false;
    return task->alg->start(task, err);
}

void coll_drop(struct coll_task *task)
{
    put_task(task);
}

void coll_finish(struct coll_task *task)
{
    coll_keep(task);
    put_task(task);
}

void coll_cancel(struct coll_task *task)
{
    if (task->published && !coll_is_committed(task))
        board_withdraw(task);
    coll_finish(task);
}

enum hvd_status task_drive(struct coll_task **task_p, struct hvd_error *err)
{
    TRY(coll_step(*task_p, err));
    coll_finish(*task_p);
    *task_p = NULL;
    return HVD_OK;
}
