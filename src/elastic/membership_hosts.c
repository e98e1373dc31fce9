/*
 * membership_hosts.c: hosts in the order of their age, their slots, and the blacklist
 * (membership.h, rule 3).
 */
#include "elastic/membership_int.h"

#include <stdlib.h>
#include <string.h>

struct member_host *host_find(const struct membership *m, const char *name)
{
    for (int i = 0; i < m->host_count; i++)
        if (strcmp(m->hosts[i].name, name) == 0)
            return &m->hosts[i];
    return NULL;
}

static bool is_same_machine(const char *a, const char *b)
{
    size_t n = strcspn(a, "#");

    return n == strcspn(b, "#") && memcmp(a, b, n) == 0;
}

int host_machine(const struct membership *m, int host)
{
    int first = 0;

    while (!is_same_machine(m->hosts[first].name, m->hosts[host].name))
        first++;
    return first;
}

static bool host_is_available(const struct member_host *h, uint64_t now_us)
{
    return h->is_listed && !h->is_going && h->black_until_us <= now_us;
}

/* ---- Which slots are wanted -------------------------------------------------------- */

/* A slot that somebody is about to leave does not count until he has gone. */
static bool slot_counts(const struct membership *m, const struct member_host *h, int slot)
{
    const struct member_worker *w = slot < h->slot_count ? worker_of(m, h->slots[slot].worker)
                                                  : NULL;

    return slot < h->slot_count && !h->slots[slot].is_empty &&
           (w == NULL || !w->is_leaving || w->state == WORKER_ENDED);
}

/* Wanted slots before (host, slot) in order; of all hosts but `without`. */
static int count_slots(const struct membership *m, int host, int slot, int without,
                       uint64_t now_us)
{
    int count = 0;

    for (int o = 0; o < m->host_count; o++) {
        const struct member_host *h = &m->hosts[m->order[o]];

        if (m->order[o] == without || !host_is_available(h, now_us))
            continue;
        for (int s = 0; s < h->slot_count; s++) {
            if (m->order[o] == host && s == slot)
                return count;
            count += slot_counts(m, h, s);
        }
    }
    return count;
}

int slots_wanted(const struct membership *m, uint64_t now_us)
{
    int count = count_slots(m, -1, 0, -1, now_us);

    return m->opt.max_np > 0 && count > m->opt.max_np ? m->opt.max_np : count;
}

bool slot_is_wanted(const struct membership *m, int host, int slot, uint64_t now_us)
{
    const struct member_host *h = &m->hosts[host];

    return host_is_available(h, now_us) && slot_counts(m, h, slot) &&
           (m->opt.max_np == 0 ||
            count_slots(m, host, slot, -1, now_us) < m->opt.max_np);
}

bool worker_is_wanted(const struct membership *m, const struct member_worker *w, uint64_t now_us)
{
    return !w->is_leaving && slot_is_wanted(m, w->host, w->slot, now_us);
}

/* ---- Discovery --------------------------------------------------------------------- */

static void sort_hosts(struct membership *m)
{
    for (int i = 0; i < m->host_count; i++)
        m->order[i] = i;
    for (int i = 1; i < m->host_count; i++)
        for (int k = i; k > 0 && m->hosts[m->order[k]].age <
                                     m->hosts[m->order[k - 1]].age; k--) {
            int other = m->order[k];

            m->order[k] = m->order[k - 1];
            m->order[k - 1] = other;
        }
}

static struct member_host *host_add(struct membership *m, const char *name)
{
    int capacity = m->host_capacity;
    struct member_host *h;

    m->hosts = array_grow(m->hosts, m->host_count, &m->host_capacity, sizeof *m->hosts);
    m->order = array_grow(m->order, m->host_count, &capacity, sizeof *m->order);
    h = &m->hosts[m->host_count++];
    memset(h, 0, sizeof *h);
    memcpy(h->name, name, strnlen(name, sizeof h->name - 1));
    return h;
}

