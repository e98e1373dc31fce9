/* coll_case.c: see coll_case.h. */
#include "coll_case.h"

#include "check.h"

#include <float.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

/* ---- Teams ------------------------------------------------------------------------- */

void bed_open(struct coll_bed *bed, struct harness_rank *r, unsigned mask, int slot,
              uint32_t epoch)
{
    *bed = (struct coll_bed){.r = r, .seed = (unsigned)r->rank * 7919 + 1};
    for (int i = 0; i < r->size; i++)
        if (mask == 0 || (mask >> i & 1)) {
            if (i == r->rank)
                bed->me = bed->count;
            bed->ranks[bed->count++] = i;
        }
    bed->words = r->shared != NULL ? harness_word(r, 0) : NULL;
    CHECK_OK(coll_team_new(r->mesh, bed->ranks, bed->count, slot, epoch, &bed->team,
                           &r->err),
             r->err);
}

void bed_close(struct coll_bed *bed)
{
    coll_team_free(bed->team);
    bed->team = NULL;
}

/* Ranks come at different times, without sleeping. */
static void dawdle(struct coll_bed *bed)
{
    for (int i = rand_r(&bed->seed) % 16; i > 12; i--)
        sched_yield();
}

static enum hvd_status sleep_once(struct coll_bed *bed, struct coll_task *task,
                                  struct hvd_error *err)
{
    struct mesh *mesh = bed->r->mesh;
    enum hvd_status status;

    if (!mesh_arm(mesh, true))
        return HVD_AGAIN;
    status = coll_step(task, err);
    if (status == HVD_AGAIN)
        mesh_sleep(mesh, -1);
    mesh_disarm(mesh);
    return status;
}

enum hvd_status case_drive(struct coll_bed *bed, struct coll_task *task, bool asleep,
                           struct hvd_error *err)
{
    enum hvd_status status;

    dawdle(bed);
    while ((status = coll_step(task, err)) == HVD_AGAIN) {
        if (coll_sizes(task) != NULL) {
            coll_place(task, bed->place);
            continue;
        }
        if (mesh_progress(bed->r->mesh) > 0)
            continue;
        if (asleep && (status = sleep_once(bed, task, err)) != HVD_AGAIN)
            break;
        sched_yield();
    }
    return status;
}

/* ---- Data -------------------------------------------------------------------------- */

static uint32_t mix(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t h = a * 0x9e3779b1u ^ (b + 0x7f4a7c15u) * 0x85ebca6bu ^ c * 0xc2b2ae35u;

    h ^= h >> 15;
    h *= 0x2c1b3c6du;
    return h ^ h >> 13;
}

static void put_value(char *at, enum hvd_dtype dtype, uint32_t h)
{
    double number = ((double)(h % 20011) - 10005) * 0.37;
    float single = (float)number;
    int64_t integer = (int64_t)(h % 2003) - 1001;
    uint16_t bits;

    switch (dtype) {
    case HVD_F64: memcpy(at, &number, 8); return;
    case HVD_F32: memcpy(at, &single, 4); return;
    case HVD_F16: bits = (uint16_t)((h & 0x83ff) | (10 + h % 9) << 10); break;
    case HVD_BF16: bits = (uint16_t)((h & 0x807f) | (121 + h % 9) << 7); break;
    case HVD_BOOL: *at = (char)(h % 3); return;
    default:
        memcpy(at, &integer, hvd_dtype_bytes(dtype));
        return;
    }
    memcpy(at, &bits, 2);
}

void case_fill(void *data, size_t count, enum hvd_dtype dtype, int member, unsigned salt)
{
    size_t unit = hvd_dtype_bytes(dtype);

    for (size_t i = 0; i < count; i++)
        put_value((char *)data + i * unit, dtype, mix((uint32_t)member, (uint32_t)i, salt));
}

static void *take(bool mapped, size_t bytes)
{
    void *p = mapped ? arena_alloc(bytes + 64) : malloc(bytes + 64);

    CHECK(p != NULL);
    memset(p, 0x5a, bytes + 64);
    return p;
}

static void give(bool mapped, void *p)
{
    if (mapped)
        arena_free(p);
    else
        free(p);
}

/* ---- Counts ------------------------------------------------------------------------ */

/* Elements that go from one member to another, or that belong to one member. */
static uint64_t part(const struct coll_case *c, int from, int to)
{
    uint32_t h = mix((uint32_t)from, (uint32_t)to, 77);

    if (!c->uneven)
        return c->count;
    return h % 4 == 0 ? 0 : c->count * (h % 5) / 2;
}

