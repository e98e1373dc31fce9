/*
 * trace.c: the engine's entries in the timeline, and its start and stop.
 *
 * `e->timeline` changes only under the baton, and is NULL while nothing is recorded: then
 * the callers' branch is all it costs (engine_int.h).  `timeline_lock` is held while a file
 * is opened or closed, so that start and stop of different threads take turns.
 */
#include "engine/engine_int.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

#define LOG_COMPONENT "engine"

static const char *const kinds[] = {
#define KIND(name, text) #name,
    HVD_OP_MAP(KIND)
#undef KIND
};
static const char *const transfers[] = {"GLOO_ALLREDUCE", "GLOO_ALLGATHER", "GLOO_BCAST",
                                        "GLOO_ALLTOALL", "GLOO_REDUCESCATTER", NULL};

/* JOIN and changes of process sets are no operations on tensors. */
static bool is_shown(uint8_t op)
{
    return op <= HVD_BARRIER;
}

static const char *kind_of(uint8_t op, uint8_t reduce)
{
    return op == HVD_ALLREDUCE && reduce == HVD_ADASUM ? "ADASUM" : kinds[op];
}

static struct timeline_key key_of(const struct entry *t)
{
    return (struct timeline_key){t->name, t->name_bytes, t->set->id};
}

void trace_submit_slow(struct engine *e, const struct entry *t)
{
    struct timeline_key key = key_of(t);

    if (is_shown(t->form.op))
        timeline_negotiate(e->timeline, &key, kind_of(t->form.op, t->form.reduce));
}

void trace_ready_slow(struct engine *e, const struct pset *s, int member,
                      const struct wire_request *r)
{
    struct timeline_key key = {r->name, r->name_bytes, s->id};

    if (is_shown(r->form.op))
        timeline_ready(e->timeline, &key, kind_of(r->form.op, r->form.reduce), member);
}

void trace_item_slow(struct engine *e, const struct pset *s, int member,
                     const struct cached *c)
{
    struct timeline_key key = {c->name, c->name_bytes, s->id};

    timeline_ready(e->timeline, &key, kind_of(c->form.op, c->form.reduce), member);
}

void trace_hit_slow(struct engine *e, const struct pset *s, int member, uint32_t number)
{
    const struct cached *c = number < CACHE_NUMBERS ? s->by_number[number] : NULL;

    if (c != NULL)
        trace_item_slow(e, s, member, c);
}

/* Ourselves last: whom we find at our own start was there before us. */
void trace_come_slow(struct engine *e, const struct entry *t, bool all)
{
    struct timeline_key key = key_of(t);

    for (int m = 0; m < t->set->count; m++)
        if (m != t->set->self && (all || t->way->ops->has_come(t, m)))
            timeline_come(e->timeline, &key, m);
    timeline_come(e->timeline, &key, t->set->self);
}

bool trace_waits_slow(const struct engine *e)
{
    list_each(node, &e->running) {
        const struct entry *t = list_entry(node, struct entry, node);

        if (t->way->ops->waits != NULL && t->way->ops->waits(t))
            return true;
    }
    return false;
}

void trace_pass_slow(struct engine *e, const struct pset *s, const char *name,
                     uint16_t name_bytes)
{
    struct timeline_key key = {name, name_bytes, s->id};

    timeline_negotiated(e->timeline, &key);
}

void trace_begin_slow(struct engine *e, const struct entry *t)
{
    struct timeline_key key = key_of(t);

    if (is_shown(t->form.op))
        timeline_begin(e->timeline, &key, kind_of(t->form.op, t->form.reduce));
}

static const char *transfer_of(uint8_t op, uint8_t reduce)
{
    return op == HVD_ALLREDUCE && reduce == HVD_ADASUM ? "MPI_ADASUM_ALLREDUCE"
                                                       : transfers[op];
}

void trace_local_slow(struct engine *e, const struct entry *t)
{
    struct timeline_key key = key_of(t);

    if (timeline_begin(e->timeline, &key, kind_of(t->form.op, t->form.reduce)))
        timeline_activity(e->timeline, &key, transfer_of(t->form.op, t->form.reduce));
}

void trace_activity_slow(struct engine *e, const struct entry *t, const char *activity)
{
    struct timeline_key key = key_of(t);

    timeline_activity(e->timeline, &key, activity);
}

void trace_batch_slow(struct engine *e, const struct batch *b, const char *activity)
{
    for (int i = 0; i < b->count; i++)
        if (b->entries[i] != NULL)
            trace_activity_slow(e, b->entries[i],
                                activity != NULL ? activity
                                                 : transfer_of(b->form.op, b->form.reduce));
}

