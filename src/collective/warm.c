/*
 * warm.c: connections that large sums of a team will use, made in the background before the
 * first of them is needed: who sets up an optimizer says so.  (Small ones go with their
 * announcements, or by other partners; they are as many as the rounds.)
 *
 * Up to HOSTS_IN_LINE hosts every one sends to all others; of more, leaf v meets the leaves
 * v ^ 2^i, and the member that is folded into it (order.c, allreduce_halving.c).
 */
#include "collective/collective_int.h"

static void warm_all(struct coll_team *team)
{
    for (int i = 0; i < team->count; i++)
        mesh_warm(team->mesh, team->ranks[i]);
}

static void warm_leaves(struct coll_team *team)
{
    int leaves = pattern_power(team->count), folded = team->count - leaves;
    int leaf = team->me >= 2 * folded ? team->me - folded : team->me / 2;

    if (team->me < 2 * folded)
        mesh_warm(team->mesh, team->ranks[team->me ^ 1]);
    if (team->me < 2 * folded && team->me % 2 == 1)
        return;
    for (int bit = 1; bit < leaves; bit *= 2) {
        int other = leaf ^ bit;

        mesh_warm(team->mesh, team->ranks[other < folded ? 2 * other : other + folded]);
    }
}

void coll_warm(struct coll_team *team)
{
    if (team->layout.host_count == 1)
        return;
    if (team->local != NULL) {          /* several members on a host: its carriers alone */
        if (team->cross != NULL)
            coll_warm(team->cross);
    } else if (order_is_tree(team)) {
        warm_leaves(team);
    } else {
        warm_all(team);
    }
}
