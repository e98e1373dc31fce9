/*
 * view_trace.c: the flight recorders of all ranks on one clock, as a Chrome trace, for the
 * dashboard and Perfetto: a process per rank; an operation lasts from its submission to its
 * end.  Of cached operations that a rank came to last there is only the end: a dot.
 */
#include "base/recorder.h"
#include "launch/view.h"

#include <stdlib.h>
#include <string.h>

#define OPEN_MAX 256                    /* operations of a rank at a time that are followed */

struct trace {
    struct strbuf *out;
    int64_t start_us;                   /* 0 of the trace, on the clock of the viewer */
    bool has_event;
};

struct under_way {
    const struct look_record *records[OPEN_MAX];
    int count;
};

static void begin_event(struct trace *t)
{
    strbuf_addf(t->out, "%s", t->has_event ? ",\n" : "");
    t->has_event = true;
}

static int64_t time_of(const struct view_rank *r, uint64_t us)
{
    return (int64_t)us - r->offset_us;
}

static void add_span(struct trace *t, const struct view_rank *r, const struct look_record *c,
                     uint64_t from_us, uint64_t to_us, const char *end)
{
    begin_event(t);
    strbuf_addf(t->out, "{\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %lld, "
                        "\"dur\": %llu, \"cat\": \"%s\", \"name\": ", r->rank, c->set,
                (long long)(time_of(r, from_us) - t->start_us),
                (unsigned long long)(to_us - from_us), view_op_text(c->op));
    strbuf_add_json(t->out, c->name);
    strbuf_addf(t->out, ", \"args\": {\"bytes\": %llu, \"end\": \"%s\"}}",
                (unsigned long long)c->bytes, end);
}

static void add_note(struct trace *t, const struct view_rank *r, const struct look_record *c)
{
    begin_event(t);
    strbuf_addf(t->out, "{\"ph\": \"i\", \"s\": \"p\", \"pid\": %d, \"tid\": 0, \"ts\": %lld, "
                        "\"name\": ", r->rank, (long long)(time_of(r, c->us) - t->start_us));
    strbuf_add_json(t->out, c->name);
    strbuf_addf(t->out, "}");
}

static bool is_same(const struct look_record *a, const struct look_record *b)
{
    return a->op == b->op && a->set == b->set && strcmp(a->name, b->name) == 0;
}

static void take(struct trace *t, const struct view_rank *r, const struct look_record *c,
                 struct under_way *open)
{
    if (c->event == RECORDER_NOTE) {
        add_note(t, r, c);
        return;
    }
    if (c->event == RECORDER_SUBMIT && open->count < OPEN_MAX)
        open->records[open->count++] = c;
    if (c->event != RECORDER_DONE && c->event != RECORDER_FAIL)
        return;
    for (int i = 0; i < open->count; i++)
        if (is_same(open->records[i], c)) {
            uint64_t from_us = open->records[i]->us;

            add_span(t, r, c, from_us < c->us ? from_us : c->us, c->us,
                     c->event == RECORDER_DONE ? "done" : "failed");
            open->records[i] = open->records[--open->count];
            return;
        }
    add_span(t, r, c, c->us, c->us, c->event == RECORDER_DONE ? "done" : "failed");
}

static void add_rank(struct trace *t, const struct view_rank *r)
{
    struct under_way open = {.count = 0};

    begin_event(t);
    strbuf_addf(t->out, "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, \"args\": "
                        "{\"name\": \"rank %d\"}},\n{\"ph\": \"M\", \"name\": "
                        "\"process_sort_index\", \"pid\": %d, \"args\": {\"sort_index\": %d}}",
                r->rank, r->rank, r->rank, r->rank);
    for (uint32_t i = 0; i < r->look.record_count; i++)
        take(t, r, &r->look.records[i], &open);
    for (int i = 0; i < open.count; i++)
        if (open.records[i]->us <= r->look.now_us)
            add_span(t, r, open.records[i], open.records[i]->us, r->look.now_us, "open");
}

void view_add_trace(const struct view *v, struct strbuf *out)
{
    struct trace t = {.out = out, .start_us = INT64_MAX};
    int64_t now_us = INT64_MIN;

    for (int i = 0; i < v->count; i++)
        for (int k = 0; k < v->jobs[i].rank_count; k++) {
            const struct view_rank *r = &v->jobs[i].ranks[k];

            if (r->look.record_count > 0 && time_of(r, r->look.records[0].us) < t.start_us)
                t.start_us = time_of(r, r->look.records[0].us);
            if (r->has_look && time_of(r, r->look.now_us) > now_us)
                now_us = time_of(r, r->look.now_us);
        }
    if (t.start_us == INT64_MAX)
        t.start_us = now_us == INT64_MIN ? 0 : now_us;
    strbuf_addf(out, "{\"displayTimeUnit\": \"ms\", \"now\": %lld, \"traceEvents\": [\n",
                (long long)(now_us == INT64_MIN ? 0 : now_us - t.start_us));
    for (int i = 0; i < v->count && i < 1; i++)
        for (int k = 0; k < v->jobs[i].rank_count; k++)
            if (v->jobs[i].ranks[k].has_look)
                add_rank(&t, &v->jobs[i].ranks[k]);
    strbuf_addf(out, "]}\n");
}
