/*
 * table.c: see table.h.  All integers little endian.
 *
 *   ENTRY                                    TABLE
 *     0   2  format, 1                         0   2  format, 1
 *     2   2  port of the mesh listener         2   2  0
 *     4   4  rank                              4   4  generation
 *     8   4  size                              8   4  number of entries c, 1..65536
 *    12  16  local rank and size, cross       12      c times: u16 n, n bytes of ENTRY;
 *            rank and size; -1: not given             entry i is that of rank i
 *    28   4  process id
 *    32   4  generation
 *    36  16  machine
 *    52  16  hash of the configuration
 *    68   1  number of addresses a, 0..16
 *    69      a times: u8 n, 1..47, n bytes
 *            u8 n, 0..253, n bytes: host
 *            u8 n, 0..107, n bytes: path of the unix socket
 *            u8 n, 0..31,  n bytes: library version
 *            u16 n, 0..511, n bytes: text of the configuration
 *
 * 1. Nothing follows the last field.
 * 2. A text holds no byte below 32 and no 127, so that it is safe in a log line.
 * 3. 0 <= rank < size <= 65536; local and cross likewise where they are given.
 * 4. All entries of a table have its generation, and its count as their size.
 */
#include "wire/table.h"

#include "wire/bytes.h"

#include <stdlib.h>
#include <string.h>

#define FORMAT 1
#define ENTRY_FIXED 69                  /* bytes up to the addresses */
#define ENTRY_LEAST (ENTRY_FIXED + 5)   /* all texts empty */
#define TABLE_FIXED 12

void table_release(struct table *t)
{
    free(t->entries);
    memset(t, 0, sizeof *t);
}

/* ---- Entries ---------------------------------------------------------------------- */

static bool is_printable(const uint8_t *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] < 0x20 || text[i] == 0x7f)
            return false;
    return true;
}

static bool is_place(int32_t rank, int32_t size)
{
    return (rank == -1 && size == -1) ||
           (rank >= 0 && rank < size && size <= TABLE_RANKS);
}

/* Rule 3, for both directions. */
static enum hvd_status check_entry(const struct table_entry *e, struct hvd_error *err)
{
    if (e->rank < 0 || !is_place(e->rank, e->size))
        return error_set(err, HVD_PROTO, -1, "entry: rank %d of %d", (int)e->rank,
                         (int)e->size);
    if (!is_place(e->local_rank, e->local_size))
        return error_set(err, HVD_PROTO, e->rank, "entry of rank %d: local rank %d of %d",
                         (int)e->rank, (int)e->local_rank, (int)e->local_size);
    if (!is_place(e->cross_rank, e->cross_size))
        return error_set(err, HVD_PROTO, e->rank, "entry of rank %d: cross rank %d of %d",
                         (int)e->rank, (int)e->cross_rank, (int)e->cross_size);
    if (e->addr_count > TABLE_ADDRS)
        return error_set(err, HVD_PROTO, e->rank, "entry of rank %d: %d addresses",
                         (int)e->rank, e->addr_count);
    return HVD_OK;
}

/* Rule 2: a byte that may not travel becomes '?'. */
static uint8_t *write_printable(uint8_t *at, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        at[i] = is_printable((const uint8_t *)text + i, 1) ? (uint8_t)text[i] : '?';
    return at + n;
}

static uint8_t *write_text(uint8_t *at, const char *text, size_t capacity)
{
    size_t n = strnlen(text, capacity - 1);

    *at = (uint8_t)n;
    return write_printable(at + 1, text, n);
}

