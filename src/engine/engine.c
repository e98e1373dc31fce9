/* engine.c: life of the engine, and the entry points of other threads. */
#include "engine/device.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>

#define LOG_COMPONENT "engine"
#define ANNOUNCEMENTS_MAX 256           /* held back for the batch they may form */
#define STOP_US 1000000                 /* what is committed may take so long to finish */

static enum hvd_status make_global_set(struct engine *e, struct hvd_error *err)
{
    int *ranks = malloc((size_t)e->topo->size * sizeof *ranks);
    struct pset *s;
    enum hvd_status status;

    if (ranks == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the global process set");
    for (int i = 0; i < e->topo->size; i++)
        ranks[i] = i;
    status = pset_new(e, 0, 0, 1, ranks, e->topo->size, &s, err);
    free(ranks);
    return status;
}

static enum hvd_status make_diagnostics(struct engine *e, struct hvd_error *err)
{
    e->recorder = recorder_new();
    e->peer_waits = calloc((size_t)e->topo->size, sizeof *e->peer_waits);
    if (e->recorder != NULL)
        e->dump = dump_new(e->conf, e->recorder, e->topo->rank, e->topo->size,
                           e->topo->hosts[e->topo->rank]);
    if (e->peer_waits == NULL || e->dump == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the flight recorder");
    e->stall = stall_new(e);
    return HVD_OK;
}

/* Cached operations within one host are not fused: there the values change nothing. */
static void start_tuning(struct engine *e)
{
    const struct pset *s = e->sets[0];

    if (e->conf->autotune && e->topo->rank == 0 && e->topo->size > 1)
        e->tune = tune_new(e->conf, s->local && e->conf->cache_capacity > 0);
}

enum hvd_status engine_new(const struct engine_options *opt, struct engine **engine_p,
                           struct hvd_error *err)
{
    struct engine *e = calloc(1, sizeof *e);
    enum hvd_status status = HVD_OK;

