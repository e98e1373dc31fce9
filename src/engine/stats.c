/* stats.c: hvd.stats(): what the engine has counted, as JSON. */
#include "engine/engine_int.h"

static const char *const names[] = {"allreduce", "allgather", "broadcast", "alltoall",
                                    "reducescatter", "barrier", "join"};

static void put_ops(struct strbuf *out, const struct engine *e)
{
    strbuf_addf(out, "\"operations\": {");
    for (int i = 0; i < HVD_OP_COUNT; i++) {
        const struct op_stats *s = &e->stats[i];
        double mean_us = s->timed > 0 ? (double)s->time_ns / 1000 / (double)s->timed : 0;

        strbuf_addf(out, "%s\"%s\": {\"count\": %llu, \"bytes\": %llu, \"errors\": %llu, "
                         "\"mean_us\": %.3f}", i > 0 ? ", " : "", names[i],
                    (unsigned long long)s->count, (unsigned long long)s->bytes,
                    (unsigned long long)s->errors, mean_us);
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
    strbuf_addf(out, ", \"transport\": {\"messages\": %llu, \"message_bytes\": %llu, "
                     "\"bytes_sent\": %llu, \"bytes_received\": %llu, "
                     "\"unexpected_bytes\": %llu, \"sleeps\": %llu}",
                (unsigned long long)c.messages_sent,
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
