/*
 * elastic_message.c: see elastic_message.h.  All integers little endian.
 *
 *   READY                                    ASSIGN
 *     0   2  format, 1                         0   2  format, 1
 *     2   2  status, of HVD_STATUS_MAP         2   2  bit 0: sync
 *     4   4  last generation, 0: none          4   4  own rank, less than c
 *     8   8  commits                           8   4  version of the last UPDATE
 *    16   4  lost rank, -1: none              12   4  number of workers c
 *    20   4  0                                16  4c  numbers of the workers, from 1 on
 *    24      ENTRY of table.c               16+4c     TABLE of table.c, c entries
 *
 *   PROGRESS                                 UPDATE
 *     0   4  generation                        0   4  version
 *     4   4  1 formed, 2 committed             4   4  1 removed | 2 added | 4 leave
 *
 *   JOIN                                     BYTES: 1..32768 of them
 *     0   2  format, 1
 *     2   2  slots, 1..4096
 *     4      name of the host, 1..253 bytes
 *
 *   RETIRE: text, 0..511 printable bytes.    NOTICE, PING, PONG: nothing.
 */
#include "wire/elastic_message.h"

#include "wire/bytes.h"

#include <stdlib.h>

#define FORMAT 1
#define ASSIGN_FIXED 16

/* ---- READY ------------------------------------------------------------------------ */

