/*
 * test_collective_life.c: what happens between operations: tasks that are cancelled,
 * turns that are skipped, roots that run ahead, boards in any order, teams of some ranks,
 * slots used again, failures, and memory that stays the same.
 */
#include "check.h"
#include "coll_case.h"

#include "base/fault.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

static struct harness on(int size, int hosts)
{
    return (struct harness){.size = size, .hosts = hosts,
                            .board_bytes = coll_board_bytes()};
}

static struct coll_call sum_call(uint32_t board, uint32_t turn, float *x, size_t count)
{
    return (struct coll_call){.op = COLL_ALLREDUCE, .dtype = HVD_F32, .board = board,
                              .turn = turn, .in = x, .out = x, .count = count,
                              .prescale = 1.0, .postscale = 1.0};
}

/* ---- Large vectors, scaling, operations -------------------------------------------- */

static void body_large(struct harness_rank *r)
{
    struct coll_bed bed;

    bed_open(&bed, r, 0, 0, 1);
    for (int op = 0; op < COLL_OP_COUNT; op++)
        for (int flags = 0; flags < 4; flags++) {
            size_t many = op == COLL_ALLREDUCE ? 600011 : 150007;
            struct coll_case c = {.op = (enum coll_op)op, .count = many,
                                  .dtype = flags & 1 ? HVD_F32 : HVD_F16,
                                  .in_place = flags & 1, .mapped = flags & 2,
                                  .uneven = op != COLL_ALLREDUCE};

            case_run(&bed, &c);
        }
    harness_barrier(r);
    bed_close(&bed);
}

/* More chunks than a board has words, and vectors in several segments. */
static void body_huge(struct harness_rank *r)
{
    struct coll_bed bed;

    bed_open(&bed, r, 0, 0, 1);
    for (int flags = 0; flags < 3; flags++)
        case_run(&bed, &(struct coll_case){.op = COLL_ALLREDUCE, .dtype = HVD_F32,
                                           .count = 5000017, .in_place = flags & 1,
                                           .mapped = flags & 2});
    harness_barrier(r);
    bed_close(&bed);
}

TEST(more_chunks_than_words, .limit_s = 240)
{
    struct harness h = on(2, 1);

    harness_run(&h, body_huge);
}

static void run_large(bool shm_disable, int hosts)
{
    static const int sizes[] = {2, 5};

    for (int i = 0; i < 2; i++) {
        struct harness h = on(sizes[i], hosts);

        h.shm_disable = shm_disable;
        harness_run(&h, body_large);
    }
}

TEST(large_in_shared_memory, .limit_s = 240) { run_large(false, 1); }
TEST(large_over_tcp, .limit_s = 240) { run_large(true, 1); }
TEST(large_over_two_hosts, .limit_s = 240) { run_large(false, 2); }

/* Arenas of other processes, and their private memory. */
TEST(large_between_processes, .limit_s = 240)
{
    struct harness h = on(3, 1);

    h.processes = true;
    harness_run(&h, body_large);
}

/* Private memory is staged when it cannot be read by others. */
TEST(large_without_cma, .limit_s = 240)
{
    struct harness h = on(3, 1);

    setenv("HOROVOD_CMA_DISABLE", "1", 1);
    h.processes = true;
    harness_run(&h, body_large);
}

static void body_scaled(struct harness_rank *r)
{
    static const enum red_op ops[] = {RED_SUM, RED_PROD, RED_MIN, RED_MAX};
    static const enum hvd_dtype types[] = {HVD_F32, HVD_F16, HVD_I32, HVD_BF16, HVD_I64};
    struct coll_bed bed;

    bed_open(&bed, r, 0, 0, 1);
    for (int i = 0; i < 20; i++) {
        struct coll_case c = {.op = i & 1 ? COLL_ALLREDUCE : COLL_REDUCESCATTER,
                              .count = i % 3 == 0 ? 20 : 5000, .dtype = types[i % 5],
                              .reduce = ops[i % 4], .prescale = i & 2 ? 0.5 : 0,
                              .postscale = i & 4 ? 0.3 : 0,
                              .divisor = i & 8 ? bed.count : 0, .mapped = i & 1};

        if (c.postscale != 0)
            c.divisor = 0;
        case_run(&bed, &c);
    }
    harness_barrier(r);
    bed_close(&bed);
}

