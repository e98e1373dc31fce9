/*
 * fuzz_seal.c: sealed messages that are changed, dropped, repeated or exchanged.
 *
 *   0 u8 which of three messages is delivered first; 1 u8 its new length
 *   2    xored into its bytes and tag
 *
 * Only the first message, unchanged, may be taken.
 */
#include "wire/handshake.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define N 40

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t key[HS_KEY] = "the key of a fuzzed connection..";
    uint8_t wire[3][N + SEAL_TAG], plain[N] = "plain text", back[N];
    struct seal out, in;
    struct hvd_error err;
    size_t which, n, changed = 0;
    enum hvd_status status;

    if (size < 2)
        return 0;
    which = data[0] % 3;
    n = data[1] % (N + 1);
    BUG_ON(seal_init(&out, key, &err) != HVD_OK || seal_init(&in, key, &err) != HVD_OK);
    for (int i = 0; i < 3; i++)
        BUG_ON(seal_encrypt(&out, "head", 4, plain, N, wire[i], wire[i] + N, &err) !=
               HVD_OK);
    for (size_t i = 2; i < size && i - 2 < N + SEAL_TAG; i++) {
        wire[which][i - 2] ^= data[i];
        changed |= data[i];
    }
    status = seal_decrypt(&in, "head", 4, wire[which], n, back, wire[which] + N, &err);
    BUG_ON((status == HVD_OK) != (which == 0 && n == N && changed == 0));
    BUG_ON(status != HVD_OK && n > 0 && back[0] != 0);
    seal_release(&out);
    seal_release(&in);
    return 0;
}
