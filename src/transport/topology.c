/*
 * topology.c: who is where.  A pure function of the table.
 *
 * 1. Ranks with equal `machine` are on one host.  Hosts are counted by their lowest rank,
 *    local ranks by global rank; ranks of one host need not be neighbours.
 * 2. A cross group is the ranks with one local rank, counted by host.
 * 3. What the launcher has said about a rank must agree with what is found.
 */
#include "transport_int.h"

#include <stdlib.h>

static void place(struct mesh_topology *t, const struct table *table, int *host_sizes)
{
    for (int r = 0; r < t->size; r++) {
        const struct table_entry *e = &table->entries[r];
        int host = t->host_count;

        for (int k = 0; k < r && host == t->host_count; k++)
            if (memcmp(table->entries[k].machine, e->machine, sizeof e->machine) == 0)
                host = t->host_of[k];
        if (host == t->host_count)
            t->host_count++;
        t->host_of[r] = host;
        t->local_rank_of[r] = host_sizes[host]++;
        memcpy(t->hosts[r], e->host, sizeof t->hosts[r]);
        t->hosts[r][sizeof t->hosts[r] - 1] = 0;
    }
}

static void place_self(struct mesh_topology *t, const int *host_sizes)
{
    int host = t->host_of[t->rank];

    t->local_rank = t->local_rank_of[t->rank];
    t->local_size = host_sizes[host];
    t->homogeneous = true;
    for (int h = 0; h < t->host_count; h++) {
        if (host_sizes[h] != host_sizes[0])
            t->homogeneous = false;
        if (host_sizes[h] > t->local_rank) {
            t->cross_size++;
            t->cross_rank += h < host;
        }
    }
    for (int r = 0; r < t->size; r++)
        if (t->host_of[r] == host)
            t->local_ranks[t->local_rank_of[r]] = r;
}

/* Rule 3. */
static enum hvd_status compare(const struct mesh_topology *t, const char *what, int given,
                               int found, struct hvd_error *err)
{
    if (given < 0 || given == found)
        return HVD_OK;
    return error_set(err, HVD_MISMATCH, t->rank,
                     "rank %d on %s was started with HOROVOD_%s %d, but the ranks that "
                     "came make it %d; ranks of one host need the same HOROVOD_HOSTNAME, "
                     "ranks of different hosts different ones",
                     t->rank, t->hosts[t->rank], what, given, found);
}

static enum hvd_status check(const struct mesh_topology *t, const struct table_entry *e,
                             struct hvd_error *err)
{
    TRY(compare(t, "LOCAL_SIZE", e->local_size, t->local_size, err));
    TRY(compare(t, "LOCAL_RANK", e->local_rank, t->local_rank, err));
    TRY(compare(t, "CROSS_SIZE", e->cross_size, t->cross_size, err));
    return compare(t, "CROSS_RANK", e->cross_rank, t->cross_rank, err);
}

enum hvd_status topology_build(struct mesh_topology *t, const struct table *table,
                               int rank, struct hvd_error *err)
{
    size_t n = (size_t)table->count;
    int *host_sizes = calloc(n, sizeof *host_sizes);

    *t = (struct mesh_topology){.rank = rank, .size = table->count};
    t->host_of = calloc(n, sizeof *t->host_of);
    t->local_rank_of = calloc(n, sizeof *t->local_rank_of);
    t->local_ranks = calloc(n, sizeof *t->local_ranks);
    t->hosts = calloc(n, sizeof *t->hosts);
    if (host_sizes == NULL || t->host_of == NULL || t->local_rank_of == NULL ||
        t->local_ranks == NULL || t->hosts == NULL) {
        free(host_sizes);
        return error_set(err, HVD_NOMEM, -1, "no memory for the topology");
    }
    place(t, table, host_sizes);
    place_self(t, host_sizes);
    free(host_sizes);
    return check(t, &table->entries[rank], err);
}

void topology_release(struct mesh_topology *t)
{
    free(t->host_of);
    free(t->local_rank_of);
    free(t->local_ranks);
    free(t->hosts);
    *t = (struct mesh_topology){0};
}