/* The bytes of e at `at`, which has TABLE_ENTRY_MAX bytes; returns how many. */
static size_t write_entry(const struct table_entry *e, uint8_t *at)
{
    const int32_t numbers[] = {e->rank, e->size, e->local_rank, e->local_size,
                               e->cross_rank, e->cross_size, e->pid};
    uint8_t *p = at + ENTRY_FIXED;
    size_t n;

    bytes_put_u16(at, FORMAT);
    bytes_put_u16(at + 2, e->port);
    for (int i = 0; i < 7; i++)
        bytes_put_u32(at + 4 + 4 * i, (uint32_t)numbers[i]);
    bytes_put_u32(at + 32, e->generation);
    memcpy(at + 36, e->machine, 16);
    memcpy(at + 52, e->config_hash, 16);
    at[68] = e->addr_count;
    for (int i = 0; i < e->addr_count; i++)
        p = write_text(p, e->addrs[i], TABLE_ADDR_BYTES);
    p = write_text(p, e->host, sizeof e->host);
    p = write_text(p, e->local_path, sizeof e->local_path);
    p = write_text(p, e->version, sizeof e->version);
    n = strnlen(e->config_text, sizeof e->config_text - 1);
    bytes_put_u16(p, (uint16_t)n);
    return (size_t)(write_printable(p + 2, e->config_text, n) - at);
}

_Static_assert(ENTRY_FIXED + TABLE_ADDRS * TABLE_ADDR_BYTES + 254 + 108 + 32 + 2 + 511 <=
               TABLE_ENTRY_MAX, "the largest entry fits");

enum hvd_status put_entry(const struct table_entry *e, uint8_t **bytes_p, size_t *n_p,
                          struct hvd_error *err)
{
    uint8_t *bytes;

    TRY(check_entry(e, err));
    bytes = malloc(TABLE_ENTRY_MAX);
    if (bytes == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for an entry");
    *n_p = write_entry(e, bytes);
    *bytes_p = bytes;
    return HVD_OK;
}

/* A text of n bytes into a field of `capacity`; false: rule 2 or too long. */
static bool read_text(struct reader *r, size_t n, char *field, size_t capacity)
{
    const uint8_t *text = n < capacity ? reader_take(r, n) : NULL;

    if (text == NULL || !is_printable(text, n))
        return false;
    memcpy(field, text, n);
    field[n] = '\0';
    return true;
}

static bool read_texts(struct reader *r, struct table_entry *e)
{
    if (e->addr_count > TABLE_ADDRS)
        return false;
    for (int i = 0; i < e->addr_count; i++)
        if (!read_text(r, reader_u8(r), e->addrs[i], TABLE_ADDR_BYTES) ||
            e->addrs[i][0] == '\0')
            return false;
    return read_text(r, reader_u8(r), e->host, sizeof e->host) &&
           read_text(r, reader_u8(r), e->local_path, sizeof e->local_path) &&
           read_text(r, reader_u8(r), e->version, sizeof e->version) &&
           read_text(r, reader_u16(r), e->config_text, sizeof e->config_text);
}

static void read_bytes(struct reader *r, uint8_t *field, size_t n)
{
    const uint8_t *bytes = reader_take(r, n);

    if (bytes != NULL)
        memcpy(field, bytes, n);
}

static void read_fixed(struct reader *r, struct table_entry *e)
{
    int32_t *const numbers[] = {&e->rank, &e->size, &e->local_rank, &e->local_size,
                                &e->cross_rank, &e->cross_size, &e->pid};

    e->port = reader_u16(r);
    for (int i = 0; i < 7; i++)
        *numbers[i] = (int32_t)reader_u32(r);
    e->generation = reader_u32(r);
    read_bytes(r, e->machine, 16);
    read_bytes(r, e->config_hash, 16);
    e->addr_count = reader_u8(r);
}

enum hvd_status get_entry(struct table_entry *e, const uint8_t *bytes, size_t n,
                          struct hvd_error *err)
{
    struct reader r;
    unsigned format;

