/*
 * tune_measure.c: scores for autotune, from the operations of a running job.
 *
 * A sample ends when some name has been reduced steps_per_sample times since it began; its
 * value is bytes per microsecond.  A score is the median of SAMPLES samples.
 *
 * Log, a row per score and the result as last row:
 *   hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,
 *   cycle_time_ms,tensor_fusion_threshold,score          (threshold in MB)
 */
#include "base/hash.h"
#include "base/log.h"
#include "engine/tune.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LOG_COMPONENT "engine"
#define SAMPLES 5
/* Unnamed operations never come again: no need to remember more than this. */
#define NAMES_MAX 16384

struct seen {
    uint32_t sample, count;
    char name[];
};

struct tune {
    const struct config *conf;
    struct tune_search search;
    struct hash names;                  /* -> seen */
    uint32_t sample;                    /* number of the current one, from 1 */
    uint64_t since_us, bytes;
    double values[SAMPLES];
    int value_count;
    int log_fd;
};

static bool is_set(const struct config *conf, const char *row)
{
    return conf->source[config_find(row)] != CONFIG_DEFAULT;
}

static void log_text(struct tune *t, const char *text, size_t n)
{
    if (t->log_fd < 0 || write(t->log_fd, text, n) == (ssize_t)n)
        return;
    log_warn("autotune log %s: %s", t->conf->autotune_log, strerror(errno));
    close(t->log_fd);
    t->log_fd = -1;
}

