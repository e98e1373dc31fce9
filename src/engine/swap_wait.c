/*
 * swap_wait.c: who has not come to a swap, for the stall report and the statistics.  A leader
 * knows of its group, and of groups of one member; of the others their leaders know more.
 * Each leader reports what it knows to all; where all members lead, the first one does.
 * Whoever is not a leader knows nothing.
 */
#include "engine/swap_int.h"

static int place_of_mate(const struct swap *w, int member)
{
    int place = 0;

    while (w->mates[place] != member)
        place++;
    return place;
}

static bool is_missing(const struct swap *w, const struct swap_turn *t, int member)
{
    int group = w->group_of[member];

    if (group == w->group)
        return !t->has_part[place_of_mate(w, member)];
    return w->group_size[group] == 1 && !t->has_sum[group];
}

static bool find_missing(const struct pset *s, const struct swap_turn *t, bool *missing)
{
    bool any = false;

    for (int m = 0; m < s->count; m++)
        any |= missing[m] = is_missing(s->swap, t, m);
    return any;
}

bool swap_is_waiting(const struct pset *s)
{
    return s->swap != NULL && s->swap->waiting > 0;
}

bool swap_has_report(const struct pset *s)
{
    return swap_is_waiting(s) && (s->swap->by_host || s->self == 0);
}

void swap_each_waiting(const struct pset *s, uint64_t since_us, bool *missing,
                       neg_stall_fn each, void *context)
{
    for (int i = 0; swap_has_report(s) && i < CACHE_NUMBERS; i++) {
        const struct cached *c = s->by_number[i];

        for (int k = 0; c != NULL && c->room != NULL && k < 2; k++) {
            const struct swap_turn *t = &c->room->turns[k];

            if (t->waiting && t->first_us <= since_us && find_missing(s, t, missing))
                each(context, c->name, c->op, t->first_us, missing);
        }
    }
}

/* The last member that has not come, as far as we know; -1: none. */
int swap_missing_member(const struct entry *t)
{
    const struct swap *w = t->set->swap;
    const struct swap_room *room = t->cached != NULL ? t->cached->room : NULL;

    for (int m = t->set->count - 1; room != NULL && m >= 0; m--)
        if (is_missing(w, &room->turns[t->turn & 1], m))
            return m;
    return -1;
}
