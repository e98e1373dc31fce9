/*
 * test_collective_sim.c: all ranks in one thread over simulated streams, in an order that
 * follows from a seed: late and torn messages, members that come in any order, several
 * operations at once, pairs that are cut.
 */
#include "check.h"
#include "coll_case.h"
#include "support/sim_transport.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { LANES = 4 };

struct world {
    struct sim *sim;
    unsigned seed;
    int size;
    struct harness_rank ranks[HARNESS_RANKS];
    struct coll_bed beds[HARNESS_RANKS];
    _Atomic uint64_t words[8];
    struct coll_case cases[LANES];      /* one per board, the same on all ranks */
    struct coll_live lives[HARNESS_RANKS][LANES];
    int state[HARNESS_RANKS][LANES];    /* 0 to start, 1 under way, 2 done */
};

static unsigned roll(struct world *w, unsigned n)
{
    return (unsigned)rand_r(&w->seed) % n;
}

static void world_open(struct world *w, const struct sim_options *opt)
{
    *w = (struct world){.sim = sim_new(opt), .seed = (unsigned)opt->seed,
                        .size = opt->size};
    for (int i = 0; i < w->size; i++) {
        w->ranks[i] = (struct harness_rank){.rank = i, .size = w->size,
                                            .mesh = sim_mesh(w->sim, i)};
        bed_open(&w->beds[i], &w->ranks[i], 0, 2, 7);
        w->beds[i].words = w->words;
    }
}

static void world_close(struct world *w)
{
    for (int i = 0; i < w->size; i++) {
        bed_close(&w->beds[i]);
        mesh_close(w->ranks[i].mesh, true);
    }
    sim_free(w->sim);
}

static struct coll_case any_case(struct world *w, uint32_t board)
{
    static const size_t counts[] = {0, 1, 20, 900, 5000, 30000};
    static const enum hvd_dtype types[] = {HVD_F32, HVD_F16, HVD_I32, HVD_F64, HVD_U8};
    struct coll_case c = {.op = (enum coll_op)roll(w, COLL_OP_COUNT), .board = board,
                          .dtype = types[roll(w, 5)], .count = counts[roll(w, 6)],
                          .in_place = roll(w, 2), .mapped = roll(w, 2),
                          .uneven = roll(w, 2), .root = (int)roll(w, (unsigned)w->size),
                          .agreed = roll(w, 2), .reduce = (enum red_op)roll(w, 4)};

    if (c.op == COLL_ADASUM)
        c.dtype = HVD_F32;
    return c;
}

/* Starts or steps one lane of one rank; whether it is done. */
static bool move(struct world *w, int rank, int lane)
{
    struct coll_live *live = &w->lives[rank][lane];
    struct hvd_error err;
    enum hvd_status status;

    if (w->state[rank][lane] == 0) {
        case_start(live);
        w->state[rank][lane] = 1;
    } else if (w->state[rank][lane] == 1) {
        status = coll_step(live->task, &err);
        if (status != HVD_AGAIN) {
            CHECK_OK(status, err);
            case_close(live);
            w->state[rank][lane] = 2;
        }
    }
    return w->state[rank][lane] == 2;
}

/* A lane goes on when all ranks have finished it. */
static void round_of_lanes(struct world *w)
{
    int left = w->size * LANES;
    long limit = 20000000;

    for (uint32_t lane = 0; lane < LANES; lane++) {
        w->cases[lane] = any_case(w, lane);
        for (int i = 0; i < w->size; i++) {
            w->state[i][lane] = 0;
            case_open(&w->lives[i][lane], &w->beds[i], &w->cases[lane]);
        }
    }
    while (left > 0) {
        int rank = (int)roll(w, (unsigned)w->size), lane = (int)roll(w, LANES);

        CHECK(--limit > 0);
        mesh_progress(w->ranks[rank].mesh);
        if (w->state[rank][lane] < 2)
            left -= move(w, rank, lane);
    }
}

static void run_seeds(struct sim_options opt, int seeds)
{
    static struct world w;
    static const int sizes[] = {2, 3, 4, 5, 7, 8};

    opt.board_bytes = coll_board_bytes();
    for (int s = 1; s <= seeds; s++) {
        opt.seed = (uint64_t)s;
        opt.size = sizes[s % 6];
        world_open(&w, &opt);
        for (int round = 0; round < 4; round++)
            round_of_lanes(&w);
        world_close(&w);
    }
}

TEST(one_host, .limit_s = 240) { run_seeds((struct sim_options){0}, 24); }

TEST(one_host_without_memory, .limit_s = 240)
{
    run_seeds((struct sim_options){.no_memory = true, .delay = 5}, 18);
}

TEST(two_hosts, .limit_s = 240)
{
    run_seeds((struct sim_options){.hosts = 2, .delay = 20}, 18);
}

TEST(three_hosts, .limit_s = 240)
{
    run_seeds((struct sim_options){.hosts = 3, .delay = 3}, 18);
}

TEST(hosts_without_memory, .limit_s = 240)
{
    run_seeds((struct sim_options){.hosts = 2, .delay = 3, .no_memory = true}, 12);
}

/* A pair is cut in the middle: every rank's task ends, in one way or the other. */
static void run_cut(struct world *w)
{
    int left = w->size, steps = (int)roll(w, 300);
    long limit = 20000000;

    w->cases[0] = any_case(w, 0);
    w->cases[0].op = COLL_ALLREDUCE;
    w->cases[0].count = 30000;
    w->cases[0].dtype = HVD_F32;
    w->cases[0].mapped = false;
    for (int i = 0; i < w->size; i++) {
        case_open(&w->lives[i][0], &w->beds[i], &w->cases[0]);
        case_start(&w->lives[i][0]);
    }
    while (left > 0) {
        int rank = (int)roll(w, (unsigned)w->size);
        struct coll_live *live = &w->lives[rank][0];
        struct hvd_error err;

        CHECK(--limit > 0);
        if (steps-- == 0)
            sim_cut(w->sim, 0, 1);
        mesh_progress(w->ranks[rank].mesh);
        if (live->task == NULL || coll_step(live->task, &err) == HVD_AGAIN)
            continue;
        coll_finish(live->task);
        live->task = NULL;
        left--;
    }
    for (int i = 0; i < w->size; i++) {
        if (!w->cases[0].in_place)
            free(w->lives[i][0].in);
        free(w->lives[i][0].out);
        free(w->lives[i][0].want);
    }
}

TEST(a_cut_ends_all_tasks, .limit_s = 240)
{
    static struct world w;

    for (int s = 1; s <= 30; s++) {
        world_open(&w, &(struct sim_options){.size = 4, .hosts = 1 + s % 2 * 3,
                                             .seed = (uint64_t)s, .delay = 4,
                                             .no_memory = true,
                                             .board_bytes = coll_board_bytes()});
        run_cut(&w);
        world_close(&w);
    }
}
