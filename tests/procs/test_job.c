/* test_job.c: jobs of real processes, end to end through the public C API. */
#include "check.h"
#include "job_harness.h"

#include <stdlib.h>
#include <unistd.h>

static void sums_of_all_sizes(int rank, int size, void *context)
{
    static const int counts[] = {1, 3, 100, 1000, 4097, 70000, 1000003};

    (void)context;
    job_init();
    CHECK_EQ(hvd_rank(), rank);
    CHECK_EQ(hvd_size(), size);
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            struct hvd_error err;
            char name[32];
            float *x = round == 1 ? hvd_alloc(counts[i] * sizeof *x)
                                  : malloc(counts[i] * sizeof *x);
            struct hvd_request req = {.size = sizeof req, .op = HVD_ALLREDUCE,
                                      .dtype = HVD_F32, .reduce = HVD_SUM, .device = -1,
                                      .name = name, .ndim = 1, .shape = {counts[i]},
                                      .input = x, .output = x};

            CHECK(x != NULL);
            snprintf(name, sizeof name, "x%zu", i);
            for (int k = 0; k < counts[i]; k++)
                x[k] = (float)(rank + k % 7);
            CHECK_OK(hvd_run(&req, &err), err);
            for (int k = 0; k < counts[i]; k++)
                CHECK_EQ(x[k], (float)(size * (size - 1) / 2 + size * (k % 7)));
            hvd_free(x);
        }
    hvd_shutdown();
}

TEST(one_process_alone)
{
    job_run(&(struct job_options){.size = 1}, sums_of_all_sizes, NULL);
}

TEST(two_ranks_on_one_host)
{
    job_run(&(struct job_options){.size = 2}, sums_of_all_sizes, NULL);
}

TEST(four_ranks_on_one_host, .limit_s = 60)
{
    job_run(&(struct job_options){.size = 4, .limit_s = 50}, sums_of_all_sizes, NULL);
}

TEST(two_hosts, .limit_s = 60)
{
    job_run(&(struct job_options){.size = 2, .hosts = 2, .limit_s = 50},
            sums_of_all_sizes, NULL);
}

TEST(five_ranks_on_two_hosts, .limit_s = 60)
{
    job_run(&(struct job_options){.size = 5, .hosts = 2, .limit_s = 50},
            sums_of_all_sizes, NULL);
}
