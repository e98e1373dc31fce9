/* fuzz_entry.c: an ENTRY message; what is read is written again to the same bytes. */
#include "wire/rdv_message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct table_entry e;
    struct hvd_error err;
    uint32_t wait_ms;
    uint8_t *bytes;
    size_t n;

    if (get_rdv_entry(&e, &wait_ms, data, size, &err) != HVD_OK)
        return 0;
    BUG_ON(e.rank < 0 || e.rank >= e.size || e.size > TABLE_RANKS);
    BUG_ON(put_rdv_entry(&e, wait_ms, &bytes, &n, &err) != HVD_OK);
    BUG_ON(n != size || memcmp(bytes, data, n) != 0);
    free(bytes);
    return 0;
}