static void put_args(struct strbuf *out, const struct entry *t)
{
    strbuf_addf(out, "{\"dtype\": \"%s\", \"shape\": \"[", hvd_dtype_name(t->form.dtype));
    for (int i = 0; i < t->form.ndim; i++)
        strbuf_addf(out, "%s%lld", i > 0 ? ", " : "",
                    (long long)(i == 0 && t->out_rows >= 0 ? t->out_rows : t->form.shape[i]));
    strbuf_addf(out, "]\"}");
}

void trace_end_slow(struct engine *e, const struct entry *t, enum hvd_status status)
{
    struct timeline_key key;
    struct strbuf args;
    bool has_args = status == HVD_OK && t->form.op != HVD_BARRIER &&
                    (t->form.op != HVD_BROADCAST || t->form.root != t->set->self);

    if (t->set == NULL || t->name == NULL || !is_shown(t->form.op))
        return;
    key = key_of(t);
    strbuf_init(&args);
    if (has_args)
        put_args(&args, t);
    if (hvd_status_scope(status) == HVD_SCOPE_OP)
        timeline_begin(e->timeline, &key, "ERROR");
    timeline_end(e->timeline, &key, has_args && !args.failed ? args.text : NULL);
    strbuf_release(&args);
}

/* ---- Start and stop -------------------------------------------------------------------- */

static void set_timeline(struct engine *e, struct timeline *t)
{
    baton_take(e);
    e->timeline = t;
    engine_leave(e);
}

static void stop_recording(struct engine *e)
{
    struct timeline *t = e->timeline;

    if (t == NULL)
        return;
    set_timeline(e, NULL);
    timeline_close(t);
}

/* Rank 0 writes the file itself; others, where they write, append their number. */
static char *file_of(const struct engine *e, const char *path)
{
    size_t capacity = strlen(path) + 16;
    char *file = malloc(capacity);

    if (file == NULL)
        return NULL;
    if (e->topo->rank == 0)
        snprintf(file, capacity, "%s", path);
    else
        snprintf(file, capacity, "%s.%d", path, e->topo->rank);
    return file;
}

static void start_recording(struct engine *e, const char *file, bool mark_cycles)
{
    struct timeline *t;
    struct hvd_error err;

    if (e->timeline != NULL && strcmp(timeline_path(e->timeline), file) == 0)
        return;
    stop_recording(e);
    if (timeline_open(file, mark_cycles, &t, &err) != HVD_OK)
        log_error("%s; the job goes on without a timeline", err.text);
    else
        set_timeline(e, t);
}

enum hvd_status engine_timeline_start(struct engine *e, const char *path,
                                      bool mark_cycles, struct hvd_error *err)
{
    char *file;

    if (e->conf->timeline[0] == '\0')
        return error_set(err, HVD_INVALID, -1,
                         "the timeline can be started only if HOROVOD_TIMELINE was set "
                         "before init: set it to DYNAMIC, or to a file");
    if (e->topo->rank != 0 && !e->conf->timeline_all_ranks)
        return HVD_OK;
    file = file_of(e, path);
    if (file == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the timeline");
    pthread_mutex_lock(&e->timeline_lock);
    if (atomic_load(&e->state) != ENGINE_STOPPED)
        start_recording(e, file, mark_cycles);
    pthread_mutex_unlock(&e->timeline_lock);
    free(file);
    return HVD_OK;
}

enum hvd_status engine_timeline_stop(struct engine *e, struct hvd_error *err)
{
    if (e->conf->timeline[0] == '\0')
        return error_set(err, HVD_INVALID, -1,
                         "there is no timeline to stop: set HOROVOD_TIMELINE to DYNAMIC, "
                         "or to a file, before init");
    pthread_mutex_lock(&e->timeline_lock);
    stop_recording(e);
    pthread_mutex_unlock(&e->timeline_lock);
    return HVD_OK;
}

void trace_start_configured(struct engine *e)
{
    const char *path = e->conf->timeline;

    if (path[0] != '\0' && strcmp(path, "DYNAMIC") != 0)
        engine_timeline_start(e, path, e->conf->timeline_mark_cycles, NULL);
}

void trace_stop(struct engine *e)
{
    pthread_mutex_lock(&e->timeline_lock);
    stop_recording(e);
    pthread_mutex_unlock(&e->timeline_lock);
}
