/*
 * guests.h: the rendezvous server's door for others: listening, strangers, proof and
 * encrypted frames are the server's, what proved peers say is handed to hooks.  The elastic
 * driver is built on it.
 *
 * Thread: hooks are called by the server's thread, which holds its lock then; the functions
 * below may be called in hooks, or between guests_lock and guests_unlock.
 */
#ifndef HVD_RENDEZVOUS_GUESTS_H
#define HVD_RENDEZVOUS_GUESTS_H

#include "horovod/driver.h"
#include "rendezvous/channel.h"

struct guest;                           /* a connection that has proved key and number */

struct guest_hooks {
    void *context;
    enum hs_purpose purpose;            /* others are strangers, but for HS_JOIN */
    size_t limit;                       /* largest message taken from a guest */
    const uint8_t *join_key;            /* HVD_KEY_BYTES; who proves it has purpose HS_JOIN.
                                         * NULL: nobody joins.  Copied */
    const char *join_id;                /* job id of that handshake */
    /* True: it may stay; *tag_p is given back in the other hooks. */
    bool (*came)(void *context, struct guest *guest, int32_t number, void **tag_p);
    void (*said)(void *context, void *tag, const struct channel_message *m);
    /* It has gone, or was sent away by anybody but guest_drop. */
    void (*left)(void *context, void *tag, const char *why);
    /* After the events of each turn; returns when the next turn is due, UINT64_MAX: when
     * something happens. */
    uint64_t (*turn)(void *context, uint64_t now_us);
};

/* As hvd_server_new; size and generation of the options do not matter. */
enum hvd_status guests_server_new(const struct hvd_server_options *opt,
                                  const struct guest_hooks *hooks,
                                  struct hvd_server **server_p, struct hvd_error *err);

/* What the socket does not take is sent later.  A guest that cannot be sent to is dropped,
 * and `left` is called before the end of the turn. */
void guest_send(struct hvd_server *server, struct guest *guest, enum rdv_kind kind,
                const void *body, size_t n);
/* Ends the connection without calling `left`. */
void guest_drop(struct hvd_server *server, struct guest *guest);
/* Hands its connection over; the guest is forgotten without calling `left`. */
void guest_take(struct hvd_server *server, struct guest *guest, struct channel *channel);
enum hs_purpose guest_purpose(const struct guest *guest);
const char *guest_address(const struct guest *guest);

void guests_lock(struct hvd_server *server);
void guests_unlock(struct hvd_server *server);  /* and has the thread take a turn */
void guests_unlock_quietly(struct hvd_server *server);

#endif
