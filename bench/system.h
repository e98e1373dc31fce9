/*
 * system.h: the few calls collbench makes on whatever it measures; one backend_*.c a system.
 *
 * Counts are elements (float32) for reductions, bytes elsewhere.  in == out: in place.
 * A failure ends the process with a message.
 */
#ifndef BENCH_SYSTEM_H
#define BENCH_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>

void sys_init(int *argc, char ***argv, int *rank_p, int *size_p);
void sys_finish(void);

/* Memory as a user would hand it over; shared: from the system's own allocator, if it has
 * one.  Zeroed.  Owns: until sys_finish. */
void *sys_alloc(size_t bytes, bool shared);

void sys_allreduce(const float *in, float *out, size_t count);
void sys_reducescatter(const float *in, float *out, size_t count_per_rank);
void sys_allgather(const void *in, void *out, size_t bytes_per_rank);
void sys_broadcast(void *buffer, size_t bytes, int root);
void sys_alltoall(const void *in, void *out, size_t bytes_per_pair);

/* Private memory as the allocators of the frameworks give it: huge pages where they fit.
 * For backends. */
void *sys_alloc_private(size_t bytes);

#endif
