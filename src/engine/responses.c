/*
 * responses.c: how the responses of a set's coordinator reach its members, and their end.
 *
 * 1. They come down the tree of hosts (tree.h): the coordinator sends them to its own host and
 *    to the leaders of the hosts below; a leader hands them on at once and in their order, to
 *    its host and to the leaders below, before it does them itself.
 * 2. After the last response of a set comes a message without any (RESPONSES, no items):
 *    when the coordinator leaves the job, and when the set is removed.  What has been
 *    answered by then is done by all members, what has not fails on all.
 * 3. A leader that has left the job hands nothing on any more.  It had ended all that it took
 *    part in, so nothing was left that those below could complete.  Whoever heard through it
 *    says the end to those who hear through him.
 */
#include "engine/engine_int.h"

#include <stdlib.h>

/* Others get what the coordinator says through us. */
bool pset_leads(const struct pset *s)
{
    return layout_leads(s->layout) && (s->layout->mate_count > 1 || s->tree.children > 0);
}

/* The member that responses come from, and that our hits go to. */
int pset_source(const struct pset *s)
{
    int leader = layout_leader_of(s->layout, s->self);

    if (leader != s->self)
        return leader;
    return s->tree.parent >= 0 ? s->layout->leaders[s->tree.parent] : 0;
}

/* The members that hear through us. */
static void each_below(struct engine *e, const struct pset *s,
                       void (*each)(struct engine *e, int rank, void *context), void *context)
{
    const struct layout *l = s->layout;

    if (!layout_leads(l))
        return;
    for (int i = 0; i < s->tree.children; i++)
        each(e, s->ranks[l->leaders[tree_child(&s->tree, i)]], context);
    for (int i = 1; i < l->mate_count; i++)
        each(e, s->ranks[l->mates[i]], context);
}

void pset_each_neighbour(struct engine *e, const struct pset *s,
                         void (*each)(struct engine *e, int rank, void *context), void *context)
{
    if (s->self != 0)
        each(e, s->ranks[pset_source(s)], context);
    each_below(e, s, each, context);
}

struct bytes {
    const void *at;
    size_t n;
};

static void post(struct engine *e, int rank, void *context)
{
    const struct bytes *b = context;
    struct hvd_error err;

    if (!mesh_has_left(e->mesh, rank) &&
        mesh_post(e->mesh, rank, b->at, b->n, &err) != HVD_OK && err.status != HVD_SHUTDOWN)
        mesh_fail(e->mesh, &err);
}

/* Rule 1. */
void pset_hand_on(struct engine *e, const struct pset *s, const void *bytes, size_t n)
{
    each_below(e, s, post, &(struct bytes){bytes, n});
}

static void say_end(struct engine *e, struct pset *s)
{
    struct hvd_error err;
    struct strbuf out;

    s->ended = true;
    strbuf_init(&out);
    pset_put_head(s, MESSAGE_RESPONSES, &out);
    if (!out.failed) {
        pset_hand_on(e, s, out.text, out.length);
    } else {
        error_set(&err, HVD_NOMEM, e->topo->rank, "no memory for a message");
        mesh_fail(e->mesh, &err);
    }
    strbuf_release(&out);
}

/* Rule 2, at the coordinator: it says nothing more in this set. */
void pset_say_end(struct engine *e, struct pset *s)
{
    if (s->self == 0 && !s->ended)
        say_end(e, s);
}

/* No response comes any more; rule 3. */
bool pset_has_ended(struct engine *e, struct pset *s)
{
    if (!s->ended && mesh_has_left(e->mesh, s->ranks[pset_source(s)]))
        say_end(e, s);
    return s->ended;
}
