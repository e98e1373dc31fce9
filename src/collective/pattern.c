/* pattern.c: see pattern.h. */
#include "collective/pattern.h"

#define CHUNK_LEAST ((size_t)4 << 10)
#define CHUNK_GOOD ((size_t)64 << 10)   /* a reduction of 1 us, a claim costs 0.1 */
#define CHUNK_MOST ((size_t)256 << 10)
#define CHUNK_COUNT 64

size_t pattern_chunk(size_t count, size_t element_bytes, int members, size_t limit)
{
    size_t bytes = count * element_bytes, chunk;

    if (bytes < (size_t)members * CHUNK_GOOD) {
        chunk = bytes / (size_t)members;
        chunk = chunk < CHUNK_LEAST ? CHUNK_LEAST : chunk;
    } else {
        chunk = bytes / CHUNK_COUNT;
        chunk = chunk < CHUNK_GOOD ? CHUNK_GOOD : chunk;
        chunk = chunk > CHUNK_MOST ? CHUNK_MOST : chunk;
    }
    if (bytes / chunk >= limit)
        chunk = bytes / limit + 1;
    return (chunk + CHUNK_LEAST - 1) / CHUNK_LEAST * CHUNK_LEAST / element_bytes;
}

size_t pattern_slice(size_t count, int parts, int index, size_t *begin_p)
{
    size_t units = (count + 63) / 64, n = (size_t)parts, i = (size_t)index;
    size_t each = units / n, more = units % n;
    size_t begin = (each * i + (i < more ? i : more)) * 64;
    size_t end = begin + (each + (i < more)) * 64;

    begin = begin < count ? begin : count;
    end = end < count ? end : count;
    *begin_p = begin;
    return end - begin;
}

int pattern_rounds(int n)
{
    int k = 0;

    while ((1 << k) < n)
        k++;
    return k;
}

int pattern_power(int n)
{
    int power = 1;

    while (2 * power <= n)
        power *= 2;
    return power;
}

void pattern_bruck(int n, int me, int round, int *to_p, int *from_p, int *blocks_p)
{
    int held = 1 << round;

    *to_p = (me - held % n + n) % n;
    *from_p = (me + held) % n;
    *blocks_p = held < n - held ? held : n - held;
}

/* With the root moved to 0, member v has the parent v without its lowest set bit. */
int pattern_tree_parent(int n, int root, int me)
{
    int v = (me - root + n) % n;

    return v == 0 ? -1 : ((v & (v - 1)) + root) % n;
}

int pattern_tree_child(int n, int root, int me, int i)
{
    int v = (me - root + n) % n;
    int bit = v == 0 ? 1 << pattern_rounds(n) : v & -v;

    while ((bit >>= 1) > 0) {
        if (v + bit >= n)
            continue;
        if (i-- == 0)
            return (v + bit + root) % n;
    }
    return -1;
}
