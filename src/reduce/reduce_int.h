/*
 * reduce_int.h: what dispatch.c and the instruction sets know of each other.
 *
 * Every set compiles the same text (kernels.inc) into one struct red_table; dispatch.c
 * takes the best one the CPU can run.  Rules every set keeps, so that the choice never
 * shows in a result:
 *   1. No contraction of a * b + c (-ffp-contract=off), no reassociation.
 *   2. Heads and tails go through the same vector code as the rest, zero-padded.
 *   3. A NaN result is always the one quiet NaN without sign and payload.
 *   4. Subnormal numbers are kept; dispatch.c sees to the thread's modes.
 */
#ifndef HVD_REDUCE_INT_H
#define HVD_REDUCE_INT_H

#include "reduce/reduce.h"

/* From which type to which: the types themselves, then the changes of width. */
enum red_kind {
    RED_KIND_F16_F32 = HVD_DTYPE_COUNT,
    RED_KIND_BF16_F32,
    RED_KIND_F32_F16,
    RED_KIND_F32_BF16,
    RED_KIND_F32_WIDE,                  /* float32 to float32, added in float64 */
    RED_KIND_COUNT
};

/* A red_job with its factors decided. */
struct red_pass {
    const void *const *src;
    int nsrc;
    void *const *dst;
    int ndst;
    size_t count;
    double pre, post;                   /* 1.0: none */
    double over;                        /* float64 only: divides after post; 1.0: none */
    int64_t divisor;                    /* integers only; 0: none, post is 1.0 then */
    bool stream;
};

typedef void (*red_fn)(const struct red_pass *pass);

/* Element i goes to lane i % RED_LANES, on every set: the order of the sums is fixed. */
#define RED_LANES 8
struct red_dots_state {
    double dot[RED_LANES], na[RED_LANES], nb[RED_LANES];
};

struct red_table {
    const char *name;
    red_fn fn[RED_KIND_COUNT][RED_OP_COUNT];
    /* Adds `count` elements; only the last call may have a count not divisible by 8. */
    void (*dots_f32)(struct red_dots_state *state, const void *a, const void *b,
                     size_t count);
    void (*dots_f64)(struct red_dots_state *state, const void *a, const void *b,
                     size_t count);
    void (*combine_f32)(void *dst, const void *a, double ca, const void *b, double cb,
                        size_t count);
    void (*combine_f64)(void *dst, const void *a, double ca, const void *b, double cb,
                        size_t count);
    void (*copy_stream)(void *dst, const void *src, size_t bytes);
};

extern const struct red_table red_table_base, red_table_avx2, red_table_avx512,
    red_table_neon;

#endif
