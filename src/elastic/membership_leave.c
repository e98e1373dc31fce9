/* membership_leave.c: notice to a worker, to a host, to the whole job (membership.h, rules 5
 * and 11). */
#include "elastic/membership_int.h"

#include <stdio.h>

static void leave(struct membership *m, struct member_worker *w)
{
    w->is_leaving = true;
    m->hosts[w->host].slots[w->slot].is_empty = true;
    m->update_key++;                    /* it is to be told, too */
}

static void add_event(struct membership *m, const char *who)
{
    strbuf_addf(&m->events, "%s%s was told to leave", m->events.length > 0 ? ", " : "", who);
}

void membership_notice(struct membership *m, int worker, uint64_t now_us)
{
    struct member_worker *w = worker_of(m, worker);
    char name[HVD_HOST_MAX + 16];

    if (w == NULL || !worker_is_alive(w) || w->is_leaving)
        return;
    membership_name(m, worker, name, sizeof name);
    add_event(m, name);
    leave(m, w);
    membership_settle(m, now_us);
}

void membership_host_notice(struct membership *m, const char *host, uint64_t now_us)
{
    struct member_host *h = host_find(m, host);
    char name[HVD_HOST_MAX + 16];

    if (h == NULL || h->is_going)
        return;
    h->is_going = true;
    snprintf(name, sizeof name, "host %s", host);
    add_event(m, name);
    for (int n = 1; n <= m->worker_count; n++)
        if (&m->hosts[worker_of(m, n)->host] == h && worker_is_alive(worker_of(m, n)))
            leave(m, worker_of(m, n));
    membership_settle(m, now_us);
}

/* Before the first generation there is no commit to wait for. */
void membership_leave(struct membership *m, uint64_t now_us)
{
    if (m->is_over || m->is_leaving)
        return;
    if (m->generation == 0) {
        membership_end(m, false, 0, "the job was told to leave before its training had begun");
        return;
    }
    m->is_leaving = true;
    for (int n = 1; n <= m->worker_count; n++)
        if (worker_is_alive(worker_of(m, n)))
            leave(m, worker_of(m, n));
    membership_settle(m, now_us);
}

void leave_end(struct membership *m)
{
    if (m->unhandled != 0) {
        membership_end(m, false, m->unhandled, "while the job was leaving: %s", m->lost.text);
        return;
    }
    membership_say(m, "the job was told to leave; its workers have left after their last commit");
    membership_end(m, true, 0, "all workers have left");
}
