/*
 * order.c: the one order in which elements are combined: by team rank within a host,
 * then by hosts in the order of their first team rank.  Every algorithm ends here, or
 * does the two halves itself in this order, so that the bits do not depend on it.
 *
 * Partial sums of 16-bit floats stay in float32; they are rounded once, at the end.
 */
#include "collective/collective_int.h"

#define BLOCK_BYTES (32u << 10)         /* of a partial sum; some of them fit into L2 */

enum hvd_dtype order_partial_type(enum hvd_dtype dtype)
{
    return dtype == HVD_F16 || dtype == HVD_BF16 ? HVD_F32 : dtype;
}

static void reduce_host(struct coll_task *task, int host, const void *const *sources,
                        size_t first, size_t count, void *partial)
{
    const struct coll_team *team = task->team;
    size_t skip = first * task_type_bytes(task->call.dtype);
    int begin = team->host_begin[host], n = team->host_begin[host + 1] - begin;
    const void **src = team->src + team->count;

    for (int i = 0; i < n; i++)
        src[i] = (const char *)sources[team->by_host[begin + i]] + skip;
    red_run(&(struct red_job){.src = src, .nsrc = n, .dst = &partial, .ndst = 1,
                              .count = count, .src_type = task->call.dtype,
                              .dst_type = order_partial_type(task->call.dtype),
                              .op = task->call.reduce, .prescale = task->call.prescale,
                              .postscale = 1.0});
}

static void reduce_hosts(struct coll_task *task, const void *const *partials,
                         void *const *dst, int ndst, size_t first, size_t count)
{
    const struct coll_team *team = task->team;
    void **to = team->dst + team->count;

    for (int i = 0; i < ndst; i++)
        to[i] = (char *)dst[i] + first * task_type_bytes(task->out_type);
    red_run(&(struct red_job){.src = partials, .nsrc = team->host_count, .dst = to,
                              .ndst = ndst, .count = count,
                              .src_type = order_partial_type(task->call.dtype),
                              .dst_type = task->out_type, .op = task->call.reduce,
                              .prescale = 1.0, .postscale = task->call.postscale,
                              .divisor = task->call.divisor});
}

static enum hvd_status reduce_by_host(struct coll_task *task, const void *const *sources,
                                      void *const *dst, int ndst, size_t count,
                                      struct hvd_error *err)
{
    int hosts = task->team->host_count;
    size_t block = BLOCK_BYTES / task_type_bytes(order_partial_type(task->call.dtype));
    char *room = scratch_get(task->team->scratch,
                             (size_t)hosts * (BLOCK_BYTES + sizeof(void *)));
    const void **partials = (const void **)(room + (size_t)hosts * BLOCK_BYTES);

    if (room == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for partial sums");
    for (int h = 0; h < hosts; h++)
        partials[h] = room + (size_t)h * BLOCK_BYTES;
    for (size_t first = 0; first < count; first += block) {
        size_t n = count - first < block ? count - first : block;

        for (int h = 0; h < hosts; h++)
            reduce_host(task, h, sources, first, n, (void *)partials[h]);
        reduce_hosts(task, partials, dst, ndst, first, n);
    }
    scratch_put(task->team->scratch, room);
    return HVD_OK;
}

enum hvd_status order_reduce(struct coll_task *task, const void *const *sources,
                             void *const *dst, int ndst, size_t count, bool stream,
                             struct hvd_error *err)
{
    const struct coll_call *c = &task->call;

    if (count == 0)
        return HVD_OK;
    if (!task->team->flat_order)
        return reduce_by_host(task, sources, dst, ndst, count, err);
    red_run(&(struct red_job){.src = sources, .nsrc = task->team->count, .dst = dst,
                              .ndst = ndst, .count = count, .src_type = c->dtype,
                              .dst_type = task->out_type, .op = c->reduce,
                              .prescale = c->prescale, .postscale = c->postscale,
                              .divisor = c->divisor, .stream = stream});
    return HVD_OK;
}

size_t coll_partial_bytes(enum hvd_dtype dtype)
{
    return task_type_bytes(order_partial_type(dtype));
}

void coll_fold(const struct coll_call *call, enum coll_fold step, const void *const *src,
               int n, size_t count, void *dst)
{
    enum hvd_dtype partial = order_partial_type(call->dtype);
    bool first = step != COLL_FOLD_HOSTS, last = step != COLL_FOLD_HOST;

    if (count == 0)
        return;
    red_run(&(struct red_job){.src = src, .nsrc = n, .dst = &dst, .ndst = 1,
                              .count = count, .src_type = first ? call->dtype : partial,
                              .dst_type = last ? call->dtype : partial,
                              .op = call->reduce, .prescale = first ? call->prescale : 1.0,
                              .postscale = last ? call->postscale : 1.0,
                              .divisor = last ? call->divisor : 0});
}