TEST(operations_and_factors)
{
    for (int hosts = 1; hosts <= 2; hosts++) {
        struct harness h = on(5, hosts);

        harness_run(&h, body_scaled);
        h.shm_disable = true;
        harness_run(&h, body_scaled);
    }
}

/* ---- Algorithms that the default rules would not take ------------------------------- */

/* More than a segment, for algorithms that cut vectors. */
static void body_long(struct harness_rank *r)
{
    struct coll_bed bed;

    bed_open(&bed, r, 0, 0, 1);
    for (size_t count = 65535; count < 1000000; count = count * 3 + 1)
        for (int k = 0; k < 2; k++) {
            struct coll_case c = {.op = COLL_ALLREDUCE, .dtype = k == 0 ? HVD_F32 : HVD_F16,
                                  .count = count, .in_place = k == 0, .mapped = count & 1};

            case_run(&bed, &c);
        }
    harness_barrier(r);
    bed_close(&bed);
}

static void body_small(struct harness_rank *r)
{
    struct coll_bed bed;

    bed_open(&bed, r, 0, 0, 1);
    for (int op = 0; op < COLL_OP_COUNT; op++)
        for (size_t count = 0; count < 40000; count = count * 7 + 1) {
            struct coll_case c = {.op = (enum coll_op)op, .dtype = HVD_F32,
                                  .count = count, .uneven = true, .root = bed.count - 1,
                                  .mapped = count & 1};

            case_run(&bed, &c);
        }
    harness_barrier(r);
    bed_close(&bed);
}

TEST(each_algorithm_at_each_size, .limit_s = 240)
{
    static const char *const rules[] = {
        "allreduce 0-inf shared, allgather 0-inf pairwise, broadcast 0-inf slices",
        "allreduce 0-inf gather, allgather 0-inf bruck, broadcast 0-inf tree",
        ("allreduce 0-inf pairwise, alltoall 0-inf pairwise, "
         "reducescatter 0-inf pairwise, barrier 0-inf rounds"),
        "allreduce 0-100 gather, 100-inf pairwise",
    };
    struct hvd_error err;

    for (int i = 0; i < 4; i++) {
        CHECK_OK(coll_set_rules(rules[i], &err), err);
        harness_run(&(struct harness){.size = 4, .board_bytes = coll_board_bytes()},
                    body_small);
        harness_run(&(struct harness){.size = 5, .hosts = 2,
                                      .board_bytes = coll_board_bytes()},
                    body_small);
    }
}

TEST(two_members_send_each_other_all, .limit_s = 60)
{
    struct hvd_error err;

    CHECK_OK(coll_set_rules("allreduce 0-inf pair", &err), err);
    for (int hosts = 1; hosts <= 2; hosts++) {
        struct harness h = {.size = 2, .hosts = hosts, .board_bytes = coll_board_bytes()};

        harness_run(&h, body_small);
        harness_run(&h, body_scaled);
        harness_run(&h, body_long);
    }
}

TEST(hierarchy_can_be_switched_off)
{
    struct harness h = on(5, 2);

    coll_set_hierarchical(0, 0);
    harness_run(&h, body_small);
    coll_set_hierarchical(1, 1);
    harness_run(&h, body_small);
}

/* Hosts of 3, 1 and 4 ranks that follow each other, and hosts of 1 and 4. */
TEST(hosts_of_unequal_size, .limit_s = 240)
{
    static const int layouts[2][8] = {{0, 0, 0, 1, 2, 2, 2, 2}, {0, 1, 1, 1, 1}};

    for (int i = 0; i < 2; i++) {
        struct harness h = on(i == 0 ? 8 : 5, 0);

        h.host_of = layouts[i];
        harness_run(&h, body_small);
        harness_run(&h, body_scaled);
    }
}

/* ---- Teams of some ranks, and slots used again -------------------------------------- */

static void body_subsets(struct harness_rank *r)
{
    static const unsigned masks[] = {0x15, 0x0a, 0x3f, 0x21, 0x04};

    for (uint32_t epoch = 1; epoch <= 5; epoch++) {
        unsigned mask = masks[epoch % 5];
        struct coll_bed bed;

        if (mask >> r->rank & 1) {
            bed_open(&bed, r, mask, 5, epoch);
            for (int op = 0; op < COLL_OP_COUNT; op++)
                for (size_t count = 3; count < 30000; count *= 20)
                    case_run(&bed, &(struct coll_case){
                                       .op = (enum coll_op)op, .dtype = HVD_F32,
                                       .count = count, .board = op == COLL_BARRIER
                                           ? epoch : 0});
            harness_barrier(r);
            bed_close(&bed);
        } else {
            harness_barrier(r);
        }
        harness_barrier(r);
    }
}

