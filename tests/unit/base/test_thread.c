/* test_thread.c: waiting on a word. */
#include "base/thread.h"

#include "base/clock.h"
#include "check.h"

#include <signal.h>
#include <pthread.h>
#include <sched.h>

TEST(a_word_that_changed_does_not_wait)
{
    atomic_uint word = 1;

    thread_wait(&word, 0, -1);
}

TEST(the_time_limit_ends_the_wait)
{
    atomic_uint word = 0;
    uint64_t start = clock_us();

    while (clock_us() - start < 20000)
        thread_wait(&word, 0, 20000);
    CHECK(clock_us() - start < 5000000);
}

static void *wait_for_one(void *arg)
{
    atomic_uint *word = arg;

    while (atomic_load(word) == 0)
        thread_wait(word, 0, -1);
    return NULL;
}

TEST(wake_reaches_all_waiters)
{
    atomic_uint word = 0;
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, wait_for_one, &word), 0);
    atomic_store(&word, 1);
    thread_wake_all(&word);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

TEST(cpu_count_respects_the_affinity)
{
    cpu_set_t one;

    CHECK(thread_cpu_count() >= 1);
    CHECK_EQ(sched_getaffinity(0, sizeof one, &one), 0);
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &one) && seen++ > 0)
            CPU_CLR(cpu, &one);
    CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    CHECK_EQ(thread_cpu_count(), 1);
}

static void *tell_where(void *context)
{
    sigset_t blocked;

    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    *(int *)context = sigismember(&blocked, SIGUSR1) ? 1 : 2;
    return NULL;
}

TEST(a_thread_starts_without_signals_and_stays_where_it_is_put)
{
    pthread_t thread;
    cpu_set_t mine;
    int seen = 0, cpu = 0;

    CHECK_EQ(thread_start(&thread, tell_where, &seen), 0);
    pthread_join(thread, NULL);
    CHECK_EQ(seen, 1);
    CHECK_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
    while (!CPU_ISSET(cpu, &mine))
        cpu++;
    CHECK(thread_pin(pthread_self(), cpu));
    CHECK_EQ(sched_getcpu(), cpu);
    CHECK(!thread_pin(pthread_self(), -1));
    CHECK(!thread_pin(pthread_self(), CPU_SETSIZE));
}
