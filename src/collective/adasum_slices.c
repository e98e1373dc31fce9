/*
 * adasum_slices.c: Adasum over any team, of any number of members.
 *
 * Each tensor is cut into blocks of BLOCK elements.  Each member owns a row of blocks of
 * the whole (fused) buffer:
 *
 *   part 0       alltoall: a member gets its blocks of all members' vectors
 *   part 1, ...  a level of the tree each: dot products of each block and pair by its
 *                owner, allgather of them, sum over the blocks of a tensor in their
 *                order, and combination of the pairs
 *   last part    allgather of the result
 *
 * Order: with p the largest power of two in n, member p + i is first folded into i;
 * then pairs r and r + 1, r and r + 2, r and r + 4, ... are combined.  Dot products are
 * sums over the same blocks in the same order whatever the team's layout, so the bits do
 * not depend on it.
 */
#include "collective/hier_int.h"

#include <float.h>
#include <math.h>

#define BLOCK ((size_t)16384)

extern const struct coll_alg adasum_slices;

struct tree {
    struct hier h;
    int levels;                         /* folding included */
    size_t blocks;                      /* of the whole buffer */
    size_t first_block, my_blocks;
    size_t begin, length;               /* elements we own */
    uint64_t *counts, *recv_counts;     /* by member */
    char *room;                         /* our elements of all vectors, by member */
    double *dots, *all_dots;            /* of our blocks, of all */
};

/* ---- Blocks ------------------------------------------------------------------------ */

static int tensors(const struct coll_task *t)
{
    return t->call.segments != NULL ? t->call.segment_count : 1;
}

static size_t tensor_count(const struct coll_task *t, int tensor)
{
    return t->call.segments != NULL ? t->call.segments[tensor] : t->call.count;
}

static size_t blocks_of(size_t count)
{
    return (count + BLOCK - 1) / BLOCK;
}

/* First element of a block of the buffer; its end for the one after the last. */
static size_t block_begin(const struct coll_task *t, size_t block)
{
    size_t at = 0;

    for (int i = 0; i < tensors(t); i++) {
        size_t n = blocks_of(tensor_count(t, i));

        if (block < n)
            return at + block * BLOCK;
        block -= n;
        at += tensor_count(t, i);
    }
    return at;
}

static size_t row_begin(const struct coll_task *t, int member)
{
    const struct tree *tree = (const struct tree *)t->state;
    size_t n = (size_t)t->team->count, i = (size_t)member;

    return tree->blocks / n * i + (tree->blocks % n) * i / n;
}

static char *vector(const struct coll_task *t, int member)
{
    const struct tree *tree = (const struct tree *)t->state;

    return tree->room + (size_t)member * tree->length * task_type_bytes(t->call.dtype);
}

/* ---- Pairs of a level -------------------------------------------------------------- */

static int folded(const struct coll_task *t)
{
    int p = 1;

    while (2 * p <= t->team->count)
        p *= 2;
    return p;
}

/* Pair i of the level: *b_p is combined into the result.  False: no more. */
static bool pair_of(const struct coll_task *t, int level, int i, int *a_p, int *b_p)
{
    int p = folded(t), excess = t->team->count - p, far;

    if (excess > 0 && level == 0) {
        *a_p = i;
        *b_p = p + i;
        return i < excess;
    }
    far = 1 << (level - (excess > 0));
    *a_p = 2 * far * i;
    *b_p = *a_p + far;
    return *b_p < p;
}

static int pair_count(const struct coll_task *t, int level)
{
    int a, b, n = 0;

    while (pair_of(t, level, n, &a, &b))
        n++;
    return n;
}

/* ---- Dot products ------------------------------------------------------------------ */

typedef void (*block_fn)(struct coll_task *t, int tensor, size_t block, size_t begin,
                         size_t count, void *context);

/* Calls f for each of our blocks; begin and count within our elements. */
static void each_block(struct coll_task *t, block_fn f, void *context)
{
    struct tree *tree = (struct tree *)t->state;
    size_t block = 0, at = 0;

    for (int i = 0; i < tensors(t); i++) {
        size_t left = tensor_count(t, i);

        for (; left > 0; block++) {
            size_t n = left < BLOCK ? left : BLOCK;

            if (block >= tree->first_block &&
                block < tree->first_block + tree->my_blocks)
                f(t, i, block, at - tree->begin, n, context);
            at += n;
            left -= n;
        }
    }
}

struct pair_at {
    int index, a, b;
};

