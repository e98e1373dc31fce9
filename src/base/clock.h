/* clock.h: time that only goes forward.  Wall-clock time appears in log lines only. */
#ifndef HVD_BASE_CLOCK_H
#define HVD_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t clock_us(void)
{
    return clock_ns() / 1000;
}

#endif
