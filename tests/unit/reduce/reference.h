/*
 * reference.h: an independent and slow implementation of reduce.h's rules, one element at
 * a time, for the tests.  Conversions of 16-bit floats go through ldexp and nearbyint in
 * float64, not through bits.
 */
#ifndef TESTS_REFERENCE_H
#define TESTS_REFERENCE_H

#include "reduce/reduce.h"

double ref_half_value(uint16_t half, bool brain);       /* brain: bfloat16 */
uint16_t ref_half_round(double x, bool brain);          /* to nearest, ties to even */

/* What red_run must leave in element i of every destination; `out` takes 8 bytes. */
void ref_element(const struct red_job *job, size_t i, void *out);

#endif
