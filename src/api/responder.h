/*
 * responder.h: answers a viewer of the same user who asks how this process is (horovodrun
 * --status).  A thread that sleeps in poll until somebody knocks: without a viewer it costs
 * nothing.  It is there from hvd_init to hvd_shutdown, also while the job forms.
 */
#ifndef HVD_API_RESPONDER_H
#define HVD_API_RESPONDER_H

#include "base/config.h"
#include "wire/look_message.h"

/* Thread: whoever holds the lock of job.c, for all of them.  A process that cannot be looked
 * at still trains: failures are logged at level info. */
void responder_start(const struct config *conf);
/* What is shown while there is no engine to ask, and of which job. */
void responder_enter(enum look_phase phase, const struct config *conf);
void responder_stop(void);

#endif
