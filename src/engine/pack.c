/*
 * pack.c: how several tensors lie in a fusion buffer.
 *
 *   allreduce, broadcast   one tensor after the other; the result takes the same place
 *   allgather              in: this rank's parts, one after the other
 *                          out: for each member its parts, one after the other
 *   reducescatter          in: for each member its slices of all tensors
 *                          out: this rank's slices, one after the other
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

/* Elements by member over all tensors, for the one call that serves them all. */
enum hvd_status pack_plan(struct batch *b, struct hvd_error *err)
{
    int members = b->set->count;

    b->all = (struct plan){.out_rows = -1};
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
    uint64_t mine;

    if (!has_members(b))
        return sum(b->counts, b->count) * element;
    mine = b->all.counts[b->set->self];
    return round_up((b->form.op == HVD_ALLGATHER ? mine
                                            : sum(b->all.counts, b->set->count)) * element) +
           (b->form.op == HVD_ALLGATHER ? sum(b->all.counts, b->set->count) : mine) * element;
}

/* Where the result lies in the buffer. */
char *pack_result(const struct batch *b)
{
    size_t element = hvd_dtype_bytes(b->form.dtype);

    if (b->form.op == HVD_ALLGATHER)
        return b->fused + round_up(b->all.counts[b->set->self] * element);
    if (b->form.op == HVD_REDUCESCATTER)
        return b->fused + round_up(sum(b->all.counts, b->set->count) * element);
    return b->fused;
}

static void put_slices(const struct batch *b)
{
    size_t element = hvd_dtype_bytes(b->form.dtype);
    char *at = b->fused;

    for (int m = 0; m < b->set->count; m++)
        for (int i = 0; i < b->count; i++) {
            const struct plan *p = &b->plans[i];
            size_t bytes = p->counts[m] * element;

            memcpy(at, (const char *)b->entries[i]->input + sum(p->counts, m) * element,
                   bytes);
            at += bytes;
        }
}

void pack_in(const struct batch *b)
{
    size_t element = hvd_dtype_bytes(b->form.dtype);
    char *at = b->fused;

    if (b->form.op == HVD_REDUCESCATTER) {
        put_slices(b);
        return;
    }
    for (int i = 0; i < b->count; i++) {
        const struct entry *t = b->entries[i];
        uint64_t count = t != NULL ? t->count : b->counts[i];

        if (t == NULL)
            red_fill_neutral(at, count, b->form.dtype, plan_reduce(b->form.reduce));
        else
            memcpy(at, t->input, count * element);
        at += count * element;
    }
}

static void take_parts(const struct batch *b)
{
    size_t element = hvd_dtype_bytes(b->form.dtype);
    const char *at = pack_result(b);

    for (int m = 0; m < b->set->count; m++)
        for (int i = 0; i < b->count; i++) {
            const struct plan *p = &b->plans[i];
            size_t bytes = p->counts[m] * element;

            memcpy((char *)b->entries[i]->output + sum(p->counts, m) * element, at, bytes);
            at += bytes;
        }
}

void pack_out(const struct batch *b)
{
    size_t element = hvd_dtype_bytes(b->form.dtype);
    const char *at = pack_result(b);

    if (b->form.op == HVD_ALLGATHER) {
        take_parts(b);
        return;
    }
    for (int i = 0; i < b->count; i++) {
        uint64_t count = has_members(b) ? b->plans[i].counts[b->set->self] : b->counts[i];

        if (b->entries[i] != NULL)
            memcpy(b->entries[i]->output, at, count * element);
        at += count * element;
    }
}
