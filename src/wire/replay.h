/*
 * replay.h: which HELLOs a listener has answered.  A recorded HELLO that comes again is
 * refused before anything is computed for it; without this each one costs a key exchange
 * and a place among those who are about to prove themselves.
 *
 * Only HELLOs that have proved the key are remembered, so that strangers cannot fill it.
 * One thread at a time.  All zero is an empty one.
 */
#ifndef HVD_WIRE_REPLAY_H
#define HVD_WIRE_REPLAY_H

#include "wire/handshake.h"

#define REPLAY_MAX 65536                /* 1 MiB; then all are forgotten */

struct replay {
    uint64_t (*slots)[2];               /* half of a nonce each; 0 0: empty */
    size_t count, room;                 /* room: a power of 2, or 0 */
};

bool replay_has(const struct replay *r, const uint8_t hello[HS_HELLO]);
/* Without memory the HELLO is not remembered. */
void replay_add(struct replay *r, const uint8_t hello[HS_HELLO]);
void replay_release(struct replay *r);

#endif
