/* clock.h: time that only goes forward.  Wall-clock time appears in log lines only. */
#ifndef HVD_BASE_CLOCK_H
#define HVD_BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Time of a simulation, instead of the real one; NULL outside of tests. */
extern const uint64_t *clock_simulated_ns;

static inline uint64_t clock_ns(void)
{
    struct timespec t;

    if (__builtin_expect(clock_simulated_ns != NULL, 0))
        return *clock_simulated_ns;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t clock_us(void)
{
    return clock_ns() / 1000;
}

#endif
