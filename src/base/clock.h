/* clock.h: time that only goes forward.  Wall-clock time is only shown. */
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

/* Wall-clock time, only to be shown: in the heads of files that people compare with logs.
 * Async-signal-safe. */
static inline uint64_t clock_wall_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000;
}

static inline uint64_t clock_us(void)
{
    return clock_ns() / 1000;
}

#endif
