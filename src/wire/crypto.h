/*
 * crypto.h: the few primitives of libcrypto this system uses.  All of the cryptography
 * goes through here; nothing else includes an OpenSSL header, except seal.c.
 * Thread: any.  Errors: HVD_SYS (no random bytes, or libcrypto refused).
 */
#ifndef HVD_WIRE_CRYPTO_H
#define HVD_WIRE_CRYPTO_H

#include "base/error.h"

#define CRYPTO_KEY 32                   /* of X25519, of HMAC-SHA256, of AES-256 */

enum hvd_status crypto_random(void *bytes, size_t n, struct hvd_error *err);

/* True if equal; the time does not depend on the contents. */
bool crypto_equal(const void *a, const void *b, size_t n);

/* HMAC-SHA256. */
enum hvd_status crypto_mac(const uint8_t key[CRYPTO_KEY], const void *bytes, size_t n,
                           uint8_t mac[CRYPTO_KEY], struct hvd_error *err);

/* HKDF-SHA256: out_n bytes from a secret, bound to salt and info. */
struct crypto_span {
    const void *bytes;
    size_t n;
};
enum hvd_status crypto_derive(struct crypto_span secret, struct crypto_span salt,
                              struct crypto_span info, uint8_t *out, size_t out_n,
                              struct hvd_error *err);

/* A fresh X25519 pair. */
enum hvd_status crypto_pair(uint8_t secret[CRYPTO_KEY], uint8_t public[CRYPTO_KEY],
                            struct hvd_error *err);
/* What both sides know after exchanging public keys.  HVD_AUTH: a point that gives no
 * secret (low order). */
enum hvd_status crypto_agree(const uint8_t secret[CRYPTO_KEY],
                             const uint8_t peer_public[CRYPTO_KEY],
                             uint8_t shared[CRYPTO_KEY], struct hvd_error *err);

/* "libcrypto: what: reason", and clears libcrypto's queue of errors. */
enum hvd_status crypto_error(struct hvd_error *err, const char *what);

/* Algorithms fetched once per process; NULL: libcrypto refused. */
struct crypto_algorithms {
    void *hmac, *hkdf, *gcm;            /* EVP_MAC, EVP_KDF, EVP_CIPHER */
};
const struct crypto_algorithms *crypto_algorithms(void);

#endif
