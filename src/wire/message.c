/*
 * message.c: the engine's messages; the items of RESPONSES stand in response.c.  All integers
 * little endian; every length is checked against what is left before it is used.
 *
 * head      0 u8 kind | 1 u32 set | 5 u32 epoch | 9 u32 acked | 13 u32 count
 * request   u8 op | u8 dtype | u8 reduce | u8 device | u8 ndim | i32 root
 *           | ndim x i64 | f64 prescale | f64 postscale | u16 group count | u32 group key
 *           | u32 revoked | u32 revoked seq | u32 revoked turn | u16 n | n bytes of name
 *           | u16 n | n bytes of problem | u32 n | n x i64 splits
 * HITS      u32 cache number | u32 seq
 * RELAY     u32 cache number | u32 seq | u32 member | u8 0, or depth d: it is the last of all
 *           below its node at depth d of the tree of hosts
 * FORWARD   u32 member | u32 n | n bytes: a message of that member
 * EAGER      u32 cache number | u32 seq | u32 turn | u32 n | n bytes of data
 * STALL, WHERE  u8 level | u16 n | n bytes of text
 */
#include "wire/message.h"

#include "wire/lists.h"

void put_message_head(struct strbuf *out, const struct message_head *head)
{
    put_u8(out, head->kind);
    put_u32(out, head->set);
    put_u32(out, head->epoch);
    put_u32(out, head->acked);
    put_u32(out, head->count);
}

static void patch_u32(struct strbuf *out, size_t at, uint32_t value)
{
    for (size_t i = 0; i < 4 && !out->failed; i++)
        out->text[at + i] = (char)(value >> (8 * i));
}

void patch_message_count(struct strbuf *out, uint32_t count)
{
    patch_u32(out, 13, count);
}

void patch_message_acked(struct strbuf *out, uint32_t acked)
{
    patch_u32(out, 9, acked);
}

enum hvd_status get_message_head(struct wire_in *in, struct message_head *head,
                                 struct hvd_error *err)
{
    unsigned kind = get_u8(in);

    head->kind = (enum message_kind)kind;
    head->set = get_u32(in);
    head->epoch = get_u32(in);
    head->acked = get_u32(in);
    head->count = get_u32(in);
    if (in->failed || kind == 0 || kind >= MESSAGE_KIND_COUNT || head->count > LIST_LIMIT)
        return error_set(err, HVD_PROTO, -1, "message head of kind %u", kind);
    return HVD_OK;
}

void put_request(struct strbuf *out, const struct wire_request *r)
{
    put_u8(out, r->form.op);
    put_u8(out, r->form.dtype);
    put_u8(out, r->form.reduce);
    put_u8(out, r->form.device);
    put_u8(out, r->form.ndim);
    put_u32(out, (uint32_t)r->form.root);
    for (int i = 0; i < r->form.ndim; i++)
        put_u64(out, (uint64_t)r->form.shape[i]);
    put_f64(out, r->form.prescale);
    put_f64(out, r->form.postscale);
    put_u16(out, r->group_count);
    put_u32(out, r->group_key);
    put_u32(out, r->revoked);
    put_u32(out, r->revoked_seq);
    put_u32(out, r->revoked_turn);
    put_string(out, r->name, r->name_bytes);
    put_string(out, r->problem, r->problem_bytes);
    put_list(out, r->splits, r->split_count, 8);
}

static bool has_sane_shape(const struct wire_request *r)
{
    uint64_t count = 1;

    for (int i = 0; i < r->form.ndim; i++)
        if (r->form.shape[i] < 0 ||
            __builtin_mul_overflow(count, (uint64_t)r->form.shape[i], &count))
            return false;
    return count <= UINT64_MAX / 16;
}

