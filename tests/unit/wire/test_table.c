/*
 * test_table.c: entries, tables and verdicts survive their way, and nothing else does.
 * tests/wire/ holds the bytes of every message as released; decoders must still read them
 * and encoders write the same.  `WRITE_GOLDEN=1 ./test_wire_table` writes missing files.
 */
#include "check.h"

#include "wire/bytes.h"
#include "wire/rdv_message.h"

#include <stdlib.h>

static struct hvd_error err;

/* An entry without the padding at its end, which nobody sets. */
#define ENTRY_BYTES                                                                    \
    (offsetof(struct table_entry, config_text) +                                       \
     sizeof(((struct table_entry *)0)->config_text))

static struct table_entry sample(int rank, int size)
{
    struct table_entry e = {
        .rank = rank, .size = size, .local_rank = rank, .local_size = size,
        .cross_rank = 0, .cross_size = 1, .pid = 4242 + rank, .generation = 3,
        .port = 40123, .addr_count = 2, .addrs = {"10.0.0.1", "fe80::1%eth0"},
        .host = "node1", .machine = {1, 2, 3}, .local_path = "/run/x/meet",
        .version = "0.29.0", .config_hash = {9, 8, 7}, .config_text = "security=auth",
    };

    return e;
}

static struct table sample_table(int count)
{
    struct table t = {3, count, calloc((size_t)count, sizeof *t.entries)};

    for (int i = 0; i < count; i++)
        t.entries[i] = sample(i, count);
    return t;
}

TEST(an_entry_survives_its_way)
{
    struct table_entry e = sample(1, 4), back;
    uint8_t *bytes;
    size_t n;

    CHECK_OK(put_entry(&e, &bytes, &n, &err), err);
    CHECK_OK(get_entry(&back, bytes, n, &err), err);
    CHECK(memcmp(&e, &back, ENTRY_BYTES) == 0);
    free(bytes);
}

TEST(the_largest_entry_survives_its_way)
{
    struct table_entry e = sample(TABLE_RANKS - 1, TABLE_RANKS), back;
    uint8_t *bytes;
    size_t n;

    e.local_rank = e.local_size = e.cross_rank = e.cross_size = -1;
    e.addr_count = TABLE_ADDRS;
    for (int i = 0; i < TABLE_ADDRS; i++)
        memset(e.addrs[i], 'a', TABLE_ADDR_BYTES - 1);
    memset(e.host, 'h', sizeof e.host - 1);
    memset(e.local_path, 'p', sizeof e.local_path - 1);
    memset(e.version, 'v', sizeof e.version - 1);
    memset(e.config_text, 'c', sizeof e.config_text - 1);
    CHECK_OK(put_entry(&e, &bytes, &n, &err), err);
    CHECK(n <= TABLE_ENTRY_MAX);
    CHECK_OK(get_entry(&back, bytes, n, &err), err);
    CHECK(memcmp(&e, &back, ENTRY_BYTES) == 0);
    free(bytes);
}

TEST(control_bytes_do_not_travel)
{
    struct table_entry e = sample(0, 1), back;
    uint8_t *bytes;
    size_t n;

    strcpy(e.host, "a\x1b]0;x\nb");
    CHECK_OK(put_entry(&e, &bytes, &n, &err), err);
    CHECK_OK(get_entry(&back, bytes, n, &err), err);
    CHECK_STR(back.host, "a?]0;x?b");
    for (size_t i = 0; i + 3 < n; i++)
        if (memcmp(bytes + i, "a?]", 3) == 0)
            bytes[i + 1] = 0x1b;
    CHECK_EQ(get_entry(&back, bytes, n, &err), HVD_PROTO);
    free(bytes);
}

TEST(every_shortened_or_lengthened_entry_is_refused)
{
    struct table_entry e = sample(1, 4), back;
    uint8_t *bytes, *exact;
    size_t n;

    CHECK_OK(put_entry(&e, &bytes, &n, &err), err);
    for (size_t k = 0; k < n; k++) {
        exact = malloc(k + 1);          /* one more: malloc(0) may be NULL */
        memcpy(exact, bytes, k);
        CHECK_EQ(get_entry(&back, exact, k, &err), HVD_PROTO);
        free(exact);
    }
    bytes = realloc(bytes, n + 1);
    bytes[n] = 0;
    CHECK_EQ(get_entry(&back, bytes, n + 1, &err), HVD_PROTO);
    free(bytes);
}

