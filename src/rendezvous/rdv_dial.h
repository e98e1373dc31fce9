/*
 * rdv_dial.h: from a list of addresses to one proved connection.
 */
#ifndef HVD_RENDEZVOUS_RDV_DIAL_H
#define HVD_RENDEZVOUS_RDV_DIAL_H

#include "wire/handshake.h"

#include <netinet/in.h>
#include <sys/socket.h>

#define DIAL_TARGETS 32
#define DIAL_TEXT 80

struct dial_target {
    struct sockaddr_storage address;
    socklen_t address_n;
    char text[DIAL_TEXT];               /* "10.0.0.1 port 4242" */
};

/* Addresses of a comma-separated list, numbers first.  Names are looked up by helper
 * threads.  Blocks: 5 s at most.  Errors: HVD_INVALID, HVD_SYS (names the host). */
enum hvd_status resolve_targets(const char *list, uint16_t port, uint64_t deadline_us,
                                struct dial_target targets[DIAL_TARGETS], int *count_p,
                                struct hvd_error *err);

struct dial_result {
    int fd;                             /* non-blocking; the caller's */
    struct hs_keys keys;                /* the caller wipes them */
    const struct dial_target *target;   /* of the array given */
};

/* Connects to all targets at once, at begin_us (0: now); the first that proves the key
 * wins.  Who refuses the connection or does not prove the key is tried again until the
 * deadline: the server may start after its workers, a stranger may sit in its place.
 * Errors: HVD_TIMEOUT, HVD_AUTH, HVD_VERSION, HVD_SYS; all name address and cause. */
enum hvd_status dial_race(const struct dial_target *targets, int count,
                          const uint8_t key[HS_KEY], const struct hs_identity *id,
                          uint64_t begin_us, uint64_t deadline_us,
                          struct dial_result *result_p, struct hvd_error *err);

#endif
