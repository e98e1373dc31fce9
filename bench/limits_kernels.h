/*
 * limits_kernels.h: the bare memory kernels, in vectors of 32 bytes.  Wider ones bring
 * nothing for sums of float32: memory decides.
 */
#ifndef BENCH_LIMITS_KERNELS_H
#define BENCH_LIMITS_KERNELS_H

#include <stddef.h>

/* a, b, c: 32-byte aligned; bytes: a multiple of 64.  Not all use all. */
typedef void (*kernel_fn)(float *a, const float *b, const float *c, size_t bytes);

void kernel_read(float *a, const float *b, const float *c, size_t bytes);
void kernel_write(float *a, const float *b, const float *c, size_t bytes);
void kernel_write_stream(float *a, const float *b, const float *c, size_t bytes);
void kernel_copy(float *a, const float *b, const float *c, size_t bytes);
void kernel_copy_stream(float *a, const float *b, const float *c, size_t bytes);
void kernel_copy_libc(float *a, const float *b, const float *c, size_t bytes);
void kernel_add_to(float *a, const float *b, const float *c, size_t bytes);
void kernel_add(float *a, const float *b, const float *c, size_t bytes);
void kernel_add_stream(float *a, const float *b, const float *c, size_t bytes);

/* Elements [begin, end) of `count` inputs summed and stored to `count` outputs. */
void kernel_allreduce(float *const *in, float *const *out, int count, size_t begin,
                      size_t end, int stream);

#endif
