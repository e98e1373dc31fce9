/* formed.h: the log of a job that has formed. */
#ifndef HVD_API_FORMED_H
#define HVD_API_FORMED_H

#include "rendezvous/rendezvous.h"
#include "transport/transport.h"

/* since_us: when hvd_init began. */
void formed_log(const struct mesh *mesh, const struct table *table, uint64_t since_us);

#endif
