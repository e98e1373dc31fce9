/* view_json.c: the view for other programs; the fields are described in docs/status.md. */
#include "horovod/horovod.h"
#include "launch/view.h"

static const char *comma(int i)
{
    return i > 0 ? ", " : "";
}

static void add_text(struct strbuf *out, const char *name, const char *text)
{
    strbuf_addf(out, ", \"%s\": ", name);
    strbuf_add_json(out, text);
}

static void add_number(struct strbuf *out, const char *name, double value)
{
    strbuf_addf(out, ", \"%s\": %.6g", name, value);
}

static void add_count(struct strbuf *out, const char *name, uint64_t value)
{
    strbuf_addf(out, ", \"%s\": %llu", name, (unsigned long long)value);
}

static void add_members(struct strbuf *out, const char *name, const bool *member, int count)
{
    int shown = 0;

    strbuf_addf(out, ", \"%s\": [", name);
    for (int i = 0; i < count; i++)
        if (member[i])
            strbuf_addf(out, "%s%d", comma(shown++), i);
    strbuf_addf(out, "]");
}

/* ---- One rank --------------------------------------------------------------------- */

static void add_kinds(struct strbuf *out, const struct look_rank *l)
{
    strbuf_addf(out, ", \"operations\": {");
    for (uint32_t i = 0; i < l->kind_count && i < HVD_OP_COUNT; i++)
        strbuf_addf(out, "%s\"%s\": {\"count\": %llu, \"bytes\": %llu, \"errors\": %llu}",
                    comma((int)i), view_op_text((uint8_t)i), (unsigned long long)l->kinds[i].count,
                    (unsigned long long)l->kinds[i].bytes,
                    (unsigned long long)l->kinds[i].errors);
    strbuf_addf(out, "}");
}

static void add_warnings(struct strbuf *out, const struct look_rank *l)
{
    strbuf_addf(out, ", \"warnings\": [");
    for (uint32_t i = 0; i < l->warning_count; i++) {
        strbuf_addf(out, "%s{\"time\": %.6f", comma((int)i),
                    (double)l->warnings[i].wall_us / 1e6);
        add_text(out, "text", l->warnings[i].text);
        strbuf_addf(out, "}");
    }
    strbuf_addf(out, "]");
}

static void add_look(struct strbuf *out, const struct view_rank *r)
{
    const struct look_rank *l = &r->look;

    add_text(out, "phase", look_phase_text(l->phase));
    add_count(out, "generation", l->generation);
    add_count(out, "open", l->open);
    if (l->open > 0) {
        add_text(out, "operation", view_op_text(l->op));
        add_text(out, "tensor", l->name);
    }
    if (l->text[0] != '\0')
        add_text(out, l->phase == LOOK_PHASE_RUNNING ? "where" : "why", l->text);
    add_number(out, "interval_seconds", r->seconds);
    add_number(out, "operations_per_second", r->ops_s);
    add_number(out, "bytes_per_second", r->bytes_s);
    add_number(out, "cpu", r->cpu);
    add_number(out, "waiting", r->waiting);
    add_number(out, "blamed_seconds", r->blamed_s);
    add_count(out, "memory_bytes", l->rss_bytes);
    add_count(out, "memory_peak_bytes", l->peak_bytes);
    add_count(out, "bytes_sent", l->sent);
    add_count(out, "bytes_received", l->received);
    add_number(out, "cpu_seconds", (double)l->cpu_us / 1e6);
    add_number(out, "wait_seconds", (double)l->slept_us / 1e6);
    add_count(out, "cache_hits", l->cache_hits);
    add_count(out, "cache_misses", l->cache_misses);
    add_count(out, "stall_reports", l->stalls);
    add_kinds(out, l);
    add_warnings(out, l);
}

