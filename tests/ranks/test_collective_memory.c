/*
 * test_collective_memory.c: where buffers lie: private, shared, of some members this and
 * of some that, in processes of their own, around the sizes at which the way changes; and
 * tasks that are kept and started again.
 */
#include "check.h"
#include "coll_case.h"

#include <stdatomic.h>
#include <stdlib.h>

static const int sizes[] = {1, 2, 3, 4, 5, 7, 8};

static const enum coll_op ops[] = {COLL_ALLREDUCE, COLL_ALLGATHER, COLL_BROADCAST,
                                   COLL_ALLTOALL, COLL_REDUCESCATTER};

/* Bytes at which slot, staging, CMA and chunks take over from each other. */
static const size_t limits[] = {0, 16384, 65536, 140000};

enum { FLAG_IN_PLACE = 1, FLAG_UNEVEN = 2, FLAG_AGREED = 4 };

/* mapped: 0 nobody's, 1 everybody's, 2 that of every other member. */
static void run_case(struct coll_bed *bed, enum coll_op op, size_t bytes, int mapped,
                     int flags)
{
    struct coll_case c = {.op = op, .dtype = HVD_F32, .count = bytes / 4 + (flags & 1),
                          .mapped = mapped == 2 ? bed->me & 1 : mapped,
                          .in_place = flags & FLAG_IN_PLACE, .uneven = flags & FLAG_UNEVEN,
                          .agreed = op == COLL_BROADCAST && (flags & FLAG_AGREED),
                          .asleep = mapped == 1 && flags == 0,
                          .root = flags % bed->count, .board = (uint32_t)mapped};

    case_run(bed, &c);
}

static void body_places(struct harness_rank *r)
{
    struct coll_bed bed;
    int flags = 0;

    bed_open(&bed, r, 0, 0, 1);
    for (size_t op = 0; op < sizeof ops / sizeof ops[0]; op++)
        for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
            for (int mapped = 0; mapped < 3; mapped++)
                run_case(&bed, ops[op], limits[i], mapped, flags++ & 7);
    harness_barrier(r);
    bed_close(&bed);
}

static void run_places(const int *ranks, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct harness h = {.size = ranks[i], .board_bytes = coll_board_bytes(),
                            .processes = true};

        harness_run(&h, body_places);
    }
}

TEST(memory_of_all_kinds, .limit_s = 240)
{
    run_places(sizes, sizeof sizes / sizeof sizes[0]);
}

TEST(memory_of_all_kinds_without_cma, .limit_s = 240)
{
    setenv("HOROVOD_CMA_DISABLE", "1", 1);
    run_places((const int[]){2, 5}, 2);
}

/* Two members share the copying: every way to begin, both roots, any buffers. */
static void body_two(struct harness_rank *r)
{
    struct coll_bed bed;

    bed_open(&bed, r, 0, 0, 1);
    for (int round = 0; round < 64; round++) {
        struct coll_case c = {.op = COLL_BROADCAST, .dtype = HVD_U8, .root = round & 1,
                              .count = 65535 + (size_t)round * 7779,
                              .mapped = round >> 1 & 1, .in_place = round >> 2 & 1,
                              .agreed = round >> 3 & 1, .asleep = round >> 4 & 1};

        if (round & 32)
            c.mapped = bed.me == (round >> 1 & 1);
        case_run(&bed, &c);
    }
    harness_barrier(r);
    bed_close(&bed);
}

TEST(two_members_share_a_broadcast, .limit_s = 240)
{
    struct harness h = {.size = 2, .board_bytes = coll_board_bytes()};

    harness_run(&h, body_two);
}

TEST(two_processes_share_a_broadcast, .limit_s = 240)
{
    struct harness h = {.size = 2, .board_bytes = coll_board_bytes(), .processes = true};

    harness_run(&h, body_two);
}

/* Two members stage all of a vector or half of it, each as it likes, beside mapped ones. */
static void body_halves(struct harness_rank *r)
{
    static const enum hvd_dtype types[] = {HVD_F32, HVD_BF16, HVD_I64};
    struct coll_bed bed;

    bed_open(&bed, r, 0, 0, 1);
    for (int round = 0; round < 64; round++) {
        struct coll_case c = {.op = COLL_ALLREDUCE,
                              .dtype = types[round % 3],
                              .count = 5000 + (size_t)round * 3779,
                              .waited = round >> bed.me & 1, .in_place = round >> 2 & 1,
                              .asleep = round >> 3 & 1,
                              .mapped = round >> 4 == 3 && bed.me == (round & 1)};

        case_run(&bed, &c);
    }
    harness_barrier(r);
    bed_close(&bed);
}

TEST(two_members_stage_halves, .limit_s = 60)
{
    struct harness h = {.size = 2, .board_bytes = coll_board_bytes()};

    harness_run(&h, body_halves);
}

TEST(two_processes_stage_halves_without_cma, .limit_s = 60)
{
    struct harness h = {.size = 2, .board_bytes = coll_board_bytes(), .processes = true};

    setenv("HOROVOD_CMA_DISABLE", "1", 1);
    harness_run(&h, body_halves);
}

/* ---- Kept tasks -------------------------------------------------------------------- */

static void run_again(struct coll_live *live, struct coll_task *kept)
{
    struct coll_bed *bed = live->bed;
    struct hvd_error err;

    if (live->c->op == COLL_BARRIER)
        atomic_fetch_add(&bed->words[live->c->board], 1);
    live->task = kept;
    CHECK_OK(coll_restart(kept, live->call.in, live->call.out, live->call.counts,
                          live->call.turn, &err),
             err);
    CHECK_OK(case_drive(bed, kept, live->c->asleep, &err), err);
    coll_keep(kept);
}

static void run_kept(struct coll_bed *bed, struct coll_case c)
{
    struct coll_live first, live;
    struct coll_task *kept;
    struct hvd_error err;

    case_open(&first, bed, &c);
    case_start(&first);
    kept = first.task;
    CHECK_OK(case_drive(bed, kept, false, &err), err);
    coll_keep(kept);
    for (int i = 0; i < 3; i++) {
        c.asleep = i == 1;
        if (c.open)
            c.count = 5000 * (size_t)(2 - i);   /* other sizes in each turn */
        case_open(&live, bed, &c);
        run_again(&live, kept);
        case_check(&live);
    }
    coll_drop(kept);
    case_check(&first);
}

static void body_kept(struct harness_rank *r)
{
    static const size_t counts[] = {1, 3000, 20000};
    struct coll_bed bed;

    bed_open(&bed, r, 0, 0, 1);
    for (int op = 0; op < COLL_OP_COUNT; op++)
        for (int i = 0; i < 6; i++)
            run_kept(&bed, (struct coll_case){.op = (enum coll_op)op, .dtype = HVD_F32,
                                              .count = counts[i / 2], .mapped = i & 1,
                                              .uneven = i & 2, .root = i % bed.count,
                                              .open = i & 2 && coll_can_open(bed.team, op)});
    harness_barrier(r);
    bed_close(&bed);
}

TEST(kept_tasks_start_again, .limit_s = 240)
{
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct harness h = {.size = sizes[i], .board_bytes = coll_board_bytes()};

        harness_run(&h, body_kept);
    }
}