static uint64_t parts_before(const struct coll_case *c, int member)
{
    uint64_t sum = 0;

    for (int i = 0; i < member; i++)
        sum += part(c, i, i);
    return sum;
}

/* ---- Reference --------------------------------------------------------------------- */

struct reference {
    const struct coll_bed *bed;
    const struct coll_case *c;
    size_t count;
    void *in[HARNESS_RANKS];            /* by member */
    void *partial[HARNESS_RANKS];
};

static enum hvd_dtype partial_type(enum hvd_dtype t)
{
    return t == HVD_F16 || t == HVD_BF16 ? HVD_F32 : t;
}

static double or_one(double x)
{
    return x == 0 ? 1.0 : x;
}

static int host_of(const struct coll_bed *bed, int member)
{
    return mesh_topology(bed->r->mesh)->host_of[bed->ranks[member]];
}

/* partial[to] = partial[a] + partial[b], or what stands for +. */
static void reference_pair(const struct reference *ref, int to, int a, int b)
{
    const void *src[2] = {ref->partial[a], ref->partial[b]};
    enum hvd_dtype type = partial_type(ref->c->dtype);

    red_run(&(struct red_job){.src = src, .nsrc = 2, .dst = &ref->partial[to], .ndst = 1,
                              .count = ref->count, .src_type = type, .dst_type = type,
                              .op = ref->c->reduce, .prescale = 1.0, .postscale = 1.0});
}

/* More than eight hosts are added by pairs (order.c): leaves of two hosts or one, then two by
 * two, until two sums are left. */
static int reference_tree(struct reference *ref, int hosts)
{
    int leaves = 1;

    while (2 * leaves <= hosts)
        leaves *= 2;
    for (int i = 0, folded = hosts - leaves; i < leaves; i++)
        if (i < folded) {
            reference_pair(ref, i, 2 * i, 2 * i + 1);
        } else {
            void *unused = ref->partial[i];

            ref->partial[i] = ref->partial[i + folded];
            ref->partial[i + folded] = unused;
        }
    for (; leaves > 2; leaves /= 2)
        for (int i = 0; i < leaves / 2; i++)
            reference_pair(ref, i, 2 * i, 2 * i + 1);
    return leaves;
}

/* The members of each host in rank order, then the hosts by their first member. */
static void reference_reduce(struct reference *ref, void *out)
{
    const struct coll_case *c = ref->c;
    const struct coll_bed *bed = ref->bed;
    bool seen[HARNESS_RANKS] = {0};
    int hosts = 0;

    for (int i = 0; i < bed->count; i++) {
        const void *src[HARNESS_RANKS];
        int n = 0;

        if (seen[i])
            continue;
        for (int j = i; j < bed->count; j++)
            if (host_of(bed, j) == host_of(bed, i)) {
                seen[j] = true;
                src[n++] = ref->in[j];
            }
        red_run(&(struct red_job){.src = src, .nsrc = n, .dst = &ref->partial[hosts++],
                                  .ndst = 1, .count = ref->count, .src_type = c->dtype,
                                  .dst_type = partial_type(c->dtype), .op = c->reduce,
                                  .prescale = or_one(c->prescale), .postscale = 1.0});
    }
    if (hosts > 8)
        hosts = reference_tree(ref, hosts);
    red_run(&(struct red_job){.src = (const void *const *)ref->partial, .nsrc = hosts,
                              .dst = &out, .ndst = 1, .count = ref->count,
                              .src_type = partial_type(c->dtype), .dst_type = c->dtype,
                              .op = c->reduce, .prescale = 1.0,
                              .postscale = or_one(c->postscale), .divisor = c->divisor});
}

static void adasum_pair(void *a, const void *b, size_t count, enum hvd_dtype dtype)
{
    size_t unit = hvd_dtype_bytes(dtype), block = 16384;
    double d[3] = {0, 0, 0};

    for (size_t at = 0; at < count; at += block) {
        double x[3];
        size_t n = count - at < block ? count - at : block;

        red_dots((char *)a + at * unit, (const char *)b + at * unit, n, dtype, &x[0],
                 &x[1], &x[2]);
        for (int i = 0; i < 3; i++)
            d[i] += x[i];
    }
    red_combine(a, a, d[1] < sqrt(DBL_MIN) ? 1 : 1 - d[0] / (2 * d[1]), b,
                d[2] < sqrt(DBL_MIN) ? 1 : 1 - d[0] / (2 * d[2]), count, dtype);
}