static void dot_block(struct coll_task *t, int tensor, size_t block, size_t begin,
                      size_t count, void *context)
{
    struct tree *tree = (struct tree *)t->state;
    const struct pair_at *pair = context;
    size_t unit = task_type_bytes(t->call.dtype);
    double *d = tree->dots + 3 * ((size_t)pair->index * tree->my_blocks + block -
                                  tree->first_block);

    (void)tensor;
    red_dots(vector(t, pair->a) + begin * unit, vector(t, pair->b) + begin * unit, count,
             t->call.dtype, &d[0], &d[1], &d[2]);
}

static enum hvd_status start_level(struct coll_task *t, int level, struct hvd_error *err)
{
    struct tree *tree = (struct tree *)t->state;
    struct coll_call call = hier_call(t, COLL_ALLGATHER);
    int pairs = pair_count(t, level);

    for (int i = 0; i < pairs; i++) {
        struct pair_at pair = {.index = i};

        pair_of(t, level, i, &pair.a, &pair.b);
        each_block(t, dot_block, &pair);
    }
    for (int i = 0; i < t->team->count; i++)
        tree->recv_counts[i] =
            3 * (uint64_t)pairs * (row_begin(t, i + 1) - row_begin(t, i));
    call.dtype = HVD_F64;
    call.in = tree->dots;
    call.out = tree->all_dots;
    call.counts = tree->recv_counts;
    return task_start(t->team, &call, 1 + (uint32_t)level, HVD_F64, &tree->h.child, err);
}

/* Dot products of one tensor: over its blocks, in their order. */
static void sum_dots(const struct coll_task *t, int level, int pair, size_t block,
                     size_t blocks, double sum[3])
{
    const struct tree *tree = (const struct tree *)t->state;
    size_t pairs = (size_t)pair_count(t, level);
    int owner = 0;

    sum[0] = sum[1] = sum[2] = 0.0;
    for (size_t end = block + blocks; block < end; block++) {
        const double *d;
        size_t row, length;

        while (row_begin(t, owner + 1) <= block)
            owner++;
        row = row_begin(t, owner);
        length = row_begin(t, owner + 1) - row;
        d = tree->all_dots + 3 * (pairs * row + (size_t)pair * length + block - row);
        for (int i = 0; i < 3; i++)
            sum[i] += d[i];
    }
}

/* ---- Combination ------------------------------------------------------------------- */

static double weight(double dot, double norm)
{
    return norm < sqrt(DBL_MIN) ? 1.0 : 1.0 - dot / (2.0 * norm);
}

struct range {
    size_t begin, count;                /* of our elements */
};

/* Our elements of a tensor that begins at `at`. */
static struct range own_part(const struct tree *tree, size_t at, size_t count)
{
    size_t low = at > tree->begin ? at : tree->begin;
    size_t high = at + count < tree->begin + tree->length ? at + count
                                                          : tree->begin + tree->length;

    return (struct range){low - tree->begin, high > low ? high - low : 0};
}

static void combine_pair(struct coll_task *t, int level, int index)
{
    struct tree *tree = (struct tree *)t->state;
    size_t unit = task_type_bytes(t->call.dtype), at = 0, block = 0;
    int a, b;

    pair_of(t, level, index, &a, &b);
    for (int i = 0; i < tensors(t); i++) {
        size_t count = tensor_count(t, i), n = blocks_of(count);
        struct range r = own_part(tree, at, count);

        if (r.count > 0) {
            char *x = vector(t, a) + r.begin * unit, *y = vector(t, b) + r.begin * unit;
            double d[3];

            sum_dots(t, level, index, block, n, d);
            red_combine(x, x, weight(d[0], d[1]), y, weight(d[0], d[2]), r.count,
                        t->call.dtype);
        }
        at += count;
        block += n;
    }
}

/* ---- The task ---------------------------------------------------------------------- */

static void tree_release(struct coll_task *t)
{
    struct tree *tree = (struct tree *)t->state;

    hier_drop(t);
    scratch_put(t->team->scratch, tree->counts);
    scratch_put(t->team->scratch, tree->room);
    scratch_put(t->team->scratch, tree->dots);
    scratch_put(t->team->scratch, tree->all_dots);
}

static enum hvd_status take_memory(struct coll_task *t, struct hvd_error *err)
{
    struct tree *tree = (struct tree *)t->state;
    struct scratch *s = t->team->scratch;
    size_t n = (size_t)t->team->count, pairs = n / 2 + 1;

    tree->counts = scratch_get(s, 2 * n * sizeof(uint64_t));
    tree->room = scratch_get(s, n * tree->length * task_type_bytes(t->call.dtype));
    tree->dots = scratch_get(s, 3 * pairs * tree->my_blocks * sizeof(double));
    tree->all_dots = scratch_get(s, 3 * pairs * tree->blocks * sizeof(double));
    if (tree->counts == NULL || tree->room == NULL || tree->dots == NULL ||
        tree->all_dots == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for adasum");
    tree->recv_counts = tree->counts + n;
    return HVD_OK;
}

static enum hvd_status start_exchange(struct coll_task *t, struct hvd_error *err)
{
    struct tree *tree = (struct tree *)t->state;
    struct coll_call call = hier_call(t, COLL_ALLTOALL);