static void host_list(struct membership *m, struct member_host *h, int slots)
{
    while (h->slot_capacity < slots)
        h->slots = array_grow(h->slots, h->slot_capacity, &h->slot_capacity,
                              sizeof *h->slots);
    for (int s = h->slot_count; s < slots; s++)
        h->slots[s].is_empty = false;   /* a slot that comes back may be used again */
    h->slot_count = slots;
    if (h->is_listed)
        return;
    h->is_listed = true;
    h->is_going = false;
    h->age = ++m->next_age;             /* new and returning ones come last */
    for (int s = 0; s < slots; s++)
        h->slots[s].is_empty = false;
}

static void describe(struct membership *m, const struct hvd_host *hosts, int count)
{
    strbuf_clear(&m->discovery);
    for (int i = 0; i < count; i++)
        strbuf_addf(&m->discovery, "%s%s:%d", i > 0 ? " " : "", hosts[i].name,
                    hosts[i].slots);
    if (count == 0)
        strbuf_addf(&m->discovery, "no hosts");
}

static bool is_given(const struct hvd_host *hosts, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(hosts[i].name, name) == 0)
            return true;
    return false;
}

void hosts_take(struct membership *m, const struct hvd_host *hosts, int count)
{
    for (int i = 0; i < m->host_count; i++) {
        struct member_host *h = &m->hosts[i];

        if (h->is_listed && !is_given(hosts, count, h->name)) {
            if (m->generation > 0)
                strbuf_addf(&m->events, "%shost %s was taken from the list",
                            m->events.length > 0 ? ", " : "", h->name);
            h->is_listed = false;
        }
    }
    for (int i = 0; i < count; i++) {
        struct member_host *h = host_find(m, hosts[i].name);

        host_list(m, h != NULL ? h : host_add(m, hosts[i].name), hosts[i].slots);
    }
    describe(m, hosts, count);
    sort_hosts(m);
}

/* ---- The blacklist ----------------------------------------------------------------- */

/* xorshift64*, uniform in 0 .. 1 */
static double random_share(struct membership *m)
{
    m->random ^= m->random >> 12;
    m->random ^= m->random << 25;
    m->random ^= m->random >> 27;
    return (double)((m->random * 0x2545f4914f6cdd1dull) >> 11) / (double)(1ull << 53);
}

static uint64_t cooldown_us(struct membership *m, int count)
{
    double lo = m->opt.cooldown_lo_s, hi = m->opt.cooldown_hi_s;
    double s = lo * (double)(1ull << (count < 20 ? count : 20)) + random_share(m) * lo;

    s = s < lo ? lo : s > hi ? hi : s;
    return (uint64_t)(s * 1e6);
}

static void blacklist(struct membership *m, int host, uint64_t now_us)
{
    struct member_host *h = &m->hosts[host];

    if (h->black_until_us > now_us)
        return;
    h->black_count++;
    h->black_until_us = m->opt.cooldown_hi_s > 0
                            ? now_us + cooldown_us(m, h->black_count) : MEMBERSHIP_NONE;
    if (h->black_until_us == MEMBERSHIP_NONE)
        membership_say(m, "host %s is not used any more in this job", h->name);
    else
        membership_say(m, "host %s is not used for %.1f s", h->name,
                       (double)(h->black_until_us - now_us) / 1e6);
    for (int n = 1; n <= m->worker_count; n++) {
        struct member_worker *w = worker_of(m, n);

        if (w->host != host || w->state >= WORKER_STOPPED)
            continue;
        action_put(m, MEMBER_STOP, n);
        worker_enter(m, w, WORKER_STOPPED, now_us);
    }
}

void hosts_return(struct membership *m, uint64_t now_us)
{
    for (int i = 0; i < m->host_count; i++) {
        struct member_host *h = &m->hosts[i];

        if (h->black_until_us == 0 || h->black_until_us > now_us)
            continue;
        h->black_until_us = 0;
        h->age = ++m->next_age;
        for (int s = 0; s < h->slot_count; s++)
            h->slots[s].repairs = 0;
        sort_hosts(m);
    }
}

/* Whether the job can go on without this host: enough slots, and somebody with the state. */
static bool can_spare(const struct membership *m, int host, uint64_t now_us)
{
    bool has_survivor = m->generation == 0;

    if (count_slots(m, -1, 0, host, now_us) < m->opt.min_np)
        return false;
    for (int n = 1; n <= m->worker_count; n++) {
        const struct member_worker *w = worker_of(m, n);

        has_survivor |= w->is_member && worker_is_alive(w) && w->host != host;
    }
    return has_survivor;
}

