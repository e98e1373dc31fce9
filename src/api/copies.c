/*
 * copies.c: hvd_copy_start and hvd_copy_wait: memory is copied beside the caller's work.
 *
 * 1. One batch at a time.  `lock` guards all of `copier`; bytes move outside of it, a chunk
 *    at a time.
 * 2. The thread of the copier and everybody who waits take chunks from the same place.  So
 *    a wait is never longer than a copy by the waiting thread itself would be, whether the
 *    copier gets a CPU or not, and a process that cannot have another thread copies when
 *    somebody waits.
 * 3. A batch is done when no chunk is left and none is in somebody's hands.
 * 4. A forked child has no copier thread and no batch: what its parent copied was copied
 *    for the parent, whose memory the child has as it was at the fork.
 */
#include "horovod/horovod.h"

#include "base/error.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Small enough that two threads end together, large enough that taking one costs nothing
 * beside copying it (100 us). */
#define CHUNK_BYTES ((size_t)1 << 20)

static struct copier {
    pthread_mutex_t lock;
    pthread_cond_t changed;             /* a batch has begun, or is done */
    struct hvd_copy *batch;             /* NULL: there is none */
    size_t count, next;                 /* pieces; the first one with a chunk left */
    size_t offset;                      /* bytes taken of that one */
    int hands;                          /* chunks being copied now */
    bool has_thread;
} copier = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static bool has_chunk(void)
{
    return copier.batch != NULL && copier.next < copier.count;
}

static struct hvd_copy take_chunk(void)
{
    const struct hvd_copy *piece = &copier.batch[copier.next];
    size_t left = piece->bytes - copier.offset;
    struct hvd_copy chunk = {(char *)piece->dst + copier.offset,
                             (const char *)piece->src + copier.offset,
                             left < CHUNK_BYTES ? left : CHUNK_BYTES};

    copier.offset += chunk.bytes;
    if (copier.offset == piece->bytes) {
        copier.next++;
        copier.offset = 0;
    }
    return chunk;
}

/* Called with the lock, returns with it. */
static void copy_chunk(void)
{
    struct hvd_copy chunk = take_chunk();

    copier.hands++;
    pthread_mutex_unlock(&copier.lock);
    if (chunk.bytes > 0)
        memcpy(chunk.dst, chunk.src, chunk.bytes);
    pthread_mutex_lock(&copier.lock);
    copier.hands--;
    if (copier.hands > 0 || has_chunk())
        return;
    free(copier.batch);
    copier.batch = NULL;
    pthread_cond_broadcast(&copier.changed);
}

static void *copier_main(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&copier.lock);
    for (;;) {
        while (has_chunk())
            copy_chunk();
        pthread_cond_wait(&copier.changed, &copier.lock);
    }
    return NULL;
}

static void lock_for_fork(void)
{
    pthread_mutex_lock(&copier.lock);
}

static void unlock_after_fork(void)
{
    pthread_mutex_unlock(&copier.lock);
}

static void forget_in_child(void)
{
    free(copier.batch);
    copier = (struct copier){.lock = PTHREAD_MUTEX_INITIALIZER,
                             .changed = PTHREAD_COND_INITIALIZER};
}

static void watch_forks(void)
{
    pthread_atfork(lock_for_fork, unlock_after_fork, forget_in_child);
}

/* Rule 2: without the thread those who wait do its work. */
static void start_thread(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    sigset_t all, before;
    pthread_t thread;

    pthread_once(&once, watch_forks);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&copier.lock);
    if (!copier.has_thread && pthread_create(&thread, NULL, copier_main, NULL) == 0) {
        copier.has_thread = true;
        pthread_detach(thread);
    }
    pthread_mutex_unlock(&copier.lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Called with the lock, returns with it. */
static void finish_batch(void)
{
    while (copier.batch != NULL)
        if (has_chunk())
            copy_chunk();
        else
            pthread_cond_wait(&copier.changed, &copier.lock);
}

enum hvd_status hvd_copy_start(const struct hvd_copy *pieces, size_t count,
                               struct hvd_error *err)
{
    struct hvd_copy *batch;

    if (count == 0)
        return HVD_OK;
    batch = calloc(count, sizeof *batch);
    if (batch == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a list of %zu copies", count);
    memcpy(batch, pieces, count * sizeof *batch);
    start_thread();
    pthread_mutex_lock(&copier.lock);
    finish_batch();
    copier.batch = batch;
    copier.count = count;
    copier.next = copier.offset = 0;
    pthread_cond_broadcast(&copier.changed);
    pthread_mutex_unlock(&copier.lock);
    return HVD_OK;
}

void hvd_copy_wait(void)
{
    pthread_mutex_lock(&copier.lock);
    finish_batch();
    pthread_mutex_unlock(&copier.lock);
}