    if (e == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the engine");
    e->mesh = opt->mesh;
    e->conf = opt->conf;
    e->topo = mesh_topology(opt->mesh);
    e->dynamic_sets = opt->dynamic_sets;
    e->failing = opt->failing;
    e->context = opt->context;
    e->spin_us = mesh_spin_us(opt->mesh);
    e->has_sockets = mesh_has_sockets(opt->mesh);
    e->next_id = 1;
    e->device_index = -1;
    list_init(&e->running);
    list_init(&e->batches);
    list_init(&e->early);
    pthread_mutex_init(&e->front, NULL);
    list_init(&e->completions);
    pthread_mutex_init(&e->completions_lock, NULL);
    pthread_mutex_init(&e->timeline_lock, NULL);
    TRY_OUT(make_diagnostics(e, err));
    mesh_on_message(e->mesh, engine_on_message, e);
    TRY_OUT(make_global_set(e, err));
    start_tuning(e);
    trace_start_configured(e);
    if (opt->thread)
        TRY_OUT(engine_start_thread(e, err));
    *engine_p = e;
out:
    if (status != HVD_OK)
        engine_free(e);
    return status;
}

static void say_leave(struct engine *e, int rank, void *context)
{
    const struct strbuf *out = context;

    if (rank != e->topo->rank && !mesh_has_left(e->mesh, rank))
        mesh_post(e->mesh, rank, out->text, out->length, NULL);
}

/* From here on this rank announces nothing and, as a coordinator, answers nothing any more.
 * Said by the rank that leaves, and by everybody who has heard of it: it spreads, or where the tree
 * of hosts is deep, along its edges.  There, too, everybody hears of it: whoever has left said
 * so to its neighbours, so each part of the tree that is left hears it from one of them. */
void engine_say_goodbye(struct engine *e, int gone)
{
    struct message_head head = {.kind = MESSAGE_LEAVE, .set = (uint32_t)gone};
    struct strbuf out;

    if (e->said_goodbye)
        return;
    e->said_goodbye = true;
    for (int i = 0; i < TEAM_SLOTS; i++)
        if (e->sets[i] != NULL)
            pset_say_end(e, e->sets[i]);
    strbuf_init(&out);
    put_message_head(&out, &head);
    if (!out.failed && e->sets[0]->deep)
        pset_each_neighbour(e, e->sets[0], say_leave, &out);
    else if (!out.failed)
        mesh_spread(e->mesh, out.text, out.length, NULL);
    strbuf_release(&out);
}

static bool has_committed(const struct engine *e)
{
    for (int i = 0; i < TEAM_SLOTS; i++)
        if (e->sets[i] != NULL && ways_are_running(e->sets[i]))
            return true;
    return !list_is_empty(&e->batches) || !list_is_empty(&e->running);
}

bool engine_stop(struct engine *e)
{
    struct hvd_error why;
    uint64_t deadline_us = clock_us() + STOP_US;
    bool healthy;

    engine_join_thread(e);
    baton_take(e);
    healthy = mesh_verdict(e->mesh) == NULL;
    e->has_told |= healthy;
    if (atomic_load(&e->state) < ENGINE_STOPPED) {
        error_set(&why, HVD_SHUTDOWN, e->topo->rank,
                  "Horovod has been shut down by this process while the operation was "
                  "under way");
        mesh_disarm(e->mesh);
        for (int i = 0; healthy && i < TEAM_SLOTS; i++)
            if (e->sets[i] != NULL)
                ways_flush_data(e, e->sets[i]);
        if (healthy && e->topo->size > 1)
            engine_say_goodbye(e, e->topo->rank);
        engine_fail(e, ENGINE_LEFT, &why);
        while (healthy && has_committed(e) && clock_us() < deadline_us &&
               mesh_verdict(e->mesh) == NULL)
            if (!engine_progress(e))
                thread_pause();
        atomic_store(&e->state, ENGINE_STOPPED);
        for (int i = 0; i < TEAM_SLOTS; i++)
            if (e->sets[i] != NULL)
                pset_fail(e, e->sets[i], e->failure.status, &e->failure, true);
        for (int i = 0; healthy && i < 64 && mesh_progress(e->mesh) > 0; i++)
            ;                           /* the farewell leaves the queue */
    }
    baton_give(e);
    trace_stop(e);
    return healthy;
}

static void free_handles(struct engine *e)
{
    for (size_t i = 0; i < e->table_size; i++)
        if (e->table[i] != NULL)
            handle_free(e->table[i]);
    free(e->table);
}

void engine_free(struct engine *e)
{
    struct list *node;

    engine_join_thread(e);
    for (int i = 0; i < TEAM_SLOTS; i++)
        if (e->sets[i] != NULL)
            pset_free(e, e->sets[i]);
    while ((node = list_pop(&e->early)) != NULL)
        free(node);                     /* node is its first member */
    free_handles(e);
    handle_free(e->spare);
    gpu_close();
    for (int i = 0; i < e->fusion_count; i++) {
        gpu_unpin(e->fusion[i].at);
        output_release(e->fusion[i].at);
    }
    free(e->fusion);
    stall_free(e);
    tune_free(e->tune);
    free(e->tuned);
    trace_stop(e);
    dump_free(e->dump);
    recorder_free(e->recorder);
    free(e->peer_waits);
    pthread_mutex_destroy(&e->timeline_lock);
    pthread_mutex_destroy(&e->completions_lock);
    pthread_mutex_destroy(&e->front);
    free(e);
}

void engine_break(struct engine *e, struct hvd_error *err)
{
    error_prefix(err, "rank %d", e->topo->rank);
    err->rank = e->topo->rank;
    mesh_fail(e->mesh, err);
}

/* ---- Submitting ---------------------------------------------------------------------- */

static void begin_entries(struct engine *e, struct handle *h)
{
    int count = h->count;               /* h may be gone after its last entry */

    for (int i = 0; i < count; i++) {
        struct entry *t = &h->entries[i];

        if (atomic_load(&e->state) == ENGINE_RUNNING) {
            entry_begin(e, t);
        } else {
            engine_tell_failure(e);
            entry_complete(e, t, e->failure.status, &e->failure);
        }
    }
}

static enum hvd_status refuse(struct engine *e, const struct hvd_request *req,
                              struct hvd_error *err)
{
    engine_tell_failure(e);
    if (err != NULL)
        *err = e->failure;
    if (req != NULL)
        error_prefix(err, "%s %.200s", engine_op_text((uint8_t)req->op),
                     req->name != NULL ? req->name : "(unnamed)");
    return e->failure.status;
}

/* Fills all entries or none; needs a consistent view of sets and names in flight.  The
 * names of one group must differ from each other, too. */
static enum hvd_status fill_all(struct engine *e, struct handle *h,
                                const struct hvd_request *req, struct hvd_error *err)
{
    int64_t unnamed[OP_KIND_COUNT];
    struct pset *s = pset_find(e, req->process_set);
    enum hvd_status status = HVD_OK;

    if (s != NULL)
        memcpy(unnamed, s->unnamed, sizeof unnamed);
    for (int i = 0; i < h->count && status == HVD_OK; i++) {
        struct entry *t = &h->entries[i];

        status = entry_fill(e, t, &req[i], err);
        for (int k = 0; k < i && status == HVD_OK; k++)
            if (h->entries[k].name_bytes == t->name_bytes &&
                memcmp(h->entries[k].name, t->name, t->name_bytes) == 0)
                status = error_set(err, HVD_INVALID, -1,
                                   "two tensors of one group are named %.200s", t->name);
        if (h->count > 1 && status == HVD_OK) {
            t->group_count = (uint16_t)(h->count < UINT16_MAX ? h->count : UINT16_MAX);
            t->group_key = hash_code(h->entries[0].name, h->entries[0].name_bytes);
        }
    }
    if (status != HVD_OK && s != NULL)
        memcpy(s->unnamed, unnamed, sizeof unnamed);
    return status;
}

/* The tasks of h alone: it may be the last that they waited for.  True: one needs us. */
static bool step_new(struct engine *e, struct handle *h)
{
    bool needs_us = false;

    engine_mark_cycle(e);
    for (int i = 0; i < h->count; i++) {
        struct entry *t = &h->entries[i];
        const struct way_ops *way = t->state == ENTRY_CACHED ? t->way->ops : NULL;

        if (way != NULL && way->step != NULL && !way->step(e, t))
            needs_us |= way->needs_us(t);
    }
    return needs_us;
}

/*
 * Announcements wait for more of them: until somebody waits or polls, the cycle time is
 * over (the engine's thread sees to that), or there are many.
 */
static void hold_announcements(struct engine *e, const struct handle *h)
{
    struct pset *s = h->entries[0].set;
    uint32_t waiting = s != NULL ? s->request_count + ways_pending(s) : 0;

    if (e->conf->cycle_time_ms <= 0 || !engine_has_thread(e) ||
        waiting >= ANNOUNCEMENTS_MAX || (s != NULL && s->join_held)) {
        mesh_disarm(e->mesh);
        engine_press(e);
        engine_progress(e);
        return;
    }
    if (s == NULL || waiting == 0)
        return;
    if (ways_have_full(s)) {
        mesh_disarm(e->mesh);
        ways_flush_data(e, s);
    } else if (e->flush_due_us == 0) {
        e->flush_due_us = clock_us() + (uint64_t)(e->conf->cycle_time_ms * 1000);
        atomic_store_explicit(&e->held, true, memory_order_relaxed);
    }
}

/* The caller is about to wait: no hand-over.  What h has to say goes out even if h was the
 * last to come and is done. */
static void drive_new(struct engine *e, struct handle *h)
{
    struct pset *s = h->entries[0].set;

    mesh_disarm(e->mesh);
    if (s != NULL)
        ways_flush_data(e, s);
    engine_drive(e, h);
}

/* Takes h.  The holder of the baton never sleeps with it, so this does not wait for other
 * ranks. */
enum hvd_status engine_submit_handle(struct engine *e, struct handle *h,
                                     const struct hvd_request *req, bool waits,
                                     hvd_handle *handle_p, struct hvd_error *err)
{
    enum hvd_status status = HVD_OK;
    bool needs_us = false;

    baton_take(e);
    if (atomic_load(&e->state) != ENGINE_RUNNING)
        TRY_OUT(refuse(e, req, err));
    if (req != NULL)
        TRY_OUT(fill_all(e, h, req, err));
    *handle_p = handle_publish(e, h);
    if (*handle_p == 0)
        TRY_OUT(error_set(err, HVD_NOMEM, -1, "no memory for a handle"));
    /* An announcement that waits for more does not touch the mesh, and is spared the two
     * system calls that arming it again costs where there are sockets. */
    e->completions_open += h->then != NULL;
    if (h->entries[0].set->local)
        mesh_disarm(e->mesh);
    begin_entries(e, h);
    needs_us = step_new(e, h);
    if (waits)
        drive_new(e, h);
    else
        hold_announcements(e, h);
out:
    engine_leave_submit(e, needs_us);
    if (status != HVD_OK)
        handle_free(h);
    return status;
}

static enum hvd_status submit_new(const struct hvd_request *req, int count,
                                  struct handle **handle_p, struct hvd_error *err)
{
    struct handle *h = handle_new(count);
    enum hvd_status status;

