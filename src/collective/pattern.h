/*
 * pattern.h: who moves what in which round: pure arithmetic on indices.
 */
#ifndef HVD_COLLECTIVE_PATTERN_H
#define HVD_COLLECTIVE_PATTERN_H

#include <stddef.h>
#include <stdint.h>

/* Elements of a chunk when `members` share the reduction of `count` elements in memory:
 * at least one chunk each while chunks stay above 4 KiB, 64 to 256 KiB when there is
 * enough, and never more than `limit` chunks. */
size_t pattern_chunk(size_t count, size_t element_bytes, int members, size_t limit);

/* Slice `index` of `parts` of `count` elements: [*begin_p, *begin_p + result).  Slices
 * begin at multiples of 64 elements; the last ones may be empty. */
size_t pattern_slice(size_t count, int parts, int index, size_t *begin_p);

/* Rounds of a doubling scheme over n members: the least k with 2^k >= n. */
int pattern_rounds(int n);

/* The largest power of two that is not above n. */
int pattern_power(int n);

/* Bruck's allgather: before round k a member holds the blocks of the members me, me + 1,
 * ... (2^k of them).  In round k it sends the first *blocks_p of them to *to_p and appends
 * as many from *from_p. */
void pattern_bruck(int n, int me, int round, int *to_p, int *from_p, int *blocks_p);

/* Binomial tree over n members with the given root.  The parent of `me` (-1: root). */
int pattern_tree_parent(int n, int root, int me);
/* The i-th child of `me`, the one with the largest subtree first; -1: no more. */
int pattern_tree_child(int n, int root, int me, int i);

#endif
