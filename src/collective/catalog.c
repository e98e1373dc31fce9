/*
 * catalog.c: the algorithms there are, one line each, and the rules that choose among them
 * when the user gives none.  The size of an operation is that of the whole vector: of the
 * input of one member (allreduce, broadcast), of all counts together (allgather,
 * reducescatter), of as many parts as there are members, each as large as the largest (alltoall).
 */
#include "collective/collective_int.h"

#define ALGORITHMS(X)                                                                  \
    X(allreduce_alone) X(allreduce_slot) X(allreduce_shared) X(allreduce_hier)         \
    X(allreduce_pair) X(allreduce_gather) X(allreduce_doubling) X(allreduce_halving)   \
    X(allreduce_pairwise)                                                              \
    X(allgather_alone) X(allgather_board) X(allgather_hier) X(allgather_bruck)         \
    X(allgather_rounds) X(allgather_pairwise)                                          \
    X(broadcast_alone) X(broadcast_board) X(broadcast_hier) X(broadcast_tree)          \
    X(broadcast_pipe) X(broadcast_slices)                                              \
    X(alltoall_alone) X(alltoall_board) X(alltoall_rounds) X(alltoall_pairwise)        \
    X(reducescatter_alone) X(reducescatter_board) X(reducescatter_whole)               \
    X(reducescatter_pairwise)                                                          \
    X(barrier_alone) X(barrier_board) X(barrier_hier) X(barrier_rounds)                \
    X(adasum_alone) X(adasum_slices)

#define DECLARE(name) extern const struct coll_alg name;
ALGORITHMS(DECLARE)

#define POINT(name) &name,
const struct coll_alg *const catalog_algs[] = {ALGORITHMS(POINT)};
const int catalog_alg_count = sizeof catalog_algs / sizeof catalog_algs[0];

const char *const catalog_op_names[COLL_OP_COUNT] = {
    [COLL_ALLREDUCE] = "allreduce", [COLL_ALLGATHER] = "allgather",
    [COLL_BROADCAST] = "broadcast", [COLL_ALLTOALL] = "alltoall",
    [COLL_REDUCESCATTER] = "reducescatter", [COLL_BARRIER] = "barrier",
    [COLL_ADASUM] = "adasum",
};

const char catalog_default_rules[] =
    "allreduce 0-inf alone, 0-8kb slot, 0-inf shared, 0-inf hier, 0-512kb pair, "
    "0-20kb gather, 0-16kb doubling, 0-inf halving, 0-inf pairwise, "
    "allgather 0-inf alone, 0-inf board, 0-inf hier, 0-64kb bruck, 0-inf rounds, "
    "0-inf pairwise, "
    "broadcast 0-inf alone, 0-inf board, 0-inf hier, 0-256kb tree, 0-inf pipe, 0-inf slices, "
    "alltoall 0-inf alone, 0-inf board, 0-inf rounds, 0-inf pairwise, "
    "reducescatter 0-inf alone, 0-inf board, 0-inf whole, 0-inf pairwise, "
    "barrier 0-inf alone, 0-inf board, 0-inf hier, 0-inf rounds, "
    "adasum 0-inf alone, 0-inf slices";

size_t catalog_state_bytes(void)
{
    size_t most = 0;

    for (int i = 0; i < catalog_alg_count; i++)
        most = catalog_algs[i]->state_bytes > most ? catalog_algs[i]->state_bytes : most;
    return most;
}
