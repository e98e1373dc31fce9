/* backend_mpi.c: collbench on an MPI. */
#include "coll.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_BYTES ((size_t)2 << 20)

void coll_init(int *argc, char ***argv, int *rank_p, int *size_p)
{
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, rank_p);
    MPI_Comm_size(MPI_COMM_WORLD, size_p);
}

void coll_finish(void)
{
    MPI_Finalize();
}

const char *coll_name(void)
{
    return "mpi";
}

/* Huge pages where they fit, as the allocators of the frameworks ask for them. */
void *coll_alloc(size_t bytes, bool shared)
{
    void *p = NULL;

    (void)shared;
    if (posix_memalign(&p, bytes >= HUGE_BYTES ? HUGE_BYTES : 4096, bytes) != 0)
        abort();
    if (bytes >= HUGE_BYTES)
        madvise(p, bytes, MADV_HUGEPAGE);
    return memset(p, 0, bytes);
}

int coll_barrier(void)
{
    return MPI_Barrier(MPI_COMM_WORLD);
}

int coll_allreduce(const float *in, float *out, size_t count)
{
    return MPI_Allreduce(in == out ? MPI_IN_PLACE : in, out, (int)count, MPI_FLOAT,
                         MPI_SUM, MPI_COMM_WORLD);
}

int coll_reducescatter(const float *in, float *out, size_t count_per_rank)
{
    return MPI_Reduce_scatter_block(in, out, (int)count_per_rank, MPI_FLOAT, MPI_SUM,
                                    MPI_COMM_WORLD);
}

int coll_allgather(const void *in, void *out, size_t bytes_per_rank)
{
    return MPI_Allgather(in, (int)bytes_per_rank, MPI_BYTE, out, (int)bytes_per_rank,
                         MPI_BYTE, MPI_COMM_WORLD);
}

int coll_broadcast(void *buffer, size_t bytes, int root)
{
    return MPI_Bcast(buffer, (int)bytes, MPI_BYTE, root, MPI_COMM_WORLD);
}

int coll_alltoall(const void *in, void *out, size_t bytes_per_pair)
{
    return MPI_Alltoall(in, (int)bytes_per_pair, MPI_BYTE, out, (int)bytes_per_pair,
                        MPI_BYTE, MPI_COMM_WORLD);
}
