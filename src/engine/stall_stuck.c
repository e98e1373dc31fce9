/*
 * stall_stuck.c: one name for two kinds of operation, once it is certain: everybody concerned
 * sleeps in the one operation that it has under way, so that the call that would help can
 * not come.  Then it is an error of these operations on all ranks, after seconds.
 *
 * A look at LOOK_US of waiting; if stall_kinds.c finds one, those concerned are asked, and
 * another look follows after ANSWER_US.  Ranks that poll, compute or have more under way may
 * still come to the other kind: of them the report tells (stall_watch.c).
 */
#include "engine/stall_int.h"

#include "base/clock.h"

#include <stdlib.h>

#define LOOK_US 2000000
#define ANSWER_US 1000000

bool stuck_is_asleep(const struct engine *e)
{
    int count;

    stall_oldest_entry(e, &count);
    return count == 1 && atomic_load(&e->waiting) > 0;
}

uint64_t stuck_due_us(struct engine *e)
{
    struct stuck *k = &e->stall->stuck;

    if (k->next_us == 0)
        k->next_us = clock_us() + LOOK_US;
    return k->next_us;
}

/* Of many ranks some stand for all. */
static void ask(struct engine *e, const bool *concerned)
{
    int asked = 0;

    for (int r = 0; r < e->topo->size; r++) {
        e->stall->asleep[r] = !concerned[r] || asked >= STALL_ASK_MOST;
        if (concerned[r] && r == e->topo->rank)
            e->stall->asleep[r] = stuck_is_asleep(e);
        else if (concerned[r] && asked++ < STALL_ASK_MOST)
            stall_ask(e, r);
    }
}

static bool are_asleep(struct engine *e, const bool *concerned)
{
    if (concerned[e->topo->rank])
        e->stall->asleep[e->topo->rank] = stuck_is_asleep(e);
    for (int r = 0; r < e->topo->size; r++)
        if (!e->stall->asleep[r])
            return false;
    return true;
}

/* What is cached is not the coordinator's alone to end: then the job is over. */
static void fail(struct engine *e, const struct stall_wait *a, const struct waits *w)
{
    struct pset *s = e->sets[a->set];
    struct strbuf text;
    struct hvd_error why;
    bool done = true;

    strbuf_init(&text);
    stall_describe_kinds(&text, a, w->list, w->count, e->topo->size);
    error_set(&why, HVD_MISMATCH, -1, "%.700s; give each its own name, or call the same on "
              "all ranks", text.failed ? a->name : text.text);
    strbuf_release(&text);
    for (int i = 0; i < w->count; i++)
        if (&w->list[i] == a || stall_is_other_kind(a, &w->list[i]))
            done &= s->neg != NULL && neg_give_up(s->neg, w->list[i].name, &why);
    why.status = HVD_STALLED;
    if (!done)
        mesh_fail(e->mesh, &why);
}

static uint64_t next_look_us(const struct waits *w, uint64_t now_us)
{
    uint64_t age_us = now_us > w->oldest_us ? now_us - w->oldest_us : 0;

    return age_us < LOOK_US ? w->oldest_us + LOOK_US : now_us + age_us;
}

bool stuck_look(struct engine *e, const struct waits *w, uint64_t now_us)
{
    struct stuck *k = &e->stall->stuck;
    bool *concerned = calloc((size_t)e->topo->size, sizeof *concerned);
    const struct stall_wait *a = concerned == NULL ? NULL :
        stall_find_kinds(w->list, w->count, e->topo->size, LOOK_US, now_us);
    bool ends = false, asks = a != NULL && !k->asked;

    if (a != NULL)
        stall_kinds_concern(a, w->list, w->count, e->topo->size, concerned);
    if (asks)
        ask(e, concerned);
    else if (a != NULL)
        ends = are_asleep(e, concerned);
    if (ends)
        fail(e, a, w);
    k->asked = asks;
    k->next_us = asks ? now_us + ANSWER_US : next_look_us(w, now_us);
    free(concerned);
    return ends;
}
