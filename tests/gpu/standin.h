/*
 * standin.h: what the two stand-ins share, and what tests call beyond the names of CUDA and NCCL.
 *
 * A stand-in for the CUDA driver and for NCCL, for machines without a GPU.
 *
 *   memory   device addresses are mapped without any right: whoever touches them outside a copy
 *            dies at once; the stand-in has the same pages elsewhere
 *   streams  a queue and a thread each; before an operation it waits for a while that the seed
 *            says; nothing is ordered between streams but by events
 *   NCCL     between processes, over memory that they share; an operation waits for all members,
 *            and checks that all have called the same
 *
 * STANDIN_SEED=n      order and lateness of streams
 * STANDIN_DEVICES=n   4
 * STANDIN_SAME=1      all processes see the same GPUs (else each its own)
 * STANDIN_FAULT=name:after=n:code=n   a call of that name fails; or hangs (:hang), or kills its
 *                     process (:kill)
 * STANDIN_NCCL_VERSION=n
 */
#ifndef TESTS_GPU_STANDIN_H
#define TESTS_GPU_STANDIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STANDIN_PUBLIC __attribute__((visibility("default")))

/* Device memory as the stand-in sees it, or host memory itself; NULL: not all of it is ours. */
STANDIN_PUBLIC void *standin_reach(uintptr_t at, size_t bytes);
/* Queues `run`, which the stream's thread calls and which then frees its context. */
STANDIN_PUBLIC void standin_queue(void *stream, void (*run)(void *), void *context);
/* The code with which this call has to fail, 0: none.  Does not return if it has to hang. */
STANDIN_PUBLIC int standin_fault(const char *name);
STANDIN_PUBLIC uint32_t standin_random(void);

/* For tests. */
STANDIN_PUBLIC uintptr_t standin_alloc(int device, size_t bytes);
STANDIN_PUBLIC void standin_free(uintptr_t at);
STANDIN_PUBLIC void standin_write(uintptr_t at, const void *from, size_t bytes);
STANDIN_PUBLIC void standin_read(void *to, uintptr_t at, size_t bytes);
STANDIN_PUBLIC void *standin_stream_new(int device);
STANDIN_PUBLIC void standin_stream_end(void *stream);
/* Queued; `from` is copied at once. */
STANDIN_PUBLIC void standin_stream_write(void *stream, uintptr_t at, const void *from,
                                         size_t bytes);
STANDIN_PUBLIC void standin_stream_read(void *stream, void *to, uintptr_t at, size_t bytes);
STANDIN_PUBLIC void standin_stream_sync(void *stream);
/* Streams, events, allocations and pinned ranges that have not been ended. */
STANDIN_PUBLIC int standin_open_count(void);
STANDIN_PUBLIC long standin_call_count(void);   /* of CUDA */

#endif
