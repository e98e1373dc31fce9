/*
 * response.c: the responses of a coordinator.  All integers little endian; every length is
 * checked against what is left before it is used.
 *
 * u8 kind, then
 *   EXECUTE      u8 op | u8 dtype (+ 0x80: on a GPU) | u8 reduce | i32 root | f64 | f64
 *                | u32 n | n tensors
 *     tensor     u16 n | n bytes of name | u64 elements | u32 cached | u32 turn
 *                | u32 n | n x i64 sizes
 *   CACHED       u32 n | n x u32 cache numbers
 *   ERROR        u8 status | i32 rank | u16 n | name | u16 n | text | u32 n | n x u32
 *   REVOKE       u32 cache number | u32 seq | i32 promising member | u32 its last turn
 *   JOINED       u32 member | u32 n | n x (u32 turn | u32 cache number)
 *   JOIN_DONE    i32 last rank | u32 n | n x i64 counters
 *   SET_ADDED    u32 id | u32 slot | u32 epoch | u16 n | name | u32 n | n x u32 ranks
 *   SET_REMOVED  u32 id | u16 n | name
 *   TUNE         f64 cycle ms | u64 fusion bytes
 */
#include "wire/response.h"

#include "wire/lists.h"

#define ON_DEVICE 0x80                  /* in the type of a batch */

void put_response_kind(struct strbuf *out, enum response_kind kind)
{
    put_u8(out, kind);
}

enum hvd_status get_response_kind(struct wire_in *in, enum response_kind *kind_p,
                                  struct hvd_error *err)
{
    unsigned kind = get_u8(in);

    *kind_p = (enum response_kind)kind;
    if (in->failed || kind == 0 || kind >= RESPONSE_KIND_COUNT)
        return error_set(err, HVD_PROTO, -1, "response of kind %u", kind);
    return HVD_OK;
}

void put_revoke(struct strbuf *out, const struct wire_revoke *r)
{
    put_u32(out, r->number);
    put_u32(out, r->seq);
    put_u32(out, (uint32_t)r->promising);
    put_u32(out, r->turn);
}

enum hvd_status get_revoke(struct wire_in *in, struct wire_revoke *r,
                           struct hvd_error *err)
{
    r->number = get_u32(in);
    r->seq = get_u32(in);
    r->promising = (int32_t)get_u32(in);
    r->turn = get_u32(in);
    if (in->failed || r->promising < 0)
        return error_set(err, HVD_PROTO, -1, "revocation: not understood");
    return HVD_OK;
}

void put_joined(struct strbuf *out, const struct wire_joined *j)
{
    put_u32(out, (uint32_t)j->member);
    put_list(out, j->turns, j->turn_count, 8);
}

enum hvd_status get_joined(struct wire_in *in, struct wire_joined *j,
                           struct hvd_error *err)
{
    j->member = (int32_t)get_u32(in);
    j->turns = get_list(in, &j->turn_count, 8);
    if (in->failed || j->member < 0)
        return error_set(err, HVD_PROTO, -1, "join: not understood");
    return HVD_OK;
}

void put_batch(struct strbuf *out, const struct wire_batch *b)
{
    put_u8(out, b->form.op);
    put_u8(out, (uint8_t)(b->form.dtype | (b->form.device ? ON_DEVICE : 0)));
    put_u8(out, b->form.reduce);
    put_u32(out, (uint32_t)b->form.root);
    put_f64(out, b->form.prescale);
    put_f64(out, b->form.postscale);
    put_u32(out, b->tensor_count);
}

enum hvd_status get_batch(struct wire_in *in, struct wire_batch *b, struct hvd_error *err)
{
    b->form = (struct tensor_form){0};
    b->form.op = get_u8(in);
    b->form.dtype = get_u8(in);
    b->form.device = (b->form.dtype & ON_DEVICE) != 0;
    b->form.dtype &= (uint8_t)~ON_DEVICE;
    b->form.reduce = get_u8(in);
    b->form.root = (int32_t)get_u32(in);
    b->form.prescale = get_f64(in);
    b->form.postscale = get_f64(in);
    b->tensor_count = get_u32(in);
    if (in->failed || b->form.op >= HVD_OP_COUNT || b->form.dtype >= HVD_DTYPE_COUNT ||
        b->form.reduce > HVD_PRODUCT || b->tensor_count == 0 ||
        b->tensor_count > LIST_LIMIT)
        return error_set(err, HVD_PROTO, -1, "batch: not understood");
    return HVD_OK;
}

void put_tensor(struct strbuf *out, const struct wire_tensor *t)
{
    put_string(out, t->name, t->name_bytes);
    put_u64(out, t->count);
    put_u32(out, t->cached);
    put_u32(out, t->turn);
    put_list(out, t->sizes, t->size_count, 8);
}

