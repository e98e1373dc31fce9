/* thread.c: see thread.h. */
#include "base/thread.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void thread_wait(atomic_uint *word, unsigned value, int64_t timeout_us)
{
    struct timespec t = {timeout_us / 1000000, (timeout_us % 1000000) * 1000};

    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout_us < 0 ? NULL : &t, NULL,
            0);
}

void thread_wake_all(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

int thread_cpu_count(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return (int)sysconf(_SC_NPROCESSORS_ONLN);
    return CPU_COUNT(&set);
}

int thread_start(pthread_t *thread_p, void *(*run)(void *), void *context)
{
    sigset_t all, before;
    int code;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(thread_p, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

bool thread_pin(pthread_t thread, int cpu)
{
    cpu_set_t set;

    if (cpu < 0 || cpu >= CPU_SETSIZE)
        return false;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return pthread_setaffinity_np(thread, sizeof set, &set) == 0;
}
