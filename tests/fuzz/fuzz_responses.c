/* fuzz_responses.c: what a coordinator or another member says to a member: responses, texts,
 * cached tensors.  Nothing that was decoded points beyond the message. */
#include "wire/response.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_inside(const struct wire_in *in, const uint8_t *start, const void *p,
                         size_t n)
{
    const uint8_t *at = p;

    BUG_ON(n > 0 && (at < start || at + n > in->end));
}

static bool batch(struct wire_in *in, const uint8_t *start)
{
    struct hvd_error err;
    struct wire_batch b;
    struct wire_tensor t;

    if (get_batch(in, &b, &err) != HVD_OK)
        return false;
    BUG_ON(b.form.op >= HVD_OP_COUNT || b.form.dtype >= HVD_DTYPE_COUNT || b.tensor_count == 0);
    for (uint32_t i = 0; i < b.tensor_count; i++) {
        if (get_tensor(in, &t, &err) != HVD_OK)
            return false;
        check_inside(in, start, t.name, t.name_bytes);
        check_inside(in, start, t.sizes, 8 * (size_t)t.size_count);
    }
    return true;
}

static bool failure(struct wire_in *in, const uint8_t *start)
{
    struct hvd_error err;
    struct wire_failure f;

    if (get_failure(in, &f, &err) != HVD_OK)
        return false;
    BUG_ON(f.status <= HVD_AGAIN || f.status >= HVD_STATUS_COUNT);
    check_inside(in, start, f.name, f.name_bytes);
    check_inside(in, start, f.text, f.text_bytes);
    check_inside(in, start, f.targets, 4 * (size_t)f.target_count);
    return true;
}

static bool text(struct wire_in *in, const uint8_t *start)
{
    struct hvd_error err;
    struct wire_text t;

    if (get_wire_text(in, &t, &err) != HVD_OK)
        return false;
    check_inside(in, start, t.text, t.bytes);
    return true;
}

static bool eager(struct wire_in *in, const uint8_t *start)
{
    struct hvd_error err;
    struct wire_eager w;

    if (get_eager(in, &w, &err) != HVD_OK)
        return false;
    check_inside(in, start, w.data, w.bytes);
    return true;
}

static bool joined(struct wire_in *in, const uint8_t *start)
{
    struct hvd_error err;
    struct wire_joined j;

    if (get_joined(in, &j, &err) != HVD_OK)
        return false;
    check_inside(in, start, j.turns, 8 * (size_t)j.turn_count);
    return true;
}

static bool cached(struct wire_in *in, const uint8_t *start)
{
    struct hvd_error err;
    struct wire_cached c;

    if (get_cached(in, &c, &err) != HVD_OK)
        return false;
    check_inside(in, start, c.numbers, 4 * (size_t)c.count);
    return true;
}

static bool set_added(struct wire_in *in, const uint8_t *start)
{
    struct hvd_error err;
    struct wire_set_added a;

    if (get_set_added(in, &a, &err) != HVD_OK)
        return false;
    check_inside(in, start, a.name, a.name_bytes);
    check_inside(in, start, a.ranks, 4 * (size_t)a.rank_count);
    return true;
}

static bool set_removed(struct wire_in *in, const uint8_t *start)
{
    struct hvd_error err;
    struct wire_set_removed r;

    if (get_set_removed(in, &r, &err) != HVD_OK)
        return false;
    check_inside(in, start, r.name, r.name_bytes);
    return true;
}

static bool response(struct wire_in *in, const uint8_t *start)
{
    enum response_kind kind;
    struct hvd_error err;
    struct wire_revoke r;
    struct wire_join_done j;
    struct wire_tune t;

    if (get_response_kind(in, &kind, &err) != HVD_OK)
        return false;
    switch (kind) {
    case RESPONSE_EXECUTE:
        return batch(in, start);
    case RESPONSE_CACHED:
        return cached(in, start);
    case RESPONSE_ERROR:
        return failure(in, start);
    case RESPONSE_REVOKE:
        return get_revoke(in, &r, &err) == HVD_OK;
    case RESPONSE_JOINED:
        return joined(in, start);
    case RESPONSE_JOIN_DONE:
        return get_join_done(in, &j, &err) == HVD_OK;
    case RESPONSE_SET_ADDED:
        return set_added(in, start);
    case RESPONSE_SET_REMOVED:
        return set_removed(in, start);
    case RESPONSE_TUNE:
        return get_tune(in, &t, &err) == HVD_OK;
    case RESPONSE_KIND_COUNT:
        break;
    }
    BUG_ON(true);                       /* get_response_kind lets nothing else through */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct wire_in in = wire_in_from(data, size);
    struct message_head head;
    struct hvd_error err;

    if (get_message_head(&in, &head, &err) != HVD_OK)
        return 0;
    BUG_ON(head.kind < MESSAGE_REQUESTS || head.kind >= MESSAGE_KIND_COUNT);
    if (head.kind == MESSAGE_STALL || head.kind == MESSAGE_WHERE)
        text(&in, data);
    for (uint32_t i = 0; head.kind == MESSAGE_EAGER && i < head.count; i++)
        if (!eager(&in, data))
            break;
    for (uint32_t i = 0; head.kind == MESSAGE_RESPONSES && i < head.count; i++)
        if (!response(&in, data))
            break;
    return 0;
}
