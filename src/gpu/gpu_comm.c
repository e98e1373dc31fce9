/*
 * gpu_comm.c: the communicators of a process set: made without blocking, one for each stream,
 * watched, aborted, ended.  Only the thread of the device touches NCCL's part of them.
 */
#include "base/clock.h"
#include "base/log.h"
#include "gpu/gpu_int.h"

#include <stdlib.h>
#include <string.h>

#define LOG_COMPONENT "gpu"
#define END_US 1000000                  /* the others may have gone without their part of it */

enum hvd_status nccl_check(nccl_result code, const char *what, const struct gpu_comm *comm,
                           struct hvd_error *err)
{
    if (code == NCCL_OK)
        return HVD_OK;
    if (code == NCCL_IN_PROGRESS)
        return HVD_AGAIN;
    return error_set(err, HVD_DEVICE, -1, "NCCL error %d on device %d (%s): %s", code,
                     comm->device, what, gpu.nccl.error_text(code));
}

struct gpu_comm *gpu_comm_new(int device, int rank, int size, int lanes,
                              const uint8_t (*ids)[GPU_ID_BYTES])
{
    struct gpu_comm *comm = calloc(1, sizeof *comm);

    if (comm == NULL)
        return NULL;
    comm->device = device;
    comm->rank = rank;
    comm->size = size;
    comm->lanes = lanes;
    for (int i = 0; i < lanes; i++)
        memcpy(&comm->ids[i], ids[i], GPU_ID_BYTES);
    error_set(&comm->failure, HVD_ABORTED, -1, "the communicator was aborted");
    return comm;
}

void gpu_comm_abort(struct gpu_comm *comm)
{
    struct gpu_device *d = gpu_device_of(comm->device);

    atomic_store(&comm->abort, true);
    if (d != NULL)
        gpu_device_wake(d);
}

/* What its kernels wait for will not come: they end, and the streams go on. */
void comm_do_abort(struct gpu_comm *comm)
{
    if (comm->aborted)
        return;
    comm->aborted = true;
    for (int i = 0; i < comm->lanes; i++) {
        if (comm->comms[i] != NULL)
            gpu.nccl.abort(comm->comms[i]);
        comm->comms[i] = NULL;
    }
}

enum hvd_status comm_check(struct gpu_comm *comm, int lane, struct hvd_error *err)
{
    nccl_result state = NCCL_OK;

    if (comm->comms[lane] == NULL)
        return HVD_OK;                  /* aborted: the streams say when it is over */
    TRY(nccl_check(gpu.nccl.state(comm->comms[lane], &state), "ncclCommGetAsyncError", comm,
                   err));
    if (state == NCCL_IN_PROGRESS)
        return HVD_OK;
    return nccl_check(state, "asynchronous", comm, err);
}

static enum hvd_status connect_one(struct gpu_device *d, struct gpu_comm *comm, int i,
                                   struct hvd_error *err)
{
    struct nccl_config config = {.size = sizeof config, .magic = NCCL_CONFIG_MAGIC,
                                 .version = NCCL_OLDEST, .blocking = 0};
    nccl_result state = NCCL_OK;

    if (comm->comms[i] == NULL) {
        TRY(lane_open(d, &comm->lane[i], err));
        state = gpu.nccl.connect(&comm->comms[i], comm->size, comm->ids[i], comm->rank,
                                 &config);
    } else {
        TRY(nccl_check(gpu.nccl.state(comm->comms[i], &state), "ncclCommGetAsyncError", comm,
                       err));
    }
    return nccl_check(state, "ncclCommInitRankConfig", comm, err);
}

enum hvd_status comm_connect(struct gpu_device *d, struct gpu_work *w, struct hvd_error *err)
{
    struct gpu_comm *comm = w->comm;

    for (; w->state->step < comm->lanes; w->state->step++)
        TRY(connect_one(d, comm, w->state->step, err));
    return HVD_OK;
}

/* Nothing of ours is under way on them. */
static enum hvd_status end_one(struct gpu_work *w, nccl_comm comm)
{
    nccl_result state = NCCL_OK;

    if (!w->state->ending) {
        w->state->ending = true;
        w->state->fail_us = clock_us() + END_US;
        state = gpu.nccl.finalize(comm);
    } else {
        gpu.nccl.state(comm, &state);
    }
    if (state == NCCL_IN_PROGRESS && clock_us() < w->state->fail_us)
        return HVD_AGAIN;
    if (state == NCCL_OK)
        gpu.nccl.destroy(comm);
    else
        gpu.nccl.abort(comm);
    w->state->ending = false;
    return HVD_OK;
}

enum hvd_status comm_hang_up(struct gpu_work *w)
{
    struct gpu_comm *comm = w->comm;

    for (; w->state->step < comm->lanes; w->state->step++) {
        int i = w->state->step;

        if (comm->comms[i] != NULL)
            TRY(end_one(w, comm->comms[i]));
        comm->comms[i] = NULL;
        lane_close(&comm->lane[i]);
    }
    return HVD_OK;
}

void gpu_comm_end(struct gpu_comm *comm)
{
    struct gpu_work *w = calloc(1, sizeof *w);
    struct hvd_error err;

    if (w == NULL)
        return;
    w->kind = GPU_HANG_UP;
    w->device = comm->device;
    w->comm = comm;
    if (gpu_start(w, &err) == HVD_OK)
        return;
    log_debug("GPU %d: %s", comm->device, err.text);
    free(comm);
    free(w);
}
