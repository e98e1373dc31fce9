/* test_completion.c: hvd_submit_then: who asks to be told is told once, whatever happens. */
#include "check.h"
#include "job_harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct told {
    atomic_int calls;
    hvd_handle handle;
    enum hvd_status status;
    struct hvd_error why;
};

static void tell(void *context, hvd_handle handle, enum hvd_status status,
                 const struct hvd_error *why)
{
    struct told *t = context;

    t->handle = handle;
    t->status = status;
    CHECK_EQ(why != NULL, status != HVD_OK);
    if (why != NULL)
        t->why = *why;
    atomic_fetch_add(&t->calls, 1);
}

static struct hvd_request sum_of(const char *name, float *x, int count)
{
    return (struct hvd_request){.size = sizeof(struct hvd_request), .op = HVD_ALLREDUCE,
                                .dtype = HVD_F32, .reduce = HVD_SUM, .device = -1,
                                .name = name, .ndim = 1, .shape = {count}, .input = x,
                                .output = x};
}

static hvd_handle submit(const struct hvd_request *req, struct told *t)
{
    struct hvd_error err;
    hvd_handle handle;

    CHECK_OK(hvd_submit_then(req, 1, tell, t, &handle, &err), err);
    return handle;
}

static void wait_for_call(struct told *t)
{
    while (atomic_load(&t->calls) == 0)
        usleep(100);                    /* it is called by another thread */
}

/* ---- Results ------------------------------------------------------------------------- */

enum { MANY = 64 };

static void many_sums(int rank, int size, void *context)
{
    static const int counts[] = {1, 700, 20000};
    struct told told[MANY] = {0};
    float *x[MANY];
    char name[16];

    (void)context;
    job_init();
    for (int round = 0; round < 4; round++) {
        memset(told, 0, sizeof told);
        for (int i = 0; i < MANY; i++) {
            int count = counts[i % 3];
            struct hvd_request req;

            x[i] = malloc((size_t)count * sizeof *x[i]);
            for (int k = 0; k < count; k++)
                x[i][k] = (float)(rank + i);
            snprintf(name, sizeof name, "x%d", i);
            req = sum_of(name, x[i], count);
            submit(&req, &told[i]);
        }
        for (int i = 0; i < MANY; i++) {
            wait_for_call(&told[i]);    /* nobody waits for the handle: it comes by itself */
            CHECK_EQ(told[i].status, HVD_OK);
            CHECK_EQ(x[i][counts[i % 3] - 1], (float)(size * (size - 1) / 2 + size * i));
            hvd_release(told[i].handle);
            free(x[i]);
        }
    }
    hvd_shutdown();
    for (int i = 0; i < MANY; i++)
        CHECK_EQ(atomic_load(&told[i].calls), 1);
}

TEST(each_result_is_told_once)
{
    for (int size = 1; size <= 4; size *= 2)
        job_run(&(struct job_options){.size = size}, many_sums, NULL);
}

TEST(each_result_is_told_once_between_hosts)
{
    job_run(&(struct job_options){.size = 4, .hosts = 2}, many_sums, NULL);
}

/* ---- Submitting from the callback ---------------------------------------------------- */

enum { CHAIN = 3000 };

struct chain {
    float x;
    int left, size;
    atomic_bool over;
};

static void next_of_chain(void *context, hvd_handle handle, enum hvd_status status,
                          const struct hvd_error *why)
{
    static _Thread_local int depth;
    struct chain *c = context;
    struct hvd_error err;
    struct hvd_request req = sum_of("chain", &c->x, 1);

    CHECK_EQ(status, HVD_OK);
    CHECK(why == NULL);
    CHECK_EQ(depth++, 0);               /* a call never comes within another */
    CHECK_EQ(c->x, (float)c->size);
    hvd_release(handle);
    c->x = 1;
    if (--c->left == 0)
        atomic_store(&c->over, true);
    else
        CHECK_OK(hvd_submit_then(&req, 1, next_of_chain, c, &handle, &err), err);
    depth--;
}

static void chain(int rank, int size, void *context)
{
    struct chain c = {.x = 1, .left = CHAIN, .size = size};
    struct hvd_request req = sum_of("chain", &c.x, 1);
    struct hvd_error err;
    hvd_handle handle;

    (void)rank;
    (void)context;
    job_init();
    CHECK_OK(hvd_submit_then(&req, 1, next_of_chain, &c, &handle, &err), err);
    while (!atomic_load(&c.over))
        usleep(100);
    hvd_shutdown();
}

TEST(a_callback_submits_the_next)
{
    for (int size = 1; size <= 2; size++)
        job_run(&(struct job_options){.size = size}, chain, NULL);
    job_run(&(struct job_options){.size = 2, .hosts = 2}, chain, NULL);
}

/* An output that the runtime allocated is taken, and the handle released, where it is told. */
static void take_rows(void *context, hvd_handle handle, enum hvd_status status,
                      const struct hvd_error *why)
{
    struct hvd_output out = {.size = sizeof out};
    struct hvd_error err;

    CHECK(status == HVD_OK && why == NULL);
    CHECK_OK(hvd_take_output(handle, 0, &out, &err), err);
    CHECK_EQ(out.shape[0], 1 + 2);
    CHECK_EQ(((int32_t *)out.data)[2], 1);
    hvd_free(out.data);
    hvd_release(handle);
    atomic_store((atomic_bool *)context, true);
}

