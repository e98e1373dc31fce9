/*
 * fuse.c: turns ready tensors into batches (neg_emit).
 *
 * Tensors fuse when kind, type, factors, reduction and root are equal and their bytes stay
 * within the threshold.  The walk starts at the first ready tensor and may pass over others
 * as long as fused and skipped bytes together stay within the threshold; those keep their
 * order.  Cached tensors come first.  What was fused never changes a result: every element
 * is combined in the same order anyway.
 *
 * Ready tensors wait for more only while a tensor that could join them is half announced,
 * and never longer than the window.
 */
#include "engine/negotiate_int.h"

#include <stdlib.h>

/* Above this a tensor gains nothing from a copy into the fusion buffer. */
#define FUSE_TENSOR_BYTES (1u << 20)
/* A longer batch is cut, so that one piece is packed or unpacked while another is under way
 * between the hosts; large enough for full speed there. */
#define FUSE_PIECE_BYTES (8ull << 20)

static bool is_fusable(const struct wire_request *r)
{
    return r->form.op == HVD_ALLREDUCE || r->form.op == HVD_BROADCAST ||
           r->form.op == HVD_ALLGATHER || r->form.op == HVD_REDUCESCATTER;
}

/* The same but for the shape. */
static bool can_fuse(const struct tensor_form *a, const struct tensor_form *b)
{
    return a->op == b->op && a->dtype == b->dtype && a->reduce == b->reduce &&
           a->root == b->root && a->device == b->device && a->prescale == b->prescale &&
           a->postscale == b->postscale;
}

static uint64_t request_bytes(const struct wire_request *r)
{
    return neg_elements(r) * hvd_dtype_bytes(r->form.dtype);
}

/* With group fusion off, a group is a batch of its own. */
static bool may_group(const struct negotiator *n, const struct wire_request *a,
                      const struct wire_request *b)
{
    return n->opt.group_fusion || (a->group_count > 0 && a->group_key == b->group_key);
}

struct fusion {
    struct neg_tensor **tensors;
    struct neg_cached **cached;
    uint32_t count;
    uint64_t bytes, skipped;
};

static bool joins(const struct negotiator *n, struct fusion *b,
                  const struct wire_request *first, const struct wire_request *r,
                  uint64_t limit)
{
    uint64_t bytes = request_bytes(r);

    if (!is_fusable(r) || bytes > FUSE_TENSOR_BYTES || !can_fuse(&first->form, &r->form) ||
        !may_group(n, first, r) || b->bytes + b->skipped + bytes > limit) {
        b->skipped += bytes;
        return false;
    }
    b->bytes += bytes;
    return true;
}

static uint64_t limit_for(const struct negotiator *n, const struct wire_request *first)
{
    if (!is_fusable(first) || request_bytes(first) > FUSE_TENSOR_BYTES)
        return 0;
    if (!n->opt.group_fusion && first->group_count == 0)
        return 0;
    return n->opt.fusion_bytes < FUSE_PIECE_BYTES ? n->opt.fusion_bytes
                                                  : FUSE_PIECE_BYTES;
}

static uint64_t tensor_count(const struct negotiator *n, const struct neg_tensor *t)
{
    return neg_elements(&neg_any_request(n, t)->r);
}

static int64_t split_of(const struct wire_request *r, uint32_t to, uint32_t members)
{
    return r->split_count > 0 ? get_split(r->splits, to) : r->form.shape[0] / (int64_t)members;
}

/* All send as much to each: many of them say nothing else. */
static bool splits_are_equal(const struct negotiator *n, const struct neg_tensor *t)
{
    uint32_t members = (uint32_t)n->opt.member_count;
    int64_t rows = split_of(&t->by_member[0]->r, 0, members);

    for (uint32_t from = 0; from < members; from++) {
        const struct wire_request *r = &t->by_member[from]->r;

        for (uint32_t to = 0; to < (r->split_count > 0 ? members : 1); to++)
            if (split_of(r, to, members) != rows)
                return false;
    }
    return true;
}

static uint32_t put_rows(const struct negotiator *n, const struct neg_tensor *t,
                         struct strbuf *sizes)
{
    uint32_t members = (uint32_t)n->opt.member_count;

