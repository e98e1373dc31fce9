/*
 * pack.c: how several tensors lie in a fusion buffer.
 *
 *   allreduce, broadcast   one tensor after the other; the result takes the same place
 *   allgather              in: this rank's parts, one after the other
 *                          out: for each member its parts, one after the other
 *   reducescatter          in: for each member its slices of all tensors
 *                          out: this rank's slices, one after the other
 *   alltoall               one tensor, from a GPU: in: what it sends; out: what it gets
 *
 * Where in and out differ, out follows in, at the next multiple of 64 bytes.
 */
#include "engine/engine_int.h"

#include <stdlib.h>

static size_t round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static uint64_t sum(const uint64_t *counts, int n)
{
    uint64_t total = 0;

    for (int i = 0; i < n; i++)
        total += counts[i];
    return total;
}

static bool has_members(const struct batch *b)
{
    return b->form.op == HVD_ALLGATHER || b->form.op == HVD_REDUCESCATTER;
}

/* Elements that go in, and that come out. */
static uint64_t in_count(const struct batch *b)
{
    if (b->form.op == HVD_ALLGATHER)
        return b->all.counts[b->set->self];
    return b->all.counts != NULL ? sum(b->all.counts, b->set->count)
                                 : sum(b->counts, b->count);
}

static uint64_t out_count(const struct batch *b)
{
    if (b->form.op == HVD_ALLGATHER)
        return sum(b->all.counts, b->set->count);
    if (b->form.op == HVD_ALLTOALL)
        return sum(b->all.recv_counts, b->set->count);
    return b->form.op == HVD_REDUCESCATTER ? b->all.counts[b->set->self] : 0;
}

/* Elements by member over all tensors, for the one call that serves them all. */
enum hvd_status pack_plan(struct batch *b, struct hvd_error *err)
{
    int members = b->set->count;

    b->all = (struct plan){.out_rows = -1};
    if (b->form.op == HVD_ALLTOALL)
        return plan_copy(&b->all, &b->plans[0], members, err);
    if (!has_members(b))
        return HVD_OK;
    b->all.counts = calloc((size_t)members, sizeof *b->all.counts);
    if (b->all.counts == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a plan");
    for (int i = 0; i < b->count; i++)
        for (int m = 0; m < members; m++)
            b->all.counts[m] += b->plans[i].counts[m];
    return HVD_OK;
}

size_t pack_bytes(const struct batch *b)
{
    size_t element = hvd_dtype_bytes(b->form.dtype);

    if (b->all.counts == NULL)
        return in_count(b) * element;
    return round_up(in_count(b) * element) + out_count(b) * element;
}

/* Where the result lies in the buffer. */
char *pack_result(const struct batch *b)
{
    size_t element = hvd_dtype_bytes(b->form.dtype);

    return b->all.counts == NULL ? b->fused : b->fused + round_up(in_count(b) * element);
}

/* For each member its parts of all tensors. */
static void walk_members(const struct batch *b, char *packed, pack_fn each, void *context)
{
    size_t element = hvd_dtype_bytes(b->form.dtype);

    for (int m = 0; m < b->set->count; m++)
        for (int i = 0; i < b->count; i++) {
            const struct plan *p = &b->plans[i];
            size_t bytes = p->counts[m] * element;

            each(context, i, sum(p->counts, m) * element, packed, bytes);
            packed += bytes;
        }
}

void pack_walk_in(const struct batch *b, pack_fn each, void *context)
{
    size_t element = hvd_dtype_bytes(b->form.dtype);
    char *packed = b->fused;

    if (b->form.op == HVD_REDUCESCATTER) {
        walk_members(b, packed, each, context);
        return;
    }
    for (int i = 0; i < b->count; i++) {
        const struct entry *t = b->entries[i];
        uint64_t count = t != NULL ? t->count : b->counts[i];

        if (b->form.op == HVD_ALLTOALL)
            count = in_count(b);        /* the tensor may have more */
        each(context, i, 0, packed, count * element);
        packed += count * element;
    }
}

void pack_walk_out(const struct batch *b, pack_fn each, void *context)
{
    size_t element = hvd_dtype_bytes(b->form.dtype);
    char *packed = pack_result(b);

    if (b->form.op == HVD_ALLGATHER) {
        walk_members(b, packed, each, context);
        return;
    }
    for (int i = 0; i < b->count; i++) {
        uint64_t count = has_members(b)                ? b->plans[i].counts[b->set->self]
                         : b->form.op == HVD_ALLTOALL ? out_count(b)
                                                       : b->counts[i];

        each(context, i, 0, packed, count * element);
        packed += count * element;
    }
}

/* What a rank that has joined brings. */
void pack_neutral(const struct batch *b, char *packed, size_t bytes)
{
    red_fill_neutral(packed, bytes / hvd_dtype_bytes(b->form.dtype), b->form.dtype,
                     plan_reduce(b->form.reduce));
}

static void copy_in(void *context, int tensor, size_t at, char *packed, size_t bytes)
{
    const struct batch *b = context;
    const struct entry *t = b->entries[tensor];

    if (t == NULL)
        pack_neutral(b, packed, bytes);
    else
        memcpy(packed, (const char *)t->input + at, bytes);
}

static void copy_out(void *context, int tensor, size_t at, char *packed, size_t bytes)
{
    const struct batch *b = context;
    const struct entry *t = b->entries[tensor];

    if (t != NULL)
        memcpy((char *)t->output + at, packed, bytes);
}

void pack_in(const struct batch *b)
{
    pack_walk_in(b, copy_in, (void *)b);
}

void pack_out(const struct batch *b)
{
    pack_walk_out(b, copy_out, (void *)b);
}