enum hvd_status put_elastic_ready(const struct elastic_ready *m, uint8_t **bytes_p,
                                  size_t *n_p, struct hvd_error *err)
{
    uint8_t *entry, *bytes;
    size_t n;

    TRY(put_entry(&m->entry, &entry, &n, err));
    bytes = calloc(1, ELASTIC_READY_FIXED + n);
    if (bytes != NULL) {
        bytes_put_u16(bytes, FORMAT);
        bytes_put_u16(bytes + 2, (uint16_t)m->status);
        bytes_put_u32(bytes + 4, m->generation);
        bytes_put_u64(bytes + 8, m->commits);
        bytes_put_u32(bytes + 16, (uint32_t)m->lost_rank);
        memcpy(bytes + ELASTIC_READY_FIXED, entry, n);
    }
    free(entry);
    if (bytes == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for an entry");
    *bytes_p = bytes;
    *n_p = ELASTIC_READY_FIXED + n;
    return HVD_OK;
}

enum hvd_status get_elastic_ready(struct elastic_ready *m, const uint8_t *bytes, size_t n,
                                  struct hvd_error *err)
{
    unsigned status;

    if (n < ELASTIC_READY_FIXED || bytes_get_u16(bytes) != FORMAT)
        return error_set(err, HVD_PROTO, -1, "ready: %zu bytes are not well formed", n);
    status = bytes_get_u16(bytes + 2);
    m->generation = bytes_get_u32(bytes + 4);
    m->commits = bytes_get_u64(bytes + 8);
    m->lost_rank = (int32_t)bytes_get_u32(bytes + 16);
    if (status >= HVD_STATUS_COUNT || m->lost_rank < -1 || m->lost_rank >= TABLE_RANKS)
        return error_set(err, HVD_PROTO, -1, "ready: status %u, lost rank %d", status,
                         (int)m->lost_rank);
    m->status = (enum hvd_status)status;
    return get_entry(&m->entry, bytes + ELASTIC_READY_FIXED, n - ELASTIC_READY_FIXED, err);
}

/* ---- ASSIGN ----------------------------------------------------------------------- */

void elastic_assign_release(struct elastic_assign *m)
{
    table_release(&m->table);
    free(m->workers);
    memset(m, 0, sizeof *m);
}

enum hvd_status put_elastic_assign(const struct elastic_assign *m, uint8_t **bytes_p,
                                   size_t *n_p, struct hvd_error *err)
{
    size_t fixed = ASSIGN_FIXED + 4 * (size_t)m->table.count, n;
    uint8_t *table, *bytes;

    TRY(put_table(&m->table, &table, &n, err));
    bytes = malloc(fixed + n);
    if (bytes != NULL) {
        bytes_put_u16(bytes, FORMAT);
        bytes_put_u16(bytes + 2, m->sync);
        bytes_put_u32(bytes + 4, (uint32_t)m->rank);
        bytes_put_u32(bytes + 8, m->version);
        bytes_put_u32(bytes + 12, (uint32_t)m->table.count);
        for (int i = 0; i < m->table.count; i++)
            bytes_put_u32(bytes + ASSIGN_FIXED + 4 * i, (uint32_t)m->workers[i]);
        memcpy(bytes + fixed, table, n);
    }
    free(table);
    if (bytes == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for an assignment");
    *bytes_p = bytes;
    *n_p = fixed + n;
    return HVD_OK;
}

static enum hvd_status get_workers(struct elastic_assign *m, struct reader *r,
                                   uint32_t count, struct hvd_error *err)
{
    m->workers = calloc(count, sizeof *m->workers);
    if (m->workers == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for an assignment");
    for (uint32_t i = 0; i < count; i++) {
        m->workers[i] = (int32_t)reader_u32(r);
        if (m->workers[i] < 1)
            return error_set(err, HVD_PROTO, -1, "assignment: worker number %d",
                             (int)m->workers[i]);
    }
    TRY(get_table(&m->table, r->at, reader_left(r), err));
    if ((uint32_t)m->table.count != count)
        return error_set(err, HVD_PROTO, -1, "assignment: %u workers, a table of %d", count,
                         m->table.count);
    return HVD_OK;
}

enum hvd_status get_elastic_assign(struct elastic_assign *m, const uint8_t *bytes, size_t n,
                                   struct hvd_error *err)
{
    enum hvd_status status;
    unsigned format, flags;
    uint32_t rank, count;
    struct reader r;

    memset(m, 0, sizeof *m);
    reader_init(&r, bytes, n);
    format = reader_u16(&r);
    flags = reader_u16(&r);
    rank = reader_u32(&r);
    m->version = reader_u32(&r);
    count = reader_u32(&r);
    /* Bounded by what is there, before anything is allocated for it. */
    if (r.failed || format != FORMAT || flags > 1 || count < 1 || count > TABLE_RANKS ||
        count > reader_left(&r) / 4 || rank >= count)
        return error_set(err, HVD_PROTO, -1,
                         "assignment: %zu bytes of format %u, rank %u of %u", n, format,
                         rank, count);
    m->sync = flags & 1;
    m->rank = (int32_t)rank;
    status = get_workers(m, &r, count, err);
    if (status != HVD_OK)
        elastic_assign_release(m);
    return status;
}

/* ---- The rest --------------------------------------------------------------------- */

void put_elastic_pair(uint8_t bytes[ELASTIC_PAIR], uint32_t first, uint32_t second)
{
    bytes_put_u32(bytes, first);
    bytes_put_u32(bytes + 4, second);
}

enum hvd_status get_elastic_pair(uint32_t *first_p, uint32_t *second_p, uint32_t highest,
                                 const uint8_t *bytes, size_t n, struct hvd_error *err)
{
    if (n != ELASTIC_PAIR || bytes_get_u32(bytes + 4) > highest)
        return error_set(err, HVD_PROTO, -1, "a pair of %zu bytes is not well formed", n);
    *first_p = bytes_get_u32(bytes);
    *second_p = bytes_get_u32(bytes + 4);
    return HVD_OK;
}

enum hvd_status get_elastic_retire(char *text, const uint8_t *bytes, size_t n,
                                   struct hvd_error *err)
{
    if (n >= ELASTIC_RETIRE_MAX)
        return error_set(err, HVD_PROTO, -1, "retire: %zu bytes", n);
    for (size_t i = 0; i < n; i++)
        text[i] = bytes[i] < 0x20 || bytes[i] == 0x7f ? '?' : (char)bytes[i];
    text[n] = '\0';
    return HVD_OK;
}

/* ---- JOIN ------------------------------------------------------------------------- */

size_t put_elastic_join(const struct elastic_join *m, uint8_t bytes[ELASTIC_JOIN_MAX])
{
    size_t n = strnlen(m->host, sizeof m->host - 1);

    bytes_put_u16(bytes, FORMAT);
    bytes_put_u16(bytes + 2, (uint16_t)m->slots);
    memcpy(bytes + ELASTIC_JOIN_FIXED, m->host, n);
    return ELASTIC_JOIN_FIXED + n;
}

static bool is_host_byte(uint8_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '.' || c == '-' || c == '_';
}

enum hvd_status get_elastic_join(struct elastic_join *m, const uint8_t *bytes, size_t n,
                                 struct hvd_error *err)
{
    if (n <= ELASTIC_JOIN_FIXED || n >= ELASTIC_JOIN_MAX || bytes_get_u16(bytes) != FORMAT)
        return error_set(err, HVD_PROTO, -1, "join: %zu bytes are not well formed", n);
    m->slots = bytes_get_u16(bytes + 2);
    if (m->slots < 1 || m->slots > ELASTIC_JOIN_SLOTS)
        return error_set(err, HVD_PROTO, -1, "join: %d slots", m->slots);
    for (size_t i = ELASTIC_JOIN_FIXED; i < n; i++)
        if (!is_host_byte(bytes[i]) || bytes[ELASTIC_JOIN_FIXED] == '-')
            return error_set(err, HVD_PROTO, -1, "join: not the name of a host");
    memcpy(m->host, bytes + ELASTIC_JOIN_FIXED, n - ELASTIC_JOIN_FIXED);
    m->host[n - ELASTIC_JOIN_FIXED] = '\0';
    return HVD_OK;
}
