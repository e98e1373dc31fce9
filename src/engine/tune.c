/*
 * tune.c: the search of autotune.
 *
 * Values lie on a grid of steps by a factor of two.  After the start, the next point is
 * the one not tried yet that is nearest to the best so far.  At the end best and start are
 * measured once more; the best wins only if its worse score beats the better one of the
 * start by `noise` times the difference of the start's two scores.  So a lucky measure does
 * not win, and the result is never worse than the start.
 */
#include "engine/tune.h"

#include <stdlib.h>
#include <string.h>

#define MB (1ull << 20)

static const double cycle_levels[] = {0, 0.25, 0.5, 1, 2, 5, 10, 20};
static const uint64_t fusion_levels[] = {0, 1 * MB, 2 * MB, 4 * MB, 8 * MB, 16 * MB,
                                         32 * MB, 64 * MB, 128 * MB, 256 * MB};

/* The levels with the start among them, ascending; the place of the start. */
static int fill_cycles(struct tune_search *s, double start, bool fixed)
{
    size_t i = 0;
    int at;

    while (!fixed && i < sizeof cycle_levels / sizeof *cycle_levels &&
           cycle_levels[i] < start)
        s->cycles[s->cycle_count++] = cycle_levels[i++];
    at = s->cycle_count;
    s->cycles[s->cycle_count++] = start;
    for (; !fixed && i < sizeof cycle_levels / sizeof *cycle_levels; i++)
        if (cycle_levels[i] > start)
            s->cycles[s->cycle_count++] = cycle_levels[i];
    return at;
}

static int fill_fusions(struct tune_search *s, uint64_t start, bool fixed)
{
    size_t i = 0;
    int at;

    while (!fixed && i < sizeof fusion_levels / sizeof *fusion_levels &&
           fusion_levels[i] < start)
        s->fusions[s->fusion_count++] = fusion_levels[i++];
    at = s->fusion_count;
    s->fusions[s->fusion_count++] = start;
    for (; !fixed && i < sizeof fusion_levels / sizeof *fusion_levels; i++)
        if (fusion_levels[i] > start)
            s->fusions[s->fusion_count++] = fusion_levels[i];
    return at;
}

void tune_search_init(struct tune_search *s, const struct tune_options *opt)
{
    memset(s, 0, sizeof *s);
    s->start = s->best = s->current = opt->start;
    s->noise = opt->noise;
    s->best_at[0] = fill_fusions(s, opt->start.fusion_bytes, opt->fix_fusion);
    s->best_at[1] = fill_cycles(s, opt->start.cycle_ms, opt->fix_cycle);
    memcpy(s->current_at, s->best_at, sizeof s->current_at);
    s->tried[s->best_at[0]][s->best_at[1]] = true;
    s->phase = opt->warmup_scores > 0 ? TUNE_WARMUP : TUNE_START;
    s->warmup_left = opt->warmup_scores;
    s->left = opt->max_scores;
}

/* False: all have been tried. */
static bool go_to_nearest(struct tune_search *s)
{
    int nearest = 2 * TUNE_LEVELS, to[2] = {0, 0};

    for (int f = 0; f < s->fusion_count; f++)
        for (int c = 0; c < s->cycle_count; c++) {
            int distance = abs(f - s->best_at[0]) + abs(c - s->best_at[1]);

            if (s->tried[f][c] || distance >= nearest)
                continue;
            nearest = distance;
            to[0] = f;
            to[1] = c;
        }
    if (nearest == 2 * TUNE_LEVELS)
        return false;
    memcpy(s->current_at, to, sizeof to);
    s->tried[to[0]][to[1]] = true;
    s->current = (struct tune_point){s->cycles[to[1]], s->fusions[to[0]]};
    return true;
}

static bool is_start(const struct tune_point *p, const struct tune_search *s)
{
    return p->cycle_ms == s->start.cycle_ms && p->fusion_bytes == s->start.fusion_bytes;
}

static void finish(struct tune_search *s, struct tune_point result)
{
    s->phase = TUNE_DONE;
    s->best = s->current = result;
}

/* Two scores are kept for the end. */
static void explore(struct tune_search *s)
{
    s->phase = TUNE_EXPLORE;
    if (s->left > 2 && go_to_nearest(s))
        return;
    if (is_start(&s->best, s)) {
        finish(s, s->start);
        return;
    }
    s->phase = TUNE_BEST_AGAIN;
    s->current = s->best;
}

static void on_explored(struct tune_search *s, double score)
{
    if (score > s->best_score) {
        s->best_score = score;
        s->best = s->current;
        memcpy(s->best_at, s->current_at, sizeof s->best_at);
    }
    explore(s);
}

static void decide(struct tune_search *s, double again)
{
    double high = s->start_score > again ? s->start_score : again;
    double low = s->start_score > again ? again : s->start_score;

    finish(s, s->best_score > high + s->noise * (high - low) ? s->best : s->start);
}

void tune_search_score(struct tune_search *s, double score)
{
    if (s->phase == TUNE_WARMUP) {
        if (--s->warmup_left == 0)
            s->phase = TUNE_START;
        return;
    }
    s->left--;
    switch (s->phase) {
    case TUNE_START:
        s->start_score = s->best_score = score;
        explore(s);
        break;
    case TUNE_EXPLORE:
        on_explored(s, score);
        break;
    case TUNE_BEST_AGAIN:
        s->best_score = score < s->best_score ? score : s->best_score;
        s->current = s->start;
        s->phase = TUNE_START_AGAIN;
        break;
    case TUNE_START_AGAIN:
        decide(s, score);
        break;
    case TUNE_WARMUP:
    case TUNE_DONE:
        break;
    }
}
