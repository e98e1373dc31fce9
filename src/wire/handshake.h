/*
 * handshake.h: the one way a socket of this system becomes trusted.  No I/O here: the
 * caller moves fixed-size messages and applies the deadline.
 *
 *   dialer                                   listener
 *   HELLO   (HS_HELLO bytes)   ->
 *                              <-            REPLY   (HS_REPLY bytes)
 *   CONFIRM (HS_CONFIRM bytes) ->
 *
 * Each side proves that it holds the job key over the nonces of both sides, the protocol
 * and library version, the job id, the generation, the purpose and both ranks.  Nothing
 * of a message is looked at before its proof has been checked in constant time, except
 * the plain protocol version, so that a version difference can be named.
 */
#ifndef HVD_WIRE_HANDSHAKE_H
#define HVD_WIRE_HANDSHAKE_H

#include "base/error.h"

#define HS_KEY 32
#define HS_HELLO 256
#define HS_REPLY 256
#define HS_CONFIRM 64
#define HS_AT_NONCE 8                   /* of a HELLO: 32 random bytes */
#define HS_PROTOCOL 1                   /* grows when a byte format changes its meaning */
#define HS_VERSION_TEXT 33              /* text of a library version and its 0 */
#define HS_DEADLINE_US 5000000          /* an unproved peer costs this long at most */
#define HS_ANY_RANK (-1)                /* the rendezvous server */
#define HS_ANY_GENERATION UINT32_MAX    /* of a listener that looks at it later itself */

enum hs_purpose { HS_RENDEZVOUS = 1, HS_DATA, HS_WATCH, HS_LOCAL, /* 5 was never sent */
                  HS_ELASTIC = 6, HS_JOIN, HS_PURPOSE_END };

struct hs_identity {
    enum hs_purpose purpose;
    int32_t self, peer;                 /* ranks, never equal; HS_ANY_RANK where there is
                                         * none; of HS_ELASTIC: the worker's number */
    uint32_t generation;
    char job_id[65];
};

struct hs_keys {                        /* of one connection, one per direction */
    uint8_t send[HS_KEY], receive[HS_KEY];
};

struct hs_dialer {
    struct hs_identity id;
    const uint8_t *key;                 /* borrowed until the proof is complete */
    uint8_t hello[HS_HELLO];
    uint8_t secret[HS_KEY];             /* X25519 */
    char peer_version[HS_VERSION_TEXT]; /* library, after hs_dial_finish */
};

/* Fills hello; wipe with hs_dialer_release.  The key is not copied, it stays where it is
 * kept well.  Errors: HVD_INVALID, HVD_SYS (no random bytes). */
enum hvd_status hs_dial(struct hs_dialer *d, const uint8_t key[HS_KEY],
                        const struct hs_identity *id, uint8_t hello[HS_HELLO],
                        struct hvd_error *err);
/* Checks the reply, fills confirm and keys.  Errors: HVD_AUTH: whoever answers under this
 * address has not proved the key, which says nothing of the peer; HVD_VERSION: proved. */
enum hvd_status hs_dial_finish(struct hs_dialer *d, const uint8_t reply[HS_REPLY],
                               uint8_t confirm[HS_CONFIRM], struct hs_keys *keys,
                               struct hvd_error *err);
void hs_dialer_release(struct hs_dialer *d);

struct hs_listener {
    struct hs_identity id;              /* after hs_accept: peer is who dialled */
    const uint8_t *key;                 /* borrowed during hs_accept */
    uint8_t hello[HS_HELLO], reply[HS_REPLY];
    uint8_t confirm_key[HS_KEY];
    struct hs_keys keys;                /* handed out when the proof is complete */
    char peer_version[HS_VERSION_TEXT]; /* library, after hs_accept_finish */
};

/*
 * Checks hello against what `expect` says (self, generation, job id; purpose 0: any;
 * peer HS_ANY_RANK: any) and fills reply.  The dialer's rank and purpose are in l->id
 * afterwards, but proved only by hs_accept_finish.  Errors: HVD_AUTH (wrong key, job,
 * generation, rank, replay or reflection: send nothing), HVD_VERSION (the dialer has
 * proved the key; reply is filled: send it, then close).
 */
enum hvd_status hs_accept(struct hs_listener *l, const uint8_t key[HS_KEY],
                          const struct hs_identity *expect,
                          const uint8_t hello[HS_HELLO], uint8_t reply[HS_REPLY],
                          struct hvd_error *err);
enum hvd_status hs_accept_finish(struct hs_listener *l, const uint8_t confirm[HS_CONFIRM],
                                 struct hs_keys *keys, struct hvd_error *err);
void hs_listener_release(struct hs_listener *l);

/* ---- Sealing of control messages (level auth) and of everything (encrypt) --------- */

#define SEAL_TAG 16

struct seal {                           /* one direction of one connection */
    uint8_t key[HS_KEY];
    uint64_t counter;                   /* of the next message; never repeats */
    void *ctx;                          /* cipher state, made once per connection */
};

enum hvd_status seal_init(struct seal *s, const uint8_t key[HS_KEY], struct hvd_error *err);
void seal_release(struct seal *s);
/* GMAC of the bytes (header and body), in place of encryption. */
enum hvd_status seal_sign(struct seal *s, const void *bytes, size_t n,
                          uint8_t tag[SEAL_TAG], struct hvd_error *err);
enum hvd_status seal_check(struct seal *s, const void *bytes, size_t n,
                           const uint8_t tag[SEAL_TAG], struct hvd_error *err);
/* AES-256-GCM, in place allowed; header is authenticated only. */
enum hvd_status seal_encrypt(struct seal *s, const void *header, size_t header_n,
                             const void *plain, size_t n, void *cipher,
                             uint8_t tag[SEAL_TAG], struct hvd_error *err);
enum hvd_status seal_decrypt(struct seal *s, const void *header, size_t header_n,
                             const void *cipher, size_t n, void *plain,
                             const uint8_t tag[SEAL_TAG], struct hvd_error *err);

#endif
