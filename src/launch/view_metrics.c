/* view_metrics.c: the view as Prometheus reads it; names and units are in docs/status.md. */
#include "horovod/horovod.h"
#include "launch/view.h"

static void add_label(struct strbuf *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\\' || *text == '"')
            strbuf_add(out, "\\", 1);
        strbuf_add(out, text, 1);
    }
}

static void add_name(struct strbuf *out, const char *name, const struct view_job *j,
                     const struct view_rank *r, const char *kind)
{
    strbuf_addf(out, "horovod_%s{job=\"", name);
    add_label(out, j->id);
    strbuf_addf(out, "\",rank=\"%d\",host=\"", r->rank);
    add_label(out, r->host);
    if (kind != NULL)
        strbuf_addf(out, "\",operation=\"%s", kind);
    strbuf_addf(out, "\"} ");
}

/* One row per rank of a metric. */
struct metric {
    const char *name, *type, *text;
    double (*value)(const struct view_rank *r);
};

static double value_up(const struct view_rank *r) { return r->has_look; }
static double value_memory(const struct view_rank *r)
{
    return (double)(r->has_look ? r->look.rss_bytes : r->process.rss_bytes);
}
static double value_cpu(const struct view_rank *r) { return (double)r->look.cpu_us / 1e6; }
static double value_wait(const struct view_rank *r) { return (double)r->look.slept_us / 1e6; }
static double value_sent(const struct view_rank *r) { return (double)r->look.sent; }
static double value_received(const struct view_rank *r) { return (double)r->look.received; }
static double value_hits(const struct view_rank *r) { return (double)r->look.cache_hits; }
static double value_misses(const struct view_rank *r) { return (double)r->look.cache_misses; }
static double value_stalls(const struct view_rank *r) { return (double)r->look.stalls; }
static double value_open(const struct view_rank *r) { return r->look.open; }
static double value_age(const struct view_rank *r)
{
    return r->look.open > 0 ? view_rank_age(r) : 0;
}

static const struct metric metrics[] = {
    {"up", "gauge", "1: the rank answers", value_up},
    {"memory_bytes", "gauge", "resident memory", value_memory},
    {"cpu_seconds_total", "counter", "CPU time of the process", value_cpu},
    {"wait_seconds_total", "counter", "time in which threads slept for other ranks", value_wait},
    {"sent_bytes_total", "counter", "bytes sent to other ranks", value_sent},
    {"received_bytes_total", "counter", "bytes received from other ranks", value_received},
    {"cache_hits_total", "counter", "operations whose negotiation was remembered", value_hits},
    {"cache_misses_total", "counter", "operations that were negotiated", value_misses},
    {"stall_reports_total", "counter", "stall reports seen", value_stalls},
    {"open_operations", "gauge", "operations under way", value_open},
    {"oldest_operation_seconds", "gauge", "age of the oldest operation under way", value_age},
};

static void add_metric(const struct view *v, const struct metric *m, struct strbuf *out)
{
    strbuf_addf(out, "# HELP horovod_%s %s\n# TYPE horovod_%s %s\n", m->name, m->text, m->name,
                m->type);
    for (int i = 0; i < v->count; i++)
        for (int k = 0; k < v->jobs[i].rank_count; k++) {
            add_name(out, m->name, &v->jobs[i], &v->jobs[i].ranks[k], NULL);
            strbuf_addf(out, "%.17g\n", m->value(&v->jobs[i].ranks[k]));
        }
}

static uint64_t kind_value(const struct look_kind *k, int which)
{
    return which == 0 ? k->count : which == 1 ? k->bytes : k->errors;
}

static void add_kinds(const struct view *v, struct strbuf *out)
{
    static const char *const names[][2] = {
        {"operations_total", "operations done"},
        {"operation_bytes_total", "bytes of their tensors"},
        {"operation_errors_total", "operations that failed"}};

    for (int which = 0; which < 3; which++) {
        strbuf_addf(out, "# HELP horovod_%s %s\n# TYPE horovod_%s counter\n", names[which][0],
                    names[which][1], names[which][0]);
        for (int i = 0; i < v->count; i++)
            for (int k = 0; k < v->jobs[i].rank_count; k++) {
                const struct view_rank *r = &v->jobs[i].ranks[k];

                for (uint32_t n = 0; n < r->look.kind_count && n < HVD_OP_COUNT; n++) {
                    add_name(out, names[which][0], &v->jobs[i], r, view_op_text((uint8_t)n));
                    strbuf_addf(out, "%llu\n",
                                (unsigned long long)kind_value(&r->look.kinds[n], which));
                }
            }
    }
}

void view_add_metrics(const struct view *v, struct strbuf *out)
{
    for (size_t i = 0; i < sizeof metrics / sizeof metrics[0]; i++)
        add_metric(v, &metrics[i], out);
    add_kinds(v, out);
}
