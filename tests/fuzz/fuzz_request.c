/*
 * fuzz_request.c: messages of three members to the coordinator of their set: heads,
 * requests, hits, also relayed, acknowledgements.  Whatever they say, the coordinator's
 * answers can be decoded.  Input: pieces of u8 member, then a message up to what it needs.
 */
#include "engine/negotiate.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An encoder writes what its decoder has read. */
static void check_round_trip(const uint8_t *start, const uint8_t *end,
                             const struct wire_request *r)
{
    struct strbuf out;

    strbuf_init(&out);
    put_request(&out, r);
    BUG_ON(out.length != (size_t)(end - start) || memcmp(out.text, start, out.length) != 0);
    strbuf_release(&out);
}

static bool on_requests(struct negotiator *n, int member, struct wire_in *in,
                        uint32_t count)
{
    struct wire_request r;
    struct hvd_error err;

    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *start = in->at;

        if (get_request(in, &r, &err) != HVD_OK)
            return false;
        BUG_ON((const uint8_t *)r.name + r.name_bytes > in->end);
        check_round_trip(start, in->at, &r);
        if (neg_on_request(n, member, &r, 1000, &err) != HVD_OK)
            return false;
    }
    return true;
}

static bool on_hit(struct negotiator *n, struct wire_in *in)
{
    struct wire_hit h;
    struct hvd_error err;

    if (get_hit(in, &h, &err) != HVD_OK)
        return false;
    BUG_ON(h.member < 0);
    if (h.member < 3)
        neg_on_hit(n, h.member, h.number, h.seq, 1000);
    return true;
}

/* What comes up the tree in one message: messages of members, not opened here. */
static bool on_forward(struct wire_in *in)
{
    struct wire_forward f;
    struct hvd_error err;

    if (get_forward(in, &f, &err) != HVD_OK)
        return false;
    BUG_ON(f.member < 0 || f.data + f.bytes > in->end);
    return true;
}

static void check_batch(struct wire_in *in)
{
    struct hvd_error err;
    struct wire_batch b;
    struct wire_tensor t;

    BUG_ON(get_batch(in, &b, &err) != HVD_OK);
    for (uint32_t i = 0; i < b.tensor_count; i++)
        BUG_ON(get_tensor(in, &t, &err) != HVD_OK);
}

/* The kinds whose length the decoders know; the others end the look. */
static void check_answers(struct negotiator *n)
{
    struct strbuf out;
    struct hvd_error err;
    struct wire_failure f;
    struct wire_revoke r;
    struct wire_joined j;
    struct wire_in in;
    uint32_t count = 0;

    strbuf_init(&out);
    BUG_ON(neg_emit(n, 1u << 30, &out, &count, &err) != HVD_OK);
    in = wire_in_from(out.text, out.length);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t kind = get_u8(&in);

        if (kind == RESPONSE_EXECUTE)
            check_batch(&in);
        else if (kind == RESPONSE_ERROR)
            BUG_ON(get_failure(&in, &f, &err) != HVD_OK);
        else if (kind == RESPONSE_REVOKE)
            BUG_ON(get_revoke(&in, &r, &err) != HVD_OK);
        else if (kind == RESPONSE_JOINED)
            BUG_ON(get_joined(&in, &j, &err) != HVD_OK);
        else
            break;
    }
    strbuf_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int ranks[] = {0, 1, 2};
    struct neg_options opt = {.member_count = 3, .ranks = ranks, .cache_capacity = 4,
                              .fusion_bytes = 1 << 16, .window_us = 10,
                              .group_fusion = true};
    struct negotiator *n = neg_new(&opt);
    struct wire_in in = wire_in_from(data, size);
    struct message_head head;
    struct hvd_error err;
    bool goes_on = n != NULL;

    while (goes_on && wire_left(&in) > 0) {
        int member = get_u8(&in) % 3;

        if (get_message_head(&in, &head, &err) != HVD_OK)
            break;
        neg_on_ack(n, member, head.acked);
        if (head.kind == MESSAGE_REQUESTS)
            goes_on = on_requests(n, member, &in, head.count);
        for (uint32_t i = 0; head.kind == MESSAGE_HITS && i < head.count && goes_on; i++) {
            struct wire_number hit;

            goes_on = get_number(&in, &hit, &err) == HVD_OK;
            if (goes_on)
                neg_on_hit(n, member, hit.number, hit.seq, 1000);
        }
        for (uint32_t i = 0; head.kind == MESSAGE_RELAY && i < head.count && goes_on; i++)
            goes_on = on_hit(n, &in);
        for (uint32_t i = 0; head.kind == MESSAGE_FORWARD && i < head.count && goes_on; i++)
            goes_on = on_forward(&in);
        check_answers(n);
    }
    neg_free(n);
    return 0;
}
