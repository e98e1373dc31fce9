/*
 * test_message.c: what engines say to each other survives its way, and nothing else does.
 * tests/wire/ holds the bytes as released; `WRITE_GOLDEN=1 ./test_wire_message` writes
 * missing files.
 */
#include "wire/response.h"

#include "check.h"

#include <stdlib.h>

static struct hvd_error err;
static const uint8_t splits[16] = {3, [8] = 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

static struct wire_request sample(void)
{
    return (struct wire_request){
        .form = {.op = HVD_ALLTOALL, .dtype = HVD_BF16, .reduce = HVD_AVERAGE, .device = 1,
                 .ndim = 3, .root = -1, .shape = {17, 0, 1ll << 40}, .prescale = 0.1,
                 .postscale = -3.5},
        .group_count = 7, .group_key = 0xdeadbeef, .revoked = 12,
        .revoked_seq = 99, .revoked_turn = 7, .name = "grad/7\xc3\xa9", .name_bytes = 8,
        .problem = "no", .problem_bytes = 2, .split_count = 2, .splits = splits};
}

static void put_sample_requests(struct strbuf *out)
{
    struct message_head head = {.kind = MESSAGE_REQUESTS, .set = 3, .epoch = 4,
                                .acked = 0x01020304};
    struct wire_request r = sample();

    put_message_head(out, &head);
    put_request(out, &r);
    r = (struct wire_request){.form.op = HVD_BARRIER, .name = "b", .name_bytes = 1,
                              .problem = ""};
    put_request(out, &r);
    patch_message_count(out, 2);
}

static void put_sample_responses(struct strbuf *out)
{
    struct message_head head = {.kind = MESSAGE_RESPONSES, .set = 1, .epoch = 2, .count = 4};
    struct wire_batch b = {.form = {.op = HVD_ALLGATHER, .dtype = HVD_F32,
                                    .reduce = HVD_SUM, .root = 2, .prescale = 1,
                                    .postscale = 0.5},
                           .tensor_count = 1};
    struct wire_tensor t = {.name = "x", .name_bytes = 1, .count = 1ull << 33, .cached = 5,
                            .turn = 6, .size_count = 2, .sizes = splits};
    struct wire_failure f = {.status = HVD_MISMATCH, .rank = 3, .name = "y",
                             .name_bytes = 1, .text = "they differ", .text_bytes = 11,
                             .target_count = 2, .targets = splits};

    put_message_head(out, &head);
    put_response_kind(out, RESPONSE_EXECUTE);
    put_batch(out, &b);
    put_tensor(out, &t);
    put_response_kind(out, RESPONSE_CACHED);
    put_cached(out, 2);
    put_member(out, 7);
    put_member(out, 9);
    put_response_kind(out, RESPONSE_ERROR);
    put_failure(out, &f);
    put_response_kind(out, RESPONSE_TUNE);
    put_tune(out, &(struct wire_tune){.cycle_ms = 2.5, .fusion_bytes = 64 << 20});
}

static void put_sample_sets(struct strbuf *out)
{
    struct message_head head = {.kind = MESSAGE_RESPONSES, .set = 0, .epoch = 1, .count = 3};
    struct wire_set_added a = {.id = 2, .slot = 3, .epoch = 0x01020304, .name = "set.add.1",
                               .name_bytes = 9, .rank_count = 2, .ranks = splits};
    struct wire_set_removed r = {.id = 2, .name = "set.remove.1", .name_bytes = 12};
    struct wire_join_done j = {.last = 7, .counters = {1, 2, -3}};

    put_message_head(out, &head);
    put_response_kind(out, RESPONSE_SET_ADDED);
    put_set_added(out, &a);
    put_response_kind(out, RESPONSE_SET_REMOVED);
    put_set_removed(out, &r);
    put_response_kind(out, RESPONSE_JOIN_DONE);
    put_join_done(out, &j);
}

static void put_sample_hits(struct strbuf *out)
{
    struct message_head head = {.kind = MESSAGE_HITS, .set = 5, .epoch = 6};

    put_message_head(out, &head);
    put_number(out, &(struct wire_number){.number = 1023, .seq = 0x0a0b0c0d});
    patch_message_count(out, 1);
    patch_message_acked(out, 0x01020304);
}

static void put_sample_revocations(struct strbuf *out)
{
    struct message_head head = {.kind = MESSAGE_RESPONSES, .set = 1, .epoch = 2, .count = 2};
    struct wire_revoke r = {.number = 8, .seq = 0x01020304, .promising = 2, .turn = 5};
    struct wire_joined j = {.member = 3, .turn_count = 2, .turns = splits};

    put_message_head(out, &head);
    put_response_kind(out, RESPONSE_REVOKE);
    put_revoke(out, &r);
    put_response_kind(out, RESPONSE_JOINED);
    put_joined(out, &j);
}

static void put_sample_eager(struct strbuf *out)
{
    struct message_head head = {.kind = MESSAGE_EAGER, .set = 5, .epoch = 6, .count = 2};
    struct wire_eager w = {.number = 1023, .seq = 0x0a0b0c0d, .turn = 77, .bytes = 16,
                          .data = splits};

    put_message_head(out, &head);
    put_eager(out, &w);
    w = (struct wire_eager){.number = 1, .seq = 2, .turn = 3};
    put_eager(out, &w);
}

static void put_sample_relay(struct strbuf *out)
{
    struct message_head head = {.kind = MESSAGE_RELAY, .set = 5, .epoch = 6,
                                .acked = 0x01020304, .count = 2};
    struct wire_hit h = {.number = 1023, .seq = 0x0a0b0c0d, .member = 7, .all = 1};

    put_message_head(out, &head);
    put_hit(out, &h);
    h = (struct wire_hit){.number = 1, .seq = 2, .member = 3};
    put_hit(out, &h);
}

static void put_sample_forward(struct strbuf *out)
{
    struct message_head head = {.kind = MESSAGE_FORWARD, .set = 5, .epoch = 6, .count = 2};
    struct wire_forward f = {.member = 7, .data = splits, .bytes = 16};

    put_message_head(out, &head);
    put_forward(out, &f);
    f = (struct wire_forward){.member = 3};
    put_forward(out, &f);
}

static void put_sample_text(struct strbuf *out)
{
    struct message_head head = {.kind = MESSAGE_STALL};
    struct wire_text t = {.level = 3, .text = "Missing ranks:\n1: [x]", .bytes = 21};

    put_message_head(out, &head);
    put_wire_text(out, &t);
}

/* ---- Golden bytes ------------------------------------------------------------------- */

static void check_golden(const char *name, void (*put)(struct strbuf *out))
{
    static char golden[4096];
    char path[4096];
    struct strbuf now;
    FILE *file;

    strbuf_init(&now);
    put(&now);
    snprintf(path, sizeof path, "%s/%s", GOLDEN_DIR, name);
    file = fopen(path, "rb");
    if (file == NULL && getenv("WRITE_GOLDEN") != NULL) {
        file = fopen(path, "w+b");
        CHECK(file != NULL && fwrite(now.text, 1, now.length, file) == now.length);
        rewind(file);
    }
    if (file == NULL)
        check_fail(__FILE__, __LINE__, "%s: no such file", path);
    CHECK_EQ(fread(golden, 1, sizeof golden, file), now.length);
    CHECK(memcmp(golden, now.text, now.length) == 0);
    fclose(file);
    strbuf_release(&now);
}

TEST(golden_requests)
{
    check_golden("engine_requests.1.bin", put_sample_requests);
}

TEST(golden_responses)
{
    check_golden("engine_responses.1.bin", put_sample_responses);
}

TEST(golden_text)
{
    check_golden("engine_text.1.bin", put_sample_text);
}

TEST(golden_revocations)
{
    check_golden("engine_revocations.1.bin", put_sample_revocations);
}

TEST(golden_sets)
{
    check_golden("engine_sets.1.bin", put_sample_sets);
}

TEST(golden_hits)
{
    check_golden("engine_hits.1.bin", put_sample_hits);
}

TEST(golden_eager)
{
    check_golden("engine_eager.1.bin", put_sample_eager);
}

TEST(golden_relay)
{
    check_golden("engine_relay.1.bin", put_sample_relay);
}

TEST(golden_forward)
{
    check_golden("engine_forward.1.bin", put_sample_forward);
}

/* ---- There and back ----------------------------------------------------------------- */

TEST(requests_come_back_whole)
{
    struct wire_request a = sample(), r;
    struct message_head head;
    struct strbuf out;
    struct wire_in in;

    strbuf_init(&out);
    put_sample_requests(&out);
    in = wire_in_from(out.text, out.length);
    CHECK_OK(get_message_head(&in, &head, &err), err);
    CHECK_EQ(head.kind, MESSAGE_REQUESTS);
    CHECK_EQ(head.set, 3);
    CHECK_EQ(head.epoch, 4);
    CHECK_EQ(head.acked, 0x01020304);
    CHECK_EQ(head.count, 2);
    CHECK_OK(get_request(&in, &r, &err), err);
    CHECK_EQ(r.form.op, a.form.op);
    CHECK_EQ(r.form.dtype, a.form.dtype);
    CHECK_EQ(r.form.device, 1);
    CHECK_EQ(r.form.root, -1);
    CHECK_EQ(r.form.ndim, 3);
    CHECK_EQ(r.form.shape[2], 1ll << 40);
    CHECK_EQ(r.form.prescale, 0.1);
    CHECK_EQ(r.form.postscale, -3.5);
    CHECK_EQ(r.group_count, 7);
    CHECK_EQ(r.group_key, 0xdeadbeef);
    CHECK_EQ(r.revoked, 12);
    CHECK_EQ(r.revoked_seq, 99);
    CHECK_EQ(r.revoked_turn, 7);
    CHECK(r.name_bytes == 8 && memcmp(r.name, a.name, 8) == 0);
    CHECK(r.problem_bytes == 2 && memcmp(r.problem, "no", 2) == 0);
    CHECK_EQ(r.split_count, 2);
    CHECK_EQ(get_split(r.splits, 0), 3);
    CHECK_EQ(get_split(r.splits, 1), -2);
    CHECK_OK(get_request(&in, &r, &err), err);
    CHECK_EQ(r.form.op, HVD_BARRIER);
    CHECK_EQ(wire_left(&in), 0);
    strbuf_release(&out);
}

TEST(eager_items_come_back_whole)
{
    struct message_head head;
    struct wire_eager w;
    struct strbuf out;
    struct wire_in in;

    strbuf_init(&out);
    put_sample_eager(&out);
    in = wire_in_from(out.text, out.length);
    CHECK_OK(get_message_head(&in, &head, &err), err);
    CHECK_EQ(head.kind, MESSAGE_EAGER);
    CHECK_OK(get_eager(&in, &w, &err), err);
    CHECK(w.number == 1023 && w.seq == 0x0a0b0c0d && w.turn == 77);
    CHECK(w.bytes == 16 && memcmp(w.data, splits, 16) == 0);
    CHECK_OK(get_eager(&in, &w, &err), err);
    CHECK_EQ(w.bytes, 0);
    CHECK_EQ(wire_left(&in), 0);
    CHECK_EQ(get_eager(&in, &w, &err), HVD_PROTO);
    strbuf_release(&out);
}

TEST(forwarded_messages_come_back_whole)
{
    struct message_head head;
    struct wire_forward f;
    struct strbuf out;
    struct wire_in in;

    strbuf_init(&out);
    put_sample_forward(&out);
    in = wire_in_from(out.text, out.length);
    CHECK_OK(get_message_head(&in, &head, &err), err);
    CHECK_EQ(head.kind, MESSAGE_FORWARD);
    CHECK_OK(get_forward(&in, &f, &err), err);
    CHECK(f.member == 7 && f.bytes == 16 && memcmp(f.data, splits, 16) == 0);
    CHECK_OK(get_forward(&in, &f, &err), err);
    CHECK(f.member == 3 && f.bytes == 0);
    CHECK_EQ(wire_left(&in), 0);
    CHECK_EQ(get_forward(&in, &f, &err), HVD_PROTO);
    out.text[out.length - 8 + 3] = (char)0x80;  /* a member below 0 */
    in = wire_in_from(out.text + out.length - 8, 8);
    CHECK_EQ(get_forward(&in, &f, &err), HVD_PROTO);
    strbuf_release(&out);
}

TEST(relayed_hits_come_back_whole)
{
    struct message_head head;
    struct wire_hit h;
    struct strbuf out;
    struct wire_in in;

    strbuf_init(&out);
    put_sample_relay(&out);
    in = wire_in_from(out.text, out.length);
    CHECK_OK(get_message_head(&in, &head, &err), err);
    CHECK_EQ(head.kind, MESSAGE_RELAY);
    CHECK_OK(get_hit(&in, &h, &err), err);
    CHECK(h.number == 1023 && h.seq == 0x0a0b0c0d && h.member == 7 && h.all);
    CHECK_OK(get_hit(&in, &h, &err), err);
    CHECK(h.number == 1 && h.seq == 2 && h.member == 3 && !h.all);
    CHECK_EQ(wire_left(&in), 0);
    CHECK_EQ(get_hit(&in, &h, &err), HVD_PROTO);
    out.text[out.length - 2] = (char)0x80;      /* a member below 0 */
    in = wire_in_from(out.text + out.length - 13, 13);
    CHECK_EQ(get_hit(&in, &h, &err), HVD_PROTO);
    strbuf_release(&out);
}

TEST(revocations_come_back_whole)
{
    struct message_head head;
    struct wire_revoke r;
    struct wire_joined j;
    struct strbuf out;
    struct wire_in in;

    strbuf_init(&out);
    put_sample_revocations(&out);
    in = wire_in_from(out.text, out.length);
    CHECK_OK(get_message_head(&in, &head, &err), err);
    CHECK_EQ(get_u8(&in), RESPONSE_REVOKE);
    CHECK_OK(get_revoke(&in, &r, &err), err);
    CHECK(r.number == 8 && r.seq == 0x01020304 && r.promising == 2 && r.turn == 5);
    CHECK_EQ(get_u8(&in), RESPONSE_JOINED);
    CHECK_OK(get_joined(&in, &j, &err), err);
    CHECK(j.member == 3 && j.turn_count == 2 && get_split(j.turns, 0) == 3);
    CHECK_EQ(wire_left(&in), 0);
    CHECK_EQ(get_joined(&in, &j, &err), HVD_PROTO);
    strbuf_release(&out);
}

TEST(every_cut_is_noticed)
{
    struct strbuf out;

    strbuf_init(&out);
    put_sample_requests(&out);
    for (size_t n = 0; n < out.length; n++) {
        char *copy = malloc(n + 1);     /* its end is where the bytes end */
        struct wire_in in;
        struct message_head head;
        struct wire_request r;

        memcpy(copy, out.text, n);
        in = wire_in_from(copy, n);
        CHECK(get_message_head(&in, &head, &err) != HVD_OK ||
              get_request(&in, &r, &err) != HVD_OK || get_request(&in, &r, &err) != HVD_OK);
        CHECK_EQ(err.status, HVD_PROTO);
        free(copy);
    }
    strbuf_release(&out);
}

static void check_refused(struct wire_request r)
{
    struct wire_request back;
    struct strbuf out;
    struct wire_in in;

    strbuf_init(&out);
    put_request(&out, &r);
    in = wire_in_from(out.text, out.length);
    CHECK_EQ(get_request(&in, &back, &err), HVD_PROTO);
    strbuf_release(&out);
}

TEST(what_cannot_be_is_refused)
{
    static char name[NAME_LIMIT + 1];
    struct wire_request r = sample();

    r.form.op = OP_KIND_COUNT;
    check_refused(r);
    r = sample();
    r.form.dtype = HVD_DTYPE_COUNT;
    check_refused(r);
    r = sample();
    r.form.reduce = HVD_PRODUCT + 1;
    check_refused(r);
    r = sample();
    r.name_bytes = 0;
    check_refused(r);
    r = sample();
    memset(name, 'n', sizeof name);
    r.name = name;
    r.name_bytes = NAME_LIMIT + 1;
    check_refused(r);
    r = sample();
    r.form.shape[1] = -1;
    check_refused(r);
    r = sample();
    r.form.shape[0] = r.form.shape[1] = 1ll << 40;        /* more elements than there can be */
    check_refused(r);
}

TEST(heads_that_cannot_be)
{
    struct message_head head = {.kind = MESSAGE_KIND_COUNT}, back;
    struct strbuf out;
    struct wire_in in;

    strbuf_init(&out);
    put_message_head(&out, &head);
    in = wire_in_from(out.text, out.length);
    CHECK_EQ(get_message_head(&in, &back, &err), HVD_PROTO);
    strbuf_clear(&out);
    head = (struct message_head){.kind = MESSAGE_HITS, .count = LIST_LIMIT + 1};
    put_message_head(&out, &head);
    in = wire_in_from(out.text, out.length);
    CHECK_EQ(get_message_head(&in, &back, &err), HVD_PROTO);
    strbuf_release(&out);
}

TEST(sets_and_joins_come_back_whole)
{
    struct message_head head;
    struct wire_set_added a;
    struct wire_set_removed r;
    struct wire_join_done j;
    enum response_kind kind;
    struct strbuf out;
    struct wire_in in;

    strbuf_init(&out);
    put_sample_sets(&out);
    in = wire_in_from(out.text, out.length);
    CHECK_OK(get_message_head(&in, &head, &err), err);
    CHECK_OK(get_response_kind(&in, &kind, &err), err);
    CHECK_EQ(kind, RESPONSE_SET_ADDED);
    CHECK_OK(get_set_added(&in, &a, &err), err);
    CHECK(a.id == 2 && a.slot == 3 && a.epoch == 0x01020304 && a.rank_count == 2);
    CHECK(a.name_bytes == 9 && memcmp(a.name, "set.add.1", 9) == 0);
    CHECK_EQ(get_member(a.ranks, 0), 3);
    CHECK_OK(get_response_kind(&in, &kind, &err), err);
    CHECK_OK(get_set_removed(&in, &r, &err), err);
    CHECK(r.id == 2 && r.name_bytes == 12);
    CHECK_OK(get_response_kind(&in, &kind, &err), err);
    CHECK_EQ(kind, RESPONSE_JOIN_DONE);
    CHECK_OK(get_join_done(&in, &j, &err), err);
    CHECK(j.last == 7 && j.counters[2] == -3);
    CHECK_EQ(get_response_kind(&in, &kind, &err), HVD_PROTO);
    strbuf_release(&out);
}

TEST(responses_that_are_cut_short_are_refused)
{
    struct wire_set_added a;
    struct wire_set_removed r;
    struct wire_join_done j;
    struct wire_cached c;
    struct wire_tune t;
    struct wire_number n;

    for (size_t bytes = 0; bytes < 8; bytes++) {
        struct wire_in in[6];

        for (int i = 0; i < 6; i++)
            in[i] = wire_in_from(splits, bytes);
        CHECK_EQ(get_set_added(&in[0], &a, &err), HVD_PROTO);
        CHECK_EQ(get_set_removed(&in[1], &r, &err), bytes < 6 ? HVD_PROTO : HVD_OK);
        CHECK_EQ(get_join_done(&in[2], &j, &err), HVD_PROTO);
        CHECK_EQ(get_cached(&in[3], &c, &err), HVD_PROTO);
        CHECK_EQ(get_tune(&in[4], &t, &err), HVD_PROTO);
        CHECK_EQ(get_number(&in[5], &n, &err), HVD_PROTO);
    }
}

TEST(a_batch_says_whether_it_is_on_gpus)
{
    struct wire_batch b = {.form = {.op = HVD_ALLREDUCE, .dtype = HVD_BF16, .device = 1},
                           .tensor_count = 1}, back;
    struct strbuf out;
    struct wire_in in;

    strbuf_init(&out);
    put_batch(&out, &b);
    in = wire_in_from(out.text, out.length);
    CHECK_OK(get_batch(&in, &back, &err), err);
    CHECK_EQ(back.form.device, 1);
    CHECK_EQ(back.form.dtype, HVD_BF16);
    strbuf_release(&out);
}
