/*
 * engine_look.c: what the engine tells a viewer: a copy of what is there anyway, taken under the
 * baton in some microseconds.  Nothing is counted or kept for it, so that a job nobody looks
 * at pays nothing.
 */
#include "base/clock.h"
#include "engine/stall_int.h"
#include "wire/look_message.h"

#include <stdio.h>
#include <stdlib.h>

_Static_assert((int)HVD_OP_COUNT <= LOOK_KINDS, "every kind of operation has its place");
_Static_assert(RECORDER_NAME == LOOK_RECORD_NAME && RECORDER_SLOTS <= LOOK_RECORDS,
               "a record fits");

static void look_at_counters(const struct engine *e, struct look_rank *r)
{
    struct mesh_counters c;

    mesh_count(e->mesh, &c);
    r->sent = c.bytes_sent;
    r->received = c.bytes_received;
    r->stalls = stall_report_count(e);
    r->cache_hits = e->cache_hits + e->fast_runs;
    r->cache_misses = e->cache_misses;
    r->kind_count = HVD_OP_COUNT;
    for (int i = 0; i < HVD_OP_COUNT; i++) {
        const struct op_stats *s = &e->stats[i];

        r->kinds[i] = (struct look_kind){s->count, s->bytes, s->errors, s->timed, s->time_ns};
    }
}

static void look_at_state(const struct engine *e, struct look_rank *r)
{
    static const uint8_t phases[] = {[ENGINE_RUNNING] = LOOK_PHASE_RUNNING,
                                     [ENGINE_LEFT] = LOOK_PHASE_LEFT,
                                     [ENGINE_FAILED] = LOOK_PHASE_FAILED,
                                     [ENGINE_STOPPED] = LOOK_PHASE_ENDING};
    enum engine_state state = atomic_load(&e->state);
    int count;
    const struct entry *t = stall_oldest_entry(e, &count);

    r->phase = phases[state];
    if (state == ENGINE_FAILED)
        snprintf(r->text, sizeof r->text, "%.*s", LOOK_TEXT - 1, e->failure.text);
    r->open = (uint32_t)count;
    if (t == NULL)
        return;
    r->op = t->form.op;
    snprintf(r->name, sizeof r->name, "%s", t->name);
    r->since_us = t->submit_us;
}

/* ---- Who waits for whom --------------------------------------------------------------- */

static int is_older(const void *a, const void *b)
{
    const struct stall_wait *x = a, *y = b;

    return x->since_us < y->since_us ? -1 : x->since_us > y->since_us;
}

static void copy_wait(const struct engine *e, const struct stall_wait *from,
                      struct look_wait *to)
{
    to->op = from->op;
    snprintf(to->name, sizeof to->name, "%s", from->name);
    to->since_us = from->since_us;
    for (int rank = 0; rank < e->topo->size; rank++)
        if (from->missing[rank]) {
            if (to->missing_count < LOOK_MISSING)
                to->missing[to->missing_count] = rank;
            to->missing_count++;
        }
}

static void look_at_waits(struct engine *e, struct look_rank *r)
{
    struct waits w;

    if (atomic_load(&e->state) != ENGINE_RUNNING)
        return;
    waits_init(&w, e);
    waits_collect(&w, r->now_us);
    if (w.count > 0)
        qsort(w.list, (size_t)w.count, sizeof *w.list, is_older);
    for (int i = 0; i < w.count && r->wait_count < LOOK_WAITS; i++)
        copy_wait(e, &w.list[i], &r->waits[r->wait_count++]);
    waits_release(&w);
}

static int waited_longer(const void *a, const void *b)
{
    const struct look_peer *x = a, *y = b;
    uint64_t left = x->wait_us + x->late_us, right = y->wait_us + y->late_us;

    return left > right ? -1 : left < right;
}

static void look_at_peers(const struct engine *e, struct look_rank *r)
{
    int size = e->topo->size;
    struct neg_late *late = calloc((size_t)size, sizeof *late);
    struct look_peer *peers = calloc((size_t)size, sizeof *peers);

    if (late != NULL && peers != NULL) {
        stats_add_late(e, late);
        for (int i = 0; i < size; i++) {
            peers[i] = (struct look_peer){i, e->peer_waits[i].count, e->peer_waits[i].us,
                                          late[i].count, late[i].us};
            r->slept_us += e->peer_waits[i].us;
        }
        qsort(peers, (size_t)size, sizeof *peers, waited_longer);
        for (int i = 0; i < size && i < LOOK_PEERS; i++)
            if (peers[i].waits + peers[i].last > 0)
                r->peers[r->peer_count++] = peers[i];
    }
    free(late);
    free(peers);
}

/* ---- Records --------------------------------------------------------------------------- */

static void look_at_records(const struct engine *e, const struct look_question *q,
                            struct look_rank *r)
{
    struct recorder_view *views = calloc(RECORDER_SLOTS, sizeof *views);
    uint64_t recent_us = (uint64_t)q->recent_ms * 1000, oldest_us = 0;
    int count;

    r->records = calloc(RECORDER_SLOTS, sizeof *r->records);
    if (q->recent_ms > 0 && r->now_us > recent_us)
        oldest_us = r->now_us - recent_us;
    count = views != NULL && r->records != NULL
                ? recorder_read(e->recorder, oldest_us, views, RECORDER_SLOTS) : 0;
    for (int i = 0; i < count; i++) {
        struct look_record *to = &r->records[i];

        *to = (struct look_record){.us = views[i].us, .bytes = views[i].bytes,
                                   .event = (uint8_t)views[i].event,
                                   .op = (uint8_t)views[i].op,
                                   .status = (uint8_t)views[i].status,
                                   .set = (int16_t)views[i].set};
        memcpy(to->name, views[i].name, sizeof to->name);
    }
    r->record_count = (uint32_t)count;
    free(views);
}

void engine_look(struct engine *e, const struct look_question *q, struct look_rank *r)
{
    r->rank = e->topo->rank;
    r->size = e->topo->size;
    r->local_rank = e->topo->local_rank;
    snprintf(r->host, sizeof r->host, "%s", e->topo->hosts[e->topo->rank]);
    baton_take(e);
    r->now_us = clock_us();
    look_at_counters(e, r);
    look_at_state(e, r);
    look_at_waits(e, r);
    look_at_peers(e, r);
    engine_leave(e);
    if (q->what & LOOK_WITH_RECORDS)
        look_at_records(e, q, r);
    if (q->what & LOOK_WITH_PLACE && r->open == 0 && r->phase == LOOK_PHASE_RUNNING)
        r->text[engine_where(r->text, sizeof r->text)] = '\0';
}
