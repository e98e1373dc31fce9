/* full.h: what relay.c shares with full.c: entries that a CACHED response runs. */
#ifndef HVD_ENGINE_FULL_H
#define HVD_ENGINE_FULL_H

#include "engine/engine_int.h"

enum hvd_status full_new(struct way **way_p, struct hvd_error *err);
void full_wait(struct engine *e, struct entry *t, struct cached *c);
void full_withdraw(struct entry *t);

#endif
