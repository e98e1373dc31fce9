/* test_join.c: ranks that join (W7-W10, W40) and process sets (ids, checks, epochs). */
#include "neg.h"

static const struct neg_options plain = {.cache_capacity = 16, .fusion_bytes = 0};

static void join(struct negotiator *n, int member)
{
    announce(n, member, request_for("join.noname", HVD_JOIN));
}

TEST(join_ends_when_all_have_joined)
{
    struct negotiator *n = neg_make(3, plain);

    join(n, 1);
    join(n, 0);
    CHECK_EQ(emit(n), 2);
    CHECK_EQ(answers[0].kind, RESPONSE_JOINED);
    CHECK_EQ(answers[0].member, 1);
    join(n, 2);
    CHECK_EQ(emit(n), 2);
    CHECK_EQ(answers[1].kind, RESPONSE_JOIN_DONE);
    CHECK_EQ(answers[1].member, 12);    /* the global rank that came last */
    run_once(n, 3, request_for("x", HVD_ALLGATHER));    /* all is as before */
    neg_free(n);
}

TEST(joined_ranks_count_as_ready)
{
    struct negotiator *n = neg_make(3, plain);

    announce_named(n, 0, "a");
    announce_named(n, 1, "a");
    join(n, 2);                         /* completes what the others wait for */
    CHECK_EQ(emit(n), 2);
    CHECK_EQ(answers[0].kind, RESPONSE_JOINED);
    CHECK_EQ(answers[1].kind, RESPONSE_EXECUTE);
    CHECK_STR(answers[1].text, "a");
    CHECK_EQ(answers[1].numbers[0], 0); /* nothing is cached meanwhile */
    announce_named(n, 1, "b");
    CHECK_EQ(emit(n), 0);
    announce_named(n, 0, "b");
    CHECK_EQ(emit(n), 1);
    neg_free(n);
}

/* W7: the operation of a rank that joins later must not be counted twice. */
TEST(operations_under_way_when_their_rank_joins)
{
    struct negotiator *n = neg_make(3, plain);

    announce_named(n, 2, "a");
    join(n, 2);
    CHECK_EQ(emit(n), 1);
    announce_named(n, 0, "a");
    CHECK_EQ(emit(n), 0);               /* 1 is still missing */
    announce_named(n, 1, "a");
    CHECK_EQ(emit(n), 1);
    CHECK_STR(answers[0].text, "a");
    neg_free(n);
}

/* W8 */
TEST(barrier_with_joined_ranks)
{
    struct negotiator *n = neg_make(2, plain);

    join(n, 0);
    emit(n);
    announce(n, 1, request_for("barrier.noname", HVD_BARRIER));
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].kind, RESPONSE_EXECUTE);
    CHECK_EQ(answers[0].batch.form.op, HVD_BARRIER);
    neg_free(n);
}

/* W9: what a joined rank needs to contribute neutral elements is in the response. */
TEST(joined_ranks_learn_operation_and_size)
{
    struct negotiator *n = neg_make(2, plain);
    struct wire_request r = request_for("m", HVD_ALLREDUCE);

    r.form.reduce = HVD_MIN;
    r.form.dtype = HVD_F64;
    join(n, 1);
    emit(n);
    announce(n, 0, r);
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].batch.form.reduce, HVD_MIN);
    CHECK_EQ(answers[0].batch.form.dtype, HVD_F64);
    neg_free(n);
}

/* W10: a cached allgather fails on its callers, as an uncached one does. */
TEST(join_empties_the_cache)
{
    struct negotiator *n = neg_make(2, plain);
    uint32_t number = run_once(n, 2, request_for("g", HVD_ALLGATHER));

    CHECK(number > 0);
    join(n, 1);
    CHECK_EQ(emit(n), 1);
    neg_on_hit(n, 0, number - 1, 1, neg_clock);         /* too late: dropped */
    CHECK_EQ(emit(n), 0);
    announce(n, 0, request_for("g", HVD_ALLGATHER));
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].kind, RESPONSE_ERROR);
    CHECK_EQ(answers[0].status, HVD_UNSUPPORTED);
    CHECK_HAS(answers[0].text, "sparse_as_dense");
    CHECK_EQ(answers[0].target_count, 1);
    CHECK_EQ(answers[0].targets[0], 0);
    neg_free(n);
}

TEST(a_member_that_joins_owes_nothing)
{
    struct negotiator *n = neg_make(3, plain);
    struct wire_request odd = request_for("x", HVD_ALLREDUCE);

    odd.form.shape[0] = 9;
    announce_named(n, 0, "x");
    announce(n, 1, odd);                /* 2 owes the announcement of a failed x */
    CHECK_EQ(emit(n), 1);
    join(n, 2);
    join(n, 0);
    join(n, 1);
    CHECK_EQ(emit(n), 4);
    CHECK_EQ(answers[3].kind, RESPONSE_JOIN_DONE);
    run_once(n, 3, request_for("x", HVD_ALLREDUCE));
    neg_free(n);
}