enum hvd_status get_request(struct wire_in *in, struct wire_request *r,
                            struct hvd_error *err)
{
    r->form.op = get_u8(in);
    r->form.dtype = get_u8(in);
    r->form.reduce = get_u8(in);
    r->form.device = get_u8(in);
    r->form.ndim = get_u8(in);
    r->form.root = (int32_t)get_u32(in);
    if (r->form.ndim > HVD_DIMS_MAX)
        return error_set(err, HVD_PROTO, -1, "request: %u dimensions", r->form.ndim);
    for (int i = 0; i < r->form.ndim; i++)
        r->form.shape[i] = (int64_t)get_u64(in);
    r->form.prescale = get_f64(in);
    r->form.postscale = get_f64(in);
    r->group_count = get_u16(in);
    r->group_key = get_u32(in);
    r->revoked = get_u32(in);
    r->revoked_seq = get_u32(in);
    r->revoked_turn = get_u32(in);
    r->name = get_string(in, &r->name_bytes, NAME_LIMIT);
    r->problem = get_string(in, &r->problem_bytes, PROBLEM_LIMIT);
    r->splits = get_list(in, &r->split_count, 8);
    if (in->failed || r->form.op >= OP_KIND_COUNT || r->form.dtype >= HVD_DTYPE_COUNT ||
        r->form.reduce > HVD_PRODUCT || r->name_bytes == 0 || !has_sane_shape(r))
        return error_set(err, HVD_PROTO, -1, "request: not understood");
    return HVD_OK;
}

void put_eager(struct strbuf *out, const struct wire_eager *w)
{
    put_u32(out, w->number);
    put_u32(out, w->seq);
    put_u32(out, w->turn);
    put_list(out, w->data, w->bytes, 1);
}

enum hvd_status get_eager(struct wire_in *in, struct wire_eager *w, struct hvd_error *err)
{
    w->number = get_u32(in);
    w->seq = get_u32(in);
    w->turn = get_u32(in);
    w->data = get_list(in, &w->bytes, 1);
    if (in->failed)
        return error_set(err, HVD_PROTO, -1, "eager: not understood");
    return HVD_OK;
}

void put_number(struct strbuf *out, const struct wire_number *n)
{
    put_u32(out, n->number);
    put_u32(out, n->seq);
}

enum hvd_status get_number(struct wire_in *in, struct wire_number *n,
                           struct hvd_error *err)
{
    n->number = get_u32(in);
    n->seq = get_u32(in);
    if (in->failed)
        return error_set(err, HVD_PROTO, -1, "hits: cut short");
    return HVD_OK;
}

void put_hit(struct strbuf *out, const struct wire_hit *h)
{
    put_u32(out, h->number);
    put_u32(out, h->seq);
    put_u32(out, (uint32_t)h->member);
    put_u8(out, h->all);
}

enum hvd_status get_hit(struct wire_in *in, struct wire_hit *h, struct hvd_error *err)
{
    h->number = get_u32(in);
    h->seq = get_u32(in);
    h->member = (int32_t)get_u32(in);
    h->all = get_u8(in);
    if (in->failed || h->member < 0)
        return error_set(err, HVD_PROTO, -1, "hit: not understood");
    return HVD_OK;
}

void put_forward(struct strbuf *out, const struct wire_forward *f)
{
    put_u32(out, (uint32_t)f->member);
    put_list(out, f->data, f->bytes, 1);
}

enum hvd_status get_forward(struct wire_in *in, struct wire_forward *f, struct hvd_error *err)
{
    f->member = (int32_t)get_u32(in);
    f->data = get_list(in, &f->bytes, 1);
    if (in->failed || f->member < 0)
        return error_set(err, HVD_PROTO, -1, "forward: not understood");
    return HVD_OK;
}

void put_wire_text(struct strbuf *out, const struct wire_text *t)
{
    put_u8(out, t->level);
    put_string(out, t->text, t->bytes);
}

enum hvd_status get_wire_text(struct wire_in *in, struct wire_text *t,
                              struct hvd_error *err)
{
    t->level = get_u8(in);
    t->text = get_string(in, &t->bytes, TEXT_LIMIT);
    if (in->failed)
        return error_set(err, HVD_PROTO, -1, "text: not understood");
    return HVD_OK;
}