    if (h == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a handle");
    for (int i = 0; i < count; i++)
        h->entries[i].submit_us = clock_us();
    status = device_note_caller(h, req, count, err);
    if (status != HVD_OK)
        handle_free(h);
    *handle_p = status == HVD_OK ? h : NULL;
    return status;
}

static enum hvd_status submit(struct engine *e, const struct hvd_request *req, int count,
                              bool waits, hvd_handle *handle_p, struct hvd_error *err)
{
    struct handle *h = NULL;

    TRY(submit_new(req, count, &h, err));
    return engine_submit_handle(e, h, req, waits, handle_p, err);
}

enum hvd_status engine_submit(struct engine *e, const struct hvd_request *req, int count,
                              hvd_handle *handle_p, struct hvd_error *err)
{
    return submit(e, req, count, false, handle_p, err);
}

enum hvd_status engine_submit_then(struct engine *e, const struct hvd_request *req,
                                   int count, hvd_done_fn done, void *context,
                                   hvd_handle *handle_p, struct hvd_error *err)
{
    struct handle *h = NULL;

    TRY(submit_new(req, count, &h, err));
    h->then = malloc(sizeof *h->then);
    if (h->then == NULL) {
        handle_free(h);
        return error_set(err, HVD_NOMEM, -1, "no memory for a handle");
    }
    list_init(&h->then->node);
    h->then->call = done;
    h->then->context = context;
    return engine_submit_handle(e, h, req, false, handle_p, err);
}

/* ---- Waiting -------------------------------------------------------------------------- */

static enum hvd_status unknown_handle(hvd_handle id, struct hvd_error *err)
{
    return error_set(err, HVD_INVALID, -1, "handle %lld is not known", (long long)id);
}

static enum hvd_status result_of(const struct handle *h, struct hvd_error *err)
{
    if (h->err.status != HVD_OK && err != NULL)
        *err = h->err;
    return h->err.status;
}

enum hvd_status engine_poll(struct engine *e, hvd_handle id, struct hvd_error *err)
{
    struct handle *h = handle_find(e, id);

