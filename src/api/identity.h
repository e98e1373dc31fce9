/*
 * identity.h: who this process is when no HOROVOD_* variable says so: Slurm, Open MPI, PMI
 * and torchrun tell it in variables of their own.
 */
#ifndef HVD_API_IDENTITY_H
#define HVD_API_IDENTITY_H

#include "base/config.h"

struct identity {
    const char *launcher;               /* "torchrun"; NULL: ours, or none */
    bool one_host;                      /* all ranks are on this host, as far as it tells */
};

/* Completes rank and size (and local values, where given), rendezvous and name of the job,
 * if HOROVOD_RANK and HOROVOD_SIZE are not set.  The rules stand in identity.c.
 * Errors: HVD_INVALID (only one of a pair is set, not a number, no place to meet). */
enum hvd_status identity_complete(struct config *conf, struct identity *found,
                                  struct hvd_error *err);

/* The first name of a list as Slurm writes it: "node[01-04,07],x" gives "node01". */
void identity_first_node(const char *list, char *name, size_t capacity);

#endif