void hosts_failed(struct membership *m, struct member_worker *w, uint64_t now_us)
{
    struct host_slot *slot = &m->hosts[w->host].slots[w->slot];

    if (m->is_finishing || m->is_leaving || m->hosts[w->host].black_until_us > now_us)
        return;
    slot->not_before_us = now_us;
    if (slot->restarts < m->opt.restarts_per_slot) {
        slot->restarts++;
        return;
    }
    if (w->has_committed || now_us - w->started_us > HEALTHY_US)
        slot->repairs = 0;
    if (!can_spare(m, w->host, now_us) && slot->repairs < REPAIRS_MAX) {
        slot->not_before_us = now_us + (uint64_t)slot->repairs * REPAIR_PAUSE_US;
        slot->repairs++;
        return;
    }
    blacklist(m, w->host, now_us);
}

/* ---- Starting ---------------------------------------------------------------------- */

static bool is_free(const struct membership *m, const struct host_slot *slot)
{
    const struct member_worker *w = slot->worker > 0 ? worker_of(m, slot->worker) : NULL;

    return w == NULL || w->state == WORKER_ENDED;
}

void hosts_use_empty(struct membership *m)
{
    for (int i = 0; i < m->host_count; i++)
        for (int s = 0; s < m->hosts[i].slot_count; s++)
            if (is_free(m, &m->hosts[i].slots[s]))
                m->hosts[i].slots[s].is_empty = false;
}

static bool has_shown(const struct membership *m)
{
    for (int n = 1; n <= m->worker_count; n++)
        if (worker_of(m, n)->state == WORKER_READY)
            return true;
    return m->generation > 0;
}

static bool may_start(const struct host_slot *slot, bool is_shown)
{
    return is_shown || slot->was_killed || (slot->repairs == 0 && slot->restarts == 0);
}

bool hosts_may_repair(const struct membership *m)
{
    bool is_shown = has_shown(m), result = false;

    for (int i = 0; i < m->host_count; i++)
        for (int s = 0; s < m->hosts[i].slot_count; s++) {
            const struct host_slot *slot = &m->hosts[i].slots[s];

            result |= host_is_available(&m->hosts[i], m->settled_us) && is_free(m, slot) &&
                      may_start(slot, is_shown);
        }
    return result;
}

static void start_worker(struct membership *m, int host, int slot, uint64_t now_us)
{
    struct action *action;
    struct member_worker *w;

    m->workers = array_grow(m->workers, m->worker_count, &m->worker_capacity,
                            sizeof *m->workers);
    w = &m->workers[m->worker_count++];
    memset(w, 0, sizeof *w);
    w->host = host;
    w->slot = slot;
    w->since_us = w->started_us = now_us;
    m->hosts[host].slots[slot].worker = m->worker_count;
    action = action_put(m, MEMBER_START, m->worker_count);
    action->host = strdup(m->hosts[host].name);
    action->places = array_new(1, sizeof *action->places);
    BUG_ON(action->host == NULL);
    action->a.slot = slot;
    form_guess(m, m->worker_count, action->places, &action->a.count);
}

void hosts_start_missing(struct membership *m, uint64_t now_us)
{
    bool is_shown = has_shown(m);

    for (int o = 0; o < m->host_count; o++) {
        int host = m->order[o];

        for (int s = 0; s < m->hosts[host].slot_count; s++) {
            const struct host_slot *slot = &m->hosts[host].slots[s];

            if (slot_is_wanted(m, host, s, now_us) && is_free(m, slot) &&
                slot->not_before_us <= now_us && may_start(slot, is_shown))
                start_worker(m, host, s, now_us);
        }
    }
}

uint64_t hosts_deadline_us(const struct membership *m, uint64_t now_us)
{
    uint64_t next = MEMBERSHIP_NONE;

    for (int i = 0; i < m->host_count; i++) {
        const struct member_host *h = &m->hosts[i];

        if (h->black_until_us > now_us && h->black_until_us < next)
            next = h->black_until_us;
        for (int s = 0; s < h->slot_count; s++)
            if (h->slots[s].not_before_us > now_us && h->slots[s].not_before_us < next)
                next = h->slots[s].not_before_us;
    }
    return next;
}
