/* key_descriptor.h: the job key as a launcher hands it over. */
#ifndef HVD_RENDEZVOUS_KEY_DESCRIPTOR_H
#define HVD_RENDEZVOUS_KEY_DESCRIPTOR_H

#include "base/error.h"

/* True: the descriptor holds a job key, which was read, and is closed.  False: it is
 * something else, and is left alone. */
bool key_take_descriptor(int fd, uint8_t key[32]);

/* Blocks: 5 s at most.  Errors: HVD_PEER_LOST (nobody there), HVD_INVALID (refused). */
enum hvd_status key_ask_socket(const char *name, uint8_t key[32], struct hvd_error *err);

#endif
