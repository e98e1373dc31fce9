/* view_text.c: the view as a table for a terminal. */
#include "base/log.h"
#include "launch/view.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define HOST_WIDTH 20
#define WAIT_SHOWN_S 0.2                /* younger waits are the normal course of a step */
#define WAITS_SHOWN 3
#define WARNINGS_SHOWN 3
#define OTHER_COLUMNS 66                /* all but host and state */
#define STATE_LEAST 24

/* "1.5 GB", three digits. */
static void add_size(struct strbuf *out, double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    int u = 0;

    for (; bytes >= 999.5 && u < 5; u++)
        bytes /= 1000;
    strbuf_addf(out, "%.*f %s", u == 0 || bytes >= 99.95 ? 0 : 1, bytes, units[u]);
}

static void add_age(struct strbuf *out, double s)
{
    if (s < 0)
        strbuf_addf(out, "-");
    else if (s < 1)
        strbuf_addf(out, "%.0f ms", s * 1000);
    else if (s < 100)
        strbuf_addf(out, "%.1f s", s);
    else
        strbuf_addf(out, "%.0f min", s / 60);
}

static void add_cell(struct strbuf *out, const struct strbuf *cell, int width)
{
    strbuf_addf(out, "%*.*s  ", width, width < 0 ? -width : width, cell->text);
}

/* Bytes that are part of a character before the cut would show as garbage. */
static size_t cut_at(const char *text, size_t limit)
{
    size_t n = strlen(text);

    if (n <= limit)
        return n;
    for (n = limit; n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80; n--)
        ;
    return n;
}

struct columns {
    int host, state;                    /* widths */
};

static void add_rank(const struct view_job *j, const struct view_rank *r,
                     const struct columns *c, struct strbuf *out)
{
    uint64_t rss = r->has_look ? r->look.rss_bytes : r->process.rss_bytes;
    struct strbuf cell;

    strbuf_init(&cell);
    if (r->rank >= 0)
        strbuf_addf(&cell, "%d", r->rank);
    else
        strbuf_addf(&cell, "?");
    add_cell(out, &cell, 4);
    strbuf_addf(out, "%-*.*s  %7u  ", c->host, c->host, r->host, r->pid);
    for (int i = 0; i < 6; i++) {
        strbuf_clear(&cell);
        if (i == 0 && r->seconds > 0)
            strbuf_addf(&cell, "%.*f", r->ops_s < 10 ? 1 : 0, r->ops_s);
        else if (i == 1 && r->seconds > 0)
            add_size(&cell, r->bytes_s);
        else if (i == 2 && r->seconds > 0)
            strbuf_addf(&cell, "%.0f%%", r->waiting * 100);
        else if (i == 3 && r->seconds > 0)
            strbuf_addf(&cell, "%.0f%%", r->cpu * 100);
        else if (i == 4 && rss > 0)
            add_size(&cell, (double)rss);
        else if (i == 5)
            add_age(&cell, view_rank_age(r));
        else
            strbuf_addf(&cell, "-");
        add_cell(out, &cell, i == 1 || i == 4 || i == 5 ? 7 : i == 0 ? 6 : 5);
    }
    strbuf_clear(&cell);
    view_describe_rank(j, r, &cell);
    strbuf_add(out, cell.text, cut_at(cell.text, (size_t)c->state));
    strbuf_addf(out, "\n");
    strbuf_release(&cell);
}

static void add_title(const struct view_job *j, struct strbuf *out)
{
    struct strbuf age;

    strbuf_addf(out, "Job %.12s: %d rank%s", j->id[0] != '\0' ? j->id : "(no name)", j->size,
                j->size == 1 ? "" : "s");
    if (j->has_launcher && j->host_count > 0)
        strbuf_addf(out, " on %d host%s", j->host_count, j->host_count > 1 ? "s" : "");
    if (j->has_launcher) {
        strbuf_init(&age);
        add_age(&age, (double)(j->job.now_us - j->job.since_us) / 1e6);
        strbuf_addf(out, ", horovodrun %u on %s: %s%s, for %s\n  %s\n", j->job.pid,
                    j->job.host, j->job.is_elastic ? "elastic, " : "", j->job.state, age.text,
                    j->job.command);
        strbuf_release(&age);
    } else {
        strbuf_addf(out, ", not started by horovodrun; its ranks on this host:\n");
    }
    for (int i = 0; i < j->host_count; i++)
        if (!j->hosts[i].has_answered)
            strbuf_addf(out, "  host %s has not answered: %s\n", j->hosts[i].name,
                        j->hosts[i].state);
}

