/*
 * order.c: the one order in which elements are combined: by team rank within a host,
 * then by hosts in the order of their first team rank.  Every algorithm ends here, or
 * does the two halves itself in this order, so that the bits do not depend on it.
 *
 * Up to HOSTS_IN_LINE hosts are added one after the other.  More of them are added by pairs, so
 * that the sum can be made in log2(n) rounds, whichever algorithm makes it:
 *   leaves  with p the largest power of two in n hosts, and r = n - p: leaf i < r is host 2i and
 *           host 2i + 1, leaf i >= r is host i + r
 *   blocks  leaves 0 and 1, 2 and 3, ...; then these by pairs; and so on, the lower one first
 * It is a matter of the layout alone, like all of the order.
 *
 * Partial sums of 16-bit floats stay in float32; they are rounded once, at the end.
 */
#include "collective/collective_int.h"

#define BLOCK_BYTES (32u << 10)         /* of a partial sum; some of them fit into L2 */
#define FOLD_BYTES 1024u                /* the same on the stack, of small tensors */
#define HOSTS_IN_LINE 8                 /* one pass over all of them; and with so few, each
                                         * can send to all others */
#define LEVELS_MAX 24                   /* of pairs; more than MEMBER_MAX needs */

enum hvd_dtype order_partial_type(enum hvd_dtype dtype)
{
    return dtype == HVD_F16 || dtype == HVD_BF16 ? HVD_F32 : dtype;
}

bool order_is_by_pairs(const struct coll_team *team)
{
    return team->layout.host_count > HOSTS_IN_LINE;
}

bool order_is_tree(const struct coll_team *team)
{
    return team->count > HOSTS_IN_LINE && team->layout.host_count == team->count;
}

/* ---- By pairs ------------------------------------------------------------------------- */

/* A sum of `leaves` from the first on; in `room`, which has a place for each level, or where a
 * source lies. */
static const void *sum_leaves(const struct red_job *job, int first, int leaves, char *room,
                              size_t place_bytes)
{
    enum hvd_dtype partial = order_partial_type(job->src_type);
    int folded = job->nsrc - pattern_power(job->nsrc);
    struct red_job part = *job;
    const void *both[2];
    void *to = room;

    part.dst = &to;
    part.ndst = 1;
    part.dst_type = partial;
    part.postscale = 1.0;
    part.divisor = 0;
    part.stream = false;
    if (leaves == 1) {
        part.src = job->src + (first < folded ? 2 * first : first + folded);
        part.nsrc = first < folded ? 2 : 1;
        if (part.nsrc == 1 && job->src_type == partial && job->prescale == 1.0)
            return part.src[0];
        red_run(&part);
        return room;
    }
    both[0] = sum_leaves(job, first, leaves / 2, room, place_bytes);
    both[1] = sum_leaves(job, first + leaves / 2, leaves / 2, room + place_bytes, place_bytes);
    part.src = both;
    part.nsrc = 2;
    part.src_type = partial;
    part.prescale = 1.0;
    red_run(&part);
    return room;
}

/* One source per host.  room: a place for each level, and one. */
static void sum_hosts(const struct red_job *job, char *room, size_t place_bytes)
{
    struct red_job last = *job;
    const void *both[2];
    int half = pattern_power(job->nsrc) / 2;

    if (job->nsrc <= HOSTS_IN_LINE) {
        red_run(job);
        return;
    }
    both[0] = sum_leaves(job, 0, half, room, place_bytes);
    both[1] = sum_leaves(job, half, half, room + place_bytes, place_bytes);
    last.src = both;
    last.nsrc = 2;
    last.src_type = order_partial_type(job->src_type);
    last.prescale = 1.0;
    red_run(&last);
}

static size_t levels(int hosts)
{
    return hosts > HOSTS_IN_LINE ? (size_t)pattern_rounds(hosts) + 1 : 0;
}

/* ---- By host --------------------------------------------------------------------------- */

static void reduce_host(struct coll_task *task, int host, const void *const *sources,
                        size_t first, size_t count, void *partial)
{
    const struct coll_team *team = task->team;
    size_t skip = first * task_type_bytes(task->call.dtype);
    int begin = team->layout.begin[host], n = team->layout.begin[host + 1] - begin;
    const void **src = team->src + team->count;

    for (int i = 0; i < n; i++)
        src[i] = (const char *)sources[team->layout.by_host[begin + i]] + skip;
    red_run(&(struct red_job){.src = src, .nsrc = n, .dst = &partial, .ndst = 1,
                              .count = count, .src_type = task->call.dtype,
                              .dst_type = order_partial_type(task->call.dtype),
                              .op = task->call.reduce, .prescale = task->call.prescale,
                              .postscale = 1.0});
}

static void reduce_hosts(struct coll_task *task, const void *const *partials,
                         void *const *dst, int ndst, size_t first, size_t count, char *room)
{
    const struct coll_team *team = task->team;
    void **to = team->dst + team->count;

    for (int i = 0; i < ndst; i++)
        to[i] = (char *)dst[i] + first * task_type_bytes(task->out_type);
    sum_hosts(&(struct red_job){.src = partials, .nsrc = team->layout.host_count, .dst = to,
                                .ndst = ndst, .count = count,
                                .src_type = order_partial_type(task->call.dtype),
                                .dst_type = task->out_type, .op = task->call.reduce,
                                .prescale = 1.0, .postscale = task->call.postscale,
                                .divisor = task->call.divisor}, room, BLOCK_BYTES);
}

