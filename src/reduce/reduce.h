/*
 * reduce.h: element-wise reductions of R sources into one or more destinations, in one
 * pass.
 *
 * Order: element i is ((s0 op s1) op s2) op ...; the order of the sources is the only
 * thing that decides the bits.  float16 and bfloat16 are combined in float32 and rounded
 * once, when stored; so is the average of float32, which is combined in float64 (of two
 * or four sources in float32, whose sums of equal numbers are exact).
 *
 * Scaling: result = post(reduce(pre(x))).  Floats: factors are rounded to the type of the
 * accumulator (float32 for 16-bit types) first.  Integers: multiplied as float64 and cut
 * towards zero; sums wrap.  divisor > 1 with postscale 1.0 divides: integers exactly,
 * towards zero; floats in the accumulator, so that they are rounded once.
 * Minimum and maximum hand a NaN on, whichever source it came from.  A NaN result is
 * always the one quiet NaN without sign and payload.  bool is one byte,
 * 0 or not; SUM, MAX are "or", PRODUCT, MIN are "and"; results are 0 or 1.
 */
#ifndef HVD_REDUCE_REDUCE_H
#define HVD_REDUCE_REDUCE_H

#include "horovod/horovod.h"

enum red_op { RED_SUM, RED_PROD, RED_MIN, RED_MAX, RED_OP_COUNT };

struct red_job {
    const void *const *src;             /* nsrc sources, none partly overlapping a dst */
    int nsrc;
    void *const *dst;                   /* ndst destinations; may be equal to sources */
    int ndst;
    size_t count;                       /* elements */
    enum hvd_dtype src_type;
    enum hvd_dtype dst_type;            /* equal, or: F16/BF16 -> F32 (a partial result),
                                         * F32 -> F16/BF16 (the final one) */
    enum red_op op;
    double prescale, postscale;         /* 1.0: none */
    int64_t divisor;                    /* 0 or 1: none */
    bool stream;                        /* store past the caches (large, out of place) */
};

/* Thread: any.  Blocks: never.  Never fails: red_can says beforehand. */
void red_run(const struct red_job *job);

bool red_can(enum hvd_dtype dtype, enum red_op op);

/* Fills `count` elements with what leaves `op` unchanged. */
void red_fill_neutral(void *dst, size_t count, enum hvd_dtype dtype, enum red_op op);

/* Multiplies in place by factor with the rules above (for copies of one rank). */
void red_scale(void *data, size_t count, enum hvd_dtype dtype, double factor);

/* Adasum: sums of products in float64: *dot = a.b, *na = a.a, *nb = b.b.  F16, BF16, F32,
 * F64.  Fixed order, so the same bits for the same inputs on every instruction set. */
void red_dots(const void *a, const void *b, size_t count, enum hvd_dtype dtype,
              double *dot, double *na, double *nb);
/* dst = ca * a + cb * b */
void red_combine(void *dst, const void *a, double ca, const void *b, double cb,
                 size_t count, enum hvd_dtype dtype);

/* Bytes of the last cache that this CPU sees. */
size_t red_cache_bytes(void);

/* A copy that goes past the caches when source and destination do not fit into them. */
void red_copy(void *dst, const void *src, size_t bytes);
/* A part of something that reads and writes `all` bytes before it is used. */
void red_copy_part(void *dst, const void *src, size_t bytes, size_t all);

/* Name of the chosen instruction set: "base", "avx2", "avx512", "neon". */
const char *red_isa(void);
/* For tests: takes that set from now on; false if this CPU cannot. */
bool red_force_isa(const char *name);

#endif
