/*
 * full.c: a cached tensor is announced by its number, and run by a CACHED response, alone or
 * fused with others.  The numbers go to the coordinator, or where another member leads this
 * host, to that leader (relay.c).
 */
#include "engine/full.h"

#include "base/clock.h"

#include <stdlib.h>

struct full {
    struct way way;
    struct strbuf hits;
    uint32_t count;
};

static struct full *full_of(const struct way *w)
{
    return (struct full *)w;
}

enum hvd_status full_new(struct way **way_p, struct hvd_error *err)
{
    struct full *f = calloc(1, sizeof *f);

    if (f == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a way");
    strbuf_init(&f->hits);
    *way_p = &f->way;
    return HVD_OK;
}

static enum hvd_status full_open(struct engine *e, struct pset *s, struct way **way_p,
                                 struct hvd_error *err)
{
    (void)e;
    return s->local ? HVD_OK : full_new(way_p, err);
}

static void full_close(struct way *w)
{
    strbuf_release(&full_of(w)->hits);
    free(w);
}

static bool full_fits(const struct way *w, const struct cached *c)
{
    (void)w;
    (void)c;
    return true;
}

static void full_start(struct way *w, struct engine *e, struct entry *t, struct cached *c)
{
    struct full *f = full_of(w);

    if (f->count == 0)
        pset_put_head(w->set, MESSAGE_HITS, &f->hits);
    put_number(&f->hits, &(struct wire_number){c->number, c->seq});
    f->count++;
    full_wait(e, t, c);
}

void full_wait(struct engine *e, struct entry *t, struct cached *c)
{
    entry_set_out(e, t, c);
    t->set->hits_open++;
}

void full_withdraw(struct entry *t)
{
    t->set->hits_open--;
}

static uint32_t full_pending(const struct way *w)
{
    return full_of(w)->count;
}

static bool full_flush(struct way *w, struct engine *e, bool held)
{
    struct full *f = full_of(w);
    uint32_t count = f->count;

    if (held || count == 0)
        return false;
    f->count = 0;
    member_send(e, w->set, pset_source(w->set), &f->hits, count);
    return true;
}

static void full_drop(struct way *w)
{
    full_of(w)->count = 0;
}

/* A leader takes the hits of its host before we are asked. */
static bool full_takes(const struct way *w, enum message_kind kind)
{
    return kind == MESSAGE_HITS && w->set->neg != NULL;
}

static enum hvd_status full_on_message(struct way *w, struct engine *e, int member,
                                       const struct message_head *head, struct wire_in *in,
                                       struct hvd_error *err)
{
    uint64_t now_us = clock_us();
    struct wire_number hit;

    e->heard = true;
    for (uint32_t i = 0; i < head->count; i++) {
        TRY(get_number(in, &hit, err));
        trace_hit(e, w->set, member, hit.number);
        neg_on_hit(w->set->neg, member, hit.number, hit.seq, now_us);
    }
    return HVD_OK;
}

static bool full_is_open(const struct way *w, const struct engine *e)
{
    (void)e;
    return w->set->hits_open > 0;       /* those of relay.c, too */
}

const struct way_ops way_full = {
    .name = "full", .by_response = true, .open = full_open, .close = full_close,
    .fits = full_fits, .start = full_start, .withdraw = full_withdraw,
    .pending = full_pending, .flush = full_flush, .drop = full_drop, .takes = full_takes,
    .on_message = full_on_message, .is_open = full_is_open,
};
