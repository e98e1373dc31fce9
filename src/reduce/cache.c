/*
 * cache.c: how much the last cache that a CPU sees holds.  sysconf tells the caches of the
 * whole socket on some machines (256 MiB where a CPU has 32), so the kernel is asked first;
 * the smaller answer counts.
 */
#include "reduce/reduce.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define CACHE_GUESS ((size_t)32 << 20)  /* where nobody tells */

/* Of /sys/devices/system/cpu/cpuN/cache/index3/size, such as "32768K"; 0: not there. */
static size_t kernel_bytes(void)
{
    int cpu = sched_getcpu();
    unsigned long kilobytes = 0;
    char path[80];
    FILE *file;

    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index3/size",
             cpu < 0 ? 0 : cpu);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%luK", &kilobytes) != 1)
        kilobytes = 0;
    fclose(file);
    return (size_t)kilobytes << 10;
}

static size_t find_bytes(void)
{
    long told = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t bytes = kernel_bytes();

    if (told > 0 && (bytes == 0 || (size_t)told < bytes))
        bytes = (size_t)told;
    return bytes > 0 ? bytes : CACHE_GUESS;
}

size_t red_cache_bytes(void)
{
    static _Atomic(size_t) known;
    size_t bytes = atomic_load_explicit(&known, memory_order_relaxed);

    if (__builtin_expect(bytes != 0, 1))
        return bytes;
    bytes = find_bytes();
    atomic_store_explicit(&known, bytes, memory_order_relaxed);
    return bytes;
}