TEST(subsets_use_a_slot_again, .limit_s = 240)
{
    for (int hosts = 1; hosts <= 3; hosts++) {
        struct harness h = on(6, hosts);

        harness_run(&h, body_subsets);
    }
}

/* ---- Boards are independent --------------------------------------------------------- */

/* Each rank starts the boards in its own order and steps them all. */
static void body_any_order(struct harness_rank *r)
{
    enum { BOARDS = 40 };
    static const size_t counts[] = {1, 700, 5000, 100000};
    struct coll_bed bed;
    struct coll_task *tasks[BOARDS];
    float *x[BOARDS];
    struct hvd_error err;

    bed_open(&bed, r, 0, 1, 1);
    for (uint32_t turn = 1; turn <= 3; turn++) {
        int left = BOARDS;

        for (int i = 0; i < BOARDS; i++) {
            int b = (i + r->rank * 7) % BOARDS;
            size_t n = counts[b % 4];

            x[b] = b & 1 ? arena_alloc(n * 4) : malloc(n * 4);
            for (size_t k = 0; k < n; k++)
                x[b][k] = (float)(r->rank + b);
            CHECK_OK(coll_start(bed.team,
                                &(struct coll_call){.op = COLL_ALLREDUCE,
                                                    .dtype = HVD_F32,
                                                    .board = 100 + (uint32_t)b,
                                                    .turn = turn, .in = x[b],
                                                    .out = x[b], .count = n,
                                                    .prescale = 1, .postscale = 1},
                                &tasks[b], &err),
                     err);
        }
        while (left > 0) {
            for (int b = 0; b < BOARDS; b++) {
                enum hvd_status status;
                size_t n = counts[b % 4];

                if (tasks[b] == NULL)
                    continue;
                status = coll_step(tasks[b], &err);
                if (status == HVD_AGAIN)
                    continue;
                CHECK_OK(status, err);
                coll_finish(tasks[b]);
                tasks[b] = NULL;
                left--;
                for (size_t k = 0; k < n; k++)
                    CHECK_EQ(x[b][k], (float)(r->size * (r->size - 1) / 2 +
                                              b * r->size));
                if (b & 1)
                    arena_free(x[b]);
                else
                    free(x[b]);
            }
            mesh_progress(r->mesh);
            sched_yield();
        }
    }
    harness_barrier(r);
    bed_close(&bed);
}

TEST(boards_run_in_any_order, .limit_s = 240)
{
    for (int hosts = 1; hosts <= 2; hosts++) {
        struct harness h = on(4, hosts);

        harness_run(&h, body_any_order);
    }
}

/* ---- Cancelling --------------------------------------------------------------------- */

/* Rank 2 never comes to turn 2; the others cancel it and all go on with turn 3. */
static void body_cancel(struct harness_rank *r)
{
    static const size_t counts[] = {1, 1000, 100000};
    struct coll_bed bed;
    struct hvd_error err;

    bed_open(&bed, r, 0, 0, 1);
    for (uint32_t i = 0; i < 3; i++) {
        size_t n = counts[i];
        float *x = malloc(n * sizeof *x);
        struct coll_task *task;

        for (uint32_t turn = 1; turn <= 8; turn++) {
            struct coll_call call = sum_call(i, turn, x, n);

            for (size_t k = 0; k < n; k++)
                x[k] = (float)(r->rank + 1);
            if (turn == 2 || turn == 5 || turn == 6) {
                if (r->rank != 2) {
                    CHECK_OK(coll_start(bed.team, &call, &task, &err), err);
                    CHECK_EQ(coll_step(task, &err), HVD_AGAIN);
                    CHECK(!coll_is_committed(task));
                    CHECK(!coll_has_come(task, 2));
                    CHECK(coll_has_come(task, r->rank));
                    coll_cancel(task);
                    CHECK_EQ(x[n - 1], (float)(r->rank + 1));
                }
                harness_barrier(r);
                continue;
            }
            CHECK_OK(coll_start(bed.team, &call, &task, &err), err);
            CHECK_OK(case_drive(&bed, task, turn & 1, &err), err);
            coll_finish(task);
            for (size_t k = 0; k < n; k++)
                CHECK_EQ(x[k], 10.0f);
        }
        free(x);
    }
    harness_barrier(r);
    bed_close(&bed);
}