    if (h == NULL)
        return unknown_handle(id, err);
    if (atomic_load_explicit(&h->done, memory_order_acquire)) {
        engine_send_held(e);
    } else if (baton_try(e)) {
        mesh_disarm(e->mesh);
        engine_press(e);
        engine_progress(e);
        engine_leave(e);
    }
    return atomic_load_explicit(&h->done, memory_order_acquire) ? result_of(h, err)
                                                                : HVD_AGAIN;
}

enum hvd_status engine_wait(struct engine *e, hvd_handle id, int64_t timeout_us,
                            struct hvd_error *err)
{
    struct handle *h = handle_find(e, id);

    if (h == NULL)
        return unknown_handle(id, err);
    TRY(engine_wait_handle(e, h, timeout_us));
    return result_of(h, err);
}

void engine_release(struct engine *e, hvd_handle id)
{
    struct handle *h = handle_find(e, id);

    if (h == NULL)
        return;
    engine_wait_handle(e, h, -1);
    handle_forget(e, h);
    handle_free(h);
}

enum hvd_status engine_output(struct engine *e, hvd_handle id, int index, bool take,
                              struct hvd_output *out, struct hvd_error *err)
{
    struct handle *h = handle_find(e, id);
    struct entry *t;

    if (h == NULL || index < 0 || index >= h->count ||
        !atomic_load_explicit(&h->done, memory_order_acquire))
        return unknown_handle(id, err);
    t = &h->entries[index];
    if (take && !t->own_output)
        return error_set(err, HVD_INVALID, -1, "the output of handle %lld is not ours",
                         (long long)id);
    out->data = t->output;
    out->ndim = t->form.ndim;
    memcpy(out->shape, t->form.shape, sizeof out->shape);
    if (t->out_rows >= 0 && t->form.ndim > 0)
        out->shape[0] = t->out_rows;
    out->set_size = t->set_size;
    out->splits = t->recv_rows;
    out->value = t->value;
    out->device = t->form.device ? h->device : -1;
    if (take)
        t->own_output = false;
    return HVD_OK;
}

enum hvd_status engine_stream_wait(struct engine *e, hvd_handle id, uint64_t stream,
                                   struct hvd_error *err)
{
    struct handle *h = handle_find(e, id);

