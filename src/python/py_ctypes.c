/*
 * py_ctypes.c: the C symbols that third-party code reaches through
 * hvd.mpi_ops._basics.MPI_LIB_CTYPES.  Queries return -1 before init; process set codes:
 * -1 not initialised, -2 dynamic sets not enabled, -3 unknown set, -4 caller not a member,
 * -5 shutting down, -6 set exists already.
 */
#include "horovod/horovod.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { SET_NOT_INIT = -1, SET_STATIC = -2, SET_UNKNOWN = -3, SET_NO_MEMBER = -4,
       SET_SHUTDOWN = -5, SET_EXISTS = -6 };

#define QUERY(name, value)                                                             \
    EXPORT int horovod_##name(void);                                                   \
    EXPORT int horovod_##name(void)                                                    \
    {                                                                                  \
        return value;                                                                  \
    }
QUERY(rank, hvd_rank())
QUERY(size, hvd_size())
QUERY(local_rank, hvd_local_rank())
QUERY(local_size, hvd_local_size())
QUERY(cross_rank, hvd_cross_rank())
QUERY(cross_size, hvd_cross_size())
QUERY(is_homogeneous, hvd_is_homogeneous())
QUERY(is_initialized, hvd_is_initialized())
QUERY(mpi_built, 0)
QUERY(mpi_enabled, 0)
QUERY(gloo_built, 1)
QUERY(gloo_enabled, 1)
QUERY(nccl_built, 0)
QUERY(ddl_built, 0)
QUERY(ccl_built, 0)
QUERY(cuda_built, 0)
QUERY(rocm_built, 0)
QUERY(mpi_threads_supported, hvd_is_initialized() ? 0 : -1)
QUERY(reduce_op_average, HVD_AVERAGE)
QUERY(reduce_op_sum, HVD_SUM)
QUERY(reduce_op_adasum, HVD_ADASUM)
QUERY(reduce_op_min, HVD_MIN)
QUERY(reduce_op_max, HVD_MAX)
QUERY(reduce_op_product, HVD_PRODUCT)
QUERY(number_of_process_sets, hvd_is_initialized() ? hvd_process_set_count() : -1)

EXPORT bool horovod_init(const int *ranks, int rank_count, const int *set_ranks,
                         const int *set_sizes, int set_count);
EXPORT void horovod_shutdown(void);
EXPORT bool horovod_start_timeline(const char *path, bool mark_cycles);
EXPORT bool horovod_stop_timeline(void);
EXPORT int horovod_add_process_set(const int *ranks, int rank_count);
EXPORT int horovod_remove_process_set(int id);
EXPORT int horovod_process_set_rank(int id);
EXPORT int horovod_process_set_size(int id);
EXPORT int horovod_process_set_included(int id);
EXPORT int horovod_process_set_ids(int *ids);
EXPORT int horovod_process_set_ranks(int id, int *ranks);

/* The sets one after the other in set_ranks; a list of world ranks means nothing here, the
 * job is what the environment says. */
EXPORT bool horovod_init(const int *ranks, int rank_count, const int *set_ranks,
                         const int *set_sizes, int set_count)
{
    struct hvd_options opt = {.size = sizeof(opt)};
    struct hvd_set_spec *sets;
    bool ok;

    if (set_count < 0 || (set_count > 0 && (set_ranks == NULL || set_sizes == NULL)))
        return false;
    sets = calloc((size_t)set_count + 1, sizeof(*sets));
    if (sets == NULL)
        return false;
    for (int i = 0; i < set_count; i++) {
        sets[i] = (struct hvd_set_spec){set_ranks, set_sizes[i]};
        set_ranks += set_sizes[i];
    }
    opt.sets = sets;
    opt.set_count = set_count;
    ok = hvd_init(&opt, NULL) == HVD_OK;
    free(sets);
    return ok;
}

EXPORT void horovod_shutdown(void)
{
    hvd_shutdown();
}

EXPORT bool horovod_start_timeline(const char *path, bool mark_cycles)
{
    return hvd_timeline_start(path, mark_cycles, NULL) == HVD_OK;
}

EXPORT bool horovod_stop_timeline(void)
{
    return hvd_timeline_stop(NULL) == HVD_OK;
}

static int set_code(const struct hvd_error *err)
{
    switch (err->status) {
    case HVD_NOT_INIT: return SET_NOT_INIT;
    case HVD_UNSUPPORTED: return SET_STATIC;
    case HVD_INVALID: return SET_EXISTS;
    default: return SET_SHUTDOWN;
    }
}

EXPORT int horovod_add_process_set(const int *ranks, int rank_count)
{
    struct hvd_error err = {.status = HVD_OK};
    int id;

    return hvd_add_process_set(ranks, rank_count, &id, &err) == HVD_OK ? id
                                                                       : set_code(&err);
}

EXPORT int horovod_remove_process_set(int id)
{
    struct hvd_error err = {.status = HVD_OK};

    if (hvd_remove_process_set(id, &err) == HVD_OK)
        return id;
    return err.status == HVD_INVALID ? SET_UNKNOWN : set_code(&err);
}

EXPORT int horovod_process_set_rank(int id)
{
    int rank = hvd_is_initialized() ? hvd_process_set_rank(id) : -3;

    return rank >= 0 ? rank : rank == -1 ? SET_UNKNOWN : rank == -2 ? SET_NO_MEMBER
                                                                    : SET_NOT_INIT;
}

EXPORT int horovod_process_set_size(int id)
{
    int size = hvd_is_initialized() ? hvd_process_set_size(id) : -3;

    return size >= 0 ? size : size == -1 ? SET_UNKNOWN : SET_NOT_INIT;
}

EXPORT int horovod_process_set_included(int id)
{
    int rank = horovod_process_set_rank(id);

    return rank >= 0 ? 1 : rank == SET_NO_MEMBER ? 0 : rank;
}

EXPORT int horovod_process_set_ids(int *ids)
{
    if (!hvd_is_initialized())
        return SET_NOT_INIT;
    hvd_process_set_ids(ids, hvd_process_set_count());
    return 0;
}

EXPORT int horovod_process_set_ranks(int id, int *ranks)
{
    int size = horovod_process_set_size(id);

    if (size < 0)
        return size;
    hvd_process_set_ranks(id, ranks, size);
    return 0;
}