static void check_bad_entry(struct table_entry e)
{
    uint8_t *bytes;
    size_t n;

    CHECK_EQ(put_entry(&e, &bytes, &n, &err), HVD_PROTO);
}

TEST(places_out_of_range_are_refused)
{
    struct table_entry e;

    e = sample(4, 4), check_bad_entry(e);
    e = sample(0, 0), check_bad_entry(e);
    e = sample(-1, -1), check_bad_entry(e);
    e = sample(0, 1), e.size = TABLE_RANKS + 1, check_bad_entry(e);
    e = sample(0, 1), e.local_rank = 1, check_bad_entry(e);
    e = sample(0, 1), e.local_rank = -1, check_bad_entry(e);
    e = sample(0, 1), e.cross_rank = -2, check_bad_entry(e);
    e = sample(0, 1), e.addr_count = TABLE_ADDRS + 1, check_bad_entry(e);
}

TEST(a_table_survives_its_way)
{
    struct table t = sample_table(5), back;
    uint8_t *bytes;
    size_t n;

    CHECK_OK(put_table(&t, &bytes, &n, &err), err);
    CHECK_OK(get_table(&back, bytes, n, &err), err);
    CHECK_EQ(back.count, 5);
    CHECK_EQ(back.generation, 3u);
    CHECK(memcmp(t.entries, back.entries, 5 * sizeof *t.entries) == 0);
    table_release(&back);
    for (size_t k = 0; k < n; k += 7)
        CHECK_EQ(get_table(&back, bytes, k, &err), HVD_PROTO);
    free(bytes);
    table_release(&t);
}

TEST(a_table_that_contradicts_itself_is_refused)
{
    struct table t = sample_table(2), back;
    uint8_t *bytes;
    size_t n;

    t.entries[1].rank = 0;
    CHECK_EQ(put_table(&t, &bytes, &n, &err), HVD_PROTO);
    t.entries[1].rank = 1;
    t.entries[1].generation = 4;
    CHECK_EQ(put_table(&t, &bytes, &n, &err), HVD_PROTO);
    t.entries[1].generation = 3;
    CHECK_OK(put_table(&t, &bytes, &n, &err), err);
    bytes_put_u32(bytes + 4, 9);
    CHECK_EQ(get_table(&back, bytes, n, &err), HVD_PROTO);
    CHECK_HAS(err.text, "generation 3 instead of 9");
    CHECK(back.entries == NULL);
    table_release(&t);
    free(bytes);
}

TEST(a_count_costs_no_memory_before_it_is_believed)
{
    uint8_t bytes[64] = {1, 0};
    struct table t;

    bytes_put_u32(bytes + 8, TABLE_RANKS);
    CHECK_EQ(get_table(&t, bytes, sizeof bytes, &err), HVD_PROTO);
    CHECK_HAS(err.text, "65536 entries in 64 bytes");
    bytes_put_u32(bytes + 8, 0xffffffff);
    CHECK_EQ(get_table(&t, bytes, sizeof bytes, &err), HVD_PROTO);
    bytes_put_u32(bytes + 8, 0);
    CHECK_EQ(get_table(&t, bytes, sizeof bytes, &err), HVD_PROTO);
}

