/*
 * eager_end.c: the end of the eager way of a process set, when a rank has left the job or the
 * set is removed: nothing new starts, but what all have come to completes on all.
 *
 * 1. A member that starts nothing more says so to its leader, after its last part.
 * 2. A leader that has heard it of all its group says so to the other leaders, after its
 *    last sum; having heard it of them, too, it says so to its group, after its last result.
 * 3. What has not come by then never does: it fails, or the set may go.
 * A peer that has left the job has said all of it.
 */
#include "engine/eager_int.h"

static bool is_over(const struct engine *e, const struct eager *w, int member)
{
    const struct pset *s = w->way.set;

    return member == s->self || w->ended[member] ||
           mesh_has_left(e->mesh, s->ranks[member]);
}

static bool are_over(const struct engine *e, const struct eager *w, const int *members,
                     int count)
{
    for (int i = 0; i < count; i++)
        if (!is_over(e, w, members[i]))
            return false;
    return true;
}

/* After what is still to be sent: the message without items. */
static void say_last(struct engine *e, struct eager *w, struct eager_out *out,
                     const int *members, int count)
{
    struct pset *s = w->way.set;
    struct strbuf last;

    if (out->ended)
        return;
    out->ended = true;
    eager_flush(&w->way, e, false);
    strbuf_init(&last);
    pset_put_head(s, MESSAGE_EAGER, &last);
    for (int i = 0; i < count && !last.failed; i++)
        if (members[i] != s->self && !mesh_has_left(e->mesh, s->ranks[members[i]]))
            mesh_post(e->mesh, s->ranks[members[i]], last.text, last.length, NULL);
    strbuf_release(&last);
}

/* One step towards the end; true: it has been reached here. */
bool eager_end(struct way *way, struct engine *e)
{
    struct eager *w = eager_of(way);

    if (!layout_leads(w->groups)) {
        say_last(e, w, &w->up, w->groups->mates, 1);
        return is_over(e, w, w->groups->mates[0]);
    }
    if (!are_over(e, w, w->groups->mates, w->groups->mate_count))
        return false;
    say_last(e, w, &w->across, w->groups->leaders, w->groups->host_count);
    if (!are_over(e, w, w->groups->leaders, w->groups->host_count))
        return false;
    say_last(e, w, &w->down, w->groups->mates, w->groups->mate_count);
    return true;
}

/* A rank has left the job. */
void eager_leave(struct way *way, struct engine *e, enum hvd_status status,
                 const struct hvd_error *why)
{
    struct pset *s = way->set;

    if (!eager_end(way, e) || eager_of(way)->open == 0)
        return;
    for (int i = 0; i < CACHE_NUMBERS; i++) {
        struct entry *t = s->by_number[i] != NULL ? s->by_number[i]->entry : NULL;

        if (t != NULL && t->way == way)
            entry_fail(e, t, status, why);
    }
}
