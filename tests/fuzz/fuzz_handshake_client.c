/*
 * fuzz_handshake_client.c: a REPLY that was changed on its way.
 *
 *   0 256  xored into the honest REPLY (missing bytes are 0)
 *
 * Only the unchanged REPLY may be taken.
 */
#include "wire/handshake.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t key[HS_KEY] = "the key of a fuzzed handshake...";
    struct hs_identity id = {HS_DATA, 3, 5, 7, "job"};
    struct hs_identity expect = {HS_DATA, 5, HS_ANY_RANK, 7, "job"};
    uint8_t hello[HS_HELLO], reply[HS_REPLY], confirm[HS_CONFIRM];
    struct hs_dialer d;
    struct hs_listener l;
    struct hs_keys keys;
    struct hvd_error err;
    bool changed = false;

    BUG_ON(hs_dial(&d, key, &id, hello, &err) != HVD_OK);
    BUG_ON(hs_accept(&l, key, &expect, hello, reply, &err) != HVD_OK);
    for (size_t i = 0; i < size && i < HS_REPLY; i++) {
        reply[i] ^= data[i];
        changed = changed || data[i] != 0;
    }
    BUG_ON((hs_dial_finish(&d, reply, confirm, &keys, &err) == HVD_OK) == changed);
    BUG_ON(!changed && hs_accept_finish(&l, confirm, &keys, &err) != HVD_OK);
    hs_dialer_release(&d);
    hs_listener_release(&l);
    return 0;
}
