/*
 * overlay.c: who watches whom between hosts, and hands on what it hears.  A pure function of
 * the topology and of who has left; all ranks find the same.
 *
 * 1. Hosts that have ranks left stand in a ring, in their order.  A host is joined to those at
 *    distance 1, 2, 4, ... on both sides: about 2 log2(hosts) of them.  So news reach the last
 *    host in log2(hosts) steps or fewer, and hosts stay connected unless all neighbours of
 *    one die at the same moment.
 * 2. Between two hosts that are joined there is one connection, of one rank of each; the
 *    connections of a host are dealt out to its ranks in turn, so that the death of one rank
 *    takes few of them.  Within a host news go by shared memory.
 * 3. Of two hosts each is the other's neighbour to both sides, so there are two connections,
 *    of different ranks where they have several.
 */
#include "transport_int.h"

#include <stdlib.h>

struct circle {
    int count;                          /* hosts that have ranks left */
    int self;                           /* where ours stands */
    int fingers;                        /* distances 1, 2, 4, ... below count */
    int *first;                         /* by place: index into ranks; count + 1 of them */
    int *ranks;                         /* by place, then by rank */
};

static bool is_gone(const bool *gone, int rank)
{
    return gone != NULL && gone[rank];
}

static bool circle_init(struct circle *c, const struct mesh_topology *t, const bool *gone)
{
    int *sizes = calloc((size_t)t->host_count, sizeof *sizes);
    int *places = calloc((size_t)t->host_count, sizeof *places);

    *c = (struct circle){0};
    c->first = calloc((size_t)t->host_count + 1, sizeof *c->first);
    c->ranks = calloc((size_t)t->size, sizeof *c->ranks);
    if (sizes == NULL || places == NULL || c->first == NULL || c->ranks == NULL) {
        free(sizes);
        free(places);
        return false;
    }
    for (int r = 0; r < t->size; r++)
        sizes[t->host_of[r]] += !is_gone(gone, r);
    for (int h = 0; h < t->host_count; h++) {
        if (sizes[h] == 0)
            continue;
        c->first[c->count + 1] = c->first[c->count] + sizes[h];
        places[h] = c->count++;
        sizes[h] = 0;
    }
    for (int r = 0; r < t->size; r++)
        if (!is_gone(gone, r)) {
            int h = t->host_of[r];

            c->ranks[c->first[places[h]] + sizes[h]++] = r;
        }
    c->self = places[t->host_of[t->rank]];
    while (1 << c->fingers < c->count)
        c->fingers++;
    free(sizes);
    free(places);
    return true;
}

static void circle_release(struct circle *c)
{
    free(c->first);
    free(c->ranks);
}

/* Rule 2: whose turn the connection with this number is. */
static int carrier(const struct circle *c, int place, int number)
{
    int size = c->first[place + 1] - c->first[place];

    return c->ranks[c->first[place] + number % size];
}

bool overlay_neighbours(const struct mesh_topology *t, const bool *gone, bool *out)
{
    struct circle c;
    bool made = circle_init(&c, t, gone);

    for (int k = 0; made && k < c.fingers; k++) {
        int after = (c.self + (1 << k)) % c.count;
        int before = (c.self + c.count - (1 << k)) % c.count;

        if (carrier(&c, c.self, k) == t->rank)
            out[carrier(&c, after, c.fingers + k)] = true;
        if (carrier(&c, c.self, c.fingers + k) == t->rank)
            out[carrier(&c, before, k)] = true;
    }
    circle_release(&c);
    return made;
}
