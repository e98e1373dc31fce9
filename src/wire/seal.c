/*
 * seal.c: one direction of a proved connection (see handshake.h).
 *
 * 1. Cipher AES-256-GCM; a signature is GCM over associated data alone (GMAC).
 * 2. Nonce: 4 zero bytes, then the message's number as u64.  Both ends count, the number
 *    is never sent, so a lost, repeated or exchanged message does not fit.
 * 3. After every SEAL_REKEY messages both ends replace the key by
 *    HKDF(key, salt "", info "horovod rekey"): below the bounds for GCM by three orders.
 * 4. After one message that did not fit, nothing fits any more: the connection is dead.
 */
#include "wire/bytes.h"
#include "wire/crypto.h"
#include "wire/handshake.h"

#include <limits.h>
#include <openssl/evp.h>
#include <string.h>

#define SEAL_REKEY (1u << 22)
#define SEAL_DEAD UINT64_MAX            /* the counter after a message that did not fit */
#define NONCE 12

static enum hvd_status set_key(struct seal *s, struct hvd_error *err)
{
    if (EVP_CipherInit_ex(s->ctx, crypto_algorithms()->gcm, NULL, s->key, NULL, 1) != 1)
        return crypto_error(err, "AES-256-GCM key");
    return HVD_OK;
}

enum hvd_status seal_init(struct seal *s, const uint8_t key[HS_KEY], struct hvd_error *err)
{
    memcpy(s->key, key, HS_KEY);
    s->counter = 0;
    crypto_algorithms();                /* before anything else of libcrypto */
    s->ctx = EVP_CIPHER_CTX_new();
    if (s->ctx == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a cipher");
    return set_key(s, err);
}

void seal_release(struct seal *s)
{
    EVP_CIPHER_CTX_free(s->ctx);
    explicit_bzero(s, sizeof *s);
}

static enum hvd_status rekey(struct seal *s, struct hvd_error *err)
{
    static const char info[] = "horovod rekey";
    uint8_t next[HS_KEY];

    TRY(crypto_derive((struct crypto_span){s->key, HS_KEY}, (struct crypto_span){"", 0},
                      (struct crypto_span){info, sizeof info - 1}, next, HS_KEY, err));
    memcpy(s->key, next, HS_KEY);
    explicit_bzero(next, sizeof next);
    return set_key(s, err);
}

/* Takes the next number and prepares the context for it. */
static enum hvd_status begin(struct seal *s, int encrypting, struct hvd_error *err)
{
    uint8_t nonce[NONCE] = {0};

    if (s->counter == SEAL_DEAD)
        return error_set(err, HVD_PROTO, -1, "the connection's seal is broken");
    if (s->counter != 0 && s->counter % SEAL_REKEY == 0)
        TRY(rekey(s, err));
    bytes_put_u64(nonce + 4, s->counter);
    if (EVP_CipherInit_ex(s->ctx, NULL, NULL, NULL, nonce, encrypting) != 1)
        return crypto_error(err, "AES-256-GCM nonce");
    s->counter++;
    return HVD_OK;
}

/* Feeds n bytes in pieces that an int can count; out NULL: associated data. */
static bool feed(struct seal *s, uint8_t *out, const uint8_t *in, size_t n)
{
    int got;

    while (n > 0) {
        int piece = n > INT_MAX / 2 ? INT_MAX / 2 : (int)n;

        if (EVP_CipherUpdate(s->ctx, out, &got, in, piece) != 1)
            return false;
        in += piece;
        out = out == NULL ? NULL : out + piece;
        n -= (size_t)piece;
    }
    return true;
}

static bool finish(struct seal *s)
{
    uint8_t none[16];
    int got;

    return EVP_CipherFinal_ex(s->ctx, none, &got) == 1;
}

static bool get_tag(struct seal *s, uint8_t tag[SEAL_TAG])
{
    return EVP_CIPHER_CTX_ctrl(s->ctx, EVP_CTRL_AEAD_GET_TAG, SEAL_TAG, tag) == 1;
}

static enum hvd_status misfit(struct seal *s, struct hvd_error *err)
{
    unsigned long long number = s->counter - 1;

    s->counter = SEAL_DEAD;
    return error_set(err, HVD_PROTO, -1,
                     "message %llu was changed, lost or repeated on its way: its seal does "
                     "not fit", number);
}

enum hvd_status seal_sign(struct seal *s, const void *bytes, size_t n,
                          uint8_t tag[SEAL_TAG], struct hvd_error *err)
{
    TRY(begin(s, 1, err));
    if (!feed(s, NULL, bytes, n) || !finish(s) || !get_tag(s, tag))
        return crypto_error(err, "GMAC");
    return HVD_OK;
}

enum hvd_status seal_check(struct seal *s, const void *bytes, size_t n,
                           const uint8_t tag[SEAL_TAG], struct hvd_error *err)
{
    uint8_t own[SEAL_TAG];

    TRY(seal_sign(s, bytes, n, own, err));
    return crypto_equal(own, tag, SEAL_TAG) ? HVD_OK : misfit(s, err);
}

enum hvd_status seal_encrypt(struct seal *s, const void *header, size_t header_n,
                             const void *plain, size_t n, void *cipher,
                             uint8_t tag[SEAL_TAG], struct hvd_error *err)
{
    TRY(begin(s, 1, err));
    if (!feed(s, NULL, header, header_n) || !feed(s, cipher, plain, n) || !finish(s) ||
        !get_tag(s, tag))
        return crypto_error(err, "AES-256-GCM");
    return HVD_OK;
}

enum hvd_status seal_decrypt(struct seal *s, const void *header, size_t header_n,
                             const void *cipher, size_t n, void *plain,
                             const uint8_t tag[SEAL_TAG], struct hvd_error *err)
{
    uint8_t expected[SEAL_TAG];

    TRY(begin(s, 0, err));
    memcpy(expected, tag, SEAL_TAG);
    if (!feed(s, NULL, header, header_n) || !feed(s, plain, cipher, n) ||
        EVP_CIPHER_CTX_ctrl(s->ctx, EVP_CTRL_AEAD_SET_TAG, SEAL_TAG, expected) != 1)
        return crypto_error(err, "AES-256-GCM");
    if (finish(s))
        return HVD_OK;
    explicit_bzero(plain, n);
    return misfit(s, err);
}
