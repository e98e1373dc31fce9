/*
 * eager_wait.c: who has not come to an eager tensor, for the stall report and the statistics.
 * A leader knows of its group, and of groups of one member; of the others their leaders know
 * more.  Each leader reports what it knows to all; where all members lead, the first one does.
 * Whoever is not a leader knows nothing.
 */
#include "engine/eager_int.h"

static int place_of_mate(const struct eager *w, int member)
{
    int place = 0;

    while (w->groups->mates[place] != member)
        place++;
    return place;
}

static bool is_missing(const struct eager *w, const struct eager_turn *t, int member)
{
    int group = w->groups->host_of[member];

    if (group == w->groups->host)
        return !t->has_part[place_of_mate(w, member)];
    return layout_size(w->groups, group) == 1 && !t->has_sum[group];
}

static bool find_missing(const struct eager *w, const struct eager_turn *t, bool *missing)
{
    bool any = false;

    for (int m = 0; m < w->way.set->count; m++)
        any |= missing[m] = is_missing(w, t, m);
    return any;
}

bool eager_has_report(const struct way *way)
{
    const struct eager *w = eager_of(way);

    return w->waiting > 0 && (w->by_host || way->set->self == 0);
}

void eager_each_waiting(const struct way *way, uint64_t since_us, bool *missing,
                        neg_stall_fn each, void *context)
{
    const struct pset *s = way->set;

    for (int i = 0; eager_has_report(way) && i < CACHE_NUMBERS; i++) {
        const struct cached *c = s->by_number[i];

        for (int k = 0; c != NULL && c->room != NULL && k < 2; k++) {
            const struct eager_turn *t = &c->room->turns[k];

            if (t->waiting && t->first_us <= since_us &&
                find_missing(eager_of(way), t, missing))
                each(context, c->name, c->form.op, t->first_us, missing);
        }
    }
}

bool eager_waits(const struct entry *t)
{
    (void)t;
    return true;
}

/* As far as we know. */
bool eager_has_come(const struct entry *t, int member)
{
    const struct eager_room *room = t->cached->room;

    return room == NULL || !is_missing(eager_of(t->way), &room->turns[t->turn & 1], member);
}
