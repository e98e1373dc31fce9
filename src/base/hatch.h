/*
 * hatch.h: how processes of one user on one host find and ask each other: a listening socket
 * with an abstract name, which leaves nothing behind, whatever ends the process.
 *
 *   @horovod-<kind>-<uid>-<16 hexadecimal digits>
 *
 * Everybody on the machine can see the name, make one that looks like it, and connect.  So
 * both sides ask the kernel who the other is (SO_PEERCRED), and neither reads a byte of
 * another user, not even of root.
 */
#ifndef HVD_BASE_HATCH_H
#define HVD_BASE_HATCH_H

#include "base/error.h"

#include <sys/types.h>

#define HATCH_NAME 64                    /* with the 0 at its end; most bytes of a name */

/* A listening socket, not blocking.  kind: letters.  Errors: HVD_SYS. */
enum hvd_status hatch_open(const char *kind, int *fd_p, struct hvd_error *err);

/* The next of this user who has come, not blocking; others are sent away.  -1: nobody. */
int hatch_accept(int fd);

/* The names of a kind that processes of this user may have made, on this host (network
 * namespace); at most capacity of them.  Returns how many there are. */
int hatch_list(const char *kind, char (*names)[HATCH_NAME], int capacity);

/* A connection, not blocking, to the process *pid_p of this user; -1: there is none of that
 * name.  Neither side ever waits for the other here: a full backlog is a refusal. */
int hatch_connect(const char *name, pid_t *pid_p);

#endif
