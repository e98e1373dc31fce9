/* bind.h: CPUs of this machine and which of them a rank should keep to. */
#ifndef HVD_LAUNCH_BIND_H
#define HVD_LAUNCH_BIND_H

#include <sched.h>
#include <stdbool.h>

/* CPUs the workers of this host may use together: the affinity mask, less if a control
 * group allows less time.  At least 1. */
int bind_cpu_count(void);

/* Whether rank local_rank of local_size should be bound, and to what. */
bool bind_choose(int local_rank, int local_size, cpu_set_t *cpus_p);

/* The same decision over given sets, for tests: nodes[i] are the CPUs of NUMA node i. */
bool bind_choose_from(const cpu_set_t *allowed, const cpu_set_t *nodes, int node_count,
                      int local_rank, int local_size, cpu_set_t *cpus_p);

#endif
