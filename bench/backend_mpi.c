/* backend_mpi.c: collbench on an MPI, whose default is to end the job on an error. */
#include "system.h"

#include <mpi.h>

void sys_init(int *argc, char ***argv, int *rank_p, int *size_p)
{
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, rank_p);
    MPI_Comm_size(MPI_COMM_WORLD, size_p);
}

void sys_finish(void)
{
    MPI_Finalize();
}

void *sys_alloc(size_t bytes, bool shared)
{
    (void)shared;
    return sys_alloc_private(bytes);
}

void sys_allreduce(const float *in, float *out, size_t count)
{
    MPI_Allreduce(in == out ? MPI_IN_PLACE : in, out, (int)count, MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
}

void sys_reducescatter(const float *in, float *out, size_t count_per_rank)
{
    MPI_Reduce_scatter_block(in, out, (int)count_per_rank, MPI_FLOAT, MPI_SUM,
                             MPI_COMM_WORLD);
}

void sys_allgather(const void *in, void *out, size_t bytes_per_rank)
{
    MPI_Allgather(in, (int)bytes_per_rank, MPI_BYTE, out, (int)bytes_per_rank, MPI_BYTE,
                  MPI_COMM_WORLD);
}

void sys_broadcast(void *buffer, size_t bytes, int root)
{
    MPI_Bcast(buffer, (int)bytes, MPI_BYTE, root, MPI_COMM_WORLD);
}

void sys_alltoall(const void *in, void *out, size_t bytes_per_pair)
{
    MPI_Alltoall(in, (int)bytes_per_pair, MPI_BYTE, out, (int)bytes_per_pair, MPI_BYTE,
                 MPI_COMM_WORLD);
}