static enum hvd_status reduce_by_host(struct coll_task *task, const void *const *sources,
                                      void *const *dst, int ndst, size_t count,
                                      struct hvd_error *err)
{
    int hosts = task->team->layout.host_count;
    size_t block = BLOCK_BYTES / task_type_bytes(order_partial_type(task->call.dtype));
    size_t places = (size_t)hosts + levels(hosts);
    char *room = scratch_get(task->team->scratch,
                             places * BLOCK_BYTES + (size_t)hosts * sizeof(void *));
    const void **partials = (const void **)(room + places * BLOCK_BYTES);

    if (room == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for partial sums");
    for (int h = 0; h < hosts; h++)
        partials[h] = room + (size_t)h * BLOCK_BYTES;
    for (size_t first = 0; first < count; first += block) {
        size_t n = count - first < block ? count - first : block;

        for (int h = 0; h < hosts; h++)
            reduce_host(task, h, sources, first, n, (void *)partials[h]);
        reduce_hosts(task, partials, dst, ndst, first, n,
                     room + (size_t)hosts * BLOCK_BYTES);
    }
    scratch_put(task->team->scratch, room);
    return HVD_OK;
}

/* Each member is a host, and they are many. */
static enum hvd_status reduce_by_pairs(struct coll_task *task, const void *const *sources,
                                       void *const *dst, int ndst, size_t count,
                                       struct hvd_error *err)
{
    struct coll_team *team = task->team;
    const struct coll_call *c = &task->call;
    size_t unit = task_type_bytes(c->dtype), out_unit = task_type_bytes(task->out_type);
    size_t block = BLOCK_BYTES / task_type_bytes(order_partial_type(c->dtype));
    char *room = scratch_get(team->scratch, levels(team->count) * BLOCK_BYTES);
    const void **src = team->src + team->count;
    void **to = team->dst + team->count;

    if (room == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for partial sums");
    for (size_t first = 0; first < count; first += block) {
        for (int i = 0; i < team->count; i++)
            src[i] = (const char *)sources[i] + first * unit;
        for (int i = 0; i < ndst; i++)
            to[i] = (char *)dst[i] + first * out_unit;
        sum_hosts(&(struct red_job){.src = src, .nsrc = team->count, .dst = to, .ndst = ndst,
                                    .count = count - first < block ? count - first : block,
                                    .src_type = c->dtype, .dst_type = task->out_type,
                                    .op = c->reduce, .prescale = c->prescale,
                                    .postscale = c->postscale, .divisor = c->divisor},
                  room, BLOCK_BYTES);
    }
    scratch_put(team->scratch, room);
    return HVD_OK;
}

enum hvd_status order_reduce(struct coll_task *task, const void *const *sources,
                             void *const *dst, int ndst, size_t count, bool stream,
                             struct hvd_error *err)
{
    const struct coll_call *c = &task->call;

    if (count == 0)
        return HVD_OK;
    if (!layout_is_flat(&task->team->layout))
        return reduce_by_host(task, sources, dst, ndst, count, err);
    if (order_is_tree(task->team))
        return reduce_by_pairs(task, sources, dst, ndst, count, err);
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

/* Small ones, by pieces that have room on the stack. */
static void fold_hosts(const struct red_job *whole, char *dst)
{
    char room[LEVELS_MAX * FOLD_BYTES];
    const void *at[COLL_FOLD_MAX];
    size_t unit = task_type_bytes(whole->src_type), left;
    size_t out_unit = task_type_bytes(whole->dst_type);
    size_t block = FOLD_BYTES / task_type_bytes(order_partial_type(whole->src_type));

    BUG_ON(whole->nsrc > COLL_FOLD_MAX);
    for (size_t first = 0; first < whole->count; first += block) {
        void *to = dst + first * out_unit;
        struct red_job job = *whole;

        for (int i = 0; i < job.nsrc; i++)
            at[i] = (const char *)whole->src[i] + first * unit;
        left = whole->count - first;
        job.src = at;
        job.dst = &to;
        job.count = left < block ? left : block;
        sum_hosts(&job, room, FOLD_BYTES);
    }
}

void coll_fold(const struct coll_call *call, enum coll_fold step, const void *const *src,
               int n, size_t count, void *dst)
{
    enum hvd_dtype partial = order_partial_type(call->dtype);
    bool first = step != COLL_FOLD_HOSTS, last = step != COLL_FOLD_HOST;
    bool hosts = step == COLL_FOLD_HOSTS || step == COLL_FOLD_ALL;
    struct red_job job = {.src = src, .nsrc = n, .dst = &dst, .ndst = 1, .count = count,
                          .src_type = first ? call->dtype : partial,
                          .dst_type = last ? call->dtype : partial, .op = call->reduce,
                          .prescale = first ? call->prescale : 1.0,
                          .postscale = last ? call->postscale : 1.0,
                          .divisor = last ? call->divisor : 0};

    if (count == 0)
        return;
    if (hosts && n > HOSTS_IN_LINE)
        fold_hosts(&job, dst);
    else
        red_run(&job);
}
