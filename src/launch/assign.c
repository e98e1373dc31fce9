/*
 * assign.c: slots to ranks.
 *
 * 1. Hosts in the order given, each filled before the next; rank counts up, local_rank
 *    is the index within the host.
 * 2. The cross group of local rank L is made of the hosts that have a rank with local
 *    rank L, in host order.
 * 3. A host that gets no rank appears nowhere.
 */
#include "launch/assign.h"

#include <stdlib.h>

static int place(const struct host_list *hosts, int np, struct slot *slots)
{
    int rank = 0;

    for (int h = 0; h < hosts->count && rank < np; h++) {
        int first = rank;

        for (int i = 0; i < hosts->items[h].slots && rank < np; i++, rank++)
            slots[rank] = (struct slot){.host = h, .rank = rank, .local_rank = i};
        for (int r = first; r < rank; r++)
            slots[r].local_size = rank - first;
    }
    return rank;
}

enum hvd_status assign_slots(const struct host_list *hosts, int np, struct slot *slots,
                             struct hvd_error *err)
{
    int available = hosts_slot_count(hosts);
    int *groups;

    if (available < np)
        return error_set(err, HVD_INVALID, -1,
                         "Requested more processes (%d) than there are available slots "
                         "(%d)", np, available);
    np = place(hosts, np, slots);
    groups = calloc((size_t)np + 1, sizeof *groups);
    if (groups == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for %d ranks", np);
    for (int r = 0; r < np; r++)
        slots[r].cross_rank = groups[slots[r].local_rank]++;
    for (int r = 0; r < np; r++) {
        slots[r].size = np;
        slots[r].cross_size = groups[slots[r].local_rank];
    }
    free(groups);
    return HVD_OK;
}
