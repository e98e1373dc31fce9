/* join.h: horovodrun --join: this machine's slots for somebody's elastic job. */
#ifndef HVD_LAUNCH_JOIN_H
#define HVD_LAUNCH_JOIN_H

#include "launch/settings.h"

/* Serves the job until it ends, or until a signal asks for an end; the exit code. */
int join_run(const struct settings *s);

/* The key that lets machines join: of --key-file, of HOROVOD_KEY_FILE, of HOROVOD_KEY, typed
 * by the user (may_ask), else the user's own; key is secret memory.
 * Errors: HVD_INVALID, HVD_SYS. */
enum hvd_status join_read_key(const struct settings *s, bool may_ask,
                              uint8_t key[HVD_KEY_BYTES], struct hvd_error *err);

#endif
