/* py_calls.c: the table of calls.h, for libraries that share this process's job. */
#include "python/calls.h"

extern const struct hvd_calls horovod_calls;

__attribute__((visibility("default"))) const struct hvd_calls horovod_calls = {
    .bytes = sizeof(struct hvd_calls),
#define HVD_CALL_VALUE(name) .name = hvd_##name,
    HVD_CALLS(HVD_CALL_VALUE)
#undef HVD_CALL_VALUE
};
