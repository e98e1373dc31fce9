/* test_cache.c: the coordinator's cache: numbers given, hit, revoked, evicted and given
 * again only after all have acknowledged. */
#include "neg.h"

static const struct neg_options small = {.cache_capacity = 2, .fusion_bytes = 1 << 20};

static uint32_t learn(struct negotiator *n, const char *name)
{
    uint32_t number = run_once(n, 2, request_for(name, HVD_ALLREDUCE));

    CHECK(number > 0);
    return number - 1;
}

TEST(a_hit_of_all_runs)
{
    struct negotiator *n = neg_make(2, small);
    uint32_t a = learn(n, "a"), b = learn(n, "b");

    CHECK(a != b);
    neg_on_hit(n, 0, a, 1, neg_clock);
    CHECK_EQ(emit(n), 0);
    neg_on_hit(n, 0, a, 1, neg_clock);  /* twice is once */
    CHECK_EQ(emit(n), 0);
    CHECK(neg_is_waiting(n));
    neg_on_hit(n, 1, a, 1, neg_clock);
    CHECK(!neg_is_waiting(n));
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].kind, RESPONSE_CACHED);
    CHECK_EQ(answers[0].numbers[0], a);
    neg_on_hit(n, 0, a, 1, neg_clock);  /* the next turn */
    CHECK_EQ(emit(n), 0);
    neg_free(n);
}

TEST(old_and_foreign_numbers_are_dropped)
{
    struct negotiator *n = neg_make(2, small);
    uint32_t a = learn(n, "a");

    for (int m = 0; m < 2; m++) {
        neg_on_hit(n, m, a, 99, neg_clock);
        neg_on_hit(n, m, a + 1, 1, neg_clock);
        neg_on_hit(n, m, UINT32_MAX, 1, neg_clock);
    }
    CHECK_EQ(emit(n), 0);
    neg_free(n);
}

TEST(a_full_announcement_revokes_the_name)
{
    struct negotiator *n = neg_make(2, small);
    uint32_t a = learn(n, "a");
    struct wire_request r = request_for("a", HVD_ALLREDUCE);

    neg_on_hit(n, 0, a, 1, neg_clock);
    r.form.shape[0] = 8;
    r.revoked = a + 1;
    r.revoked_seq = 1;
    announce(n, 1, r);
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].kind, RESPONSE_REVOKE);
    CHECK_EQ(answers[0].number, a);
    CHECK_EQ(answers[0].seq, 1);
    CHECK_EQ(answers[0].member, 1);     /* it promises not to come */
    CHECK(neg_is_waiting(n));
    r.revoked = 0;
    announce(n, 0, r);
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].kind, RESPONSE_EXECUTE);
    CHECK(answers[0].numbers[0] > 0);
    CHECK(answers[0].numbers[0] != a + 1);      /* not acknowledged yet */
    neg_free(n);
}

TEST(numbers_come_again_after_all_have_acknowledged)
{
    struct negotiator *n = neg_make(2, (struct neg_options){.cache_capacity = 1});
    uint32_t given[300], first;
    struct neg_counters c;
    char name[16];

    /* 257 numbers (1 + slack) can be out at once; each new name evicts the last one. */
    for (int i = 0; i < 257; i++) {
        snprintf(name, sizeof name, "n%d", i);
        for (int m = 0; m < 2; m++)
            announce_named(n, m, name);
        CHECK_EQ(emit(n), i == 0 ? 1 : 2);
        given[i] = answers[answer_count - 1].numbers[0];
        CHECK(given[i] > 0);
        for (int k = 0; k < i; k++)
            CHECK(given[k] != given[i]);
    }
    CHECK_EQ(run_once(n, 2, request_for("more", HVD_ALLREDUCE)), 0);
    neg_on_ack(n, 0, 100);
    CHECK_EQ(run_once(n, 2, request_for("more", HVD_ALLREDUCE)), 0);    /* 1 has not */
    neg_on_ack(n, 1, 100);
    for (int m = 0; m < 2; m++)
        announce_named(n, m, "more");
    CHECK_EQ(emit(n), 2);
    first = answers[1].numbers[0];
    CHECK(first >= given[0] && first <= given[50]);    /* one of those acknowledged */
    neg_count(n, &c);
    CHECK_EQ(c.evictions, 257);
    neg_on_ack(n, 0, UINT32_MAX);       /* beyond what was sent: not believed */
    neg_on_ack(n, 1, UINT32_MAX);
    neg_free(n);
}

