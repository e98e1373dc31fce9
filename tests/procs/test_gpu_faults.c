/* test_gpu_faults.c: what fails in CUDA or NCCL, hangs, or dies, with the right verdict on all. */
#include "check.h"
#include "gpu_harness.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { VICTIM = 1, ROUNDS = 200 };

struct fault {
    const char *standin;                /* STANDIN_FAULT of the victim; NULL: none */
    int die_at;                         /* the victim kills itself in this round; 0: never, -1:
                                         * somewhere else */
    enum hvd_status status;             /* of those who are left */
    const char *text;                   /* in their error */
};

static enum hvd_status run_sum(const char *name, int rank, struct hvd_error *err)
{
    float x[100];
    struct gpu_tensor t;
    struct hvd_request req;
    enum hvd_status status;

    for (int i = 0; i < 100; i++)
        x[i] = (float)rank;
    t = gpu_tensor_new(x, sizeof x);
    req = gpu_sum(name, &t);
    status = hvd_run(&req, err);
    gpu_tensor_free(&t);
    return status;
}

static void until_it_fails(int rank, int size, void *context)
{
    const struct fault *f = context;
    enum hvd_status status = HVD_OK;
    struct hvd_error err = {0};

    (void)size;
    if (rank == VICTIM && f->standin != NULL)
        setenv("STANDIN_FAULT", f->standin, 1);
    job_init();
    for (int k = 1; k <= ROUNDS && status == HVD_OK; k++) {
        if (rank == VICTIM && k == f->die_at)
            kill(getpid(), SIGKILL);
        status = run_sum("x", rank, &err);
    }
    if (status != f->status || strstr(err.text, f->text) == NULL)
        check_fail(__FILE__, __LINE__, "rank %d: %s: %s", rank, hvd_status_name(status),
                   err.text);
    hvd_shutdown();
}

static void check_fault(enum gpu_way way, struct fault f)
{
    struct job_options opt = {.size = 3, .env = gpu_env(way, 11, NULL), .limit_s = 30};
    struct job job;

    job_start(&job, &opt, until_it_fails, &f);
    for (int r = 0; r < opt.size; r++)
        CHECK_EQ(job_wait(&job, r), r == VICTIM && f.die_at != 0 ? -SIGKILL : 0);
    job_end(&job);
}

TEST(a_cuda_error_ends_the_job_with_its_text)
{
    check_fault(BY_HOST, (struct fault){"cuMemcpyAsync:after=4:code=700", 0, HVD_DEVICE,
                                        "illegal memory access"});
    check_fault(BY_NCCL, (struct fault){"cuStreamWaitEvent:after=20:code=700", 0, HVD_DEVICE,
                                        "rank 1"});
}

TEST(an_error_of_nccl_ends_the_job)
{
    check_fault(BY_NCCL, (struct fault){"ncclAllReduce:after=5:code=3", 0, HVD_DEVICE,
                                        "NCCL error 3"});
    check_fault(BY_NCCL, (struct fault){"ncclAsync:after=12:code=6", 0, HVD_DEVICE,
                                        "NCCL error 6"});
    check_fault(BY_NCCL, (struct fault){"ncclCommInitRankConfig:code=2", 0, HVD_DEVICE,
                                        "NCCL error 2"});
}

TEST(a_rank_that_cannot_use_its_gpu_is_named)
{
    check_fault(BY_NCCL, (struct fault){"cuDeviceGetUuid:code=999", 0, HVD_DEVICE,
                                        "rank 1 cannot use its GPU"});
}

TEST(a_death_between_operations)
{
    check_fault(BY_NCCL, (struct fault){NULL, 7, HVD_PEER_LOST, "rank 1"});
    check_fault(BY_HOST, (struct fault){NULL, 7, HVD_PEER_LOST, "rank 1"});
}

/* The others wait for it inside of NCCL, in an operation or for a communicator. */
TEST(a_death_ends_what_waits_in_nccl)
{
    check_fault(BY_NCCL, (struct fault){"ncclAllReduce:after=5:kill", -1, HVD_PEER_LOST,
                                        "rank 1"});
    check_fault(BY_NCCL, (struct fault){"ncclCommInitRankConfig:kill", -1, HVD_PEER_LOST,
                                        "rank 1"});
    check_fault(BY_HOST, (struct fault){"cuMemcpyAsync:after=9:kill", -1, HVD_PEER_LOST,
                                        "rank 1"});
}

/* ---- A kernel that does not end ------------------------------------------------------------- */

/* The victim's NCCL hangs, its process does not; somebody ends the job. */
static void hang(int rank, int size, void *context)
{
    struct hvd_error err = {0};
    float x[100] = {0};
    struct gpu_tensor t;
    struct hvd_request req;
    hvd_handle handle;

    (void)size;
    (void)context;
    if (rank == VICTIM)
        setenv("STANDIN_FAULT", "ncclAllReduce:after=3:hang", 1);
    job_init();
    for (int k = 0; k < 3; k++)
        CHECK_OK(run_sum("x", rank, &err), err);
    t = gpu_tensor_new(x, sizeof x);
    req = gpu_sum("x", &t);
    CHECK_OK(hvd_submit(&req, 1, &handle, &err), err);
    if (rank == 0) {
        CHECK(hvd_wait(handle, 200000, &err) == HVD_AGAIN);
        hvd_abort("enough");
    }
    CHECK(hvd_wait(handle, -1, &err) == HVD_ABORTED);
    CHECK(strstr(err.text, "enough") != NULL);
    hvd_shutdown();
    _exit(0);                           /* with the thread that hangs */
}

TEST(an_abort_ends_an_operation_that_hangs)
{
    struct job_options opt = {.size = 2, .env = gpu_env(BY_NCCL, 5, NULL), .limit_s = 40};

    job_run(&opt, hang, NULL);
}
