/* meeting.c: see meeting.h. */
#include "rendezvous/meeting.h"

#include <stdlib.h>
#include <string.h>

#define HOSTS_NAMED 8                   /* in one message */

enum hvd_status meeting_init(struct meeting *m, uint32_t generation, int count,
                             uint64_t timeout_us, struct hvd_error *err)
{
    memset(m, 0, sizeof *m);
    if (count < 1 || count > TABLE_RANKS)
        return error_set(err, HVD_INVALID, -1, "a job of %d workers; 1 to %d are possible",
                         count, TABLE_RANKS);
    m->seats = calloc((size_t)count, sizeof *m->seats);
    if (m->seats == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for %d workers", count);
    m->generation = generation;
    m->count = count;
    m->timeout_us = timeout_us;
    return HVD_OK;
}

void meeting_release(struct meeting *m)
{
    for (int i = 0; i < m->count; i++)
        free(m->seats[i].entry);
    free(m->seats);
    memset(m, 0, sizeof *m);
}

/* ---- Coming and leaving ----------------------------------------------------------- */

static const struct table_entry *first_waiting(const struct meeting *m)
{
    for (int i = 0; i < m->count; i++)
        if (m->seats[i].state == SEAT_WAITING)
            return m->seats[i].entry;
    return NULL;
}

/* What all ranks must agree on, e against the lowest rank that waits. */
static enum hvd_status compare(const struct meeting *m, const struct table_entry *e,
                               struct hvd_error *err)
{
    const struct table_entry *first = first_waiting(m);

    if (e->size != m->count)
        return error_set(err, HVD_MISMATCH, e->rank,
                         "rank %d (host %s, pid %d) says that the job has %d ranks, but "
                         "%d are expected", (int)e->rank, e->host, (int)e->pid,
                         (int)e->size, m->count);
    if (first == NULL)
        return HVD_OK;
    if (strcmp(first->version, e->version) != 0)
        return error_set(err, HVD_VERSION, e->rank,
                         "rank %d (host %s) runs horovod %s, rank %d (host %s) runs horovod "
                         "%s; install the same version everywhere", (int)first->rank,
                         first->host, first->version, (int)e->rank, e->host, e->version);
    if (memcmp(first->config_hash, e->config_hash, sizeof e->config_hash) != 0)
        return error_set(err, HVD_MISMATCH, e->rank,
                         "rank %d (host %s) and rank %d (host %s) have different settings: "
                         "'%.300s' and '%.300s'; give all ranks the same", (int)first->rank,
                         first->host, (int)e->rank, e->host, first->config_text,
                         e->config_text);
    return HVD_OK;
}

static enum hvd_status refuse_taken(const struct seat *seat, struct hvd_error *err)
{
    const struct table_entry *e = seat->entry;

    return error_set(err, HVD_INVALID, e->rank,
                     "rank %d is already taken by the process %d on host %s; every worker "
                     "needs a rank of its own (HOROVOD_RANK)", (int)e->rank, (int)e->pid,
                     e->host);
}

/* A verdict that this rank has not heard yet; a rank that has, begins a new round. */
static bool hears_verdict(struct meeting *m, struct seat *seat, struct hvd_error *err)
{
    if (m->verdict.status == HVD_OK)
        return false;
    if (m->over || !seat->told) {
        seat->told = true;
        *err = m->verdict;
        return true;
    }
    m->verdict.status = HVD_OK;
    for (int i = 0; i < m->count; i++)
        m->seats[i].told = false;
    return false;
}

static enum hvd_status sit(struct meeting *m, const struct table_entry *e, uint64_t now_us,
                           struct hvd_error *err)
{
    struct seat *seat = &m->seats[e->rank];

    if (seat->entry == NULL)
        seat->entry = malloc(sizeof *seat->entry);
    if (seat->entry == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the entry of rank %d",
                         (int)e->rank);
    *seat->entry = *e;
    seat->state = SEAT_WAITING;
    seat->since_us = now_us;
    if (m->waiting++ == 0)
        m->first_us = now_us;
    return HVD_OK;
}

enum meeting_result meeting_enter(struct meeting *m, const struct table_entry *e,
                                  uint64_t now_us, struct hvd_error *err)
{
    struct seat *seat;

    if (e->generation != m->generation) {
        error_set(err, HVD_MISMATCH, e->rank,
                  "rank %d (host %s) belongs to generation %u, the job is in generation %u",
                  (int)e->rank, e->host, e->generation, m->generation);
        return MEETING_REFUSED;
    }
    if (m->over) {
        *err = m->verdict;
        return MEETING_REFUSED;
    }
    if (e->size == m->count) {
        seat = &m->seats[e->rank];
        if (seat->state == SEAT_WAITING || seat->state == SEAT_RUNNING) {
            refuse_taken(seat, err);
            return MEETING_REFUSED;
        }
        if (hears_verdict(m, seat, err))
            return MEETING_REFUSED;
    }
    if (compare(m, e, err) != HVD_OK)
        return MEETING_FAILED;
    if (sit(m, e, now_us, err) != HVD_OK)
        return MEETING_REFUSED;
    return m->waiting == m->count ? MEETING_COMPLETE : MEETING_WAITING;
}

static void stop_waiting(struct meeting *m, struct seat *seat, enum seat_state state,
                         uint64_t now_us)
{
    seat->state = state;
    seat->since_us = now_us;
    if (--m->waiting == 0)
        m->first_us = 0;
}

void meeting_leave(struct meeting *m, int rank, uint64_t now_us)
{
    struct seat *seat = &m->seats[rank];

    if (seat->state == SEAT_WAITING) {
        stop_waiting(m, seat, SEAT_EMPTY, now_us);
    } else if (seat->state == SEAT_RUNNING) {
        seat->state = SEAT_GONE;
        seat->since_us = now_us;
    }
}

/* ---- The end of a round ----------------------------------------------------------- */

enum hvd_status meeting_form(struct meeting *m, uint64_t now_us, struct table *table_p,
                             struct hvd_error *err)
{
    BUG_ON(m->waiting != m->count);
    table_p->entries = calloc((size_t)m->count, sizeof *table_p->entries);
    if (table_p->entries == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a table of %d", m->count);
    table_p->generation = m->generation;
    table_p->count = m->count;
    for (int i = 0; i < m->count; i++) {
        table_p->entries[i] = *m->seats[i].entry;
        stop_waiting(m, &m->seats[i], SEAT_RUNNING, now_us);
    }
    return HVD_OK;
}

void meeting_fail(struct meeting *m, const struct hvd_error *verdict, int newcomer,
                  bool over)
{
    m->verdict = *verdict;
    m->over = over;
    for (int i = 0; i < m->count; i++) {
        m->seats[i].told = m->seats[i].state == SEAT_WAITING;
        if (m->seats[i].told)
            stop_waiting(m, &m->seats[i], SEAT_EMPTY, m->seats[i].since_us);
    }
    if (newcomer >= 0 && newcomer < m->count)
        m->seats[newcomer].told = true;
}

uint64_t meeting_deadline_us(const struct meeting *m)
{
    if (m->waiting == 0 || m->timeout_us == 0)
        return UINT64_MAX;
    return m->first_us + m->timeout_us;
}

/* ---- Words ------------------------------------------------------------------------ */

static double seconds(uint64_t from_us, uint64_t to_us)
{
    return to_us > from_us ? (double)(to_us - from_us) / 1e6 : 0;
}

static void add_ranks_in(const struct meeting *m, enum seat_state state, bool other,
                         const char *host, bool *chosen, struct strbuf *text)
{
    for (int i = 0; i < m->count; i++) {
        const struct seat *s = &m->seats[i];

        chosen[i] = (s->state == state) != other &&
                    (host == NULL || strcmp(s->entry->host, host) == 0);
    }
    strbuf_add_ranks(text, chosen, m->count);
}

/* True for the lowest waiting rank of its host. */
static bool leads_host(const struct meeting *m, int rank)
{
    for (int i = 0; i < rank; i++)
        if (m->seats[i].state == SEAT_WAITING &&
            strcmp(m->seats[i].entry->host, m->seats[rank].entry->host) == 0)
            return false;
    return true;
}

static void add_hosts(const struct meeting *m, uint64_t now_us, bool *chosen,
                      struct strbuf *text)
{
    int hosts = 0;

    for (int i = 0; i < m->count; i++) {
        const struct seat *s = &m->seats[i];

        if (s->state != SEAT_WAITING || !leads_host(m, i))
            continue;
        if (hosts++ == HOSTS_NAMED) {
            strbuf_addf(text, "; and others");
            return;
        }
        strbuf_addf(text, "%s host %s: ranks ", hosts == 1 ? "" : ";", s->entry->host);
        add_ranks_in(m, SEAT_WAITING, false, s->entry->host, chosen, text);
        strbuf_addf(text, " (for %.1f s)", seconds(s->since_us, now_us));
    }
}

/* Missing ranks of which something is known: still in the round before. */
static void add_running(const struct meeting *m, struct strbuf *text)
{
    for (int i = 0; i < m->count; i++)
        if (m->seats[i].state == SEAT_RUNNING) {
            strbuf_addf(text, "; rank %d (host %s, pid %d) has not left the round before",
                        i, m->seats[i].entry->host, (int)m->seats[i].entry->pid);
            return;
        }
}

static int first_missing(const struct meeting *m)
{
    int rank = 0;

    while (rank < m->count - 1 && m->seats[rank].state == SEAT_WAITING)
        rank++;
    return rank;
}

enum hvd_status meeting_timed_out(const struct meeting *m, uint64_t now_us,
                                  struct hvd_error *err)
{
    bool *chosen = calloc((size_t)m->count, sizeof *chosen);
    struct strbuf text;

    if (chosen == NULL)
        return error_set(err, HVD_TIMEOUT, -1, "%d of %d ranks are missing",
                         m->count - m->waiting, m->count);
    strbuf_init(&text);
    strbuf_addf(&text, "%d of %d ranks have not come within %.1f s; missing: ranks ",
                m->count - m->waiting, m->count, seconds(m->first_us, now_us));
    add_ranks_in(m, SEAT_WAITING, true, NULL, chosen, &text);
    strbuf_addf(&text, "; here:");
    add_hosts(m, now_us, chosen, &text);
    add_running(m, &text);
    error_set(err, HVD_TIMEOUT, first_missing(m), "%s", text.text);
    strbuf_release(&text);
    free(chosen);
    return HVD_TIMEOUT;
}

void meeting_describe(const struct meeting *m, uint64_t now_us, struct strbuf *text)
{
    static const char *const states[] = {"missing", "waiting", "running", "gone"};

    for (int i = 0; i < m->count; i++) {
        const struct seat *s = &m->seats[i];

        if (s->entry == NULL)
            strbuf_addf(text, "rank %d missing\n", i);
        else
            strbuf_addf(text, "rank %d host %s pid %d %s since %.1f s\n", i,
                        s->entry->host, (int)s->entry->pid, states[s->state],
                        seconds(s->since_us, now_us));
    }
}