TEST(a_turn_can_be_cancelled_and_skipped)
{
    struct harness h = on(4, 1);

    harness_run(&h, body_cancel);
}

/* ---- A broadcast that is agreed on does not wait for readers ------------------------ */

static void body_run_ahead(struct harness_rank *r)
{
    struct coll_bed bed;
    struct hvd_error err;
    _Atomic uint64_t *done = harness_word(r, 9);
    float x[200];

    bed_open(&bed, r, 0, 0, 1);
    if (r->rank != 1)
        while (atomic_load(done) == 0)
            sched_yield();
    for (uint32_t turn = 1; turn <= 40; turn++)
        for (uint32_t board = 0; board < 2; board++) {
            struct coll_call call = {.op = COLL_BROADCAST, .dtype = HVD_F32,
                                     .board = board, .turn = turn, .in = x, .out = x,
                                     .count = board == 0 ? 5 : 200, .root = 1,
                                     .agreed = true};
            struct coll_task *task;

            for (int k = 0; k < 200; k++)
                x[k] = r->rank == 1 ? (float)(turn * 10 + board) : 0;
            CHECK_OK(coll_start(bed.team, &call, &task, &err), err);
            if (r->rank == 1 && turn <= 2)
                CHECK_EQ(coll_step(task, &err), HVD_OK);
            else
                CHECK_OK(case_drive(&bed, task, turn & 1, &err), err);
            coll_finish(task);
            CHECK_EQ(x[0], (float)(turn * 10 + board));
            CHECK_EQ(x[call.count - 1], (float)(turn * 10 + board));
            if (r->rank == 1 && turn == 2 && board == 1)
                atomic_store(done, 1);
        }
    harness_barrier(r);
    bed_close(&bed);
}

TEST(a_root_runs_ahead_and_loses_nothing)
{
    struct harness h = on(4, 1);

    harness_run(&h, body_run_ahead);
}

/* ---- Failures ----------------------------------------------------------------------- */

static void body_verdict(struct harness_rank *r)
{
    struct coll_bed bed;
    struct hvd_error err, why = {.status = HVD_ABORTED, .rank = 1, .text = "enough"};
    struct coll_task *task;
    float *x = malloc(400000);
    struct coll_call call = sum_call(0, 1, x, 100000);

    memset(x, 0, 400000);
    harness_barrier(r);                 /* who still forms fails in mesh_open */
    bed_open(&bed, r, 0, 0, 1);
    if (r->rank == 1) {
        mesh_fail(r->mesh, &why);
    } else {
        CHECK_OK(coll_start(bed.team, &call, &task, &err), err);
        CHECK_EQ(case_drive(&bed, task, true, &err), HVD_ABORTED);
        CHECK_HAS(err.text, "enough");
        coll_finish(task);
    }
    harness_barrier(r);
    bed_close(&bed);
    free(x);
}

TEST(a_verdict_ends_every_task)
{
    for (int hosts = 1; hosts <= 2; hosts++) {
        struct harness h = on(4, hosts);

        harness_run(&h, body_verdict);
        h.shm_disable = true;
        harness_run(&h, body_verdict);
    }
}

/* Rank 1 has no memory from some point on: all ranks end, with its reason, or none, when
 * it can do without (CMA instead of staging). */
static void body_no_memory(struct harness_rank *r)
{
    struct coll_bed bed;
    struct hvd_error err;
    enum hvd_status status = HVD_OK;
    float *x = calloc(500000, sizeof *x);

    harness_barrier(r);                 /* who still forms fails in mesh_open */
    bed_open(&bed, r, 0, 0, 1);
    for (uint32_t turn = 1; status == HVD_OK && turn < 100; turn++) {
        struct coll_call call = sum_call(0, turn, x, turn % 2 == 0 ? 10 : turn * 1500);
        struct coll_task *task;

        status = coll_start(bed.team, &call, &task, &err);
        if (status != HVD_OK) {
            mesh_fail(r->mesh, &err);
            break;
        }
        status = case_drive(&bed, task, true, &err);
        coll_finish(task);
    }
    if (status != HVD_OK) {
        harness_wait_verdict(r->mesh);
        CHECK_EQ(mesh_verdict(r->mesh)->status, HVD_NOMEM);
        CHECK_HAS(mesh_verdict(r->mesh)->text, "no memory");
        atomic_fetch_add(harness_word(r, 10), 1);
    }
    harness_barrier(r);
    if (r->harness->hosts == 2)
        CHECK_EQ(atomic_load(harness_word(r, 10)), 4ul);
    else
        CHECK(atomic_load(harness_word(r, 10)) % 4 == 0);
    harness_barrier(r);
    bed_close(&bed);
    free(x);
}

