/* port_owner.h: who listens on a port of this machine, for an error message. */
#ifndef HVD_RENDEZVOUS_PORT_OWNER_H
#define HVD_RENDEZVOUS_PORT_OWNER_H

#include <stdint.h>

#define PORT_OWNER_TEXT 96

/* "process 4242 (python3)", "another user's process" when /proc does not tell which, or
 * "a connection that has not ended" when nobody listens. */
void port_owner_find(uint16_t port, char text[PORT_OWNER_TEXT]);

#endif
