/*
 * fault.h: named fault points.  `if (FAULT("tcp.recv")) { errno = ...; fail }` stands where
 * a system call can fail.  HOROVOD_FAULT (or fault_setup in tests) arms them:
 *
 *   spec  := rule (';' rule)*
 *   rule  := name [ 'rank=' n ] [ 'after=' n ] [ 'times=' n ] [ action ]
 *   action:= 'reset' (ECONNRESET) | 'nomem' (ENOMEM) | 'nospc' (ENOSPC) | 'mfile'
 *            (EMFILE) | 'kill' (SIGKILL to this process) | 'stop' (SIGSTOP)
 *            | 'delay=' milliseconds; default 'reset'
 *
 * A point costs one relaxed load while nothing is armed.
 */
#ifndef HVD_BASE_FAULT_H
#define HVD_BASE_FAULT_H

#include <stdatomic.h>
#include <stdbool.h>

extern atomic_int fault_armed;

/* Arms the points of spec for this process, which is `rank`; NULL or "" disarms all.
 * False: spec was not understood. */
bool fault_setup(const char *spec, int rank);

/* True: the caller fails, errno is set. */
bool fault_hits(const char *name);

/* How often the point was passed since it was armed; -1 if it is not armed. */
long fault_count(const char *name);

#define FAULT(name)                                                                    \
    (__builtin_expect(atomic_load_explicit(&fault_armed, memory_order_relaxed), 0) &&  \
     fault_hits(name))

#endif
