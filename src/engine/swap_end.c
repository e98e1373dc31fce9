/*
 * swap_end.c: the end of all swaps of a process set, when a rank has left the job or the
 * set is removed: nothing new starts, but what all have come to completes on all.
 *
 * 1. A member that starts nothing more says so to its leader, after its last part.
 * 2. A leader that has heard it of all its group says so to the other leaders, after its
 *    last sum; having heard it of them, too, it says so to its group, after its last result.
 * 3. What has not come by then never does: it fails, or the set may go.
 * A peer that has left the job has said all of it.
 */
#include "engine/swap_int.h"

static bool is_over(const struct engine *e, const struct pset *s, int member)
{
    return member == s->self || s->swap->ended[member] ||
           mesh_has_left(e->mesh, s->ranks[member]);
}

static bool are_over(const struct engine *e, const struct pset *s, const int *members,
                     int count)
{
    for (int i = 0; i < count; i++)
        if (!is_over(e, s, members[i]))
            return false;
    return true;
}

/* After what is still to be sent: the message without items. */
static void say_last(struct engine *e, struct pset *s, struct swap_out *out,
                     const int *members, int count)
{
    struct strbuf last;

    if (out->ended)
        return;
    out->ended = true;
    swap_flush(e, s);
    strbuf_init(&last);
    pset_put_head(s, MESSAGE_SWAP, &last);
    for (int i = 0; i < count && !last.failed; i++)
        if (members[i] != s->self && !mesh_has_left(e->mesh, s->ranks[members[i]]))
            mesh_post(e->mesh, s->ranks[members[i]], last.text, last.length, NULL);
    strbuf_release(&last);
}

/* One step towards the end; true: it has been reached here. */
bool swap_end(struct engine *e, struct pset *s)
{
    struct swap *w = s->swap;

    if (w == NULL)
        return true;
    if (!swap_leads(w)) {
        say_last(e, s, &w->up, w->mates, 1);
        return is_over(e, s, w->mates[0]);
    }
    if (!are_over(e, s, w->mates, w->mate_count))
        return false;
    say_last(e, s, &w->across, w->leaders, w->group_count);
    if (!are_over(e, s, w->leaders, w->group_count))
        return false;
    say_last(e, s, &w->down, w->mates, w->mate_count);
    return true;
}

/* A rank has left the job. */
void swap_leave(struct engine *e, struct pset *s, enum hvd_status status,
                const struct hvd_error *why)
{
    if (s->swap == NULL || s->self < 0 || !swap_end(e, s) || !swap_has_open(s))
        return;
    for (int i = 0; i < CACHE_NUMBERS; i++) {
        struct entry *t = s->by_number[i] != NULL ? s->by_number[i]->entry : NULL;

        if (t != NULL && t->state == ENTRY_SWAP)
            entry_fail(e, t, status, why);
    }
}
