/*
 * test_collective.c: all collectives, on ranks as threads, over shared memory, TCP and
 * both, the same body for all.
 */
#include "check.h"
#include "coll_case.h"

struct plan {
    enum coll_op op;
    const size_t *counts;
    int count_count;
    bool big;                           /* one case of a million elements */
};

static const size_t counts_all[] = {0, 1, 3, 1000, 10000};
static const enum hvd_dtype types[] = {HVD_F32, HVD_F16, HVD_I32, HVD_BF16, HVD_U8,
                                       HVD_F64, HVD_BOOL, HVD_I64, HVD_I8, HVD_I16,
                                       HVD_U16};

static void run_flags(struct coll_bed *bed, struct coll_case c)
{
    for (int flags = 0; flags < 4; flags++) {
        c.in_place = flags & 1;
        c.mapped = flags & 2;
        c.asleep = flags == 3;
        case_run(bed, &c);
    }
}

/* Dtypes take turns, so that each meets each size in some run. */
static void run_sizes(struct coll_bed *bed, enum coll_op op)
{
    int type = bed->count + (int)op;

    for (size_t i = 0; i < sizeof counts_all / sizeof counts_all[0]; i++)
        for (int variant = 0; variant < 3; variant++) {
            struct coll_case c = {.op = op, .count = counts_all[i], .board = i & 3,
                                  .dtype = types[type++ % 11], .uneven = variant == 1,
                                  .root = (int)i % bed->count,
                                  .agreed = op == COLL_BROADCAST && variant == 2};

            if (op == COLL_ADASUM)
                c.dtype = (enum hvd_dtype[]){HVD_F32, HVD_F16, HVD_F64}[variant];
            run_flags(bed, c);
            c.open = c.uneven && coll_can_open(bed->team, op);
            if (c.open)
                run_flags(bed, c);
        }
}

static void body_op(struct harness_rank *r)
{
    struct coll_bed bed;

    bed_open(&bed, r, 0, 3, 1);
    run_sizes(&bed, *(enum coll_op *)r->context);
    harness_barrier(r);
    bed_close(&bed);
}

static void run_ranks(struct harness h, enum coll_op op, harness_fn body)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8};

    h.board_bytes = coll_board_bytes();
    h.context = &op;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        h.size = sizes[i];
        harness_run(&h, body);
    }
}

#define ON_EVERYTHING(name, op)                                                        \
    TEST(name##_in_shared_memory, .limit_s = 240)                                      \
    {                                                                                  \
        run_ranks((struct harness){0}, op, body_op);                                   \
    }                                                                                  \
    TEST(name##_over_tcp, .limit_s = 240)                                              \
    {                                                                                  \
        run_ranks((struct harness){.shm_disable = true}, op, body_op);                 \
    }                                                                                  \
    TEST(name##_over_two_hosts, .limit_s = 240)                                        \
    {                                                                                  \
        run_ranks((struct harness){.hosts = 2}, op, body_op);                          \
    }                                                                                  \
    TEST(name##_over_three_hosts, .limit_s = 240)                                      \
    {                                                                                  \
        run_ranks((struct harness){.hosts = 3}, op, body_op);                          \
    }

/* Where sums are made by pairs of hosts: a power of two of them, and others. */
TEST(allreduce_over_many_hosts, .limit_s = 240)
{
    static const int sizes[] = {9, 11, 16};
    enum coll_op op = COLL_ALLREDUCE;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        harness_run(&(struct harness){.size = sizes[i], .hosts = sizes[i], .context = &op,
                                      .board_bytes = coll_board_bytes()}, body_op);
}

ON_EVERYTHING(allreduce, COLL_ALLREDUCE)
ON_EVERYTHING(allgather, COLL_ALLGATHER)
ON_EVERYTHING(broadcast, COLL_BROADCAST)
ON_EVERYTHING(alltoall, COLL_ALLTOALL)
ON_EVERYTHING(reducescatter, COLL_REDUCESCATTER)
ON_EVERYTHING(barrier, COLL_BARRIER)
ON_EVERYTHING(adasum, COLL_ADASUM)
