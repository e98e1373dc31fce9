/*
 * message.c: the engine's messages.  All integers little endian; every length is checked
 * against what is left before it is used.
 *
 * head      0 u8 kind | 1 u32 set | 5 u32 epoch | 9 u32 acked | 13 u32 count
 * request   u8 op | u8 dtype | u8 reduce | u8 device | u8 ndim | i32 root
 *           | ndim x i64 | f64 prescale | f64 postscale | u16 group count | u32 group key
 *           | u32 revoked | u32 revoked seq | u32 revoked turn | u16 n | n bytes of name
 *           | u16 n | n bytes of problem | u32 n | n x i64 splits
 * HITS      u32 cache number | u32 seq
 * BUNDLE    u32 cache number | u32 seq | u32 member | u8 1: it is the last of its host
 * SWAP      u32 cache number | u32 seq | u32 turn | u32 n | n bytes of data
 * STALL, WHERE  u8 level | u16 n | n bytes of text
 * response  u8 kind, then
 *   EXECUTE      u8 op | u8 dtype | u8 reduce | i32 root | f64 | f64 | u32 n | n tensors
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
#include "wire/message.h"

void put_message_head(struct strbuf *out, const struct message_head *head)
{
    put_u8(out, head->kind);
    put_u32(out, head->set);
    put_u32(out, head->epoch);
    put_u32(out, head->acked);
    put_u32(out, head->count);
}

void patch_message_count(struct strbuf *out, size_t at, uint32_t count)
{
    for (int i = 0; i < 4 && !out->failed; i++)
        out->text[at + 13 + (size_t)i] = (char)(count >> (8 * i));
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

static void put_string(struct strbuf *out, const char *text, uint16_t n)
{
    put_u16(out, n);
    strbuf_add(out, text, n);
}

static const char *get_string(struct wire_in *in, uint16_t *n_p, size_t limit)
{
    *n_p = get_u16(in);
    if (*n_p > limit)
        in->failed = true;
    return (const char *)get_bytes(in, *n_p);
}

/* n items of `bytes` each, in place. */
static const uint8_t *get_list(struct wire_in *in, uint32_t *n_p, size_t bytes)
{
    *n_p = get_u32(in);
    if (*n_p > LIST_LIMIT)
        in->failed = true;
    return get_bytes(in, *n_p * bytes);
}

static void put_list(struct strbuf *out, const uint8_t *items, uint32_t n, size_t bytes)
{
    put_u32(out, n);
    if (n > 0)
        strbuf_add(out, items, n * bytes);
}

void put_request(struct strbuf *out, const struct wire_request *r)
{
    put_u8(out, r->op);
    put_u8(out, r->dtype);
    put_u8(out, r->reduce);
    put_u8(out, r->device);
    put_u8(out, r->ndim);
    put_u32(out, (uint32_t)r->root);
    for (int i = 0; i < r->ndim; i++)
        put_u64(out, (uint64_t)r->shape[i]);
    put_f64(out, r->prescale);
    put_f64(out, r->postscale);
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

    for (int i = 0; i < r->ndim; i++)
        if (r->shape[i] < 0 ||
            __builtin_mul_overflow(count, (uint64_t)r->shape[i], &count))
            return false;
    return count <= UINT64_MAX / 16;
}

enum hvd_status get_request(struct wire_in *in, struct wire_request *r,
                            struct hvd_error *err)
{
    r->op = get_u8(in);
    r->dtype = get_u8(in);
    r->reduce = get_u8(in);
    r->device = get_u8(in);
    r->ndim = get_u8(in);
    r->root = (int32_t)get_u32(in);
    if (r->ndim > HVD_DIMS_MAX)
        return error_set(err, HVD_PROTO, -1, "request: %u dimensions", r->ndim);
    for (int i = 0; i < r->ndim; i++)
        r->shape[i] = (int64_t)get_u64(in);
    r->prescale = get_f64(in);
    r->postscale = get_f64(in);
    r->group_count = get_u16(in);
    r->group_key = get_u32(in);
    r->revoked = get_u32(in);
    r->revoked_seq = get_u32(in);
    r->revoked_turn = get_u32(in);
    r->name = get_string(in, &r->name_bytes, NAME_LIMIT);
    r->problem = get_string(in, &r->problem_bytes, PROBLEM_LIMIT);
    r->splits = get_list(in, &r->split_count, 8);
    if (in->failed || r->op >= OP_KIND_COUNT || r->dtype >= HVD_DTYPE_COUNT ||
        r->reduce > HVD_PRODUCT || r->name_bytes == 0 || !has_sane_shape(r))
        return error_set(err, HVD_PROTO, -1, "request: not understood");
    return HVD_OK;
}

void put_swap(struct strbuf *out, const struct wire_swap *w)
{
    put_u32(out, w->number);
    put_u32(out, w->seq);
    put_u32(out, w->turn);
    put_list(out, w->data, w->bytes, 1);
}

enum hvd_status get_swap(struct wire_in *in, struct wire_swap *w, struct hvd_error *err)
{
    w->number = get_u32(in);
    w->seq = get_u32(in);
    w->turn = get_u32(in);
    w->data = get_list(in, &w->bytes, 1);
    if (in->failed)
        return error_set(err, HVD_PROTO, -1, "swap: not understood");
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
    uint8_t all;

    h->number = get_u32(in);
    h->seq = get_u32(in);
    h->member = (int32_t)get_u32(in);
    all = get_u8(in);
    h->all = all == 1;
    if (in->failed || h->member < 0 || all > 1)
        return error_set(err, HVD_PROTO, -1, "hit: not understood");
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
    put_u8(out, b->op);
    put_u8(out, b->dtype);
    put_u8(out, b->reduce);
    put_u32(out, (uint32_t)b->root);
    put_f64(out, b->prescale);
    put_f64(out, b->postscale);
    put_u32(out, b->tensor_count);
}

enum hvd_status get_batch(struct wire_in *in, struct wire_batch *b, struct hvd_error *err)
{
    b->op = get_u8(in);
    b->dtype = get_u8(in);
    b->reduce = get_u8(in);
    b->root = (int32_t)get_u32(in);
    b->prescale = get_f64(in);
    b->postscale = get_f64(in);
    b->tensor_count = get_u32(in);
    if (in->failed || b->op >= HVD_OP_COUNT || b->dtype >= HVD_DTYPE_COUNT ||
        b->reduce > HVD_PRODUCT || b->tensor_count == 0 || b->tensor_count > LIST_LIMIT)
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
