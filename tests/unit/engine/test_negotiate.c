/* test_negotiate.c: readiness, the checks of contract 4.2 in their order, late members,
 * problems, waits. */
#include "neg.h"

static const struct neg_options plain = {.cache_capacity = 0, .fusion_bytes = 0};

TEST(ready_when_all_have_announced)
{
    struct negotiator *n = neg_make(3, plain);

    announce_named(n, 0, "a");
    announce_named(n, 2, "a");
    CHECK(!neg_has_work(n));
    CHECK(neg_is_waiting(n));
    CHECK_EQ(emit(n), 0);
    announce_named(n, 1, "a");
    CHECK(neg_has_work(n));
    CHECK(!neg_is_waiting(n));
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].kind, RESPONSE_EXECUTE);
    CHECK_STR(answers[0].text, "a");
    CHECK_EQ(answers[0].batch.form.op, HVD_ALLREDUCE);
    CHECK_EQ(answers[0].numbers[0], 0);
    neg_free(n);
}

TEST(order_of_readiness)
{
    struct negotiator *n = neg_make(2, plain);

    announce_named(n, 0, "a");
    announce_named(n, 0, "b");
    announce_named(n, 1, "b");
    announce_named(n, 1, "a");
    CHECK_EQ(emit(n), 2);
    CHECK_STR(answers[0].text, "b");
    CHECK_STR(answers[1].text, "a");
    neg_free(n);
}

TEST(twice_by_one_member_breaks_the_protocol)
{
    struct negotiator *n = neg_make(2, plain);
    struct wire_request r = request_for("a", HVD_ALLREDUCE);
    struct hvd_error err;

    announce(n, 0, r);
    CHECK_EQ(neg_on_request(n, 0, &r, neg_clock, &err), HVD_PROTO);
    CHECK_EQ(err.rank, 10);
    CHECK_HAS(err.text, "rank 10 announced a twice");
    neg_free(n);
}

/* ---- The checks --------------------------------------------------------------------------- */

/* Both announce; the disagreement goes to both, with `parts` in its text. */
static void check_differ(struct wire_request a, struct wire_request b,
                         enum hvd_status status, const char *one, const char *other)
{
    struct negotiator *n = neg_make(2, plain);

    announce(n, 0, a);
    announce(n, 1, b);
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].kind, RESPONSE_ERROR);
    CHECK_EQ(answers[0].status, status);
    CHECK_EQ(answers[0].target_count, 2);
    CHECK_HAS(answers[0].text, one);
    CHECK_HAS(answers[0].text, other);
    /* The name is free again. */
    run_once(n, 2, request_for(a.name, HVD_ALLREDUCE));
    neg_free(n);
}

static struct wire_request like(const char *name, enum hvd_op op)
{
    return request_for(name, op);
}

TEST(check_1_data_type)
{
    struct wire_request a = like("x", HVD_ALLREDUCE), b = like("x", HVD_ALLGATHER);

    b.form.dtype = HVD_I32;                  /* also another operation and shape: 1 wins */
    b.form.shape[0] = 9;
    check_differ(a, b, HVD_MISMATCH, "data types: rank 10 has float32",
                 "rank 11 has int32");
}

TEST(check_2_operation)
{
    struct wire_request a = like("x", HVD_ALLREDUCE), b = like("x", HVD_BROADCAST);

    b.form.shape[0] = 9;
    check_differ(a, b, HVD_MISMATCH, "operations: rank 10 has ALLREDUCE",
                 "rank 11 has BROADCAST");
    b = like("x", HVD_ALLREDUCE);
    b.form.reduce = HVD_ADASUM;
    check_differ(a, b, HVD_MISMATCH, "ALLREDUCE", "ADASUM");
}

TEST(check_3_shape)
{
    static const enum hvd_op ops[] = {HVD_ALLREDUCE, HVD_BROADCAST, HVD_REDUCESCATTER};

    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        struct wire_request a = like("x", ops[i]), b = like("x", ops[i]);

        a.form.ndim = 2;
        a.form.shape[0] = 17;
        a.form.shape[1] = 3;
        b.form.shape[0] = 51;
        b.form.prescale = 2;                 /* 4 comes later */
        check_differ(a, b, HVD_MISMATCH, "shapes: rank 10 has [17, 3]",
                     "rank 11 has [51]");
    }
}

TEST(check_4_factors)
{
    struct wire_request a = like("x", HVD_ALLREDUCE), b = a;

    b.form.prescale = 0.5;
    b.form.reduce = HVD_MAX;                 /* 5 comes later */
    check_differ(a, b, HVD_MISMATCH, "rank 10 has prescale 1 postscale 1",
                 "rank 11 has prescale 0.5 postscale 1");
    b = a;
    b.form.postscale = 3;
    check_differ(a, b, HVD_MISMATCH, "factors", "postscale 3");
}

TEST(check_5_reduction)
{
    struct wire_request a = like("x", HVD_ALLREDUCE), b = a;

    b.form.reduce = HVD_MAX;
    b.form.device = 1;                       /* 10 comes later */
    check_differ(a, b, HVD_MISMATCH, "reduction ops: rank 10 has Sum",
                 "rank 11 has Max");
}

