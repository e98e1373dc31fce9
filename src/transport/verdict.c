/*
 * verdict.c: why the mesh has failed, in the same words on all survivors.
 *
 * 1. The first verdict of a mesh stays.
 * 2. On a host the first of all ranks wins: each writes its own into its own control
 *    line, then tries to put its number into region.winner; everybody reports the
 *    winner's.  A rank that dies on the way has not won.
 * 3. Between hosts verdicts travel on the watch connections (watch.c); the alarm wakes the
 *    watch threads of this host, each of which has some of them.
 * 4. What is read from shared memory is copied and checked like bytes from a stranger.
 */
#define LOG_COMPONENT "transport"
#include "transport_int.h"

#include "base/log.h"

#include <errno.h>
#include <unistd.h>

void verdict_init(struct verdict *v)
{
    pthread_mutex_init(&v->lock, NULL);
}

void verdict_release(struct verdict *v)
{
    pthread_mutex_destroy(&v->lock);
}

/* The copy is private by now: nobody changes it while we look. */
static void sanitize(struct hvd_error *e, int size)
{
    e->text[sizeof e->text - 1] = 0;
    for (char *c = e->text; *c != 0; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    if ((int)e->status <= HVD_AGAIN || e->status >= HVD_STATUS_COUNT)
        e->status = HVD_PROTO;
    if (e->rank < -1 || e->rank >= size)
        e->rank = -1;
}

static const struct hvd_error *keep(struct mesh *m, const struct hvd_error *why)
{
    struct verdict *v = &m->verdict;

    pthread_mutex_lock(&v->lock);
    if (!atomic_load(&v->set)) {
        v->error = *why;
        sanitize(&v->error, m->topology.size);
        atomic_store(&v->set, true);
        log_debug("verdict: %s", v->error.text);
    }
    pthread_mutex_unlock(&v->lock);
    return &v->error;
}

static const struct hvd_error *take_winner(struct mesh *m)
{
    struct region *r = m->host.region;
    unsigned winner;

    if (r == NULL)
        return NULL;
    winner = atomic_load_explicit(&r->winner, memory_order_acquire);
    if (winner == 0 || winner > (unsigned)m->host.count)
        return NULL;
    return keep(m, &r->control[winner - 1].verdict);
}

const struct hvd_error *verdict_get(struct mesh *m)
{
    if (atomic_load_explicit(&m->verdict.set, memory_order_acquire))
        return &m->verdict.error;
    return take_winner(m);
}

/* Rule 2.  Our own control line is ours; the lock keeps our threads apart. */
const struct hvd_error *verdict_set(struct mesh *m, const struct hvd_error *why)
{
    struct region *r = m->host.region;
    unsigned none = 0, us = (unsigned)m->host.self + 1;
    const struct hvd_error *verdict = verdict_get(m);
    uint64_t one = 1;

    if (verdict != NULL)
        return verdict;
    if (r == NULL)
        return keep(m, why);
    pthread_mutex_lock(&m->verdict.lock);
    if (r->control[us - 1].verdict.status == HVD_OK) {
        r->control[us - 1].verdict = *why;
        atomic_compare_exchange_strong(&r->winner, &none, us);
    }
    pthread_mutex_unlock(&m->verdict.lock);
    for (int i = 0; i < m->host.count; i++)
        if (write(m->host.doorbells[i], &one, sizeof one) < 0)
            continue;                   /* it is rung already */
    if (m->host.alarm >= 0 && write(m->host.alarm, &one, sizeof one) < 0)
        log_debug("alarm: %s", strerror(errno));
    return take_winner(m);
}

const struct hvd_error *mesh_verdict(const struct mesh *mesh)
{
    static const struct hvd_error forked = {HVD_FORKED, -1,
                                            "called in a forked child of the rank"};

    if (mesh_is_forked(mesh))
        return &forked;
    return verdict_get((struct mesh *)mesh);
}

void mesh_fail(struct mesh *m, const struct hvd_error *why)
{
    if (mesh_is_forked(m))
        return;
    verdict_set(m, why);
    watch_tell(m);
    mesh_kick(m);
}