static void gather_rows(int rank, int size, void *context)
{
    int32_t rows[2] = {rank, rank};
    struct hvd_request req = {.size = sizeof req, .op = HVD_ALLGATHER, .dtype = HVD_I32,
                              .device = -1, .name = "rows", .ndim = 1,
                              .shape = {rank + 1}, .input = rows};
    struct hvd_error err;
    atomic_bool over = false;
    hvd_handle handle;

    (void)size;
    (void)context;
    job_init();
    CHECK_OK(hvd_submit_then(&req, 1, take_rows, &over, &handle, &err), err);
    while (!atomic_load(&over))
        usleep(100);
    hvd_shutdown();
}

TEST(a_callback_takes_the_output)
{
    job_run(&(struct job_options){.size = 2}, gather_rows, NULL);
}

/* ---- Failing -------------------------------------------------------------------------- */

static void disagree(int rank, int size, void *context)
{
    float x[8] = {0};
    struct hvd_request req = sum_of("shape", x, 4 + rank);
    struct told told = {0}, never = {0};
    struct hvd_error err;
    hvd_handle handle;

    (void)size;
    (void)context;
    job_init();
    handle = submit(&req, &told);
    wait_for_call(&told);
    CHECK_EQ(told.status, HVD_MISMATCH);
    CHECK_EQ(told.handle, handle);
    CHECK(strstr(told.why.text, "shape") != NULL);
    hvd_release(handle);
    req.process_set = 77;               /* refused: nothing is called */
    CHECK_EQ(hvd_submit_then(&req, 1, tell, &never, &handle, &err), HVD_INVALID);
    CHECK_EQ(hvd_submit_then(&req, 1, NULL, NULL, &handle, &err), HVD_INVALID);
    job_sum("both have been refused", 1);
    hvd_shutdown();
    CHECK_EQ(atomic_load(&told.calls), 1);
    CHECK_EQ(atomic_load(&never.calls), 0);
}

TEST(a_mismatch_is_told)
{
    job_run(&(struct job_options){.size = 2}, disagree, NULL);
}

static void lose_a_peer(int rank, int size, void *context)
{
    float x = 1;
    struct hvd_request req = sum_of("lost", &x, 1);
    struct told told = {0};

    (void)size;
    (void)context;
    job_init();
    if (rank != 1)
        submit(&req, &told);
    job_sum("it is under way", 1);
    if (rank == 1)
        raise(SIGKILL);
    wait_for_call(&told);
    CHECK_EQ(told.status, HVD_PEER_LOST);
    CHECK_EQ(told.why.rank, 1);
    hvd_release(told.handle);
    hvd_shutdown();
    CHECK_EQ(atomic_load(&told.calls), 1);
}

static void check_lost(int hosts)
{
    struct job job;

    job_start(&job, &(struct job_options){.size = 3, .hosts = hosts}, lose_a_peer, NULL);
    CHECK_EQ(job_wait(&job, 1), -SIGKILL);
    CHECK_EQ(job_wait(&job, 0), 0);
    CHECK_EQ(job_wait(&job, 2), 0);
    job_end(&job);
}

TEST(a_lost_peer_is_told)
{
    check_lost(1);
    check_lost(3);
}

/* ---- Shutting down -------------------------------------------------------------------- */

static void try_again(void *context, hvd_handle handle, enum hvd_status status,
                      const struct hvd_error *why)
{
    float x = 1;
    struct hvd_request req = sum_of("again", &x, 1);
    struct told never = {0};
    struct hvd_error err;
    hvd_handle other;

    tell(context, handle, status, why);
    CHECK(hvd_submit_then(&req, 1, tell, &never, &other, &err) != HVD_OK);
    CHECK_EQ(atomic_load(&never.calls), 0);
    hvd_shutdown();                     /* says that this is no place for it, and goes on */
}

static void leave_early(int rank, int size, void *context)
{
    float x = 1;
    struct hvd_request req = sum_of("alone", &x, 1);
    struct told told = {0};
    struct hvd_error err;
    hvd_handle handle;

    (void)size;
    (void)context;
    job_init();
    if (rank == 0)
        CHECK_OK(hvd_submit_then(&req, 1, try_again, &told, &handle, &err), err);
    job_sum("it is under way", 1);
    hvd_shutdown();
    CHECK_EQ(atomic_load(&told.calls), rank == 0);
    CHECK_EQ(told.status, rank == 0 ? HVD_SHUTDOWN : HVD_OK);
}

TEST(what_is_open_at_shutdown_is_told)
{
    job_run(&(struct job_options){.size = 2}, leave_early, NULL);
    job_run(&(struct job_options){.size = 2, .hosts = 2}, leave_early, NULL);
}

/* ---- Many threads ---------------------------------------------------------------------- */

enum { THREADS = 3, ROUNDS = 100 };

static void *submit_and_wait(void *context)
{
    int thread = *(int *)context;
    char name[16];

    snprintf(name, sizeof name, "t%d", thread);
    for (int i = 0; i < ROUNDS; i++) {
        float x = 1;
        struct hvd_request req = sum_of(name, &x, 1);
        struct told told = {0};
        struct hvd_error err;
        hvd_handle handle = submit(&req, &told);

        CHECK_OK(hvd_wait(handle, -1, &err), err);
        CHECK_EQ(x, 2);
        hvd_release(handle);
        wait_for_call(&told);
        CHECK_EQ(told.handle, handle);
    }
    return NULL;
}

static void threads(int rank, int size, void *context)
{
    pthread_t t[THREADS];
    int which[THREADS];

    (void)rank;
    (void)size;
    (void)context;
    job_init();
    for (int i = 0; i < THREADS; i++) {
        which[i] = i;
        CHECK_EQ(pthread_create(&t[i], NULL, submit_and_wait, &which[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    hvd_shutdown();
}

TEST(threads_that_wait_do_not_lose_a_call)
{
    job_run(&(struct job_options){.size = 2}, threads, NULL);
    job_run(&(struct job_options){.size = 2, .hosts = 2}, threads, NULL);
}
