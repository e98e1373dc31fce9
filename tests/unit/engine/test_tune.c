/* test_tune.c: the search of autotune over known landscapes, and its log. */
#include "engine/tune.h"

#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#define MB (1ull << 20)

static const struct tune_options standard = {
    .start = {1.0, 128 * MB}, .warmup_scores = 3, .max_scores = 20, .noise = 0.8};

/* Runs the search; the number of scores it took. */
static int search(struct tune_search *s, const struct tune_options *opt,
                  double (*score)(const struct tune_point *, int))
{
    int n = 0;

    tune_search_init(s, opt);
    while (s->phase != TUNE_DONE) {
        struct tune_point p = s->current;

        tune_search_score(s, score(&p, n));
        CHECK(++n <= opt->warmup_scores + opt->max_scores);
    }
    return n;
}

static double small_is_good(const struct tune_point *p, int n)
{
    double mb = (double)p->fusion_bytes / (double)MB;

    (void)n;
    return 100 - fabs(log2(mb + 1) - 3) * 10 - fabs(p->cycle_ms - 1);
}

TEST(walks_to_the_best_point)
{
    struct tune_search s;
    struct tune_options opt = standard;

    opt.max_scores = 40;
    search(&s, &opt, small_is_good);
    CHECK_EQ(s.best.fusion_bytes, 8 * MB);
    CHECK_EQ(s.best.cycle_ms, 1.0);
    CHECK_EQ(s.current.fusion_bytes, 8 * MB);
}

static double flat(const struct tune_point *p, int n)
{
    (void)p;
    (void)n;
    return 7;
}

TEST(without_a_difference_the_start_stays)
{
    struct tune_search s;

    search(&s, &standard, flat);
    CHECK_EQ(s.current.fusion_bytes, 128 * MB);
    CHECK_EQ(s.current.cycle_ms, 1.0);
}

static double start_is_best(const struct tune_point *p, int n)
{
    (void)n;
    return p->fusion_bytes == 128 * MB && p->cycle_ms == 1.0 ? 10 : 9;
}

TEST(never_ends_worse_than_it_began)
{
    struct tune_search s;

    search(&s, &standard, start_is_best);
    CHECK_EQ(s.current.fusion_bytes, 128 * MB);
    CHECK_EQ(s.current.cycle_ms, 1.0);
}

static unsigned seed;

static double noise(const struct tune_point *p, int n)
{
    (void)p;
    (void)n;
    return 100 + rand_r(&seed) % 100;
}

/* Nothing but noise: something else than the start wins rarely, and only by noise. */
TEST(noise_does_not_win)
{
    struct tune_search s;
    int moved = 0;

    for (unsigned i = 0; i < 1000; i++) {
        seed = i;
        search(&s, &standard, noise);
        moved += s.current.fusion_bytes != 128 * MB || s.current.cycle_ms != 1.0;
    }
    CHECK(moved < 250);
}

static double lucky_once(const struct tune_point *p, int n)
{
    (void)p;
    return n == 5 ? 1000 : 10;
}

TEST(one_lucky_measure_does_not_win)
{
    struct tune_search s;

    search(&s, &standard, lucky_once);
    CHECK_EQ(s.current.fusion_bytes, 128 * MB);
    CHECK_EQ(s.current.cycle_ms, 1.0);
}

TEST(fixed_values_stay)
{
    struct tune_search s;
    struct tune_options opt = standard;

    opt.fix_fusion = true;
    opt.start.fusion_bytes = 3 * MB;
    tune_search_init(&s, &opt);
    for (int i = 0; s.phase != TUNE_DONE; i++) {
        CHECK_EQ(s.current.fusion_bytes, 3 * MB);
        tune_search_score(&s, -s.current.cycle_ms);
    }
    CHECK_EQ(s.current.cycle_ms, 0.0);
    opt.fix_cycle = true;
    CHECK_EQ(search(&s, &opt, flat), 3 + 1);
}

