/* fuzz_table.c: a TABLE; what is read is written again to the same bytes, but for the
 * two that mean nothing. */
#include "wire/table.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hvd_error err;
    struct table t;
    uint8_t *bytes;
    size_t n;

    if (get_table(&t, data, size, &err) != HVD_OK) {
        BUG_ON(t.entries != NULL);
        return 0;
    }
    for (int i = 0; i < t.count; i++)
        BUG_ON(t.entries[i].rank != i || t.entries[i].size != t.count);
    BUG_ON(put_table(&t, &bytes, &n, &err) != HVD_OK);
    BUG_ON(n != size || memcmp(bytes + 4, data + 4, n - 4) != 0);
    free(bytes);
    table_release(&t);
    return 0;
}