    memset(e, 0, sizeof *e);
    reader_init(&r, bytes, n);
    format = reader_u16(&r);
    if (format != FORMAT)
        return error_set(err, HVD_PROTO, -1, "entry: format %u, expected %u", format,
                         FORMAT);
    read_fixed(&r, e);
    if (!read_texts(&r, e) || r.failed || reader_left(&r) != 0)
        return error_set(err, HVD_PROTO, -1, "entry: %zu bytes are not well formed", n);
    return check_entry(e, err);
}

/* ---- Tables ----------------------------------------------------------------------- */

static enum hvd_status check_table_entry(const struct table_entry *e, uint32_t generation,
                                         int count, int rank, struct hvd_error *err)
{
    if (e->rank != rank || e->size != count || e->generation != generation)
        return error_set(err, HVD_PROTO, rank,
                         "table: entry %d of %d says rank %d of %d, generation %u instead "
                         "of %u", rank, count, (int)e->rank, (int)e->size, e->generation,
                         generation);
    return HVD_OK;
}

enum hvd_status put_table(const struct table *t, uint8_t **bytes_p, size_t *n_p,
                          struct hvd_error *err)
{
    uint8_t *bytes, *at, *fitting;

    if (t->count < 1 || t->count > TABLE_RANKS)
        return error_set(err, HVD_PROTO, -1, "table: %d entries", t->count);
    for (int i = 0; i < t->count; i++) {
        TRY(check_entry(&t->entries[i], err));
        TRY(check_table_entry(&t->entries[i], t->generation, t->count, i, err));
    }
    bytes = malloc(TABLE_FIXED + (size_t)t->count * (2 + TABLE_ENTRY_MAX));
    if (bytes == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a table of %d", t->count);
    bytes_put_u16(bytes, FORMAT);
    bytes_put_u16(bytes + 2, 0);
    bytes_put_u32(bytes + 4, t->generation);
    bytes_put_u32(bytes + 8, (uint32_t)t->count);
    at = bytes + TABLE_FIXED;
    for (int i = 0; i < t->count; i++) {
        size_t n = write_entry(&t->entries[i], at + 2);

        bytes_put_u16(at, (uint16_t)n);
        at += 2 + n;
    }
    *n_p = (size_t)(at - bytes);
    fitting = realloc(bytes, *n_p);
    *bytes_p = fitting != NULL ? fitting : bytes;
    return HVD_OK;
}

static enum hvd_status read_entries(struct table *t, struct reader *r,
                                    struct hvd_error *err)
{
    for (int i = 0; i < t->count; i++) {
        size_t n = reader_u16(r);
        const uint8_t *bytes = reader_take(r, n);

        if (bytes == NULL)
            return error_set(err, HVD_PROTO, -1, "table: ends in entry %d of %d", i,
                             t->count);
        TRY(get_entry(&t->entries[i], bytes, n, err));
        TRY(check_table_entry(&t->entries[i], t->generation, t->count, i, err));
    }
    if (reader_left(r) != 0)
        return error_set(err, HVD_PROTO, -1, "table: %zu bytes too many", reader_left(r));
    return HVD_OK;
}

enum hvd_status get_table(struct table *t, const uint8_t *bytes, size_t n,
                          struct hvd_error *err)
{
    enum hvd_status status;
    unsigned format;
    uint32_t count;
    struct reader r;

    memset(t, 0, sizeof *t);
    reader_init(&r, bytes, n);
    format = reader_u16(&r);
    (void)reader_u16(&r);
    t->generation = reader_u32(&r);
    count = reader_u32(&r);
    if (r.failed || format != FORMAT)
        return error_set(err, HVD_PROTO, -1, "table: %zu bytes of format %u", n, format);
    /* Bounded by what is there, before anything is allocated for it. */
    if (count < 1 || count > TABLE_RANKS || count > reader_left(&r) / (2 + ENTRY_LEAST))
        return error_set(err, HVD_PROTO, -1, "table: %u entries in %zu bytes", count, n);
    t->entries = calloc(count, sizeof *t->entries);
    if (t->entries == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a table of %u", count);
    t->count = (int)count;
    status = read_entries(t, &r, err);
    if (status != HVD_OK)
        table_release(t);
    return status;
}