TEST(few_samples_keep_the_start)
{
    struct tune_search s;
    struct tune_options opt = standard;

    for (int most = 1; most < 4; most++) {
        opt.max_scores = most;
        search(&s, &opt, small_is_good);
        CHECK_EQ(s.phase, TUNE_DONE);
    }
    opt.max_scores = 1;
    CHECK_EQ(search(&s, &opt, small_is_good), 4);
    CHECK_EQ(s.current.fusion_bytes, 128 * MB);
}

TEST(the_start_may_lie_between_the_levels)
{
    struct tune_search s;
    struct tune_options opt = standard;

    opt.start = (struct tune_point){3.3, 100 * MB};
    tune_search_init(&s, &opt);
    CHECK_EQ(s.fusion_count, 11);
    CHECK_EQ(s.cycle_count, 9);
    for (int i = 1; i < s.fusion_count; i++)
        CHECK(s.fusions[i - 1] < s.fusions[i]);
    for (int i = 1; i < s.cycle_count; i++)
        CHECK(s.cycles[i - 1] < s.cycles[i]);
}

/* ---- The measure ------------------------------------------------------------------------ */

static char log_path[] = "/tmp/hvd-tune-XXXXXX";

static void configure(struct config *conf)
{
    struct hvd_error err;
    int fd = mkstemp(log_path);

    CHECK(fd >= 0);
    close(fd);
    setenv("HOROVOD_AUTOTUNE_LOG", log_path, 1);
    setenv("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "2", 1);
    setenv("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "1", 1);
    CHECK_OK(config_read(conf, &err), err);
}

/* One step of a model with two tensors; faster with a small threshold. */
static bool step(struct tune *t, const struct tune_point *now, uint64_t *clock,
                 struct tune_point *next)
{
    bool changed;

    *clock += 1000 + (now->fusion_bytes >> 20) * 10;
    changed = tune_observe(t, "a", 1, 4096, *clock, next);
    *clock += 10;
    return tune_observe(t, "b", 1, 4096, *clock, next) || changed;
}

TEST(scores_are_logged_and_the_last_row_is_the_best)
{
    static char text[8192];
    struct config conf;
    struct tune_point now, next;
    uint64_t clock = 1000000;
    struct tune *t;
    int steps = 0, rows = 0;
    double best = 0, score = 0, mb = 0, cycle = 0;
    FILE *file;

    configure(&conf);
    t = tune_new(&conf, false);
    now = (struct tune_point){conf.cycle_time_ms, conf.fusion_threshold};
    for (; !tune_is_done(t); steps++) {
        if (step(t, &now, &clock, &next))
            now = next;
        CHECK(steps < 10000);
    }
    CHECK(now.fusion_bytes < 128 * MB);
    tune_free(t);
    file = fopen(log_path, "r");
    CHECK(fgets(text, sizeof text, file) != NULL);
    CHECK_STR(text, "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,"
                    "cache_enabled,cycle_time_ms,tensor_fusion_threshold,score\n");
    for (; fgets(text, sizeof text, file) != NULL; rows++) {
        CHECK_EQ(sscanf(text, "0,0,0,1,%lf,%lf,%lf\n", &cycle, &mb, &score), 3);
        best = score > best ? score : best;
    }
    fclose(file);
    unlink(log_path);
    CHECK_EQ(rows, 20 + 1);
    CHECK_EQ((uint64_t)(mb * (double)MB), now.fusion_bytes);
    CHECK_EQ(cycle, now.cycle_ms);
    CHECK(score > best * 0.99);
    config_release(&conf);
}

TEST(where_values_change_nothing_one_score_is_enough)
{
    struct config conf;
    struct tune_point now, next;
    uint64_t clock = 1;
    struct tune *t;
    int steps = 0;

    configure(&conf);
    t = tune_new(&conf, true);
    now = (struct tune_point){conf.cycle_time_ms, conf.fusion_threshold};
    for (; !tune_is_done(t); steps++)
        CHECK(!step(t, &now, &clock, &next) || steps > 1000);
    CHECK_EQ(steps, 15);                /* 10 samples: one ends with every third call */
    tune_free(t);
    unlink(log_path);
    config_release(&conf);
}
