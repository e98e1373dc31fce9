/*
 * dump.h: where the flight recorder goes when something is wrong: a folder per job, in it a
 * file per process, to which every dump is appended.
 */
#ifndef HVD_ENGINE_DUMP_H
#define HVD_ENGINE_DUMP_H

#include "base/config.h"
#include "base/recorder.h"

#include <sys/stat.h>

struct dump;

/* recorder is borrowed.  The file is <dir>/horovod-recorder-<job>/rank<r>-<pid>.txt, made at
 * the first dump; of older folders the newest few are kept.  NULL: out of memory. */
struct dump *dump_new(const struct config *conf, const struct recorder *recorder, int rank,
                      int size, const char *host);
/* Takes SIGUSR2 back and waits for a handler under way. */
void dump_free(struct dump *d);

/* Appends the ring and logs the path.  A failure is logged once. */
void dump_write(struct dump *d, const char *why);

/* SIGUSR2 writes a dump from now on, if nobody else handles it.  One at a time. */
void dump_on_signal(struct dump *d);

const char *dump_path(const struct dump *d);
int dump_count(const struct dump *d);

/* Whether the folder or file belongs to this user, and to nobody else. */
bool dump_is_ours(int fd, mode_t kind);

#define DUMP_FOLDER "horovod-recorder-"
#define DUMP_FOLDERS_KEPT 8             /* as many failed jobs as somebody looks back at */

/* Removes folders of this user below place, all but the newest and the given one. */
void dump_prune(const char *place, const char *folder);

#endif