TEST(counters_of_unnamed_operations_meet)
{
    struct negotiator *n = neg_make(2, plain);
    struct wire_request r = request_for("join.noname", HVD_JOIN);
    uint8_t counters[2][8 * OP_KIND_COUNT] = {{7, [8] = 1}, {3, [8] = 5}};

    r.split_count = OP_KIND_COUNT;
    for (int m = 0; m < 2; m++) {
        r.splits = counters[m];
        announce(n, m, r);
    }
    CHECK_EQ(emit(n), 3);
    CHECK_EQ(answers[2].counters[0], 7);
    CHECK_EQ(answers[2].counters[1], 5);
    neg_free(n);
}

/* ---- Process sets --------------------------------------------------------------------------- */

static struct wire_request set_request(const char *name, const int *ranks, uint32_t count)
{
    static uint8_t splits[8 * 16];
    struct wire_request r = request_for(name, HVD_ALLREDUCE);

    memset(splits, 0, sizeof splits);
    for (uint32_t i = 0; i < count; i++)
        for (int k = 0; k < 8; k++)
            splits[8 * i + (uint32_t)k] = (uint8_t)((uint64_t)(int64_t)ranks[i] >> (8 * k));
    r.form.op = OP_SET_ADD;
    r.form.ndim = 0;
    r.splits = splits;
    r.split_count = count;
    return r;
}

static int add_set(struct negotiator *n, const int *ranks, uint32_t count)
{
    for (int m = 0; m < 4; m++)
        announce(n, m, set_request("set.add", ranks, count));
    CHECK_EQ(emit(n), 1);
    return answers[0].kind == RESPONSE_SET_ADDED ? (int)answers[0].number : -1;
}

static bool remove_set(struct negotiator *n, int id)
{
    struct wire_request r = set_request("set.remove", NULL, 0);

    r.form.op = OP_SET_REMOVE;
    r.form.root = id;
    for (int m = 0; m < 4; m++)
        announce(n, m, r);
    CHECK_EQ(emit(n), 1);
    return answers[0].kind == RESPONSE_SET_REMOVED;
}

static struct negotiator *global(void)
{
    static const int ranks[] = {0, 1, 2, 3};

    return neg_make(4, (struct neg_options){.ranks = ranks});
}

TEST(ids_count_up_and_freed_ones_come_again)
{
    struct negotiator *n = global();
    uint32_t epoch;

    CHECK_EQ(add_set(n, (int[]){0, 1}, 2), 1);
    CHECK_EQ(answers[0].count, 2);
    epoch = answers[0].seq;
    CHECK_EQ(add_set(n, (int[]){2, 3}, 2), 2);
    CHECK_EQ(add_set(n, (int[]){1, 3}, 2), 3);
    CHECK(remove_set(n, 2));
    CHECK(remove_set(n, 1));
    CHECK_EQ(add_set(n, (int[]){0, 1}, 2), 2);          /* the one freed first */
    CHECK(answers[0].seq > epoch);
    CHECK_EQ(add_set(n, (int[]){0, 2}, 2), 1);
    CHECK_EQ(add_set(n, (int[]){0, 3}, 2), 4);
    neg_free(n);
}

static void check_refused(struct negotiator *n, const int *ranks, uint32_t count,
                          const char *text)
{
    CHECK_EQ(add_set(n, ranks, count), -1);
    CHECK_EQ(answers[0].kind, RESPONSE_ERROR);
    CHECK_EQ(answers[0].status, HVD_INVALID);
    CHECK_EQ(answers[0].target_count, 4);
    CHECK_HAS(answers[0].text, text);
}

TEST(bad_sets_are_refused_everywhere)
{
    struct negotiator *n = global();

    check_refused(n, NULL, 0, "at least one rank");
    check_refused(n, (int[]){0, 4}, 2, "rank 4, but ranks are 0..3");
    check_refused(n, (int[]){-1}, 1, "rank -1");
    check_refused(n, (int[]){1, 1}, 2, "rank 1 twice");
    check_refused(n, (int[]){0, 1, 2, 3}, 4, "exists already: id 0");
    CHECK_EQ(add_set(n, (int[]){1, 2}, 2), 1);
    check_refused(n, (int[]){1, 2}, 2, "exists already: id 1");
    CHECK(!remove_set(n, 9));
    CHECK_HAS(answers[0].text, "process set 9 does not exist");
    neg_free(n);
}

TEST(ranks_that_name_different_members)
{
    struct negotiator *n = global();

    announce(n, 0, set_request("set.add", (int[]){0, 1}, 2));
    announce(n, 1, set_request("set.add", (int[]){0, 2}, 2));
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].status, HVD_MISMATCH);
    CHECK_HAS(answers[0].text, "different members");
    neg_free(n);
}

TEST(there_is_a_most_number_of_sets)
{
    static int ranks[64];
    struct negotiator *n = global();

    for (int i = 0; i < NEG_SETS_MAX; i++) {
        ranks[0] = 100 + i;             /* known from elsewhere; never looked at */
        neg_know_set(n, i + 1, ranks, 1);
    }
    check_refused(n, (int[]){1, 2}, 2, "too many process sets");
    neg_free(n);
}
