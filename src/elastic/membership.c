/* membership.c: events, and what follows from them; the rules are in membership.h. */
#include "elastic/membership_int.h"

#include "base/process.h"
#include "wire/elastic_message.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct member_worker *worker_of(const struct membership *m, int number)
{
    return number >= 1 && number <= m->worker_count ? &m->workers[number - 1] : NULL;
}

bool worker_is_alive(const struct member_worker *w)
{
    return w->state == WORKER_STARTING || w->state == WORKER_READY ||
           w->state == WORKER_MEMBER;
}

static void mark_broken(struct membership *m, uint64_t now_us)
{
    if (!m->is_broken)
        m->broken_us = now_us;
    m->is_broken = true;
}

void worker_enter(struct membership *m, struct member_worker *w, enum worker_state state,
                  uint64_t now_us)
{
    w->state = state;
    w->since_us = now_us;
    w->is_formed = false;
    if (state == WORKER_STOPPED && w->is_member) {
        mark_broken(m, now_us);
        m->had_failure = true;
    }
}

void membership_name(const struct membership *m, int worker, char *name, size_t capacity)
{
    const struct member_worker *w = worker_of(m, worker);

    if (w == NULL)
        snprintf(name, capacity, "worker %d", worker);
    else
        snprintf(name, capacity, "%s[%d]", m->hosts[w->host].name, w->slot);
}

/* ---- Failures ------------------------------------------------------------------------ */

static void membership_fail_worker(struct membership *m, int number, const char *why,
                                   uint64_t now_us)
{
    struct member_worker *w = worker_of(m, number);
    char name[HVD_HOST_MAX + 16];

    if (w->counted)
        return;
    w->counted = true;
    membership_name(m, number, name, sizeof name);
    strbuf_addf(&m->events, "%s%s %s", m->events.length > 0 ? ", " : "", name, why);
    if (m->lost.length < 4096)
        strbuf_addf(&m->lost, "%s%s %s", m->lost.length > 0 ? ", " : "", name, why);
    if (m->first_failed == 0)
        m->first_failed = number;
    if (w->is_member || m->generation == 0) {
        if (m->unhandled == 0)
            m->unhandled = number;
        mark_broken(m, now_us);
        m->had_failure = true;
    } else {
        membership_say(m, "%s %s, before it had joined", name, why);
        strbuf_clear(&m->events);
    }
    if (w->state != WORKER_ENDED) {
        action_put(m, MEMBER_STOP, number);
        worker_enter(m, w, WORKER_STOPPED, now_us);
    }
    hosts_failed(m, w, now_us);
}

static void fail_late(struct membership *m, uint64_t now_us)
{
    for (int n = 1; n <= m->worker_count; n++) {
        struct member_worker *w = worker_of(m, n);
        char why[128];

        if (w->state == WORKER_GONE && now_us - w->since_us >= m->opt.gone_ms * 1000ull)
            membership_fail_worker(m, n, "lost its connection to the driver", now_us);
        if (w->state == WORKER_RETIRED &&
            now_us - w->since_us >= (uint64_t)m->opt.grace_ms * 1000) {
            action_put(m, MEMBER_STOP, n);
            worker_enter(m, w, WORKER_STOPPED, now_us);
        }
        if (w->state == WORKER_STOPPED &&
            now_us - w->since_us >= (uint64_t)m->opt.grace_ms * 1000 + UNENDING_US)
            worker_enter(m, w, WORKER_ENDED, now_us);
        if (!m->is_broken || now_us - m->broken_us < m->opt.elastic_timeout_us)
            continue;
        snprintf(why, sizeof why, "did not ask for its new rank within %.0f s",
                 (double)m->opt.elastic_timeout_us / 1e6);
        if (w->state == WORKER_MEMBER)
            membership_fail_worker(m, n, why, now_us);
        else if (w->state == WORKER_STARTING &&
                 now_us - w->since_us >= m->opt.elastic_timeout_us)
            membership_fail_worker(m, n, why, now_us);
    }
}

/* ---- What follows -------------------------------------------------------------------- */

struct census {
    int starting, ready, member, gone, leaving;     /* by state; leaving: RETIRED, STOPPED */
    int with_state;                     /* living members of the present generation */
    int usable;                         /* ready, and wanted */
    int coming;                         /* starting, and wanted */
};

static struct census take_census(const struct membership *m, uint64_t now_us)
{
    struct census c = {0};