TEST(verdicts_survive_their_way)
{
    struct hvd_error verdict, back;
    uint8_t bytes[RDV_VERDICT_MAX];
    size_t n;

    error_set(&verdict, HVD_ABORTED, 3, "rank 3 said: stop");
    n = put_rdv_verdict(&verdict, bytes);
    CHECK_OK(get_rdv_verdict(&back, bytes, n, &err), err);
    CHECK_EQ(back.status, HVD_ABORTED);
    CHECK_EQ(back.rank, 3);
    CHECK_STR(back.text, "rank 3 said: stop");
    bytes[8] = 0x1b;
    CHECK_OK(get_rdv_verdict(&back, bytes, n, &err), err);
    CHECK_STR(back.text, "?ank 3 said: stop");
    CHECK_EQ(get_rdv_verdict(&back, bytes, 7, &err), HVD_PROTO);
    CHECK_EQ(get_rdv_verdict(&back, bytes, RDV_VERDICT_MAX + 1, &err), HVD_PROTO);
    bytes_put_u16(bytes, HVD_AGAIN);
    CHECK_EQ(get_rdv_verdict(&back, bytes, n, &err), HVD_PROTO);
    bytes_put_u16(bytes, HVD_STATUS_COUNT);
    CHECK_EQ(get_rdv_verdict(&back, bytes, n, &err), HVD_PROTO);
}

TEST(frame_headers_are_bounded)
{
    uint8_t header[RDV_HEADER];
    enum rdv_kind kind;
    size_t n;

    put_rdv_header(header, RDV_TABLE, 77);
    CHECK_OK(get_rdv_header(header, 77, &kind, &n, &err), err);
    CHECK_EQ(kind, RDV_TABLE);
    CHECK_EQ(n, 77u);
    CHECK_EQ(get_rdv_header(header, 76, &kind, &n, &err), HVD_PROTO);
    header[4] = RDV_KIND_END;
    CHECK_EQ(get_rdv_header(header, 77, &kind, &n, &err), HVD_PROTO);
}

/* ---- Golden bytes ----------------------------------------------------------------- */

static size_t read_golden(const char *name, uint8_t *bytes, size_t capacity,
                          const uint8_t *now, size_t now_n)
{
    char path[4096];
    FILE *f;
    size_t n;

    snprintf(path, sizeof path, "%s/%s", GOLDEN_DIR, name);
    f = fopen(path, "rb");
    if (f == NULL && getenv("WRITE_GOLDEN") != NULL) {
        f = fopen(path, "wb");
        CHECK(f != NULL && fwrite(now, 1, now_n, f) == now_n);
        fclose(f);
        f = fopen(path, "rb");
    }
    if (f == NULL)
        check_fail(__FILE__, __LINE__, "%s: no such file", path);
    n = fread(bytes, 1, capacity, f);
    fclose(f);
    return n;
}

static void check_golden(const char *name, const uint8_t *now, size_t now_n)
{
    static uint8_t golden[1 << 16];
    size_t n = read_golden(name, golden, sizeof golden, now, now_n);

    CHECK_EQ(n, now_n);
    CHECK(memcmp(golden, now, n) == 0);
}

TEST(golden_entry)
{
    struct table_entry e = sample(1, 4), back;
    uint8_t *bytes;
    uint32_t wait_ms;
    size_t n;

    CHECK_OK(put_rdv_entry(&e, 30000, &bytes, &n, &err), err);
    check_golden("rdv_entry.1.bin", bytes, n);
    CHECK_OK(get_rdv_entry(&back, &wait_ms, bytes, n, &err), err);
    CHECK_EQ(wait_ms, 30000u);
    CHECK(memcmp(&e, &back, ENTRY_BYTES) == 0);
    CHECK_EQ(get_rdv_entry(&back, &wait_ms, bytes, 3, &err), HVD_PROTO);
    free(bytes);
}

TEST(golden_table)
{
    struct table t = sample_table(3);
    uint8_t *bytes;
    size_t n;

    CHECK_OK(put_table(&t, &bytes, &n, &err), err);
    check_golden("rdv_table.1.bin", bytes, n);
    free(bytes);
    table_release(&t);
}

TEST(golden_verdict)
{
    uint8_t bytes[RDV_VERDICT_MAX];
    struct hvd_error verdict;

    error_set(&verdict, HVD_TIMEOUT, 2, "1 of 3 ranks have not come");
    check_golden("rdv_verdict.1.bin", bytes, put_rdv_verdict(&verdict, bytes));
}

TEST(golden_header)
{
    uint8_t header[RDV_HEADER];

    put_rdv_header(header, RDV_ENTRY, 0x01020304);
    check_golden("rdv_header.1.bin", header, sizeof header);
}
