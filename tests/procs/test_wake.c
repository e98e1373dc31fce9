/* test_wake.c: who waits for an operation is woken by it, whatever the engine's thread is at. */
#include "base/fault.h"
#include "check.h"
#include "job_harness.h"

#include <unistd.h>

static double x = 1, y = 1;

static hvd_handle submit(const char *name, double *value)
{
    struct hvd_error err;
    struct hvd_request req = {.size = sizeof req, .op = HVD_ALLREDUCE, .dtype = HVD_F64,
                              .reduce = HVD_SUM, .device = -1, .name = name, .ndim = 1,
                              .shape = {1}, .input = value, .output = value};
    hvd_handle handle = 0;

    CHECK_OK(hvd_submit(&req, 1, &handle, &err), err);
    return handle;
}

static void finish(hvd_handle handle)
{
    struct hvd_error err;

    CHECK_OK(hvd_wait(handle, -1, &err), err);
    hvd_release(handle);
}

/* Its thread is called by rank 1, and is late on its way back to sleep: it has armed for
 * messages alone, since nobody waits, and has the baton still.  Now somebody waits. */
static void wait_beside_a_late_thread(int told)
{
    hvd_handle on_x = submit("x", &x), on_y;

    CHECK(fault_setup("engine.rest times=1 delay=500", 0));
    CHECK_EQ(write(told, "y", 1), 1);
    while (fault_count("engine.rest") < 1)
        usleep(1000);
    CHECK_EQ(write(told, "x", 1), 1);
    finish(on_x);
    on_y = submit("y", &y);
    finish(on_y);
}

static void come_when_told(int told)
{
    hvd_handle on_x, on_y;
    char byte;

    CHECK_EQ(read(told, &byte, 1), 1);
    on_y = submit("y", &y);             /* not known: a message to rank 0 */
    CHECK_EQ(read(told, &byte, 1), 1);
    on_x = submit("x", &x);             /* known: a board, and a bell for who listens */
    finish(on_x);
    finish(on_y);
}

static void body(int rank, int size, void *context)
{
    int *pipes = context;

    job_init();
    for (int i = 0; i < 20; i++)
        CHECK_EQ(job_sum("x", 1), size);
    if (rank == 0)
        wait_beside_a_late_thread(pipes[1]);
    else
        come_when_told(pipes[0]);
    CHECK_EQ(x, size);
    CHECK_EQ(y, size);
    hvd_shutdown();
}

TEST(a_thread_that_comes_while_the_engine_falls_asleep_is_woken)
{
    const char *env[] = {"HOROVOD_CYCLE_TIME=0", NULL};
    int pipes[2];

    CHECK_EQ(pipe(pipes), 0);
    job_run(&(struct job_options){.size = 2, .env = env, .limit_s = 20}, body, pipes);
    close(pipes[0]);
    close(pipes[1]);
}