    for (int n = 1; n <= m->worker_count; n++) {
        const struct member_worker *w = worker_of(m, n);
        bool is_wanted = worker_is_alive(w) && worker_is_wanted(m, w, now_us);

        c.starting += w->state == WORKER_STARTING;
        c.ready += w->state == WORKER_READY;
        c.member += w->state == WORKER_MEMBER;
        c.gone += w->state == WORKER_GONE;
        c.leaving += w->state == WORKER_RETIRED || w->state == WORKER_STOPPED;
        c.with_state += w->is_member && (worker_is_alive(w) || w->state == WORKER_GONE);
        c.usable += is_wanted && w->state == WORKER_READY;
        c.coming += is_wanted && w->state == WORKER_STARTING;
    }
    return c;
}

/* Workers that never joined and are not wanted any more: their slot is not, or the members
 * have come to the end of the training without them. */
static void dismiss_unwanted(struct membership *m, uint64_t now_us)
{
    bool is_late = m->is_finishing && m->generation > 0;

    for (int n = 1; n <= m->worker_count; n++) {
        struct member_worker *w = worker_of(m, n);

        if (w->is_member || !worker_is_alive(w) ||
            (worker_is_wanted(m, w, now_us) && !is_late))
            continue;
        if (w->state == WORKER_READY) {
            action_put(m, MEMBER_RETIRE, n)->text =
                strdup(is_late ? "the training has ended"
                               : "its host is not part of the job any more");
            worker_enter(m, w, WORKER_RETIRED, now_us);
        } else {
            action_put(m, MEMBER_STOP, n);
            worker_enter(m, w, WORKER_STOPPED, now_us);
        }
    }
}

/* Bits and an identity of what is different from the present generation. */
static unsigned find_change(const struct membership *m, const struct census *c,
                            uint64_t now_us, uint64_t *key_p)
{
    uint64_t key = 0, first_us = MEMBERSHIP_NONE;
    unsigned bits = 0;

    for (int n = 1; n <= m->worker_count; n++) {
        const struct member_worker *w = worker_of(m, n);

        if (w->state == WORKER_MEMBER && !worker_is_wanted(m, w, now_us)) {
            bits |= ELASTIC_REMOVED;
            key = key * 1000003 + (uint64_t)n * 2;
        } else if (w->state == WORKER_READY && !w->is_member) {
            first_us = w->since_us < first_us ? w->since_us : first_us;
        }
    }
    if (first_us != MEMBERSHIP_NONE && !m->is_finishing &&
        (c->coming == 0 || now_us - first_us >= PATIENCE_US)) {
        bits |= ELASTIC_ADDED;
        for (int n = 1; n <= m->worker_count; n++)
            if (worker_of(m, n)->state == WORKER_READY)
                key = key * 1000003 + (uint64_t)n * 2 + 1;
    }
    *key_p = key;
    return bits;
}

/* Rules 4, 5 and 7. */
static void send_updates(struct membership *m, const struct census *c, uint64_t now_us)
{
    uint64_t key;
    unsigned bits;

    if (m->generation == 0 || m->is_broken)
        return;
    bits = find_change(m, c, now_us, &key);
    if (bits == m->update && key == m->update_key)
        return;
    m->version++;
    m->update = bits;
    m->update_key = key;
    for (int n = 1; n <= m->worker_count; n++) {
        struct member_worker *w = worker_of(m, n);
        struct action *action;

        if (w->state != WORKER_MEMBER)
            continue;
        w->told_update = bits | (w->is_leaving ? ELASTIC_LEAVE : 0u);
        action = action_put(m, MEMBER_UPDATE, n);
        action->a.version = m->version;
        action->a.update = w->told_update;
    }
}

/* Rule 1. */
static bool can_form(const struct membership *m, const struct census *c, uint64_t now_us)
{
    bool is_late = m->broken_us > 0 && now_us - m->broken_us >= m->opt.elastic_timeout_us;

    if (!m->has_begun || c->gone > 0)
        return false;
    if (m->generation > 0)
        return m->is_broken && c->member == 0;
    return c->usable > 0 && (c->coming == 0 || is_late);
}

