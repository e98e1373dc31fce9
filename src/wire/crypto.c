/*
 * crypto.c: see crypto.h.
 *
 * 1. libcrypto reads no configuration file and leaves nothing at exit: it is private to
 *    this library, and other threads may still use it while the process ends.
 * 2. Random bytes come from the kernel, so that a forked child needs no care.
 * 3. Algorithms are looked up once: the look-up costs more than their use.  Error texts
 *    and lists of names are not loaded: they are half of a process's first 2 ms.
 */
#include "wire/crypto.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <pthread.h>
#include <string.h>
#include <sys/random.h>

static struct crypto_algorithms algorithms;
static pthread_once_t fetched = PTHREAD_ONCE_INIT;

static void fetch(void)
{
    OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT |
                            OPENSSL_INIT_NO_LOAD_CRYPTO_STRINGS |
                            OPENSSL_INIT_NO_ADD_ALL_CIPHERS |
                            OPENSSL_INIT_NO_ADD_ALL_DIGESTS, NULL);
    algorithms.hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    algorithms.hkdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    algorithms.gcm = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
}

const struct crypto_algorithms *crypto_algorithms(void)
{
    pthread_once(&fetched, fetch);
    return &algorithms;
}

enum hvd_status crypto_error(struct hvd_error *err, const char *what)
{
    char reason[160] = "out of memory";
    unsigned long code = ERR_get_error();

    if (code != 0)
        ERR_error_string_n(code, reason, sizeof reason);
    ERR_clear_error();
    return error_set(err, HVD_SYS, -1, "libcrypto: %s: %s", what, reason);
}

enum hvd_status crypto_random(void *bytes, size_t n, struct hvd_error *err)
{
    uint8_t *p = bytes;

    while (n > 0) {
        ssize_t got = getrandom(p, n, 0);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return error_sys(err, -1, "no random bytes from the kernel");
        p += got;
        n -= (size_t)got;
    }
    return HVD_OK;
}

bool crypto_equal(const void *a, const void *b, size_t n)
{
    return CRYPTO_memcmp(a, b, n) == 0;
}

enum hvd_status crypto_mac(const uint8_t key[CRYPTO_KEY], const void *bytes, size_t n,
                           uint8_t mac[CRYPTO_KEY], struct hvd_error *err)
{
    const OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, (char[]){"SHA256"}, 0),
        OSSL_PARAM_END,
    };
    EVP_MAC_CTX *ctx = EVP_MAC_CTX_new(crypto_algorithms()->hmac);
    size_t mac_n;
    bool ok = ctx != NULL && EVP_MAC_init(ctx, key, CRYPTO_KEY, params) == 1 &&
              EVP_MAC_update(ctx, bytes, n) == 1 &&
              EVP_MAC_final(ctx, mac, &mac_n, CRYPTO_KEY) == 1;

    EVP_MAC_CTX_free(ctx);
    return ok ? HVD_OK : crypto_error(err, "HMAC-SHA256");
}

enum hvd_status crypto_derive(struct crypto_span secret, struct crypto_span salt,
                              struct crypto_span info, uint8_t *out, size_t out_n,
                              struct hvd_error *err)
{
    const OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char[]){"SHA256"}, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)secret.bytes,
                                          secret.n),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, (void *)salt.bytes,
                                          salt.n),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)info.bytes,
                                          info.n),
        OSSL_PARAM_END,
    };
    EVP_KDF_CTX *ctx = EVP_KDF_CTX_new(crypto_algorithms()->hkdf);
    bool ok = ctx != NULL && EVP_KDF_derive(ctx, out, out_n, params) == 1;

    EVP_KDF_CTX_free(ctx);
    return ok ? HVD_OK : crypto_error(err, "HKDF-SHA256");
}

enum hvd_status crypto_pair(uint8_t secret[CRYPTO_KEY], uint8_t public[CRYPTO_KEY],
                            struct hvd_error *err)
{
    size_t n = CRYPTO_KEY;
    EVP_PKEY *pair;
    bool ok;

    TRY(crypto_random(secret, CRYPTO_KEY, err));
    crypto_algorithms();                /* rule 1 before anything else of libcrypto */
    pair = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, secret, CRYPTO_KEY);
    ok = pair != NULL && EVP_PKEY_get_raw_public_key(pair, public, &n) == 1;
    EVP_PKEY_free(pair);
    return ok ? HVD_OK : crypto_error(err, "X25519");
}

enum hvd_status crypto_agree(const uint8_t secret[CRYPTO_KEY],
                             const uint8_t peer_public[CRYPTO_KEY],
                             uint8_t shared[CRYPTO_KEY], struct hvd_error *err)
{
    enum hvd_status status = HVD_OK;
    size_t n = CRYPTO_KEY;
    EVP_PKEY *own, *peer;
    EVP_PKEY_CTX *ctx = NULL;

    crypto_algorithms();
    own = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, secret, CRYPTO_KEY);
    peer = EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, NULL, peer_public, CRYPTO_KEY);
    if (own != NULL && peer != NULL)
        ctx = EVP_PKEY_CTX_new(own, NULL);
    if (ctx == NULL || EVP_PKEY_derive_init(ctx) != 1 ||
        EVP_PKEY_derive_set_peer(ctx, peer) != 1) {
        status = crypto_error(err, "X25519");
    } else if (EVP_PKEY_derive(ctx, shared, &n) != 1) {
        ERR_clear_error();
        status = error_set(err, HVD_AUTH, -1, "the peer's public key gives no secret");
    }
    EVP_PKEY_CTX_free(ctx);
    EVP_PKEY_free(peer);
    EVP_PKEY_free(own);
    return status;
}
