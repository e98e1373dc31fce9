/*
 * channel.h: a proved, non-blocking socket that carries the frames of rdv_message.h, for
 * both ends of the rendezvous.  Every frame is encrypted, at every security level: they
 * are few, and tell a listener where the job runs.
 */
#ifndef HVD_RENDEZVOUS_CHANNEL_H
#define HVD_RENDEZVOUS_CHANNEL_H

#include "wire/handshake.h"
#include "wire/rdv_message.h"

struct channel {
    int fd;                             /* -1: closed; owned */
    struct seal out, in;
    size_t limit;                       /* largest body taken */
    uint8_t *unsent;                    /* sealed frames, from unsent_at on */
    size_t unsent_at, unsent_n;
    uint8_t header[RDV_HEADER];
    uint8_t *body;                      /* of the frame that is being read, and its tag */
    size_t body_n, got;                 /* got: of header, body and tag together */
};

struct channel_message {
    enum rdv_kind kind;
    const uint8_t *body;                /* valid until the next call */
    size_t n;
};

/* Takes fd in any case.  Release accepts a channel that is zeroed or failed to init. */
enum hvd_status channel_init(struct channel *c, int fd, const struct hs_keys *keys,
                             size_t limit, struct hvd_error *err);
void channel_release(struct channel *c);

/* Seals a message and sends what the socket takes; the rest goes with channel_flush. */
enum hvd_status channel_send(struct channel *c, enum rdv_kind kind, const void *body,
                             size_t n, struct hvd_error *err);
/* HVD_OK: nothing is left; HVD_AGAIN: call again when the socket is writable. */
enum hvd_status channel_flush(struct channel *c, struct hvd_error *err);

/* HVD_AGAIN: no complete message yet; HVD_PEER_LOST: the other end closed; HVD_PROTO. */
enum hvd_status channel_receive(struct channel *c, struct channel_message *m,
                                struct hvd_error *err);

#endif
