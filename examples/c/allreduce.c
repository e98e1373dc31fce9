/*
 * allreduce.c: Horovod from plain C.  Every rank brings a vector; all get the sum.
 *
 *   cc allreduce.c -o allreduce $(pkg-config --cflags --libs horovod)
 *   horovodrun -np 4 ./allreduce
 */
#include <horovod/horovod.h>

#include <stdio.h>
#include <stdlib.h>

#define COUNT 1000000

static void check(enum hvd_status status, const struct hvd_error *err)
{
    if (status == HVD_OK)
        return;
    fprintf(stderr, "%s: %s\n", hvd_status_name(status), err->text);
    exit(1);
}

int main(void)
{
    struct hvd_error err;
    struct hvd_request req = {
        .size = sizeof req, .op = HVD_ALLREDUCE, .dtype = HVD_F32, .reduce = HVD_SUM,
        .device = -1, .name = "vector", .ndim = 1, .shape = {COUNT},
    };
    float *x;
    double sum = 0;

    check(hvd_init(NULL, &err), &err);
    /* Memory from hvd_alloc is reduced where it lies; any other memory works as well. */
    x = hvd_alloc(COUNT * sizeof *x);
    if (x == NULL)
        return 1;
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)hvd_rank();
    req.input = req.output = x;
    check(hvd_run(&req, &err), &err);
    for (int i = 0; i < COUNT; i++)
        sum += x[i];
    printf("rank %d of %d: mean element %g, expected %g\n", hvd_rank(), hvd_size(),
           sum / COUNT, hvd_size() * (hvd_size() - 1) / 2.0);
    hvd_free(x);
    hvd_shutdown();
    return 0;
}
