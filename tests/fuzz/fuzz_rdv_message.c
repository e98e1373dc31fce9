/* fuzz_rdv_message.c: the header of a frame, and its body as a VERDICT. */
#include "wire/rdv_message.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[RDV_VERDICT_MAX];
    struct hvd_error verdict, again, err;
    enum rdv_kind kind;
    size_t n;

    if (size < RDV_HEADER || get_rdv_header(data, size - RDV_HEADER, &kind, &n, &err) !=
                                 HVD_OK)
        return 0;
    BUG_ON(n > size - RDV_HEADER || kind < RDV_ENTRY || kind >= RDV_KIND_END);
    if (get_rdv_verdict(&verdict, data + RDV_HEADER, n, &err) != HVD_OK)
        return 0;
    for (const char *p = verdict.text; *p != '\0'; p++)
        BUG_ON((unsigned char)*p < 0x20);
    n = put_rdv_verdict(&verdict, bytes);
    BUG_ON(get_rdv_verdict(&again, bytes, n, &err) != HVD_OK);
    BUG_ON(again.status != verdict.status || again.rank != verdict.rank ||
           strcmp(again.text, verdict.text) != 0);
    return 0;
}
