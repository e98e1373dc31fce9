/* fuzz_http.c: requests to the dashboard, whole and cut off. */
#include "launch/http.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct http_request q;
    struct hvd_error err;
    char out[33];

    http_parse((const char *)data, size / 2, &q, &err);
    if (http_parse((const char *)data, size, &q, &err) != HVD_OK)
        return 0;
    BUG_ON(q.path[0] != '/' || strlen(q.path) >= sizeof q.path);
    for (const char *c = q.cookie; *c != '\0'; c++)
        BUG_ON((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f);
    if (http_find(q.cookie, ';', "horovod-1", out, sizeof out))
        BUG_ON(strlen(out) >= sizeof out);
    http_find(q.query, '&', "token", out, sizeof out);
    http_same_secret("0123456789abcdef0123456789abcdef", q.authorization);
    return 0;
}
