/*
 * identity.h: who this process is when no HOROVOD_* variable says so: Slurm, Open MPI, PMI
 * and torchrun tell it in variables of their own.
 */
#ifndef HVD_API_IDENTITY_H
#define HVD_API_IDENTITY_H

#include "base/config.h"

/* Completes rank and size (and local values, where given) of conf, if HOROVOD_RANK and
 * HOROVOD_SIZE are not set.  Errors: HVD_INVALID (only one of a pair is set). */
enum hvd_status identity_complete(struct config *conf, struct hvd_error *err);

#endif