static void open_log(struct tune *t)
{
    static const char header[] =
        "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,"
        "cycle_time_ms,tensor_fusion_threshold,score\n";

    t->log_fd = -1;
    if (t->conf->autotune_log[0] == '\0')
        return;
    t->log_fd = open(t->conf->autotune_log,
                     O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (t->log_fd < 0)
        log_warn("autotune log %s: %s", t->conf->autotune_log, strerror(errno));
    else
        log_text(t, header, sizeof header - 1);
}

struct tune *tune_new(const struct config *conf, bool fixed)
{
    struct tune *t = calloc(1, sizeof *t);
    struct tune_options opt = {
        .start = {conf->cycle_time_ms, conf->fusion_threshold},
        .fix_cycle = fixed || is_set(conf, "CYCLE_TIME"),
        .fix_fusion = fixed || is_set(conf, "FUSION_THRESHOLD"),
        .warmup_scores = (int)conf->autotune_warmup_samples,
        .max_scores = (int)conf->autotune_max_samples,
        .noise = conf->autotune_noise,
    };

    if (t == NULL)
        return NULL;
    t->conf = conf;
    t->sample = 1;
    tune_search_init(&t->search, &opt);
    open_log(t);
    return t;
}

static void forget_names(struct tune *t)
{
    for (size_t i = 0; i < t->names.capacity; i++)
        free(t->names.slots[i].value);
    hash_release(&t->names);
    t->names = (struct hash){0};
}

void tune_free(struct tune *t)
{
    if (t == NULL)
        return;
    forget_names(t);
    if (t->log_fd >= 0)
        close(t->log_fd);
    free(t);
}

bool tune_is_done(const struct tune *t)
{
    return t->search.phase == TUNE_DONE;
}

static struct seen *seen_of(struct tune *t, const char *name, uint16_t name_bytes)
{
    struct seen *s = hash_get(&t->names, name, name_bytes);

    if (s != NULL || t->names.live >= NAMES_MAX)
        return s;
    s = calloc(1, sizeof *s + name_bytes + 1u);
    if (s == NULL)
        return NULL;
    memcpy(s->name, name, name_bytes);
    if (hash_put(&t->names, s->name, name_bytes, s) != 0) {
        free(s);
        return NULL;
    }
    return s;
}

/* True: this name has come steps_per_sample times in the current sample. */
static bool ends_sample(struct tune *t, const char *name, uint16_t name_bytes)
{
    struct seen *s = seen_of(t, name, name_bytes);

    if (s == NULL)
        return false;
    if (s->sample != t->sample) {
        s->sample = t->sample;
        s->count = 0;
    }
    return ++s->count >= (uint64_t)t->conf->autotune_steps_per_sample;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static bool is_on(const char *text)
{
    return text[0] != '\0' && strcmp(text, "0") != 0;
}

static void log_row(struct tune *t, const struct tune_point *p, double score)
{
    char row[160];
    int n = snprintf(row, sizeof row, "%d,%d,%d,%d,%g,%g,%g\n",
                     is_on(t->conf->hierarchical_allreduce),
                     is_on(t->conf->hierarchical_allgather),
                     is_on(t->conf->torus_allreduce), t->conf->cache_capacity > 0,
                     p->cycle_ms, (double)p->fusion_bytes / (1 << 20), score);

    log_text(t, row, (size_t)n);
    log_info("autotune: cycle time %g ms, fusion threshold %g MB: %g bytes/us",
             p->cycle_ms, (double)p->fusion_bytes / (1 << 20), score);
}

static bool keeps_start(const struct tune *t)
{
    return t->search.best.cycle_ms == t->search.start.cycle_ms &&
           t->search.best.fusion_bytes == t->search.start.fusion_bytes;
}

static double result_score(const struct tune *t)
{
    return keeps_start(t) ? t->search.start_score : t->search.best_score;
}

/* At the level of warnings: whoever asks for autotune wants to read it. */
static void log_result(const struct tune *t)
{
    const struct tune_point *p = &t->search.best;
    double mb = (double)p->fusion_bytes / (1 << 20);

    if (keeps_start(t))
        log_warn("autotune is done: nothing is better than what the job began with, cycle "
                 "time %g ms and fusion threshold %g MB", p->cycle_ms, mb);
    else
        log_warn("autotune is done: cycle time %g ms and fusion threshold %g MB are %.2f times "
                 "as fast as the beginning; to keep them: HOROVOD_CYCLE_TIME=%g "
                 "HOROVOD_FUSION_THRESHOLD=%llu", p->cycle_ms, mb,
                 t->search.best_score / t->search.start_score, p->cycle_ms,
                 (unsigned long long)p->fusion_bytes);
}

static void add_point(struct strbuf *out, const char *name, const struct tune_point *p,
                      double score)
{
    strbuf_addf(out, ", \"%s\": {\"cycle_time_ms\": %g, \"fusion_threshold\": %llu, "
                     "\"bytes_per_us\": %g}", name, p->cycle_ms,
                (unsigned long long)p->fusion_bytes, score);
}

void tune_describe(const struct tune *t, struct strbuf *out)
{
    bool done = t != NULL && tune_is_done(t);

    strbuf_addf(out, "\"active\": %s, \"done\": %s",
                t != NULL && !done ? "true" : "false", done ? "true" : "false");
    if (!done)
        return;
    add_point(out, "start", &t->search.start, t->search.start_score);
    add_point(out, "result", &t->search.best, result_score(t));
}

static void on_score(struct tune *t)
{
    struct tune_point tried = t->search.current;
    bool is_shown = t->search.phase != TUNE_WARMUP;
    double score;

    qsort(t->values, SAMPLES, sizeof t->values[0], compare);
    score = t->values[SAMPLES / 2];
    t->value_count = 0;
    tune_search_score(&t->search, score);
    if (is_shown)
        log_row(t, &tried, score);
    if (!tune_is_done(t))
        return;
    log_row(t, &t->search.best, result_score(t));
    log_result(t);
    forget_names(t);
}

bool tune_observe(struct tune *t, const char *name, uint16_t name_bytes, uint64_t bytes,
                  uint64_t now_us, struct tune_point *next)
{
    struct tune_point before = t->search.current;

    if (tune_is_done(t))
        return false;
    if (t->since_us == 0)
        t->since_us = now_us;
    t->bytes += bytes;
    if (!ends_sample(t, name, name_bytes))
        return false;
    t->values[t->value_count++] = (double)t->bytes /
                                  (double)(now_us > t->since_us ? now_us - t->since_us : 1);
    t->bytes = 0;
    t->since_us = now_us;
    t->sample++;
    if (t->value_count == SAMPLES)
        on_score(t);
    *next = t->search.current;
    return next->cycle_ms != before.cycle_ms || next->fusion_bytes != before.fusion_bytes;
}
