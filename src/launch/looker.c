/* looker.c: see looker.h. */
#include "launch/looker.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>

#define LOG_COMPONENT "launch"
#define JOBS_MS 2500                    /* a launcher gives its agents 1500 ms */
#define RANKS_MS 800

struct looker {
    uv_loop_t *loop;
    const char *job;
    looker_fn on_view;
    void *owner;
    struct look_question q;
    struct survey *survey;              /* NULL: nothing is asked now */
    struct view view, before;
};

static void add(struct looker *l, const char *frames, size_t n)
{
    struct hvd_error err;

    if (view_add(&l->view, frames, n, &err) != HVD_OK)
        log_warn("an answer is not understood: %s", err.text);
}

/* A launcher has told of it, or knows that it does not answer. */
static bool is_new(void *owner, pid_t pid)
{
    const struct looker *l = owner;

    for (int i = 0; i < l->view.count; i++)
        for (int k = 0; k < l->view.jobs[i].rank_count; k++)
            if (l->view.jobs[i].ranks[k].pid == (uint32_t)pid)
                return false;
    return true;
}

static void on_ranks(void *owner, const char *frames, size_t n)
{
    struct looker *l = owner;

    l->survey = NULL;
    add(l, frames, n);
    if (l->job != NULL)
        view_keep(&l->view, l->job);
    view_finish(&l->view, &l->before);
    l->on_view(l->owner, &l->view);
    view_release(&l->before);
    l->before = l->view;
    view_init(&l->view, 0);
}

static void on_jobs(void *owner, const char *frames, size_t n)
{
    struct looker *l = owner;

    add(l, frames, n);
    l->survey = survey_start(l->loop, "rank", &l->q, RANKS_MS, is_new, on_ranks, l);
    if (l->survey == NULL)
        on_ranks(l, "", 0);
}

void looker_ask(struct looker *l, const struct look_question *q)
{
    if (l->survey != NULL)
        return;
    l->q = *q;
    view_init(&l->view, clock_us());
    l->survey = survey_start(l->loop, "job", q, JOBS_MS, NULL, on_jobs, l);
    if (l->survey == NULL)
        on_jobs(l, "", 0);
}

struct looker *looker_new(uv_loop_t *loop, const char *job, looker_fn on_view, void *owner)
{
    struct looker *l = calloc(1, sizeof *l);

    if (l != NULL)
        *l = (struct looker){.loop = loop, .job = job, .on_view = on_view, .owner = owner};
    return l;
}

void looker_free(struct looker *l)
{
    if (l == NULL)
        return;
    survey_cancel(l->survey);
    view_release(&l->view);
    view_release(&l->before);
    free(l);
}
