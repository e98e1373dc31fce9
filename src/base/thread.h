/* thread.h: waiting on a word of memory (futex), and the pause of a spin loop. */
#ifndef HVD_BASE_THREAD_H
#define HVD_BASE_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Sleeps while *word == value, for timeout_us at most (-1: no limit).  May return early;
 * the caller looks again.  The word is private to this process. */
void thread_wait(atomic_uint *word, unsigned value, int64_t timeout_us);
void thread_wake_all(atomic_uint *word);

/* Starts a thread that handles no signals: those are for the threads of the user.  0, or an
 * error number. */
int thread_start(pthread_t *thread_p, void *(*run)(void *), void *context);
/* The thread runs on this CPU only; false: it cannot. */
bool thread_pin(pthread_t thread, int cpu);

/* CPUs this process may run on. */
int thread_cpu_count(void);

static inline void thread_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
