/* test_fuse.c: which tensors share a batch, in what order, and how long they wait. */
#include "neg.h"

#define KB 1024

static struct negotiator *make(uint64_t fusion_bytes)
{
    return neg_make(2, (struct neg_options){.fusion_bytes = fusion_bytes,
                                            .group_fusion = true, .window_us = 1000});
}

static struct wire_request sized(const char *name, int64_t elements, enum hvd_dtype dtype)
{
    struct wire_request r = request_for(name, HVD_ALLREDUCE);

    r.form.shape[0] = elements;
    r.form.dtype = (uint8_t)dtype;
    return r;
}

/* All tensors are complete before anything is emitted. */
static void both(struct negotiator *n, struct wire_request r)
{
    announce(n, 0, r);
    announce(n, 1, r);
}

TEST(equal_tensors_share_a_batch)
{
    struct negotiator *n = make(64 * KB);
    struct neg_counters c;

    both(n, sized("a", 100, HVD_F32));
    both(n, sized("b", 200, HVD_F32));
    both(n, sized("c", 300, HVD_F32));
    CHECK_EQ(emit(n), 1);
    CHECK_STR(answers[0].text, "a b c");
    neg_count(n, &c);
    CHECK_EQ(c.batches, 1);
    CHECK_EQ(c.fused_tensors, 3);
    CHECK_EQ(c.fused_bytes, 2400);
    neg_free(n);
}

TEST(the_threshold_splits)
{
    struct negotiator *n = make(4 * KB);

    both(n, sized("a", 512, HVD_F32));
    both(n, sized("b", 512, HVD_F32));
    both(n, sized("c", 1, HVD_F32));
    CHECK_EQ(emit(n), 2);
    CHECK_STR(answers[0].text, "a b");
    CHECK_STR(answers[1].text, "c");
    neg_free(n);
}

TEST(zero_means_no_fusion)
{
    struct negotiator *n = make(0);

    both(n, sized("a", 1, HVD_F32));
    both(n, sized("b", 1, HVD_F32));
    CHECK_EQ(emit(n), 2);
    neg_free(n);
}

TEST(look_ahead_over_other_types)
{
    struct negotiator *n = make(64 * KB);

    both(n, sized("f1", 10, HVD_F32));
    both(n, sized("h1", 10, HVD_F16));
    both(n, sized("f2", 10, HVD_F32));
    both(n, sized("h2", 10, HVD_F16));
    CHECK_EQ(emit(n), 2);
    CHECK_STR(answers[0].text, "f1 f2");
    CHECK_STR(answers[1].text, "h1 h2");
    neg_free(n);
}

TEST(look_ahead_ends_at_the_threshold)
{
    struct negotiator *n = make(4 * KB);

    both(n, sized("f1", 256, HVD_F32));         /* 1 KiB */
    both(n, sized("h1", 1500, HVD_F16));        /* 3000 bytes skipped */
    both(n, sized("f2", 100, HVD_F32));         /* 1024 + 3000 + 400 > 4096 */
    CHECK_EQ(emit(n), 3);
    CHECK_STR(answers[0].text, "f1");
    CHECK_STR(answers[1].text, "h1");
    CHECK_STR(answers[2].text, "f2");
    neg_free(n);
}

TEST(only_what_is_alike_fuses)
{
    struct negotiator *n = make(64 * KB);
    struct wire_request r;

    both(n, sized("a", 4, HVD_F32));
    r = sized("b", 4, HVD_F32);
    r.form.reduce = HVD_MAX;
    both(n, r);
    r = sized("c", 4, HVD_F32);
    r.form.prescale = 0.5;
    both(n, r);
    r = sized("d", 4, HVD_F32);
    r.form.op = HVD_REDUCESCATTER;
    both(n, r);
    CHECK_EQ(emit(n), 4);
    neg_free(n);
}

TEST(small_broadcasts_of_one_root_fuse)
{
    struct negotiator *n = make(64 * KB);
    struct wire_request r = request_for("a", HVD_BROADCAST);

    for (int i = 0; i < 3; i++) {
        r.name = (const char *[]){"a", "b", "c"}[i];
        r.form.root = i == 1;
        both(n, r);
    }
    CHECK_EQ(emit(n), 2);
    CHECK_STR(answers[0].text, "a c");
    CHECK_EQ(answers[1].batch.form.root, 1);
    neg_free(n);
}