    for (int i = 0; i < t->team->count; i++) {
        tree->counts[i] = block_begin(t, row_begin(t, i + 1)) -
                          block_begin(t, row_begin(t, i));
        tree->recv_counts[i] = tree->length;
    }
    call.out = tree->room;
    call.counts = tree->counts;
    call.recv_counts = tree->recv_counts;
    return task_start(t->team, &call, 0, t->call.dtype, &tree->h.child, err);
}

static enum hvd_status check_segments(const struct coll_task *t, struct hvd_error *err)
{
    size_t sum = 0;

    for (int i = 0; i < tensors(t); i++)
        sum += tensor_count(t, i);
    if (sum != t->call.count)
        return error_set(err, HVD_INVALID, -1, "segments hold %zu of %zu elements", sum,
                         t->call.count);
    return HVD_OK;
}

static enum hvd_status tree_start(struct coll_task *t, struct hvd_error *err)
{
    struct tree *tree = (struct tree *)t->state;
    int p = folded(t);
    enum hvd_status status;

    *tree = (struct tree){.levels = pattern_rounds(p) + (p < t->team->count)};
    TRY(check_segments(t, err));
    for (int i = 0; i < tensors(t); i++)
        tree->blocks += blocks_of(tensor_count(t, i));
    tree->first_block = row_begin(t, t->team->me);
    tree->my_blocks = row_begin(t, t->team->me + 1) - tree->first_block;
    tree->begin = block_begin(t, tree->first_block);
    tree->length = block_begin(t, tree->first_block + tree->my_blocks) - tree->begin;
    TRY_OUT(take_memory(t, err));
    TRY_OUT(start_exchange(t, err));
    return HVD_OK;
out:
    tree_release(t);
    return status;
}

static void scale_all(struct coll_task *t, double factor, int vectors)
{
    struct tree *tree = (struct tree *)t->state;

    if (factor != 1.0 && tree->length > 0)
        red_scale(tree->room, (size_t)vectors * tree->length, t->call.dtype, factor);
}

static enum hvd_status start_last(struct coll_task *t, struct hvd_error *err)
{
    struct tree *tree = (struct tree *)t->state;
    struct coll_call call = hier_call(t, COLL_ALLGATHER);

    scale_all(t, t->call.postscale, 1);
    call.in = tree->room;
    call.counts = tree->counts;
    return task_start(t->team, &call, 1 + (uint32_t)tree->levels, t->call.dtype,
                      &tree->h.child, err);
}

/* Phase 0 is the exchange, phase k the dot products of level k - 1. */
static enum hvd_status tree_step(struct coll_task *t, struct hvd_error *err)
{
    struct tree *tree = (struct tree *)t->state;

    while (tree->h.phase < tree->levels + 2) {
        int phase = tree->h.phase, pairs;

        TRY(hier_drive(t, err));
        tree->h.phase++;
        if (phase == 0)
            scale_all(t, t->call.prescale, t->team->count);
        else if (phase <= tree->levels) {
            pairs = pair_count(t, phase - 1);
            for (int i = 0; i < pairs; i++)
                combine_pair(t, phase - 1, i);
        }
        if (phase < tree->levels)
            TRY(start_level(t, phase, err));
        else if (phase == tree->levels)
            TRY(start_last(t, err));
    }
    return HVD_OK;
}

static bool tree_has_come(const struct coll_task *t, int member)
{
    const struct tree *tree = (const struct tree *)t->state;

    return tree->h.phase > 0 || coll_has_come(tree->h.child, member);
}

static bool tree_is_committed(const struct coll_task *t)
{
    const struct tree *tree = (const struct tree *)t->state;

    return tree->h.phase > 0 || coll_is_committed(tree->h.child);
}

static bool tree_needs_us(const struct coll_task *t)
{
    const struct tree *tree = (const struct tree *)t->state;

    return tree->h.phase > 0 || coll_is_committed(tree->h.child);
}

const struct coll_alg adasum_slices = {
    .op = COLL_ADASUM, .name = "slices",
    .text = "each combines its slice of all vectors, dot products to all",
    .state_bytes = sizeof(struct tree), .can = task_can_always, .start = tree_start,
    .step = tree_step, .release = tree_release, .needs_us = tree_needs_us,
    .has_come = tree_has_come, .is_committed = tree_is_committed,
};