static void join(struct negotiator *n, int member)
{
    announce(n, member, like("join.noname", HVD_JOIN));
}

TEST(check_6_joined_ranks)
{
    static const enum hvd_op ops[] = {HVD_ALLGATHER, HVD_ALLTOALL, HVD_REDUCESCATTER,
                                      HVD_BROADCAST};

    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        struct negotiator *n = neg_make(3, plain);
        struct wire_request a = like("x", ops[i]);

        a.form.ndim = ops[i] == HVD_BROADCAST;       /* a scalar, too: 7 comes later */
        join(n, 2);
        CHECK_EQ(emit(n), 1);
        announce(n, 0, a);
        CHECK_EQ(emit(n), 1);
        CHECK_EQ(answers[0].kind, RESPONSE_ERROR);
        CHECK_EQ(answers[0].status, HVD_UNSUPPORTED);
        CHECK_EQ(answers[0].rank, 12);
        CHECK_HAS(answers[0].text, "rank 12");
        CHECK_EQ(answers[0].target_count, 1);
        announce(n, 1, a);
        CHECK_EQ(emit(n), 1);
        CHECK_EQ(answers[0].targets[0], 1);
        CHECK_EQ(answers[0].status, HVD_UNSUPPORTED);
        neg_free(n);
    }
}

TEST(check_7_dimensions)
{
    static const enum hvd_op ops[] = {HVD_ALLGATHER, HVD_ALLTOALL};

    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        struct wire_request a = like("x", ops[i]), b = a;

        b.form.shape[0] = 400;
        b.form.ndim = a.form.ndim = 3;
        a.form.shape[1] = b.form.shape[1] = 5;
        a.form.shape[2] = 6;
        b.form.shape[2] = 7;
        b.form.device = 1;
        check_differ(a, b, HVD_MISMATCH, "sizes of dimension 2: rank 10 has 6",
                     "rank 11 has 7");
        b.form.ndim = 2;
        check_differ(a, b, HVD_MISMATCH, "rank 10 has 3 dimensions",
                     "rank 11 has 2 dimensions");
        a.form.ndim = 0;
        check_differ(b, a, HVD_MISMATCH, "rank-zero", "scalar");
    }
}

TEST(check_9_root)
{
    struct wire_request a = like("x", HVD_BROADCAST), b = a;

    b.form.root = 1;
    b.form.device = 1;
    check_differ(a, b, HVD_MISMATCH, "root ranks: rank 10 has 10", "rank 11 has 11");
}

TEST(check_10_device)
{
    struct wire_request a = like("x", HVD_ALLREDUCE), b = a;

    b.form.device = 1;
    check_differ(a, b, HVD_MISMATCH, "rank 10 has CPU", "rank 11 has GPU");
}

TEST(groups_have_the_same_size)
{
    struct wire_request a = like("x", HVD_ALLREDUCE), b = a;

    a.group_count = 3;
    b.group_count = 2;
    check_differ(a, b, HVD_MISMATCH, "rank 10 has 3 tensors", "rank 11 has 2");
}

TEST(first_dimensions_of_allgather_may_differ)
{
    struct negotiator *n = neg_make(3, plain);
    struct wire_request r = like("x", HVD_ALLGATHER);

    for (int m = 0; m < 3; m++) {
        r.form.shape[0] = 5 + m;
        announce(n, m, r);
    }
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].kind, RESPONSE_EXECUTE);
    CHECK_EQ(answers[0].size_count, 3);
    CHECK_EQ(answers[0].sizes[0], 5);
    CHECK_EQ(answers[0].sizes[2], 7);
    neg_free(n);
}

TEST(alltoall_tells_the_rows_of_all)
{
    static const uint8_t splits[2][16] = {{1, [8] = 3}, {2, [8] = 4}};
    struct negotiator *n = neg_make(2, plain);

    for (int m = 0; m < 2; m++) {
        struct wire_request r = like("x", HVD_ALLTOALL);

        r.form.shape[0] = 4 + 2 * m;
        r.splits = splits[m];
        r.split_count = 2;
        announce(n, m, r);
    }
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].size_count, 4);
    for (uint64_t i = 0; i < 4; i++)
        CHECK_EQ(answers[0].sizes[i], ((uint64_t[]){1, 3, 2, 4})[i]);
    neg_free(n);
}

/* However they were said: by splits or by their absence. */
TEST(alltoall_of_equal_parts_tells_one_number)
{
    static const uint8_t splits[24] = {2, [8] = 2, [16] = 2};
    struct negotiator *n = neg_make(3, plain);

    for (int m = 0; m < 3; m++) {
        struct wire_request r = like("x", HVD_ALLTOALL);

        r.form.shape[0] = 6;
        r.splits = splits;
        r.split_count = m == 1 ? 3 : 0;
        announce(n, m, r);
    }
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].size_count, 1);
    CHECK_EQ(answers[0].sizes[0], 2);
    neg_free(n);
}