TEST(no_memory_on_one_rank_ends_all, .limit_s = 240)
{
    static const int after[] = {0, 1, 2, 5, 9};

    for (int i = 0; i < 5; i++)
        for (int hosts = 1; hosts <= 2; hosts++) {
            struct harness h = on(4, hosts);
            char fault[80];

            snprintf(fault, sizeof fault, "coll.scratch rank=1 after=%d times=9999 nomem",
                     after[i]);
            h.fault = fault;
            h.processes = true;
            harness_run(&h, body_no_memory);
        }
}

static void body_refused(struct harness_rank *r)
{
    struct coll_bed bed;
    struct hvd_error err;
    struct coll_task *task;
    struct coll_team *team;
    float x = 0;
    struct coll_call call = sum_call(TEAM_BOARDS, 1, &x, 1);
    int none[] = {0};

    bed_open(&bed, r, 0, 0, 1);
    CHECK_EQ(coll_start(bed.team, &call, &task, &err), HVD_INVALID);
    call = sum_call(0, 0, &x, 1);
    CHECK_EQ(coll_start(bed.team, &call, &task, &err), HVD_INVALID);
    call = sum_call(0, 1, &x, 1);
    call.op = COLL_ADASUM;
    call.dtype = HVD_I32;
    CHECK_EQ(coll_start(bed.team, &call, &task, &err), HVD_UNSUPPORTED);
    call.op = COLL_BROADCAST;
    call.root = r->size;
    CHECK_EQ(coll_start(bed.team, &call, &task, &err), HVD_INVALID);
    if (r->rank == 1)
        CHECK_EQ(coll_team_new(r->mesh, none, 1, 1, 1, &team, &err), HVD_INVALID);
    CHECK_EQ(coll_team_new(r->mesh, none, 1, TEAM_SLOTS, 1, &team, &err), HVD_INVALID);
    bed_close(&bed);
}

TEST(wrong_calls_are_refused)
{
    struct harness h = on(2, 1);

    harness_run(&h, body_refused);
}

/* ---- Nothing is allocated in the steady state ---------------------------------------- */

static void run_all(struct coll_bed *bed, void **buffers)
{
    for (int op = 0; op < COLL_OP_COUNT; op++)
        for (size_t n = 1; n <= 30000; n *= 173) {
            uint64_t counts[HARNESS_RANKS];
            struct coll_task *task;
            struct hvd_error err;

            for (int i = 0; i < bed->count; i++)
                counts[i] = n;
            CHECK_OK(coll_start(bed->team,
                                &(struct coll_call){
                                    .op = (enum coll_op)op, .dtype = HVD_F32,
                                    .turn = ++bed->turns[0], .in = buffers[0],
                                    .out = buffers[1], .count = n, .counts = counts,
                                    .recv_counts = counts, .prescale = 1,
                                    .postscale = 1},
                                &task, &err),
                     err);
            CHECK_OK(case_drive(bed, task, false, &err), err);
            coll_finish(task);
        }
}

/* Tasks and scratch come from lists: the fault point of fresh memory is not passed. */
static void body_steady(struct harness_rank *r)
{
    struct coll_bed bed;
    void *buffers[2] = {calloc(4, 150000), calloc(4, 150000)};

    bed_open(&bed, r, 0, 0, 1);
    for (int i = 0; i < 3; i++)
        run_all(&bed, buffers);
    harness_barrier(r);
    if (r->rank == 0)
        CHECK(fault_setup("coll.scratch after=1000000", 0));
    harness_barrier(r);
    run_all(&bed, buffers);
    harness_barrier(r);
    CHECK_EQ(fault_count("coll.scratch"), 0L);
    harness_barrier(r);
    bed_close(&bed);
    free(buffers[0]);
    free(buffers[1]);
}

TEST(the_steady_state_allocates_nothing, .limit_s = 240)
{
    for (int hosts = 1; hosts <= 2; hosts++) {
        struct harness h = on(3, hosts);

        harness_run(&h, body_steady);
    }
}
