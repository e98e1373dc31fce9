/*
 * stats.c: hvd.stats(): what the engine has counted, as JSON.
 *
 * Waits per peer are taken only where a thread has given up spinning and sleeps: then a
 * look at the boards costs nothing that matters.  The peer that had not come at the last
 * look before the end is the one that was waited for.
 */
#include "base/clock.h"
#include "engine/engine_int.h"

#include <stdlib.h>

#define ENTRIES_LOOKED_AT 64            /* of those in flight, per sleep of the thread */

/* ---- Who is waited for ----------------------------------------------------------------- */

static int missing_member(const struct entry *t)
{
    for (int m = t->set->count - 1; m >= 0; m--)
        if (m != t->set->self && !t->way->ops->has_come(t, m))
            return m;
    return -1;
}

static bool can_be_missed(const struct entry *t)
{
    return t->state == ENTRY_CACHED && t->way->ops->waits != NULL && t->way->ops->waits(t);
}

/* A thread is about to sleep for h.  Owner of the baton. */
void stats_note_wait(struct engine *e, struct handle *h)
{
    uint64_t now_us = clock_us();

    (void)e;
    for (int i = 0; i < h->count; i++) {
        struct entry *t = &h->entries[i];

        if (t->wait_us > 0 || !can_be_missed(t))
            continue;
        t->wait_us = now_us;
        t->last_missing = missing_member(t);
    }
}

/* The engine's thread is about to sleep. */
void stats_note_sleep(struct engine *e)
{
    int left = ENTRIES_LOOKED_AT;

    list_each(node, &e->running) {
        struct entry *t = list_entry(node, struct entry, node);
        int missing;

        if (left-- == 0)
            break;
        if (t->wait_us == 0 || !can_be_missed(t))
            continue;
        missing = missing_member(t);
        t->last_missing = missing >= 0 ? missing : t->last_missing;
    }
}

void stats_end_wait(struct engine *e, const struct entry *t)
{
    struct peer_wait *p;

    if (t->last_missing < 0)
        return;
    p = &e->peer_waits[t->set->ranks[t->last_missing]];
    p->count++;
    p->us += clock_us() - t->wait_us;
}

/* How late each rank was at the sets that this rank coordinates. */
void stats_add_late(const struct engine *e, struct neg_late *late)
{
    for (int i = 0; i < TEAM_SLOTS; i++) {
        const struct pset *s = e->sets[i];

        for (int m = 0; s != NULL && s->neg != NULL && m < s->count; m++) {
            late[s->ranks[m]].count += neg_late(s->neg)[m].count;
            late[s->ranks[m]].us += neg_late(s->neg)[m].us;
        }
    }
}

static void put_peers(struct strbuf *out, const struct engine *e)
{
    struct neg_late *late = calloc((size_t)e->topo->size, sizeof *late);
    const char *comma = "";

    strbuf_addf(out, ", \"peers\": {");
    if (late != NULL)
        stats_add_late(e, late);
    for (int r = 0; late != NULL && r < e->topo->size; r++) {
        const struct peer_wait *p = &e->peer_waits[r];

        if (p->count == 0 && late[r].count == 0)
            continue;
        strbuf_addf(out, "%s\"%d\": {\"waits\": %llu, \"wait_seconds\": %.6f, "
                         "\"last\": %llu, \"late_seconds\": %.6f}", comma, r,
                    (unsigned long long)p->count, (double)p->us / 1e6,
                    (unsigned long long)late[r].count, (double)late[r].us / 1e6);
        comma = ", ";
    }
    strbuf_addf(out, "}");
    free(late);
}

static void put_diagnostics(struct strbuf *out, const struct engine *e)
{
    strbuf_addf(out, ", \"recorder\": {\"records\": %llu, \"dumps\": %d, \"path\": ",
                (unsigned long long)recorder_count(e->recorder), dump_count(e->dump));
    strbuf_add_json(out, dump_path(e->dump));
    strbuf_addf(out, "}, \"timeline\": {\"active\": %s, \"events\": %llu, \"path\": ",
                e->timeline != NULL ? "true" : "false",
                e->timeline != NULL
                    ? (unsigned long long)timeline_event_count(e->timeline) : 0ull);
    strbuf_add_json(out, e->timeline != NULL ? timeline_path(e->timeline) : "");
    strbuf_addf(out, "}, \"stall\": {\"reports\": %llu}, \"autotune\": {",
                (unsigned long long)stall_report_count(e));
    if (e->tuned != NULL)
        strbuf_addf(out, "%s", e->tuned);
    else
        tune_describe(e->tune, out);
    strbuf_addf(out, "}, \"fusion_threshold\": %llu, \"cycle_time_ms\": %g",
                (unsigned long long)e->conf->fusion_threshold, e->conf->cycle_time_ms);
}