    if (splits_are_equal(n, t)) {
        put_split(sizes, split_of(&t->by_member[0]->r, 0, members));
        return 1;
    }
    for (uint32_t from = 0; from < members; from++)
        for (uint32_t to = 0; to < members; to++)
            put_split(sizes, split_of(&t->by_member[from]->r, to, members));
    return members * members;
}

/* See wire_tensor. */
static uint32_t put_sizes(const struct negotiator *n, const struct neg_tensor *t,
                          struct strbuf *sizes)
{
    uint8_t op = neg_any_request(n, t)->r.form.op;
    uint32_t members = (uint32_t)n->opt.member_count;

    if (op == HVD_ALLTOALL)
        return put_rows(n, t, sizes);
    if (op != HVD_ALLGATHER)
        return 0;
    for (uint32_t m = 0; m < members; m++)
        put_split(sizes, t->by_member[m]->r.form.shape[0]);
    return members;
}

static void write_tensor(struct negotiator *n, struct neg_tensor *t, int cached)
{
    struct wire_tensor w = {.name = t->name, .name_bytes = t->name_bytes,
                            .count = tensor_count(n, t)};
    struct strbuf sizes;

    strbuf_init(&sizes);
    w.size_count = put_sizes(n, t, &sizes);
    w.sizes = (const uint8_t *)sizes.text;
    if (cached >= 0) {
        struct neg_cached *c = &n->cached[cached];

        c->seq = n->seq;
        c->in_use = false;
        w.cached = (uint32_t)cached + 1;
        w.turn = c->turn;
    }
    put_tensor(&n->out, &w);
    strbuf_release(&sizes);
}

static void write_batch(struct negotiator *n, struct fusion *b, int *numbers)
{
    const struct wire_request *r = &neg_any_request(n, b->tensors[0])->r;
    struct wire_batch w = {.form = r->form, .tensor_count = b->count};

    for (uint32_t i = 0; i < b->count; i++) {
        const struct wire_request *q = &neg_any_request(n, b->tensors[i])->r;

        numbers[i] = neg_cache_assign(n, b->tensors[i], neg_elements(q), request_bytes(q));
    }
    neg_begin_response(n, RESPONSE_EXECUTE);
    put_batch(&n->out, &w);
    for (uint32_t i = 0; i < b->count; i++)
        write_tensor(n, b->tensors[i], numbers[i]);
    for (uint32_t i = 0; i < b->count; i++)
        neg_tensor_free(n, b->tensors[i]);
}

static void count_batch(struct negotiator *n, const struct fusion *b)
{
    n->counters.batches++;
    if (b->count > 1) {
        n->counters.fused_tensors += b->count;
        n->counters.fused_bytes += b->bytes;
    }
}

static void emit_tensors(struct negotiator *n, struct fusion *b, int *numbers)
{
    while (!list_is_empty(&n->ready)) {
        struct neg_tensor *t = list_entry(n->ready.next, struct neg_tensor, order);
        const struct wire_request *first = &neg_any_request(n, t)->r;
        uint64_t limit = limit_for(n, first);

        b->tensors[0] = t;
        b->count = 1;
        b->bytes = request_bytes(first);
        b->skipped = 0;
        for (struct list *node = t->order.next; node != &n->ready; node = node->next) {
            struct neg_tensor *other = list_entry(node, struct neg_tensor, order);

            if (b->bytes + b->skipped > limit)
                break;
            if (joins(n, b, first, &neg_any_request(n, other)->r, limit))
                b->tensors[b->count++] = other;
        }
        count_batch(n, b);
        write_batch(n, b, numbers);
    }
}

static void write_cached_batch(struct negotiator *n, struct fusion *b)
{
    neg_begin_response(n, RESPONSE_CACHED);
    put_cached(&n->out, b->count);
    for (uint32_t i = 0; i < b->count; i++) {
        struct neg_cached *c = b->cached[i];

        put_member(&n->out, (int)neg_cache_number(n, c));
        list_remove(&c->ready);
        list_remove(&c->lru);
        list_append(&n->lru, &c->lru);
        c->is_ready = false;
        c->hits = 0;
        memset(c->hit, 0, (size_t)n->opt.member_count * sizeof *c->hit);
    }
}

