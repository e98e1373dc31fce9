/*
 * stall.c: verdict and words of the stall report.
 *
 * 1. A wait is reported when it is warn_us old, not a period later, and then once per
 *    period as long as it lasts.
 * 2. Missing ranks are asked where they are a little earlier, so that the report has their
 *    answers.  On a busy host the look may come late: then so does the report, not without
 *    having asked.
 * 3. A wait as old as shutdown_us ends the job.
 */
#include "engine/stall.h"

#include <string.h>

#define NAMES_SHOWN 6
#define LEAD_US 250000                  /* an answer takes milliseconds on a loaded host */

void stall_set_times(struct stall_times *s, double warn_s, double shutdown_s)
{
    *s = (struct stall_times){.warn_us = (uint64_t)(warn_s * 1e6)};
    if (s->warn_us == 0)
        s->warn_us = 1;
    s->lead_us = s->warn_us / 4 < LEAD_US ? s->warn_us / 4 : LEAD_US;
    if (shutdown_s > 0 && shutdown_s >= warn_s)
        s->shutdown_us = (uint64_t)(shutdown_s * 1e6);
}

enum stall_action stall_decide(const struct stall_times *s, uint64_t oldest_us,
                               uint64_t now_us, uint64_t *next_us_p)
{
    uint64_t report_us = oldest_us + s->warn_us;
    uint64_t end_us = s->shutdown_us > 0 ? oldest_us + s->shutdown_us : UINT64_MAX;
    uint64_t ask_us;
    enum stall_action action = STALL_NOTHING;

    if (s->reported_us > 0 && s->reported_us + s->warn_us > report_us)
        report_us = s->reported_us + s->warn_us;
    ask_us = report_us - s->lead_us;
    if (now_us >= end_us) {
        *next_us_p = now_us + s->warn_us;
        return STALL_SHUTDOWN;
    }
    if (s->asked && s->asked_us + s->lead_us > report_us)
        report_us = s->asked_us + s->lead_us;
    if (now_us >= report_us && s->asked) {
        *next_us_p = now_us + s->warn_us - s->lead_us;
        action = STALL_REPORT;
    } else if (now_us >= ask_us && !s->asked) {
        *next_us_p = now_us + s->lead_us > report_us ? now_us + s->lead_us : report_us;
        action = STALL_ASK;
    } else {
        *next_us_p = s->asked ? report_us : ask_us;
    }
    if (end_us < *next_us_p)
        *next_us_p = end_us;
    return action;
}

static bool is_older(const struct stall_wait *w, uint64_t limit_us, uint64_t now_us)
{
    return now_us >= w->since_us && now_us - w->since_us >= limit_us;
}

bool stall_missing(const struct stall_wait *waits, int wait_count, int rank_count,
                   uint64_t limit_us, uint64_t now_us, bool *missing)
{
    bool any = false;

    memset(missing, 0, (size_t)rank_count * sizeof *missing);
    for (int i = 0; i < wait_count; i++) {
        if (!is_older(&waits[i], limit_us, now_us))
            continue;
        for (int r = 0; r < rank_count; r++)
            if (waits[i].missing[r])
                any = missing[r] = true;
    }
    return any;
}

/* A name as one word of a log line. */
static void add_name(struct strbuf *out, const char *name)
{
    for (; *name != '\0'; name++) {
        char c = (unsigned char)*name < 0x20 || *name == 0x7f ? '?' : *name;

        strbuf_add(out, &c, 1);
    }
}

static void add_rank(struct strbuf *out, const struct stall_times *s, int rank,
                     const struct stall_wait *waits, int wait_count, uint64_t now_us)
{
    bool too_long = false;
    int names = 0;

    for (int i = 0; i < wait_count; i++)
        too_long |= waits[i].missing[rank] && s->shutdown_us > 0 &&
                    is_older(&waits[i], s->shutdown_us, now_us);
    strbuf_addf(out, "\n%d%s: [", rank, too_long ? "!" : "");
    for (int i = 0; i < wait_count && names <= NAMES_SHOWN; i++) {
        if (!waits[i].missing[rank] || !is_older(&waits[i], s->warn_us, now_us))
            continue;
        if (names++ == NAMES_SHOWN) {
            strbuf_addf(out, " ...");
            break;
        }
        strbuf_addf(out, names > 1 ? ", " : "");
        add_name(out, waits[i].name);
    }
    strbuf_addf(out, "]");
}

static uint64_t oldest_of(const struct stall_wait *waits, int wait_count)
{
    uint64_t oldest = UINT64_MAX;

    for (int i = 0; i < wait_count; i++)
        oldest = waits[i].since_us < oldest ? waits[i].since_us : oldest;
    return oldest;
}

static bool is_missing(const struct stall_times *s, int rank,
                       const struct stall_wait *waits, int wait_count, uint64_t now_us)
{
    for (int i = 0; i < wait_count; i++)
        if (waits[i].missing[rank] && is_older(&waits[i], s->warn_us, now_us))
            return true;
    return false;
}

static void add_kinds(struct strbuf *out, const struct stall_times *s,
                      const struct stall_wait *waits, int wait_count, int rank_count,
                      uint64_t now_us)
{
    const struct stall_wait *a = stall_find_kinds(waits, wait_count, rank_count,
                                                  s->warn_us, now_us);
    struct strbuf text;

    if (a == NULL)
        return;
    strbuf_init(&text);
    stall_describe_kinds(&text, a, waits, wait_count, rank_count);
    strbuf_addf(out, "\nThe cause: ");
    add_name(out, text.failed ? "one name for different kinds of operation" : text.text);
    strbuf_addf(out, ".");
    strbuf_release(&text);
}

void stall_describe(struct strbuf *out, const struct stall_times *s,
                    const struct stall_wait *waits, int wait_count, int rank_count,
                    const char *const *where, uint64_t now_us)
{
    strbuf_addf(out,
                "Some tensors were submitted by a part of the ranks only and wait for the "
                "others for more than %g seconds (the oldest for %.1f). Perhaps the ranks "
                "submit different tensors, or in a different order, and will deadlock.\n"
                "Missing ranks:", (double)s->warn_us / 1e6,
                (double)(now_us - oldest_of(waits, wait_count)) / 1e6);
    for (int r = 0; r < rank_count; r++)
        if (is_missing(s, r, waits, wait_count, now_us))
            add_rank(out, s, r, waits, wait_count, now_us);
    for (int r = 0; r < rank_count && where != NULL; r++)
        if (where[r] != NULL && is_missing(s, r, waits, wait_count, now_us)) {
            strbuf_addf(out, "\nRank %d ", r);
            add_name(out, where[r]);
        }
    add_kinds(out, s, waits, wait_count, rank_count, now_us);
}
