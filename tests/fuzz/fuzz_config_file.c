/* fuzz_config_file.c: the YAML of --config-file. */
#include "launch/config_file.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum hvd_status take(void *owner, const char *key, const char *value,
                            struct hvd_error *err)
{
    size_t *bytes = owner;

    BUG_ON(strlen(key) >= 128);
    *bytes += strlen(value);
    return HVD_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hvd_error err;
    size_t bytes = 0;

    config_file_parse((const char *)data, size, "fuzz", take, &bytes, &err);
    return 0;
}
