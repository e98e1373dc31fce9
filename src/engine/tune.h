/*
 * tune.h: autotune: tries values of the fusion threshold and the batching window while the
 * job runs, and keeps the best.  The search is pure; struct tune measures for it.
 */
#ifndef HVD_ENGINE_TUNE_H
#define HVD_ENGINE_TUNE_H

#include "base/config.h"
#include "base/strbuf.h"

/* ---- The search ---------------------------------------------------------------------- */

struct tune_point {
    double cycle_ms;
    uint64_t fusion_bytes;
};

#define TUNE_LEVELS 12                  /* of one parameter, the start included */

enum tune_phase {
    TUNE_WARMUP,                        /* the start, scores dropped */
    TUNE_START,                         /* the start, first measure */
    TUNE_EXPLORE,
    TUNE_BEST_AGAIN,                    /* both once more, */
    TUNE_START_AGAIN,                   /* before the best may win */
    TUNE_DONE,
};

struct tune_search {
    enum tune_phase phase;
    struct tune_point start, best, current;
    double start_score, best_score, noise;
    int warmup_left, left;              /* scores */
    double cycles[TUNE_LEVELS];
    uint64_t fusions[TUNE_LEVELS];
    int cycle_count, fusion_count;
    bool tried[TUNE_LEVELS][TUNE_LEVELS];       /* [fusion][cycle] */
    int best_at[2], current_at[2];
};

struct tune_options {
    struct tune_point start;
    bool fix_cycle, fix_fusion;
    int warmup_scores, max_scores;
    double noise;                       /* 0..1, see tune.c */
};

void tune_search_init(struct tune_search *s, const struct tune_options *opt);
/* The score of s->current.  Sets s->current to what is to be used next; after TUNE_DONE
 * that is the result. */
void tune_search_score(struct tune_search *s, double score);

/* ---- The measure ---------------------------------------------------------------------- */

struct tune;

/* fixed: the job's operations do not depend on the values, so only one score is taken.
 * NULL: out of memory. */
struct tune *tune_new(const struct config *conf, bool fixed);
void tune_free(struct tune *t);

/* An allreduce of the global set is done.  True: *next is to be used from now on. */
bool tune_observe(struct tune *t, const char *name, uint16_t name_bytes, uint64_t bytes,
                  uint64_t now_us, struct tune_point *next);
bool tune_is_done(const struct tune *t);
/* What was found, as members of a JSON object; t may be NULL. */
void tune_describe(const struct tune *t, struct strbuf *out);

#endif