static void reference_adasum(const struct reference *ref, void *out)
{
    const struct coll_case *c = ref->c;
    int n = ref->bed->count, p = 1;

    for (int i = 0; i < n; i++)
        if (c->prescale != 0)
            red_scale(ref->in[i], ref->count, c->dtype, c->prescale);
    while (2 * p <= n)
        p *= 2;
    for (int i = 0; p + i < n; i++)
        adasum_pair(ref->in[i], ref->in[p + i], ref->count, c->dtype);
    for (int far = 1; far < p; far *= 2)
        for (int r = 0; r + far < p; r += 2 * far)
            adasum_pair(ref->in[r], ref->in[r + far], ref->count, c->dtype);
    memcpy(out, ref->in[0], ref->count * hvd_dtype_bytes(c->dtype));
    if (c->postscale != 0)
        red_scale(out, ref->count, c->dtype, c->postscale);
}

static void *reference_sum(const struct coll_bed *bed, const struct coll_case *c,
                           size_t count, unsigned salt)
{
    struct reference ref = {.bed = bed, .c = c, .count = count};
    size_t bytes = (count + 8) * 8;
    void *out = malloc(bytes);

    for (int i = 0; i < bed->count; i++) {
        ref.in[i] = malloc(bytes);
        ref.partial[i] = malloc(bytes);
        case_fill(ref.in[i], count, c->dtype, i, salt);
    }
    if (c->op == COLL_ADASUM)
        reference_adasum(&ref, out);
    else
        reference_reduce(&ref, out);
    for (int i = 0; i < bed->count; i++) {
        free(ref.in[i]);
        free(ref.partial[i]);
    }
    return out;
}

/* ---- One case ---------------------------------------------------------------------- */

static void must_equal(const struct coll_bed *bed, const struct coll_case *c,
                       const void *have, const void *want, size_t count)
{
    size_t unit = hvd_dtype_bytes(c->dtype);

    if (memcmp(have, want, count * unit) == 0)
        return;
    for (size_t i = 0; i < count * unit; i++)
        if (((const char *)have)[i] != ((const char *)want)[i])
            check_fail(__FILE__, __LINE__,
                       "op %d %s count %zu in place %d mapped %d uneven %d: member %d of "
                       "%d, element %zu of %zu differs",
                       (int)c->op, hvd_dtype_name(c->dtype), c->count, c->in_place,
                       c->mapped, c->uneven, bed->me, bed->count, i / unit, count);
}

static void open_sum(struct coll_live *l, unsigned salt)
{
    l->in_count = l->want_count = l->c->count;
    l->want = reference_sum(l->bed, l->c, l->c->count, salt);
}

static void open_scatter(struct coll_live *l, unsigned salt)
{
    const struct coll_bed *bed = l->bed;
    size_t unit = hvd_dtype_bytes(l->c->dtype);
    char *all;

    l->in_count = parts_before(l->c, bed->count);
    l->want_count = part(l->c, bed->me, bed->me);
    all = reference_sum(bed, l->c, l->in_count, salt);
    l->want = malloc((l->want_count + 1) * unit);
    memcpy(l->want, all + parts_before(l->c, bed->me) * unit, l->want_count * unit);
    free(all);
}

static void open_gather(struct coll_live *l, unsigned salt)
{
    const struct coll_bed *bed = l->bed;
    size_t unit = hvd_dtype_bytes(l->c->dtype);

    l->in_count = part(l->c, bed->me, bed->me);
    l->want_count = parts_before(l->c, bed->count);
    l->want = malloc((l->want_count + 1) * unit);
    for (int i = 0; i < bed->count; i++)
        case_fill(l->want + parts_before(l->c, i) * unit, part(l->c, i, i), l->c->dtype,
                  i, salt);
}

static void open_swap(struct coll_live *l, unsigned salt)
{
    const struct coll_bed *bed = l->bed;
    size_t unit = hvd_dtype_bytes(l->c->dtype);
    char *at;

    for (int i = 0; i < bed->count; i++) {
        l->in_count += l->counts[i] = part(l->c, bed->me, i);
        l->want_count += l->recv_counts[i] = part(l->c, i, bed->me);
    }
    at = l->want = malloc((l->want_count + 1) * unit);
    for (int i = 0; i < bed->count; at += l->recv_counts[i++] * unit)
        case_fill(at, l->recv_counts[i], l->c->dtype, i * 64 + bed->me, salt);
}

static void open_cast(struct coll_live *l, unsigned salt)
{
    l->in_count = l->want_count = l->c->count;
    l->want = malloc((l->want_count + 1) * hvd_dtype_bytes(l->c->dtype));
    case_fill(l->want, l->want_count, l->c->dtype, l->c->root, salt);
}