static void check_slots(struct membership *m, uint64_t now_us)
{
    int wanted = slots_wanted(m, now_us);
    int needed = m->has_begun ? m->opt.min_np : m->opt.np;

    if (!m->has_begun && wanted >= needed)
        m->has_begun = true;
    if (m->has_begun && wanted < needed)
        hosts_use_empty(m);
    if (wanted >= needed || slots_wanted(m, now_us) >= needed || m->is_finishing) {
        m->short_us = 0;
        return;
    }
    if (m->short_us == 0)
        m->short_us = now_us;
    if (now_us - m->short_us < m->opt.elastic_timeout_us)
        return;
    membership_end(m, false, m->unhandled != 0 ? m->unhandled : m->first_failed,
                   "only %d of %d slots that are needed have been there for %.0f s "
                   "(--elastic-timeout); lost: %s; discovery said last: %s", wanted, needed,
                   (double)(now_us - m->short_us) / 1e6,
                   m->lost.length > 0 ? m->lost.text : "nobody",
                   m->discovery.length > 0 ? m->discovery.text : "nothing");
}

static void check_end(struct membership *m, const struct census *c)
{
    int alive = c->starting + c->ready + c->member + c->gone;

    if (!m->has_begun || m->worker_count == 0)
        return;
    if (m->is_leaving) {
        if (alive + c->leaving == 0)
            leave_end(m);
    } else if (m->is_finishing && alive + c->leaving == 0) {
        if (m->unhandled == 0)
            membership_end(m, true, 0, "all workers have finished");
        else
            membership_end(m, false, m->unhandled, "%s", m->lost.text);
    } else if (m->is_finishing && c->ready > 0 && c->starting + c->member + c->gone == 0) {
        char name[HVD_HOST_MAX + 16];

        membership_name(m, m->finished, name, sizeof name);
        membership_end(m, false, m->unhandled,
                       "%s has finished while %d workers still needed it, and %d are too "
                       "few to go on (min-np %d)", name, c->ready, c->ready, m->opt.min_np);
    } else if (!m->is_finishing && m->generation > 0 && c->with_state == 0) {
        membership_end(m, false, m->unhandled != 0 ? m->unhandled : m->first_failed,
                       "nobody who has the state of the training is left: %s",
                       m->lost.length > 0 ? m->lost.text : m->events.text);
    } else if (!m->is_finishing && m->generation == 0 && alive < m->opt.min_np &&
               m->first_failed != 0 && !hosts_may_repair(m)) {
        membership_end(m, false, m->first_failed, "%d workers are left, before the job has "
                       "begun (min-np %d): %s", alive, m->opt.min_np, m->lost.text);
    }
}

/* Rule 10.  0: nobody. */
static int find_cut_off(const struct membership *m)
{
    int worst = 0, others = 0;

    for (int n = 1; n <= m->worker_count; n++) {
        const struct member_worker *w = worker_of(m, n), *o = worker_of(m, worst);

        if (w->state != WORKER_READY || !w->is_member)
            continue;
        others++;
        if (w->accused >= ACCUSED_MAX &&
            (o == NULL || w->accused > o->accused ||
             (w->accused == o->accused && !form_is_better_root(w, o))))
            worst = n;
    }
    return others > 1 ? worst : 0;
}

static void fail_cut_off(struct membership *m, uint64_t now_us)
{
    int worst = find_cut_off(m);

    if (worst == 0)
        return;
    for (int n = 1; n <= m->worker_count; n++)
        worker_of(m, n)->accused = 0;
    membership_fail_worker(m, worst, "is not reached by the others", now_us);
}

void membership_settle(struct membership *m, uint64_t now_us)
{
    struct census c;

    m->settled_us = now_us;
    if (m->is_over)
        return;
    hosts_return(m, now_us);
    fail_late(m, now_us);
    if (!m->is_leaving)
        check_slots(m, now_us);
    if (m->has_begun && !m->is_over)
        dismiss_unwanted(m, now_us);
    if (m->has_begun && !m->is_finishing && !m->is_leaving && !m->is_over)
        hosts_start_missing(m, now_us);
    c = take_census(m, now_us);
    if (!m->is_over && can_form(m, &c, now_us)) {
        fail_cut_off(m, now_us);
        form_next(m, now_us);
    }
    c = take_census(m, now_us);
    if (!m->is_over)
        check_end(m, &c);
    if (!m->is_over)
        send_updates(m, &c, now_us);
}

/* ---- Events -------------------------------------------------------------------------- */

