/* handle.c: handles, the table that finds them, and the one place where an operation
 * becomes done. */
#include "base/clock.h"
#include "base/thread.h"
#include "engine/engine_int.h"
#include "gpu/gpu.h"

#include <stdlib.h>

struct handle *handle_new(int count)
{
    struct handle *h = calloc(1, sizeof *h + (size_t)count * sizeof h->entries[0]);

    if (h == NULL)
        return NULL;
    h->count = h->left = count;
    h->device = -1;
    for (int i = 0; i < count; i++) {
        h->entries[i].handle = h;
        h->entries[i].out_rows = -1;
        list_init(&h->entries[i].node);
    }
    return h;
}

void handle_free(struct handle *h)
{
    for (int i = 0; h != NULL && i < h->count; i++) {
        struct entry *t = &h->entries[i];

        entry_drop_output(t);
        gpu_event_put(t->ready);
        gpu_event_put(t->end);
        free(t->name);
        free(t->splits);
        free(t->problem);
        free(t->recv_rows);
    }
    if (h != NULL)
        free(h->then);
    free(h);
}

static bool grow_table(struct engine *e)
{
    size_t size = e->table_size == 0 ? 256 : e->table_size;
    struct handle **table = NULL;
    bool clash = true;

    while (clash) {
        size *= 2;
        free(table);
        table = calloc(size, sizeof *table);
        if (table == NULL)
            return false;
        clash = false;
        for (size_t i = 0; i < e->table_size; i++) {
            struct handle *h = e->table[i];

            if (h == NULL)
                continue;
            clash |= table[(size_t)h->id & (size - 1)] != NULL;
            table[(size_t)h->id & (size - 1)] = h;
        }
    }
    free(e->table);
    e->table = table;
    e->table_size = size;
    return true;
}

/* 0: out of memory.  Ids grow by one; an old handle that is still in the way of its place
 * in the table makes the table larger. */
hvd_handle handle_publish(struct engine *e, struct handle *h)
{
    hvd_handle id = 0;

    pthread_mutex_lock(&e->front);
    while (e->table_size == 0 ||
           e->table[(size_t)e->next_id & (e->table_size - 1)] != NULL)
        if (!grow_table(e))
            goto out;
    id = h->id = e->next_id++;
    e->table[(size_t)id & (e->table_size - 1)] = h;
out:
    pthread_mutex_unlock(&e->front);
    return id;
}

struct handle *handle_find(struct engine *e, hvd_handle id)
{
    struct handle *h = NULL;

    pthread_mutex_lock(&e->front);
    if (e->table_size > 0 && id > 0)
        h = e->table[(size_t)id & (e->table_size - 1)];
    if (h != NULL && h->id != id)
        h = NULL;
    pthread_mutex_unlock(&e->front);
    return h;
}

void handle_forget(struct engine *e, struct handle *h)
{
    pthread_mutex_lock(&e->front);
    if (h->id > 0 && e->table[(size_t)h->id & (e->table_size - 1)] == h)
        e->table[(size_t)h->id & (e->table_size - 1)] = NULL;
    pthread_mutex_unlock(&e->front);
}

const char *engine_op_text(uint8_t op)
{
    if (op == OP_SET_ADD)
        return "add_process_set";
    return op == OP_SET_REMOVE ? "remove_process_set" : hvd_op_name((enum hvd_op)op);
}

static void keep_first_error(struct handle *h, const struct entry *t,
                             enum hvd_status status, const struct hvd_error *err)
{
    if (h->err.status != HVD_OK)
        return;
    if (err != NULL)
        h->err = *err;
    else
        error_set(&h->err, status, -1, "%s", hvd_status_text(status));
    h->err.status = status;
    if (t->name != NULL)
        error_prefix(&h->err, "%s %.200s", engine_op_text(t->form.op), t->name);
}

/* For autotune. */
static void observe(struct engine *e, const struct entry *t, uint64_t bytes)
{
    struct tune_point next;
    struct strbuf found;

    if (tune_observe(e->tune, t->name, t->name_bytes, bytes, clock_us(), &next))
        neg_put_tune(e->sets[0]->neg, next.cycle_ms, next.fusion_bytes);
    if (!tune_is_done(e->tune))
        return;
    strbuf_init(&found);
    tune_describe(e->tune, &found);
    e->tuned = found.failed ? NULL : strdup(found.text);
    strbuf_release(&found);
    tune_free(e->tune);
    e->tune = NULL;
}

static void count_entry(struct engine *e, const struct entry *t, enum hvd_status status)
{
    uint64_t bytes = t->count * hvd_dtype_bytes(t->form.dtype);

    if (t->form.op < HVD_OP_COUNT) {
        struct op_stats *s = &e->stats[t->form.op];

        s->count++;
        s->bytes += bytes;
        s->errors += status != HVD_OK;
        if (t->submit_us > 0) {
            s->timed++;
            s->time_ns += (clock_us() - t->submit_us) * 1000;
        }
    }
    if (e->tune != NULL && status == HVD_OK && t->form.op == HVD_ALLREDUCE && t->set->id == 0)
        observe(e, t, bytes);
    if (t->wait_us > 0)
        stats_end_wait(e, t);
    recorder_add(e->recorder, status == HVD_OK ? RECORDER_DONE : RECORDER_FAIL, t->form.op,
                 t->set != NULL ? t->set->id : -1, bytes, status, t->name);
}

void entry_complete(struct engine *e, struct entry *t, enum hvd_status status,
                    const struct hvd_error *err)
{
    struct handle *h = t->handle;
    struct completion *c;

    ASSERT_OWNER(e);
    BUG_ON(t->state == ENTRY_DONE);
    if (t->state != ENTRY_NEW) {
        if (t->set != NULL && hash_get(&t->set->inflight, t->name, t->name_bytes) == t)
            hash_remove(&t->set->inflight, t->name, t->name_bytes);
        e->open_entries--;
    }
    t->state = ENTRY_DONE;
    if (status != HVD_OK)
        keep_first_error(h, t, status, err);
    count_entry(e, t, status);
    trace_end(e, t, status);
    if (--h->left > 0)
        return;
    c = completion_take(e, h);
    /* After this store the handle may be freed by another thread at any moment. */
    atomic_store(&h->done, 1);
    if (c != NULL)
        completion_put(e, c);
    if (atomic_load(&e->waiting) > 0)
        thread_wake_all(&h->done);
}