/* ---- The text -------------------------------------------------------------------------- */

static void put_ops(struct strbuf *out, const struct engine *e)
{
    strbuf_addf(out, "\"operations\": {");
    for (int i = 0; i < HVD_OP_COUNT; i++) {
        const struct op_stats *s = &e->stats[i];
        double mean_us = s->timed > 0 ? (double)s->time_ns / 1000 / (double)s->timed : 0;

        strbuf_addf(out, "%s\"%s\": {\"count\": %llu, \"bytes\": %llu, \"errors\": %llu, "
                         "\"mean_us\": %.3f, \"seconds\": %.6f}",
                    i > 0 ? ", " : "", hvd_op_name((enum hvd_op)i), (unsigned long long)s->count,
                    (unsigned long long)s->bytes, (unsigned long long)s->errors, mean_us,
                    mean_us * (double)s->count / 1e6);
    }
    strbuf_addf(out, "}");
}

static void put_negotiation(struct strbuf *out, const struct engine *e)
{
    struct neg_counters sum = {0}, one;

    for (int i = 0; i < TEAM_SLOTS; i++) {
        if (e->sets[i] == NULL || e->sets[i]->neg == NULL)
            continue;
        neg_count(e->sets[i]->neg, &one);
        sum.responses += one.responses;
        sum.batches += one.batches;
        sum.fused_tensors += one.fused_tensors;
        sum.fused_bytes += one.fused_bytes;
        sum.evictions += one.evictions;
        sum.revokes += one.revokes;
    }
    strbuf_addf(out, ", \"cache\": {\"hits\": %llu, \"misses\": %llu, \"evictions\": %llu, "
                     "\"revocations\": %llu}, \"fusion\": {\"batches\": %llu, "
                     "\"tensors\": %llu, \"bytes\": %llu, \"fill\": %.4f}",
                (unsigned long long)(e->cache_hits + e->fast_runs),
                (unsigned long long)e->cache_misses, (unsigned long long)sum.evictions,
                (unsigned long long)sum.revokes, (unsigned long long)sum.batches,
                (unsigned long long)sum.fused_tensors,
                (unsigned long long)sum.fused_bytes,
                sum.batches > 0 && e->conf->fusion_threshold > 0
                    ? (double)sum.fused_bytes / (double)sum.batches /
                          (double)e->conf->fusion_threshold
                    : 0.0);
}

static void put_transport(struct strbuf *out, const struct engine *e)
{
    struct mesh_counters c;

    mesh_count(e->mesh, &c);
    strbuf_addf(out, ", \"transport\": {\"messages\": %llu, "
                     "\"messages_between_hosts\": %llu, \"message_bytes\": %llu, "
                     "\"bytes_sent\": %llu, \"bytes_received\": %llu, "
                     "\"unexpected_bytes\": %llu, \"sleeps\": %llu}",
                (unsigned long long)c.messages_sent,
                (unsigned long long)c.far_messages_sent,
                (unsigned long long)c.message_bytes_sent, (unsigned long long)c.bytes_sent,
                (unsigned long long)c.bytes_received,
                (unsigned long long)c.unexpected_bytes, (unsigned long long)c.sleeps);
}

size_t engine_stats_json(struct engine *e, char *buffer, size_t capacity)
{
    struct strbuf out;
    size_t length;

    strbuf_init(&out);
    baton_take(e);
    strbuf_addf(&out, "{\"rank\": %d, \"size\": %d, ", e->topo->rank, e->topo->size);
    put_ops(&out, e);
    put_negotiation(&out, e);
    put_transport(&out, e);
    put_peers(&out, e);
    put_diagnostics(&out, e);
    engine_leave(e);
    strbuf_addf(&out, "}");
    length = out.length;
    if (capacity > 0) {
        size_t n = length < capacity ? length : capacity - 1;

        memcpy(buffer, out.text, n);
        buffer[n] = '\0';
    }
    strbuf_release(&out);
    return length;
}
