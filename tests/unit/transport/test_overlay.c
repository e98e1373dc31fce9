/* test_overlay.c: who watches whom between hosts: few, the same seen from both ends, never cut
 * off by several deaths, and news reach the last one in few steps. */
#include "check.h"
#include "transport/transport_int.h"

#include <stdlib.h>

enum { RANKS = 4096 };

static bool near_of[RANKS];

static struct mesh_topology layout_of(int hosts, int local_size)
{
    struct mesh_topology t = {.size = hosts * local_size, .host_count = hosts};

    t.host_of = calloc((size_t)t.size, sizeof *t.host_of);
    for (int r = 0; r < t.size; r++)
        t.host_of[r] = r / local_size;
    return t;
}

static int log2_up(int n)
{
    int k = 0;

    while (1 << k < n)
        k++;
    return k;
}

/* Steps until everybody has heard what rank `from` says; -1: somebody never does.  The dead
 * neither hear nor say. */
static int steps_from(struct mesh_topology *t, const bool *gone, const bool *dead, int from)
{
    int *heard = calloc((size_t)t->size, sizeof *heard);
    bool *hosts = calloc((size_t)t->host_count, sizeof *hosts);
    int step = 1, left = 1;

    heard[from] = 1;
    for (bool more = true; more; step++) {
        more = false;
        for (int r = 0; r < t->size; r++) {
            if (heard[r] != step)
                continue;
            t->rank = r;
            memset(near_of, 0, sizeof near_of);
            CHECK(overlay_neighbours(t, gone, near_of));
            for (int p = 0; p < t->size; p++) {
                bool mate = t->host_of[p] == t->host_of[r] && !hosts[t->host_of[r]];

                if ((near_of[p] || mate) && heard[p] == 0 && !dead[p] &&
                    (gone == NULL || !gone[p])) {
                    heard[p] = step + 1;
                    more = true;
                }
            }
            hosts[t->host_of[r]] = true;
        }
    }
    for (int r = 0; r < t->size; r++)
        if (heard[r] == 0 && !dead[r] && (gone == NULL || !gone[r]))
            left = -1;
    free(heard);
    free(hosts);
    return left < 0 ? -1 : step;
}

TEST(both_ends_agree_and_have_few)
{
    for (int hosts = 1; hosts <= 70; hosts++)
        for (int local = 1; local <= 3; local++) {
            struct mesh_topology t = layout_of(hosts, local);
            static bool seen[256][256];

            memset(seen, 0, sizeof seen);
            for (int r = 0; r < t.size; r++) {
                int count = 0;

                t.rank = r;
                CHECK(overlay_neighbours(&t, NULL, seen[r]));
                for (int p = 0; p < t.size; p++)
                    count += seen[r][p];
                CHECK(count <= 2 * log2_up(hosts));
                CHECK(hosts == 1 || local > 1 || count > 0);
            }
            for (int r = 0; r < t.size; r++)
                for (int p = 0; p < t.size; p++)
                    CHECK(seen[r][p] == seen[p][r] &&
                          (!seen[r][p] || t.host_of[r] != t.host_of[p]));
            free(t.host_of);
        }
}

/* A thousand hosts of four: fewer than ten connections of a rank. */
TEST(connections_grow_with_the_logarithm)
{
    struct mesh_topology t = layout_of(1000, 4);
    int count = 0;

    CHECK(overlay_neighbours(&t, NULL, near_of));
    for (int p = 0; p < t.size; p++)
        count += near_of[p];
    CHECK(count > 0 && count <= 6);
    free(t.host_of);
}

static void kill_some(const struct mesh_topology *t, bool *dead, int hosts, int ranks,
                      unsigned *seed)
{
    memset(dead, 0, (size_t)t->size);
    for (int i = 0; i < hosts; i++) {
        int host = 1 + (int)(rand_r(seed) % (unsigned)(t->host_count - 1));

        for (int r = 0; r < t->size; r++)
            dead[r] = dead[r] || t->host_of[r] == host;
    }
    for (int i = 0; i < ranks; i++)
        dead[1 + (int)(rand_r(seed) % (unsigned)(t->size - 1))] = true;
}

TEST(several_deaths_at_once_cut_nobody_off, .limit_s = 60)
{
    static const int sizes[] = {3, 5, 8, 13, 32, 64, 100};
    static bool dead[RANKS], gone[RANKS];
    unsigned seed = 7;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int round = 0; round < 40; round++) {
            int local = 1 + round % 3, most = log2_up(sizes[i]);
            struct mesh_topology t = layout_of(sizes[i], local);
            int steps;

            kill_some(&t, dead, round % 2 ? most / 2 : 0, round % 2 ? 0 : most, &seed);
            dead[0] = false;
            steps = steps_from(&t, NULL, dead, 0);
            CHECK(steps > 0 && steps <= 2 * most + 4);
            /* The same after departures: those who are left choose anew. */
            memcpy(gone, dead, sizeof gone);
            memset(dead, 0, sizeof dead);
            CHECK(steps_from(&t, gone, dead, 0) > 0);
            free(t.host_of);
        }
}