TEST(large_tensors_stay_alone)
{
    struct negotiator *n = make(64 << 20);

    both(n, sized("a", 16, HVD_F32));
    both(n, sized("large", (1 << 20) / 4 + 1, HVD_F32));
    both(n, sized("b", 16, HVD_F32));
    CHECK_EQ(emit(n), 2);
    CHECK_STR(answers[0].text, "a b");
    CHECK_STR(answers[1].text, "large");
    neg_free(n);
}

TEST(groups_of_their_own)
{
    struct negotiator *n = neg_make(2, (struct neg_options){.fusion_bytes = 64 * KB});
    static const char *const names[] = {"a", "g1", "b", "g2", "h1"};
    static const uint32_t keys[] = {0, 5, 0, 5, 6};

    for (int i = 0; i < 5; i++) {
        struct wire_request r = sized(names[i], 4, HVD_F32);

        r.group_count = keys[i] == 5 ? 2 : keys[i] == 6 ? 1 : 0;
        r.group_key = keys[i];
        both(n, r);
    }
    CHECK_EQ(emit(n), 4);
    CHECK_STR(answers[0].text, "a");
    CHECK_STR(answers[1].text, "g1 g2");
    CHECK_STR(answers[2].text, "b");
    CHECK_STR(answers[3].text, "h1");
    neg_free(n);
}

TEST(cached_tensors_fuse_and_come_first)
{
    struct negotiator *n = neg_make(2, (struct neg_options){
                                           .cache_capacity = 8, .fusion_bytes = 64 * KB,
                                           .group_fusion = true});
    uint32_t a = run_once(n, 2, sized("a", 4, HVD_F32)) - 1;
    uint32_t b = run_once(n, 2, sized("b", 4, HVD_F32)) - 1;

    both(n, sized("c", 4, HVD_F32));
    for (int m = 0; m < 2; m++) {
        neg_on_hit(n, m, a, 1, neg_clock);
        neg_on_hit(n, m, b, 2, neg_clock);
    }
    CHECK_EQ(emit(n), 2);
    CHECK_EQ(answers[0].kind, RESPONSE_CACHED);
    CHECK_EQ(answers[0].count, 2);
    CHECK_EQ(answers[0].numbers[0], a);
    CHECK_EQ(answers[0].numbers[1], b);
    CHECK_STR(answers[1].text, "c");
    neg_free(n);
}

/* ---- The window ------------------------------------------------------------------------------ */

TEST(ready_tensors_wait_for_half_announced_ones)
{
    struct negotiator *n = make(64 * KB);
    uint64_t start = neg_clock;

    both(n, sized("a", 4, HVD_F32));
    announce(n, 0, sized("b", 4, HVD_F32));
    CHECK_EQ(emit(n), 0);
    CHECK_EQ(neg_due_us(n), start + 1000);
    announce(n, 1, sized("b", 4, HVD_F32));
    CHECK_EQ(emit(n), 1);
    CHECK_STR(answers[0].text, "a b");
    CHECK_EQ(neg_due_us(n), UINT64_MAX);
    neg_free(n);
}

TEST(but_not_longer_than_the_window)
{
    struct negotiator *n = make(64 * KB);

    both(n, sized("a", 4, HVD_F32));
    announce(n, 0, sized("b", 4, HVD_F32));
    CHECK_EQ(emit(n), 0);
    neg_clock += 999;
    CHECK_EQ(emit(n), 0);
    neg_clock += 1;
    CHECK_EQ(emit(n), 1);
    CHECK_STR(answers[0].text, "a");
    neg_clock += 5000;                  /* b is late: nothing waits for it any more */
    both(n, sized("c", 4, HVD_F32));
    CHECK_EQ(emit(n), 1);
    neg_free(n);
}

TEST(what_stands_alone_goes_at_once)
{
    struct negotiator *n = make(64 * KB);

    both(n, sized("a", 4, HVD_F32));
    CHECK_EQ(emit(n), 1);
    announce(n, 0, request_for("g", HVD_ALLGATHER));    /* cannot join a batch */
    both(n, sized("b", 4, HVD_F32));
    CHECK_EQ(emit(n), 1);
    neg_free(n);
}

TEST(tuned_values_are_used_at_once)
{
    struct negotiator *n = make(64 * KB);

    neg_put_tune(n, 0.0, 0);
    both(n, sized("a", 4, HVD_F32));
    both(n, sized("b", 4, HVD_F32));
    announce(n, 0, sized("c", 4, HVD_F32));
    CHECK_EQ(emit(n), 3);
    CHECK_EQ(answers[0].kind, RESPONSE_TUNE);
    CHECK_STR(answers[1].text, "a");
    CHECK_STR(answers[2].text, "b");
    neg_free(n);
}