void membership_hosts(struct membership *m, const struct hvd_host *hosts, int count,
                      uint64_t now_us)
{
    hosts_take(m, hosts, count);
    membership_settle(m, now_us);
}

void membership_discovery_failed(struct membership *m, const char *why, uint64_t now_us)
{
    strbuf_clear(&m->discovery);
    strbuf_addf(&m->discovery, "%s", why);
    if (!m->has_begun && m->host_count == 0)
        membership_end(m, false, 0, "%s", why);
    else
        membership_settle(m, now_us);
}

bool membership_connected(struct membership *m, int worker, uint64_t now_us)
{
    struct member_worker *w = worker_of(m, worker);

    if (w == NULL || m->is_over || w->state != WORKER_STARTING || w->was_connected)
        return false;
    w->connected = w->was_connected = true;
    membership_settle(m, now_us);
    return true;
}

bool membership_ready(struct membership *m, int worker, uint32_t generation, bool failed,
                      uint64_t commits, uint64_t now_us)
{
    struct member_worker *w = worker_of(m, worker);

    if (w == NULL || !w->connected || !worker_is_alive(w) || generation > m->generation ||
        (generation == 0 && w->state == WORKER_MEMBER))
        return false;
    w->commits = commits;
    if (w->state == WORKER_MEMBER) {
        mark_broken(m, now_us);
        m->had_failure |= failed;
    } else if (m->generation == 0 && m->broken_us == 0) {
        m->broken_us = now_us;          /* the first one waits since now */
    }
    worker_enter(m, w, WORKER_READY, now_us);
    membership_settle(m, now_us);
    return true;
}

void membership_accuse(struct membership *m, int worker, uint32_t generation, int lost_rank)
{
    for (int n = 1; n <= m->worker_count && generation == m->generation; n++) {
        struct member_worker *w = worker_of(m, n);

        if (n != worker && w->is_member && w->rank == lost_rank && worker_is_alive(w))
            w->accused++;
    }
}

static bool all_formed(const struct membership *m)
{
    for (int n = 1; n <= m->worker_count; n++)
        if (worker_of(m, n)->state == WORKER_MEMBER && !worker_of(m, n)->is_formed)
            return false;
    return true;
}

/* A line per change: who left or came, why, the new size, how long it took. */
static void say_change(struct membership *m, uint64_t now_us)
{
    int size = 0;

    for (int n = 1; n <= m->worker_count; n++)
        size += worker_of(m, n)->state == WORKER_MEMBER;
    if (m->generation > 1)
        membership_say(m, "%s; %d worker%s train%s on after %.2f s",
                       m->events.length > 0 ? m->events.text : "the job has met again", size,
                       size == 1 ? "" : "s", size == 1 ? "s" : "",
                       (double)(now_us - m->broken_us) / 1e6);
    strbuf_clear(&m->events);
}

void membership_formed(struct membership *m, int worker, uint32_t generation,
                       uint64_t now_us)
{
    struct member_worker *w = worker_of(m, worker);

    if (w == NULL || w->state != WORKER_MEMBER || generation != m->generation)
        return;
    w->is_formed = true;
    if (!all_formed(m) || m->is_broken)
        return;
    for (int n = 1; n <= m->worker_count; n++)
        worker_of(m, n)->accused = 0;
    say_change(m, now_us);
}

void membership_committed(struct membership *m, int worker, uint32_t generation,
                          uint64_t now_us)
{
    struct member_worker *w = worker_of(m, worker);

    (void)now_us;
    if (w != NULL && generation <= m->generation)
        w->has_committed = true;
}

void membership_disconnected(struct membership *m, int worker, const char *why,
                             uint64_t now_us)
{
    struct member_worker *w = worker_of(m, worker);

    (void)why;
    if (w == NULL)
        return;
    w->connected = false;
    if (worker_is_alive(w))
        worker_enter(m, w, WORKER_GONE, now_us);
    membership_settle(m, now_us);
}

static void describe_end(char *why, size_t capacity, int code, int signal, const char *text)
{
    const char *name = signal > 0 ? signal_name(signal) : NULL;

    if (text != NULL && text[0] != '\0')
        snprintf(why, capacity, "ended: %s", text);
    else if (name != NULL)
        snprintf(why, capacity, "was killed by SIG%s", name);
    else
        snprintf(why, capacity, "ended with code %d", code);
}

