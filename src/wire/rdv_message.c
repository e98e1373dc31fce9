/*
 * rdv_message.c: see rdv_message.h.  All integers little endian.
 *
 *   FRAME                                    ENTRY body
 *     0   4  bytes of the body n               0   4  milliseconds the worker waits
 *     4   1  kind                              4      ENTRY of table.c
 *     5   3  0                               TABLE body: TABLE of table.c
 *     8   n  body, encrypted                 VERDICT body
 *   8+n  16  tag over header and body          0   2  status, a number of HVD_STATUS_MAP
 *                                              2   2  0
 *   kinds: 1 ENTRY, 2 TABLE, 3 VERDICT;        4   4  rank at fault, -1: none
 *   4 to 11: elastic_message.h                 8      text, 0..1023 printable bytes
 */
#include "wire/rdv_message.h"

#include "wire/bytes.h"

#include <stdlib.h>

/* ---- Frames ----------------------------------------------------------------------- */

void put_rdv_header(uint8_t header[RDV_HEADER], enum rdv_kind kind, size_t n)
{
    memset(header, 0, RDV_HEADER);
    bytes_put_u32(header, (uint32_t)n);
    header[4] = (uint8_t)kind;
}

enum hvd_status get_rdv_header(const uint8_t header[RDV_HEADER], size_t limit,
                               enum rdv_kind *kind_p, size_t *n_p, struct hvd_error *err)
{
    uint32_t n = bytes_get_u32(header);

    if (n > limit)
        return error_set(err, HVD_PROTO, -1, "a message of %u bytes, allowed are %zu", n,
                         limit);
    if (header[4] < RDV_ENTRY || header[4] >= RDV_KIND_END)
        return error_set(err, HVD_PROTO, -1, "a message of kind %d", header[4]);
    *kind_p = (enum rdv_kind)header[4];
    *n_p = n;
    return HVD_OK;
}

/* ---- Entries ---------------------------------------------------------------------- */

enum hvd_status put_rdv_entry(const struct table_entry *e, uint32_t wait_ms,
                              uint8_t **bytes_p, size_t *n_p, struct hvd_error *err)
{
    uint8_t *entry, *bytes;
    size_t n;

    TRY(put_entry(e, &entry, &n, err));
    bytes = malloc(4 + n);
    if (bytes != NULL) {
        bytes_put_u32(bytes, wait_ms);
        memcpy(bytes + 4, entry, n);
    }
    free(entry);
    if (bytes == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for an entry");
    *bytes_p = bytes;
    *n_p = 4 + n;
    return HVD_OK;
}

enum hvd_status get_rdv_entry(struct table_entry *e, uint32_t *wait_ms_p,
                              const uint8_t *bytes, size_t n, struct hvd_error *err)
{
    if (n < 4)
        return error_set(err, HVD_PROTO, -1, "entry: %zu bytes", n);
    *wait_ms_p = bytes_get_u32(bytes);
    return get_entry(e, bytes + 4, n - 4, err);
}

/* ---- Verdicts --------------------------------------------------------------------- */

size_t put_rdv_verdict(const struct hvd_error *verdict, uint8_t bytes[RDV_VERDICT_MAX])
{
    size_t n = strnlen(verdict->text, HVD_ERROR_TEXT - 1);

    bytes_put_u16(bytes, (uint16_t)verdict->status);
    bytes_put_u16(bytes + 2, 0);
    bytes_put_u32(bytes + 4, (uint32_t)verdict->rank);
    memcpy(bytes + 8, verdict->text, n);
    return 8 + n;
}

enum hvd_status get_rdv_verdict(struct hvd_error *verdict, const uint8_t *bytes, size_t n,
                                struct hvd_error *err)
{
    unsigned status;
    int32_t rank;

    if (n < 8 || n - 8 > HVD_ERROR_TEXT - 1)
        return error_set(err, HVD_PROTO, -1, "verdict: %zu bytes", n);
    status = bytes_get_u16(bytes);
    rank = (int32_t)bytes_get_u32(bytes + 4);
    if (status <= HVD_AGAIN || status >= HVD_STATUS_COUNT || rank < -1 ||
        rank >= TABLE_RANKS)
        return error_set(err, HVD_PROTO, -1, "verdict: status %u, rank %d", status,
                         (int)rank);
    error_set(verdict, (enum hvd_status)status, rank, "%.*s", (int)(n - 8),
              (const char *)bytes + 8);
    return HVD_OK;
}
