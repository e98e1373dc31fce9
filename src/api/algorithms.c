/* algorithms.c: what HOROVOD_ALGORITHMS can choose, for horovodrun --list-algorithms. */
#include "collective/collective.h"
#include "horovod/horovod.h"

size_t hvd_algorithms_text(char *buffer, size_t capacity)
{
    return coll_describe(buffer, capacity);
}