static void add_waits(const struct view_job *j, struct strbuf *out)
{
    int shown = 0;

    for (int i = 0; i < j->wait_count && shown < WAITS_SHOWN; i++) {
        const struct view_wait *w = &j->waits[i];

        if (w->age_s < WAIT_SHOWN_S || w->missing_count == 0)
            continue;
        strbuf_addf(out, "  ");
        view_add_operation(out, w->op, w->name);
        strbuf_addf(out, " waits ");
        add_age(out, w->age_s);
        strbuf_addf(out, " for rank%s ", w->missing_count > 1 ? "s" : "");
        strbuf_add_ranks(out, w->missing, j->size);
        if (w->wait_count > 0) {
            strbuf_addf(out, "; there %s rank%s ", w->wait_count > 1 ? "are" : "is",
                        w->wait_count > 1 ? "s" : "");
            strbuf_add_ranks(out, w->waits, j->size);
        }
        strbuf_addf(out, "\n");
        shown++;
    }
    if (j->slowest >= 0)
        strbuf_addf(out, "  slowest: rank %d; others slept %.1f s for it, summed over them\n",
                    j->slowest, j->slowest_s);
}

/* The newest of all ranks. */
static void add_warnings(const struct view_job *j, struct strbuf *out)
{
    const struct look_warning *last[WARNINGS_SHOWN] = {NULL};
    int ranks[WARNINGS_SHOWN];

    for (int i = 0; i < j->rank_count; i++)
        for (uint32_t k = 0; k < j->ranks[i].look.warning_count; k++) {
            const struct look_warning *w = &j->ranks[i].look.warnings[k];
            int at = WARNINGS_SHOWN;

            while (at > 0 && (last[at - 1] == NULL || last[at - 1]->wall_us < w->wall_us))
                at--;
            for (int m = WARNINGS_SHOWN - 1; m > at; m--) {
                last[m] = last[m - 1];
                ranks[m] = ranks[m - 1];
            }
            if (at < WARNINGS_SHOWN) {
                last[at] = w;
                ranks[at] = j->ranks[i].rank;
            }
        }
    for (int i = WARNINGS_SHOWN - 1; i >= 0; i--) {
        time_t s;
        struct tm parts;
        char when[16];

        if (last[i] == NULL)
            continue;
        s = (time_t)(last[i]->wall_us / 1000000);
        localtime_r(&s, &parts);
        strftime(when, sizeof when, "%H:%M:%S", &parts);
        strbuf_addf(out, "  %s rank %d %s: %.*s\n", when, ranks[i],
                    last[i]->level >= LOG_ERROR ? "error" : "warning",
                    (int)cut_at(last[i]->text, 200), last[i]->text);
    }
}

static struct columns choose_columns(const struct view_job *j, int width)
{
    struct columns c = {4, LOOK_TEXT};

    for (int i = 0; i < j->rank_count; i++) {
        int n = (int)strlen(j->ranks[i].host);

        c.host = n > c.host ? n : c.host;
    }
    c.host = c.host < HOST_WIDTH ? c.host : HOST_WIDTH;
    if (width > 0)
        c.state = width - OTHER_COLUMNS - c.host;
    if (c.state < STATE_LEAST)
        c.state = STATE_LEAST;
    return c;
}

void view_add_text(const struct view *v, int width, struct strbuf *out)
{
    for (int i = 0; i < v->count; i++) {
        const struct view_job *j = &v->jobs[i];
        struct columns c = choose_columns(j, width);

        add_title(j, out);
        strbuf_addf(out, "%4s  %-*s  %7s  %6s  %7s  %5s  %5s  %7s  %7s  %s\n", "rank", c.host,
                    "host", "pid", "ops/s", "bytes/s", "waits", "cpu", "memory", "since",
                    "what it does");
        for (int k = 0; k < j->rank_count; k++)
            add_rank(j, &j->ranks[k], &c, out);
        add_waits(j, out);
        add_warnings(j, out);
        if (i + 1 < v->count)
            strbuf_addf(out, "\n");
    }
}