static void open_barrier(struct coll_live *l, unsigned salt)
{
    struct coll_bed *bed = l->bed;

    (void)salt;
    l->arrivals = (uint64_t)++bed->barriers[l->c->board] * (uint64_t)bed->count;
    l->want = malloc(1);
}

/* In place is what the operation means by it; scatter and swap have no such thing. */
static void take_buffers(struct coll_live *l)
{
    const struct coll_case *c = l->c;
    size_t unit = hvd_dtype_bytes(c->dtype);

    l->out = take(c->mapped, l->want_count * unit);
    l->in = NULL;
    if (c->in_place && c->op == COLL_ALLGATHER)
        l->in = l->out + parts_before(c, l->bed->me) * unit;
    else if (c->in_place && c->op != COLL_ALLTOALL && c->op != COLL_REDUCESCATTER)
        l->in = l->out;
    else
        l->in = take(c->mapped, l->in_count * unit);
}

static void fill_input(struct coll_live *l, unsigned salt)
{
    size_t unit = hvd_dtype_bytes(l->c->dtype);
    char *at = l->in;

    if (l->c->op != COLL_ALLTOALL) {
        case_fill(l->in, l->in_count, l->c->dtype, l->bed->me, salt);
        return;
    }
    for (int i = 0; i < l->bed->count; at += l->counts[i++] * unit)
        case_fill(at, l->counts[i], l->c->dtype, l->bed->me * 64 + i, salt);
}

void case_open(struct coll_live *l, struct coll_bed *bed, const struct coll_case *c)
{
    static void (*const open[COLL_OP_COUNT])(struct coll_live *, unsigned) = {
        [COLL_ALLREDUCE] = open_sum, [COLL_ADASUM] = open_sum,
        [COLL_REDUCESCATTER] = open_scatter, [COLL_ALLGATHER] = open_gather,
        [COLL_ALLTOALL] = open_swap, [COLL_BROADCAST] = open_cast,
        [COLL_BARRIER] = open_barrier};
    unsigned salt = bed->turns[c->board] * 31 + (unsigned)c->op;

    *l = (struct coll_live){.bed = bed, .c = c};
    for (int i = 0; i < bed->count && c->op != COLL_ALLTOALL; i++)
        l->counts[i] = part(c, i, i);
    open[c->op](l, salt);
    take_buffers(l);
    fill_input(l, salt);
    l->call = (struct coll_call){
        .op = c->op, .dtype = c->dtype, .reduce = c->reduce, .board = c->board,
        .turn = ++bed->turns[c->board], .in = l->in, .out = l->out, .count = c->count,
        .counts = l->counts, .recv_counts = l->recv_counts, .root = c->root,
        .prescale = or_one(c->prescale), .postscale = or_one(c->postscale),
        .divisor = c->divisor, .agreed = c->agreed, .waited = c->waited, .open = c->open};
    bed->place = l->out;
    if (!c->open)
        return;
    l->call.out = NULL;
    l->call.recv_counts = NULL;
    for (int i = 0; i < bed->count && c->op == COLL_ALLGATHER; i++)
        l->counts[i] = i == bed->me ? l->counts[i] : UINT64_MAX;
}

void case_start(struct coll_live *l)
{
    struct hvd_error err;

    if (l->c->op == COLL_BARRIER)
        atomic_fetch_add(&l->bed->words[l->c->board], 1);
    CHECK_OK(coll_start(l->bed->team, &l->call, &l->task, &err), err);
}

void case_close(struct coll_live *l)
{
    coll_finish(l->task);
    case_check(l);
}

void case_check(struct coll_live *l)
{
    const struct coll_case *c = l->c;
    size_t unit = hvd_dtype_bytes(c->dtype);

    if (c->op == COLL_BARRIER)
        CHECK(atomic_load(&l->bed->words[c->board]) >= l->arrivals);
    must_equal(l->bed, c, l->out, l->want, l->want_count);
    CHECK_EQ(l->out[l->want_count * unit], 0x5a);
    if (!c->in_place || c->op == COLL_ALLTOALL || c->op == COLL_REDUCESCATTER)
        give(c->mapped, l->in);
    give(c->mapped, l->out);
    free(l->want);
}

void case_run(struct coll_bed *bed, const struct coll_case *c)
{
    struct coll_live live;
    struct hvd_error err;

    case_open(&live, bed, c);
    dawdle(bed);
    case_start(&live);
    CHECK_OK(case_drive(bed, live.task, c->asleep, &err), err);
    case_close(&live);
}