static void emit_cached(struct negotiator *n, struct fusion *b)
{
    while (!list_is_empty(&n->ready_cached)) {
        struct neg_cached *c = list_entry(n->ready_cached.next, struct neg_cached, ready);
        const struct wire_request *first = &c->request->r;
        uint64_t limit = limit_for(n, first);

        b->cached[0] = c;
        b->count = 1;
        b->bytes = c->bytes;
        b->skipped = 0;
        for (struct list *node = c->ready.next; node != &n->ready_cached;
             node = node->next) {
            struct neg_cached *other = list_entry(node, struct neg_cached, ready);

            if (b->bytes + b->skipped > limit)
                break;
            if (joins(n, b, first, &other->request->r, limit))
                b->cached[b->count++] = other;
        }
        count_batch(n, b);
        write_cached_batch(n, b);
    }
}

/* A tensor that could join the first ready ones is half announced, and not for long. */
static bool may_grow(const struct negotiator *n, const struct wire_request *first,
                     uint64_t now_us)
{
    list_each(node, &n->pending) {
        const struct neg_tensor *t = list_entry(node, struct neg_tensor, order);

        if (t->first_us + n->opt.window_us > now_us &&
            can_fuse(&first->form, &neg_any_request(n, t)->r.form))
            return true;
    }
    return false;
}

/* The earliest time at which ready tensors must go; 0: now. */
static uint64_t hold_until_us(const struct negotiator *n, uint64_t now_us)
{
    uint64_t oldest = UINT64_MAX;
    bool grows = false;

    if (!list_is_empty(&n->ready)) {
        const struct neg_tensor *t = list_entry(n->ready.next, struct neg_tensor, order);
        const struct wire_request *r = &neg_any_request(n, t)->r;

        oldest = t->ready_us;
        grows = limit_for(n, r) > 0 && may_grow(n, r, now_us);
    }
    if (!list_is_empty(&n->ready_cached)) {
        const struct neg_cached *c =
            list_entry(n->ready_cached.next, struct neg_cached, ready);

        oldest = c->ready_us < oldest ? c->ready_us : oldest;
        grows |= limit_for(n, &c->request->r) > 0 && may_grow(n, &c->request->r, now_us);
    }
    return grows ? oldest + n->opt.window_us : 0;
}

static uint32_t list_length(const struct list *head)
{
    uint32_t count = 0;

    list_each(node, head)
        count++;
    return count;
}

static bool is_idle(const struct negotiator *n)
{
    return list_is_empty(&n->ready) && list_is_empty(&n->ready_cached);
}

bool neg_has_work(const struct negotiator *n)
{
    return n->out_count > 0 || !is_idle(n);
}

uint64_t neg_due_us(const struct negotiator *n)
{
    if (is_idle(n))
        return UINT64_MAX;
    return hold_until_us(n, 0);
}

void neg_flush(struct negotiator *n)
{
    uint32_t most = list_length(&n->ready) + list_length(&n->ready_cached);
    struct fusion b = {.tensors = calloc(most + 1, sizeof *b.tensors),
                      .cached = calloc(most + 1, sizeof *b.cached)};
    int *numbers = calloc(most + 1, sizeof *numbers);

    if (b.tensors == NULL || b.cached == NULL || numbers == NULL) {
        n->out.failed = true;
    } else {
        emit_cached(n, &b);
        emit_tensors(n, &b, numbers);
    }
    free(b.tensors);
    free(b.cached);
    free(numbers);
}

enum hvd_status neg_emit(struct negotiator *n, uint64_t now_us, struct strbuf *out,
                         uint32_t *count_p, struct hvd_error *err)
{
    if (!is_idle(n) && hold_until_us(n, now_us) <= now_us)
        neg_flush(n);
    if (n->out.failed)
        return error_set(err, HVD_NOMEM, -1, "no memory for responses");
    strbuf_add(out, n->out.text, n->out.length);
    *count_p += n->out_count;
    n->out_count = 0;
    strbuf_clear(&n->out);
    return HVD_OK;
}