/* ---- Problems and late members ------------------------------------------------------------ */

TEST(a_problem_of_one_fails_all)
{
    struct negotiator *n = neg_make(3, plain);
    struct wire_request bad = like("x", HVD_ALLREDUCE);

    bad.problem = "tensor is complex";
    bad.problem_bytes = (uint16_t)strlen(bad.problem);
    announce_named(n, 0, "x");
    announce(n, 1, bad);
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].status, HVD_REMOTE);
    CHECK_EQ(answers[0].rank, 11);
    CHECK_HAS(answers[0].text, "rank 11 could not take part: tensor is complex");
    CHECK_EQ(answers[0].target_count, 2);
    announce_named(n, 2, "x");
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].status, HVD_REMOTE);
    CHECK_EQ(answers[0].target_count, 1);
    CHECK_EQ(answers[0].targets[0], 2);
    neg_free(n);
}

TEST(late_members_get_the_same_error_once)
{
    struct negotiator *n = neg_make(4, plain);
    struct wire_request odd = like("x", HVD_ALLREDUCE);
    char first[2048];

    odd.form.shape[0] = 5;
    announce_named(n, 0, "x");
    announce(n, 1, odd);                /* fails for 0 and 1; 2 and 3 are owed */
    CHECK_EQ(emit(n), 1);
    strcpy(first, answers[0].text);
    announce_named(n, 2, "x");
    CHECK_EQ(emit(n), 1);
    CHECK_STR(answers[0].text, first);
    CHECK_EQ(answers[0].targets[0], 2);
    /* 0, 1 and 2 go on to the next use of the name; 3 still owes the failed one. */
    for (int m = 0; m < 3; m++)
        announce_named(n, m, "x");
    CHECK_EQ(emit(n), 0);
    announce_named(n, 3, "x");
    CHECK_EQ(emit(n), 1);
    CHECK_STR(answers[0].text, first);
    CHECK_EQ(answers[0].targets[0], 3);
    announce_named(n, 3, "x");
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].kind, RESPONSE_EXECUTE);
    neg_free(n);
}

TEST(failures_in_a_row_are_owed_in_a_row)
{
    struct negotiator *n = neg_make(3, plain);
    struct wire_request odd = like("x", HVD_ALLREDUCE);

    odd.form.dtype = HVD_I64;
    for (int i = 0; i < 3; i++) {
        announce_named(n, 0, "x");
        announce(n, 1, odd);
        CHECK_EQ(emit(n), 1);
    }
    for (int i = 0; i < 3; i++) {
        announce_named(n, 2, "x");
        CHECK_EQ(emit(n), 1);
        CHECK_EQ(answers[0].status, HVD_MISMATCH);
    }
    announce_named(n, 2, "x");
    CHECK_EQ(emit(n), 0);
    neg_free(n);
}

/* ---- Waits ---------------------------------------------------------------------------------- */

static char stalled[256];

static void note(void *context, const char *name, uint8_t op, uint64_t first_us,
                 const bool *missing)
{
    size_t used = strlen(stalled);

    (void)context;
    (void)op;
    snprintf(stalled + used, sizeof stalled - used, "%s@%llu%s%s%s ", name,
             (unsigned long long)first_us, missing[0] ? " 0" : "", missing[1] ? " 1" : "",
             missing[2] ? " 2" : "");
}

TEST(stalled_names_say_who_is_missing)
{
    struct negotiator *n = neg_make(3, (struct neg_options){.cache_capacity = 8});
    uint32_t number = run_once(n, 3, request_for("cached", HVD_ALLREDUCE));
    struct wire_request r = request_for("a", HVD_ALLREDUCE);
    struct hvd_error err;

    CHECK_OK(neg_on_request(n, 1, &r, 100, &err), err);
    r = request_for("b", HVD_ALLREDUCE);
    CHECK_OK(neg_on_request(n, 0, &r, 200, &err), err);
    CHECK_OK(neg_on_request(n, 2, &r, 300, &err), err);
    neg_on_hit(n, 2, number - 1, 1, 150);
    neg_each_stalled(n, 99, note, NULL);
    CHECK_STR(stalled, "");
    neg_each_stalled(n, 200, note, NULL);
    CHECK_STR(stalled, "a@100 0 2 b@200 1 cached@150 0 1 ");
    CHECK(neg_is_waiting(n));
    neg_free(n);
}

TEST(the_last_to_come_is_counted)
{
    struct negotiator *n = neg_make(3, plain);
    struct wire_request r = request_for("a", HVD_ALLREDUCE);
    struct hvd_error err;

    neg_on_request(n, 1, &r, 100, &err);
    neg_on_request(n, 0, &r, 150, &err);
    neg_on_request(n, 2, &r, 1100, &err);
    CHECK_EQ(neg_late(n)[2].count, 1);
    CHECK_EQ(neg_late(n)[2].us, 1000);
    CHECK_EQ(neg_late(n)[0].count, 0);
    neg_free(n);
}