    if (h == NULL || !atomic_load_explicit(&h->done, memory_order_acquire))
        return unknown_handle(id, err);
    for (int i = 0; i < h->count; i++)
        if (h->entries[i].end != NULL)
            TRY(gpu_event_wait(h->entries[i].end, stream, err));
    return HVD_OK;
}

/* ---- Start, wait and release in one ---------------------------------------------------- */

/* h is under way, or NULL: nothing has been started. */
static enum hvd_status go_on(struct engine *e, const struct hvd_request *req,
                             struct handle *h, hvd_handle *handle_p, struct hvd_error *err)
{
    enum hvd_status status;

    if (h == NULL) {
        TRY(submit(e, req, 1, true, handle_p, err));
        return HVD_AGAIN;
    }
    *handle_p = handle_publish(e, h);
    if (*handle_p != 0)
        return HVD_AGAIN;
    engine_wait_handle(e, h, -1);       /* no memory for the table: it cannot be handed out */
    status = result_of(h, err);
    if (status == HVD_OK && h->entries[0].own_output)
        status = error_set(err, HVD_NOMEM, -1, "no memory for a handle");
    handle_free(h);
    return status;
}

enum hvd_status engine_run_start(struct engine *e, const struct hvd_request *req,
                                 hvd_handle *handle_p, struct hvd_error *err)
{
    struct handle *h;
    enum hvd_status status = fast_run(e, req, &h, err);

    return status == HVD_AGAIN ? go_on(e, req, h, handle_p, err) : status;
}

enum hvd_status engine_run_take(struct engine *e, const struct hvd_request *req,
                                struct hvd_output *out, int64_t *splits, int room,
                                hvd_handle *handle_p, struct hvd_error *err)
{
    struct handle *h;
    enum hvd_status status = fast_take(e, req, out, splits, room, &h, err);

    return status == HVD_AGAIN ? go_on(e, req, h, handle_p, err) : status;
}

enum hvd_status engine_run(struct engine *e, const struct hvd_request *req,
                           struct hvd_error *err)
{
    struct handle *h;
    enum hvd_status status = fast_run(e, req, &h, err);
    hvd_handle id;

    if (status != HVD_AGAIN)
        return status;
    if (h != NULL) {
        engine_wait_handle(e, h, -1);
        status = result_of(h, err);
        handle_free(h);
        return status;
    }
    TRY(submit(e, req, 1, true, &id, err));
    status = engine_wait(e, id, -1, err);
    engine_release(e, id);
    return status;
}

/* ---- Diagnostics ---------------------------------------------------------------------- */

int engine_recorder_write(struct engine *e, int fd)
{
    if (!recorder_write_head(fd, e->topo->rank, e->topo->size,
                             e->topo->hosts[e->topo->rank], "request"))
        return -1;
    return recorder_write(e->recorder, fd);
}

void engine_enable_dumps(struct engine *e)
{
    baton_take(e);
    e->dumps_enabled = true;
    engine_leave(e);
    dump_on_signal(e->dump);
}
