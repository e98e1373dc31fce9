/* reach.h: which of several addresses answers, seen from this host. */
#ifndef HVD_LAUNCH_REACH_H
#define HVD_LAUNCH_REACH_H

#include "base/error.h"

#include <uv.h>

struct reach;

/* addr is "" when none answered. */
typedef void (*reach_fn)(void *owner, const char *addr);

/* Connects to all numeric addresses (comma-separated) at once and calls `done` with the
 * first of the list that answers, or a later one if it is 100 ms faster.
 * Owns: the caller, reach_stop, which may be called with NULL.  Blocks: never. */
enum hvd_status reach_start(uv_loop_t *loop, const char *addrs, int port, reach_fn done,
                            void *owner, struct reach **reach_p, struct hvd_error *err);
void reach_stop(struct reach *reach);

#endif
