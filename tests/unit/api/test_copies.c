/* test_copies.c: copying beside the caller's work. */
#include "horovod/horovod.h"

#include "check.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIECES 9

static struct hvd_error err;

/* Pieces of 0, 1 byte, ... and several chunks. */
struct load {
    struct hvd_copy pieces[PIECES];
    unsigned char *from, *to;
    size_t bytes;
};

static void load_init(struct load *l, unsigned char first)
{
    static const size_t sizes[PIECES] = {0,       1, 4096, (1 << 20) - 1, 1 << 20,
                                         1048577, 0, 77,   5000000};

    *l = (struct load){0};
    for (int i = 0; i < PIECES; i++)
        l->bytes += sizes[i];
    l->from = malloc(l->bytes);
    l->to = calloc(1, l->bytes);
    CHECK(l->from != NULL && l->to != NULL);
    for (size_t i = 0; i < l->bytes; i++)
        l->from[i] = (unsigned char)(first + i * 7);
    for (size_t i = 0, at = 0; i < PIECES; at += sizes[i++])
        l->pieces[i] = (struct hvd_copy){l->to + at, l->from + at, sizes[i]};
}

static void load_check(struct load *l)
{
    CHECK_EQ(memcmp(l->from, l->to, l->bytes), 0);
    free(l->from);
    free(l->to);
}

TEST(every_byte_is_copied)
{
    struct load l;

    load_init(&l, 1);
    CHECK_OK(hvd_copy_start(l.pieces, PIECES, &err), err);
    hvd_copy_wait();
    load_check(&l);
    hvd_copy_wait();
    CHECK_OK(hvd_copy_start(NULL, 0, &err), err);
    hvd_copy_wait();
}

TEST(a_second_batch_completes_the_first)
{
    struct load a, b;

    load_init(&a, 1);
    load_init(&b, 2);
    for (int round = 0; round < 20; round++) {
        memset(a.to, 0, a.bytes);
        CHECK_OK(hvd_copy_start(a.pieces, PIECES, &err), err);
        CHECK_OK(hvd_copy_start(b.pieces, PIECES, &err), err);
        CHECK_EQ(memcmp(a.from, a.to, a.bytes), 0);
    }
    hvd_copy_wait();
    load_check(&a);
    load_check(&b);
}

/* The source may be written as soon as the wait is over. */
TEST(the_memory_is_free_after_the_wait)
{
    struct load l;

    load_init(&l, 3);
    for (int round = 0; round < 20; round++) {
        CHECK_OK(hvd_copy_start(l.pieces, PIECES, &err), err);
        hvd_copy_wait();
        CHECK_EQ(memcmp(l.from, l.to, l.bytes), 0);
        memset(l.from, round, l.bytes);
        memset(l.to, 255, l.bytes);
    }
    free(l.from);
    free(l.to);
}

static void *copy_often(void *arg)
{
    struct load l;

    load_init(&l, (unsigned char)(uintptr_t)arg);
    for (int round = 0; round < 10; round++) {
        CHECK_OK(hvd_copy_start(l.pieces, PIECES, &err), err);
        hvd_copy_wait();
        CHECK_EQ(memcmp(l.from, l.to, l.bytes), 0);
        memset(l.to, 0, l.bytes);
    }
    free(l.from);
    free(l.to);
    return NULL;
}

TEST(threads_may_copy_at_the_same_time)
{
    pthread_t threads[4];

    for (uintptr_t i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, copy_often, (void *)i), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

TEST(a_forked_child_has_a_copier_of_its_own)
{
    struct load l;
    int status;
    pid_t child;

    load_init(&l, 5);
    CHECK_OK(hvd_copy_start(l.pieces, PIECES, &err), err);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        hvd_copy_wait();                /* not for the batch of the parent */
        if (CHECK_SANITIZED)            /* TSan has no threads after a fork */
            _exit(0);
        memset(l.to, 0, l.bytes);
        CHECK_OK(hvd_copy_start(l.pieces, PIECES, &err), err);
        hvd_copy_wait();
        _exit(memcmp(l.from, l.to, l.bytes) != 0);
    }
    hvd_copy_wait();
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    load_check(&l);
}