/* Its process has ended well by itself. */
static void take_success(struct membership *m, int number, struct member_worker *w)
{
    char name[HVD_HOST_MAX + 16];

    if (w->is_leaving) {
        membership_name(m, number, name, sizeof name);
        strbuf_addf(&m->events, "%s%s has left", m->events.length > 0 ? ", " : "", name);
        return;
    }
    m->is_finishing = true;
    m->finished = number;
}

void membership_ended(struct membership *m, int worker, int code, int signal,
                      const char *text, uint64_t now_us)
{
    struct member_worker *w = worker_of(m, worker);
    bool was_ours;
    char why[256];

    if (w == NULL || w->state == WORKER_ENDED)
        return;
    was_ours = w->state == WORKER_RETIRED || w->state == WORKER_STOPPED;
    worker_enter(m, w, WORKER_ENDED, now_us);
    describe_end(why, sizeof why, code, signal, text);
    m->hosts[w->host].slots[w->slot].was_killed = signal > 0;
    if (!was_ours && code == 0)
        take_success(m, worker, w);
    else if (!was_ours)
        membership_fail_worker(m, worker, why, now_us);
    membership_settle(m, now_us);
}

/* ---- Time ---------------------------------------------------------------------------- */

/* What was due at the last event has been dealt with. */
static void add_deadline(const struct membership *m, uint64_t at_us, uint64_t *next_us)
{
    if (at_us > m->settled_us && at_us < *next_us)
        *next_us = at_us;
}

uint64_t membership_deadline_us(const struct membership *m)
{
    uint64_t next = hosts_deadline_us(m, m->settled_us);
    uint64_t limit_us = m->opt.elastic_timeout_us, grace_us = m->opt.grace_ms * 1000ull;

    if (m->is_over)
        return MEMBERSHIP_NONE;
    if (m->short_us > 0)
        add_deadline(m, m->short_us + limit_us, &next);
    if (m->broken_us > 0)
        add_deadline(m, m->broken_us + limit_us, &next);
    for (int n = 1; n <= m->worker_count; n++) {
        const struct member_worker *w = worker_of(m, n);

        if (w->state == WORKER_GONE)
            add_deadline(m, w->since_us + m->opt.gone_ms * 1000ull, &next);
        if (w->state == WORKER_RETIRED)
            add_deadline(m, w->since_us + grace_us, &next);
        if (w->state == WORKER_STOPPED)
            add_deadline(m, w->since_us + grace_us + UNENDING_US, &next);
        if (w->state == WORKER_READY)
            add_deadline(m, w->since_us + PATIENCE_US, &next);
        if (w->state == WORKER_STARTING)
            add_deadline(m, w->since_us + limit_us, &next);
    }
    return next;
}

void membership_tick(struct membership *m, uint64_t now_us)
{
    membership_settle(m, now_us);
}

/* ---- Life ---------------------------------------------------------------------------- */

struct membership *membership_new(const struct membership_options *opt)
{
    struct membership *m = calloc(1, sizeof *m);

    if (m == NULL)
        return NULL;
    m->opt = *opt;
    m->random = opt->seed != 0 ? opt->seed : 0x9e3779b97f4a7c15ull;
    strbuf_init(&m->events);
    strbuf_init(&m->lost);
    strbuf_init(&m->discovery);
    return m;
}

void membership_free(struct membership *m)
{
    if (m == NULL)
        return;
    for (int i = 0; i < m->host_count; i++)
        free(m->hosts[i].slots);
    free(m->hosts);
    free(m->order);
    free(m->workers);
    strbuf_release(&m->events);
    strbuf_release(&m->lost);
    strbuf_release(&m->discovery);
    queue_release(m);
    free(m);
}

void membership_describe(const struct membership *m, uint64_t now_us, struct strbuf *text)
{
    static const char *const names[] = {
#define WORKER_STATE_NAME(name, text) #name,
        WORKER_STATES(WORKER_STATE_NAME)
#undef WORKER_STATE_NAME
    };

    strbuf_addf(text, "generation %u\n", m->generation);
    for (int n = 1; n <= m->worker_count; n++) {
        const struct member_worker *w = worker_of(m, n);
        char name[HVD_HOST_MAX + 16];

        if (w->state == WORKER_ENDED)
            continue;
        membership_name(m, n, name, sizeof name);
        strbuf_addf(text, "worker %d %s %s since %.1f s\n", n, name, names[w->state],
                    (double)(now_us - w->since_us) / 1e6);
    }
}
