/* fuzz_elastic_message.c: the messages of an elastic job, chosen by the first byte; what is
 * read is written again to the same bytes. */
#include "wire/elastic_message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_assign(const uint8_t *data, size_t size)
{
    struct elastic_assign a;
    struct hvd_error err;
    uint8_t *bytes;
    size_t n;

    if (get_elastic_assign(&a, data, size, &err) != HVD_OK)
        return;
    BUG_ON(a.rank < 0 || a.rank >= a.table.count);
    BUG_ON(put_elastic_assign(&a, &bytes, &n, &err) != HVD_OK);
    /* Two bytes of the table have no meaning. */
    BUG_ON(n != size || memcmp(bytes, data, 16) != 0);
    free(bytes);
    elastic_assign_release(&a);
}

static void try_ready(const uint8_t *data, size_t size)
{
    struct elastic_ready r;
    struct hvd_error err;
    uint8_t *bytes;
    size_t n;

    if (get_elastic_ready(&r, data, size, &err) != HVD_OK)
        return;
    BUG_ON(put_elastic_ready(&r, &bytes, &n, &err) != HVD_OK);
    BUG_ON(n != size || memcmp(bytes, data, 20) != 0);
    free(bytes);
}

static void try_join(const uint8_t *data, size_t size)
{
    uint8_t bytes[ELASTIC_JOIN_MAX];
    struct elastic_join join;
    struct hvd_error err;

    if (get_elastic_join(&join, data, size, &err) != HVD_OK)
        return;
    BUG_ON(put_elastic_join(&join, bytes) != size || memcmp(bytes, data, size) != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[ELASTIC_RETIRE_MAX];
    struct hvd_error err;
    uint32_t first, second;

    if (size == 0)
        return 0;
    if (data[0] == 0)
        try_ready(data + 1, size - 1);
    else if (data[0] == 1)
        try_assign(data + 1, size - 1);
    else if (data[0] == 3)
        try_join(data + 1, size - 1);
    else if (data[0] == 2 &&
             get_elastic_pair(&first, &second, 7, data + 1, size - 1, &err) == HVD_OK)
        BUG_ON(second > 7);
    else if (get_elastic_retire(text, data + 1, size - 1, &err) == HVD_OK)
        for (const char *p = text; *p != '\0'; p++)
            BUG_ON((unsigned char)*p < 0x20);
    return 0;
}