static void add_process(struct strbuf *out, const struct view_rank *r)
{
    const struct look_process *p = &r->process;
    char state[2] = {p->state, '\0'};

    strbuf_addf(out, ", \"ended\": %s", p->is_ended ? "true" : "false");
    if (p->is_ended) {
        add_count(out, "exit_code", p->code);
        add_count(out, "signal", p->signal);
    }
    if (p->state != 0)
        add_text(out, "process_state", state);
    if (!r->has_look && p->rss_bytes > 0)
        add_count(out, "memory_bytes", p->rss_bytes);
}

static void add_rank(const struct view_job *j, const struct view_rank *r, struct strbuf *out)
{
    struct strbuf state;

    strbuf_addf(out, "{\"rank\": %d, \"pid\": %u", r->rank, r->pid);
    add_text(out, "host", r->host);
    strbuf_init(&state);
    view_describe_rank(j, r, &state);
    add_text(out, "state", state.text);
    strbuf_release(&state);
    if (view_rank_age(r) >= 0)
        add_number(out, "since_seconds", view_rank_age(r));
    strbuf_addf(out, ", \"answers\": %s", r->has_look ? "true" : "false");
    if (r->has_process)
        add_process(out, r);
    if (r->has_look)
        add_look(out, r);
    strbuf_addf(out, "}");
}

/* ---- One job ---------------------------------------------------------------------- */

static void add_waits(const struct view_job *j, struct strbuf *out)
{
    strbuf_addf(out, ", \"waits\": [");
    for (int i = 0; i < j->wait_count; i++) {
        const struct view_wait *w = &j->waits[i];

        strbuf_addf(out, "%s{\"seconds\": %.6f", comma(i), w->age_s);
        add_text(out, "operation", view_op_text(w->op));
        add_text(out, "tensor", w->name);
        add_members(out, "waiting", w->waits, j->size);
        add_members(out, "missing", w->missing, j->size);
        strbuf_addf(out, "}");
    }
    strbuf_addf(out, "]");
}

static void add_launcher(const struct view_job *j, struct strbuf *out)
{
    strbuf_addf(out, ", \"launcher\": {\"pid\": %u", j->job.pid);
    add_text(out, "host", j->job.host);
    add_text(out, "state", j->job.state);
    add_number(out, "since_seconds", (double)(j->job.now_us - j->job.since_us) / 1e6);
    add_text(out, "command", j->job.command);
    strbuf_addf(out, ", \"elastic\": %s, \"hosts\": [", j->job.is_elastic ? "true" : "false");
    for (int i = 0; i < j->host_count; i++) {
        strbuf_addf(out, "%s{\"answers\": %s", comma(i),
                    j->hosts[i].has_answered ? "true" : "false");
        add_text(out, "name", j->hosts[i].name);
        add_text(out, "state", j->hosts[i].state);
        add_number(out, "clock_offset_seconds", (double)j->hosts[i].offset_us / 1e6);
        strbuf_addf(out, "}");
    }
    strbuf_addf(out, "]}");
}

static void add_job(const struct view_job *j, struct strbuf *out)
{
    strbuf_addf(out, "{\"job\": ");
    strbuf_add_json(out, j->id);
    add_count(out, "size", (uint64_t)j->size);
    if (j->has_launcher)
        add_launcher(j, out);
    add_number(out, "operations_per_second", j->ops_s);
    add_number(out, "bytes_per_second", j->bytes_s);
    if (j->slowest >= 0) {
        add_count(out, "slowest_rank", (uint64_t)j->slowest);
        add_number(out, "slowest_seconds", j->slowest_s);
    }
    add_waits(j, out);
    strbuf_addf(out, ", \"ranks\": [");
    for (int i = 0; i < j->rank_count; i++) {
        strbuf_addf(out, "%s", i > 0 ? ",\n" : "");
        add_rank(j, &j->ranks[i], out);
    }
    strbuf_addf(out, "]}");
}

void view_add_json(const struct view *v, struct strbuf *out)
{
    strbuf_addf(out, "{\"jobs\": [");
    for (int i = 0; i < v->count; i++) {
        strbuf_addf(out, "%s", i > 0 ? ",\n" : "");
        add_job(&v->jobs[i], out);
    }
    strbuf_addf(out, "]}\n");
}
