/*
 * coll.h: the few calls collbench makes on whatever it measures; one backend_*.c a system.
 *
 * Counts are elements (float32) for reductions, bytes elsewhere.  in == out: in place.
 * Operations return 0, or something else if the system does not offer them.
 */
#ifndef BENCH_COLL_H
#define BENCH_COLL_H

#include <stdbool.h>
#include <stddef.h>

void coll_init(int *argc, char ***argv, int *rank_p, int *size_p);
void coll_finish(void);
const char *coll_name(void);

/* Memory as a user would hand it over; shared: from the system's own allocator, if it has
 * one.  Zeroed.  Owns: until coll_finish. */
void *coll_alloc(size_t bytes, bool shared);

int coll_barrier(void);
int coll_allreduce(const float *in, float *out, size_t count);
int coll_reducescatter(const float *in, float *out, size_t count_per_rank);
int coll_allgather(const void *in, void *out, size_t bytes_per_rank);
int coll_broadcast(void *buffer, size_t bytes, int root);
int coll_alltoall(const void *in, void *out, size_t bytes_per_pair);

#endif