TEST(the_least_recently_used_goes)
{
    struct negotiator *n = neg_make(2, small);
    uint32_t a = learn(n, "a"), b;

    b = learn(n, "b");
    neg_started(n, a, 3);               /* the coordinator uses a */
    neg_ended(n, a);
    for (int m = 0; m < 2; m++)
        announce_named(n, m, "c");
    CHECK_EQ(emit(n), 2);
    CHECK_EQ(answers[0].kind, RESPONSE_REVOKE);
    CHECK_EQ(answers[0].number, b);
    CHECK_EQ(answers[0].member, 0);     /* the coordinator itself promises */
    neg_free(n);
}

TEST(what_the_coordinator_uses_is_not_evicted)
{
    struct negotiator *n = neg_make(2, small);
    uint32_t a = learn(n, "a"), b = learn(n, "b");

    neg_started(n, a, 3);
    neg_on_hit(n, 0, b, 2, neg_clock);
    CHECK_EQ(run_once(n, 2, request_for("c", HVD_ALLREDUCE)), 0);
    neg_ended(n, a);
    for (int m = 0; m < 2; m++)
        announce_named(n, m, "d");
    CHECK_EQ(emit(n), 2);
    CHECK_EQ(answers[0].number, a);
    neg_free(n);
}

TEST(what_varies_is_not_cached)
{
    struct negotiator *n = neg_make(2, small);
    struct wire_request r = request_for("g", HVD_ALLGATHER);
    static const uint8_t splits[16] = {2, [8] = 2};

    announce(n, 0, r);
    r.form.shape[0] = 5;
    announce(n, 1, r);
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].numbers[0], 0);
    r = request_for("t", HVD_ALLTOALL);
    r.splits = splits;
    r.split_count = 2;
    CHECK_EQ(run_once(n, 2, r), 0);
    neg_free(n);
}

TEST(what_varies_is_cached_where_sizes_are_open)
{
    struct negotiator *n = neg_make(2, (struct neg_options){.cache_capacity = 4,
                                                            .open_sizes = true});
    struct wire_request r = request_for("g", HVD_ALLGATHER);

    announce(n, 0, r);
    r.form.shape[0] = 5;
    announce(n, 1, r);
    CHECK_EQ(emit(n), 1);
    CHECK(answers[0].numbers[0] > 0);
    r = request_for("e", HVD_ALLGATHER);
    r.form.ndim = 2;
    r.form.shape[1] = 0;                /* its bytes do not tell its rows */
    announce(n, 0, r);
    r.form.shape[0] = 5;
    announce(n, 1, r);
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].numbers[0], 0);
    neg_free(n);
}

TEST(without_capacity_nothing_is_cached)
{
    struct negotiator *n = neg_make(2, (struct neg_options){.cache_capacity = 0});

    CHECK_EQ(run_once(n, 2, request_for("a", HVD_ALLREDUCE)), 0);
    neg_on_hit(n, 0, 0, 1, neg_clock);
    neg_free(n);
}

/* Random use of more names than fit, against a model of who holds which number. */
TEST(numbers_are_never_held_twice, .limit_s = 180)
{
    struct negotiator *n = neg_make(2, (struct neg_options){.cache_capacity = 4});
    unsigned seed = 7;
    bool held[1024] = {false};
    uint32_t seq = 0;

    for (int i = 0; i < 20000; i++) {
        char name[16];

        snprintf(name, sizeof name, "n%d", rand_r(&seed) % 12);
        for (int m = 0; m < 2; m++)
            announce_named(n, m, name);
        emit(n);
        for (int k = 0; k < answer_count; k++) {
            seq++;
            if (answers[k].kind == RESPONSE_REVOKE) {
                CHECK(held[answers[k].number]);
                held[answers[k].number] = false;
            } else if (answers[k].numbers[0] > 0) {
                CHECK(!held[answers[k].numbers[0] - 1]);
                held[answers[k].numbers[0] - 1] = true;
            }
        }
        neg_on_ack(n, rand_r(&seed) % 2, seq);
    }
    neg_free(n);
}
