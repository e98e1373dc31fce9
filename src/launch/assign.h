/* assign.h: which rank runs where.  Pure. */
#ifndef HVD_LAUNCH_ASSIGN_H
#define HVD_LAUNCH_ASSIGN_H

#include "launch/hosts.h"

struct slot {
    int host;                           /* index in the host list */
    int rank, size;
    int local_rank, local_size;
    int cross_rank, cross_size;
};

/* Fills hosts in their order until np ranks are placed; slots has room for np.
 * Errors: HVD_INVALID when there are fewer slots than np; HVD_NOMEM. */
enum hvd_status assign_slots(const struct host_list *hosts, int np, struct slot *slots,
                             struct hvd_error *err);

#endif
