/*
 * digest.c: hvd_digest: a number that tells whether two ranks have the same bytes.
 *
 * Four lanes of a multiplication each, so that it goes as fast as memory does; each word enters
 * one lane by a step that can be undone, so that one word that differs changes the lane for
 * certain, and more of them by chance 1 to 2^64.  It guards against accident, not against
 * somebody who looks for two inputs with one number.
 */
#include "horovod/horovod.h"

#include <string.h>

#define LANES 4

static const uint64_t factor = 0x9e3779b97f4a7c15u;     /* odd: multiplying can be undone */

static uint64_t step(uint64_t lane, uint64_t word)
{
    lane ^= word;
    return (lane << 29 | lane >> 35) * factor;
}

uint64_t hvd_digest(const void *bytes, size_t count, uint64_t seed)
{
    uint64_t lanes[LANES] = {seed, ~seed, seed + factor, seed - factor};
    const char *at = bytes;
    size_t left = count;

    for (; left >= sizeof lanes; left -= sizeof lanes, at += sizeof lanes)
        for (int i = 0; i < LANES; i++) {
            uint64_t word;

            memcpy(&word, at + (size_t)i * sizeof word, sizeof word);
            lanes[i] = step(lanes[i], word);
        }
    for (int i = 0; left > 0; i++) {
        size_t part = left < sizeof(uint64_t) ? left : sizeof(uint64_t);
        uint64_t word = 0;

        memcpy(&word, at, part);
        lanes[i] = step(lanes[i], word);
        at += part;
        left -= part;
    }
    for (int i = 1; i < LANES; i++)
        lanes[0] = step(lanes[0], lanes[i]);
    lanes[0] = step(lanes[0], count);
    return lanes[0] ^ lanes[0] >> 32;
}