enum hvd_status get_tensor(struct wire_in *in, struct wire_tensor *t,
                           struct hvd_error *err)
{
    t->name = get_string(in, &t->name_bytes, NAME_LIMIT);
    t->count = get_u64(in);
    t->cached = get_u32(in);
    t->turn = get_u32(in);
    t->sizes = get_list(in, &t->size_count, 8);
    if (in->failed || t->name_bytes == 0)
        return error_set(err, HVD_PROTO, -1, "batch: tensor not understood");
    return HVD_OK;
}

void put_failure(struct strbuf *out, const struct wire_failure *f)
{
    put_u8(out, f->status);
    put_u32(out, (uint32_t)f->rank);
    put_string(out, f->name, f->name_bytes);
    put_string(out, f->text, f->text_bytes);
    put_list(out, f->targets, f->target_count, 4);
}

enum hvd_status get_failure(struct wire_in *in, struct wire_failure *f,
                            struct hvd_error *err)
{
    f->status = get_u8(in);
    f->rank = (int32_t)get_u32(in);
    f->name = get_string(in, &f->name_bytes, NAME_LIMIT);
    f->text = get_string(in, &f->text_bytes, HVD_ERROR_TEXT - 1);
    f->targets = get_list(in, &f->target_count, 4);
    if (in->failed || f->status <= HVD_AGAIN || f->status >= HVD_STATUS_COUNT)
        return error_set(err, HVD_PROTO, -1, "failure: not understood");
    return HVD_OK;
}

void put_cached(struct strbuf *out, uint32_t count)
{
    put_u32(out, count);
}

enum hvd_status get_cached(struct wire_in *in, struct wire_cached *c,
                           struct hvd_error *err)
{
    c->numbers = get_list(in, &c->count, 4);
    if (in->failed || c->count == 0)
        return error_set(err, HVD_PROTO, -1, "cached batch: not understood");
    return HVD_OK;
}

void put_join_done(struct strbuf *out, const struct wire_join_done *j)
{
    put_u32(out, (uint32_t)j->last);
    put_u32(out, OP_KIND_COUNT);
    for (int i = 0; i < OP_KIND_COUNT; i++)
        put_u64(out, (uint64_t)j->counters[i]);
}

enum hvd_status get_join_done(struct wire_in *in, struct wire_join_done *j,
                              struct hvd_error *err)
{
    uint32_t n;

    j->last = (int32_t)get_u32(in);
    n = get_u32(in);
    for (int i = 0; i < OP_KIND_COUNT; i++)
        j->counters[i] = (int64_t)get_u64(in);
    if (in->failed || n != OP_KIND_COUNT)
        return error_set(err, HVD_PROTO, -1, "end of join: not understood");
    return HVD_OK;
}

void put_set_added(struct strbuf *out, const struct wire_set_added *a)
{
    put_u32(out, a->id);
    put_u32(out, a->slot);
    put_u32(out, a->epoch);
    put_string(out, a->name, a->name_bytes);
    put_list(out, a->ranks, a->rank_count, 4);
}

enum hvd_status get_set_added(struct wire_in *in, struct wire_set_added *a,
                              struct hvd_error *err)
{
    a->id = get_u32(in);
    a->slot = get_u32(in);
    a->epoch = get_u32(in);
    a->name = get_string(in, &a->name_bytes, NAME_LIMIT);
    a->ranks = get_list(in, &a->rank_count, 4);
    if (in->failed || a->rank_count == 0)
        return error_set(err, HVD_PROTO, -1, "new process set: not understood");
    return HVD_OK;
}

void put_set_removed(struct strbuf *out, const struct wire_set_removed *r)
{
    put_u32(out, r->id);
    put_string(out, r->name, r->name_bytes);
}

enum hvd_status get_set_removed(struct wire_in *in, struct wire_set_removed *r,
                                struct hvd_error *err)
{
    r->id = get_u32(in);
    r->name = get_string(in, &r->name_bytes, NAME_LIMIT);
    if (in->failed)
        return error_set(err, HVD_PROTO, -1, "removed process set: not understood");
    return HVD_OK;
}

void put_tune(struct strbuf *out, const struct wire_tune *t)
{
    put_f64(out, t->cycle_ms);
    put_u64(out, t->fusion_bytes);
}

enum hvd_status get_tune(struct wire_in *in, struct wire_tune *t, struct hvd_error *err)
{
    t->cycle_ms = get_f64(in);
    t->fusion_bytes = get_u64(in);
    if (in->failed)
        return error_set(err, HVD_PROTO, -1, "tuning: not understood");
    return HVD_OK;
}
