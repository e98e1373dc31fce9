/*
 * fuzz_handshake_server.c: a stranger's HELLO and CONFIRM.
 *
 *   0 u8 flags: 1 the HELLO gets a right proof, as a key holder would make it
 *   1    HELLO, 256 bytes (missing ones are 0), then CONFIRM, 64 bytes
 *
 * Nobody who has not made the HELLO can confirm, so the end must always be a refusal.
 */
#include "wire/crypto.h"
#include "wire/handshake.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t key[HS_KEY] = "the key of a fuzzed handshake...";

static size_t take(const uint8_t **data, size_t *size, uint8_t *field, size_t n)
{
    size_t got = *size < n ? *size : n;

    memset(field, 0, n);
    memcpy(field, *data, got);
    *data += got;
    *size -= got;
    return got;
}

static void prove(uint8_t hello[HS_HELLO])
{
    static const char salt[] = "horovod handshake";
    uint8_t k[HS_KEY];

    BUG_ON(crypto_derive((struct crypto_span){key, HS_KEY},
                         (struct crypto_span){salt, sizeof salt - 1},
                         (struct crypto_span){"hello", 5}, k, sizeof k, NULL) != HVD_OK);
    BUG_ON(crypto_mac(k, hello, 224, hello + 224, NULL) != HVD_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hs_identity expect = {HS_RENDEZVOUS, HS_ANY_RANK, HS_ANY_RANK,
                                 HS_ANY_GENERATION, "job"};
    uint8_t flags, hello[HS_HELLO], reply[HS_REPLY], confirm[HS_CONFIRM];
    struct hs_listener l;
    struct hs_keys keys;
    struct hvd_error err;

    take(&data, &size, &flags, 1);
    take(&data, &size, hello, sizeof hello);
    take(&data, &size, confirm, sizeof confirm);
    if (flags & 1)
        prove(hello);
    if (hs_accept(&l, key, &expect, hello, reply, &err) == HVD_OK) {
        BUG_ON(l.id.purpose != HS_RENDEZVOUS || strcmp(l.id.job_id, "job") != 0);
        BUG_ON(hs_accept_finish(&l, confirm, &keys, &err) != HVD_AUTH);
    }
    hs_listener_release(&l);
    return 0;
}
