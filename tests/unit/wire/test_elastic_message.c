/* test_elastic_message.c: what workers and driver of an elastic job say, as bytes. */
#include "check.h"

#include "golden.h"
#include "wire/bytes.h"
#include "wire/elastic_message.h"

#include <stdlib.h>

static struct hvd_error err;

static struct table_entry sample(int rank, int size, uint32_t generation)
{
    struct table_entry e = {.rank = rank, .size = size, .local_rank = rank,
                            .local_size = size, .cross_rank = 0, .cross_size = 1,
                            .pid = 100 + rank, .generation = generation, .port = 4242,
                            .addr_count = 1, .version = "0.29.0", .config_text = "a=1"};

    snprintf(e.addrs[0], sizeof e.addrs[0], "10.0.0.%d", rank + 1);
    snprintf(e.host, sizeof e.host, "node%d", rank);
    return e;
}

static struct elastic_ready sample_ready(void)
{
    return (struct elastic_ready){.generation = 3, .commits = 1ull << 40, .lost_rank = 2,
                                  .status = HVD_PEER_LOST, .entry = sample(0, 1, 0)};
}

static struct elastic_assign sample_assign(void)
{
    struct elastic_assign a = {.sync = true, .rank = 1, .version = 7,
                               .table = {.generation = 4, .count = 2}};

    a.table.entries = calloc(2, sizeof *a.table.entries);
    a.workers = calloc(2, sizeof *a.workers);
    for (int i = 0; i < 2; i++) {
        a.table.entries[i] = sample(i, 2, 4);
        a.workers[i] = 5 + i;
    }
    return a;
}

TEST(golden_ready)
{
    struct elastic_ready ready = sample_ready(), back;
    uint8_t *bytes;
    size_t n;

    CHECK_OK(put_elastic_ready(&ready, &bytes, &n, &err), err);
    check_golden("elastic_ready.1.bin", bytes, n);
    CHECK_OK(get_elastic_ready(&back, bytes, n, &err), err);
    CHECK_EQ(back.generation, 3u);
    CHECK_EQ(back.commits, (uint64_t)1 << 40);
    CHECK_EQ(back.lost_rank, 2);
    CHECK_EQ(back.status, HVD_PEER_LOST);
    CHECK_STR(back.entry.host, "node0");
    free(bytes);
}

TEST(golden_assign)
{
    struct elastic_assign assign = sample_assign(), back;
    uint8_t *bytes;
    size_t n;

    CHECK_OK(put_elastic_assign(&assign, &bytes, &n, &err), err);
    check_golden("elastic_assign.1.bin", bytes, n);
    CHECK_OK(get_elastic_assign(&back, bytes, n, &err), err);
    CHECK(back.sync);
    CHECK_EQ(back.rank, 1);
    CHECK_EQ(back.version, 7u);
    CHECK_EQ(back.workers[1], 6);
    CHECK_EQ(back.table.generation, 4u);
    CHECK_STR(back.table.entries[1].host, "node1");
    elastic_assign_release(&back);
    elastic_assign_release(&assign);
    free(bytes);
}

TEST(golden_pair)
{
    uint8_t bytes[ELASTIC_PAIR];
    uint32_t version, bits;

    put_elastic_pair(bytes, 9, ELASTIC_REMOVED | ELASTIC_LEAVE);
    check_golden("elastic_pair.1.bin", bytes, sizeof bytes);
    CHECK_OK(get_elastic_pair(&version, &bits, 7, bytes, sizeof bytes, &err), err);
    CHECK_EQ(version, 9u);
    CHECK_EQ(bits, 5u);
    CHECK_EQ(get_elastic_pair(&version, &bits, 4, bytes, sizeof bytes, &err), HVD_PROTO);
    CHECK_EQ(get_elastic_pair(&version, &bits, 7, bytes, 7, &err), HVD_PROTO);
}

TEST(golden_join)
{
    struct elastic_join join = {.slots = 8, .host = "node-7.example_1"}, back;
    uint8_t bytes[ELASTIC_JOIN_MAX];
    size_t n = put_elastic_join(&join, bytes);

    check_golden("elastic_join.1.bin", bytes, n);
    CHECK_OK(get_elastic_join(&back, bytes, n, &err), err);
    CHECK_EQ(back.slots, 8);
    CHECK_STR(back.host, join.host);
    CHECK_EQ(get_elastic_join(&back, bytes, ELASTIC_JOIN_FIXED, &err), HVD_PROTO);
    CHECK_EQ(get_elastic_join(&back, bytes, ELASTIC_JOIN_MAX, &err), HVD_PROTO);
    bytes[ELASTIC_JOIN_FIXED + 3] = '/';
    CHECK_EQ(get_elastic_join(&back, bytes, n, &err), HVD_PROTO);
    bytes_put_u16(bytes + 2, 0);
    CHECK_EQ(get_elastic_join(&back, bytes, n, &err), HVD_PROTO);
}

TEST(whatever_is_cut_off_is_refused)
{
    struct elastic_assign assign = sample_assign(), back;
    struct elastic_ready ready = sample_ready(), again;
    uint8_t *bytes;
    size_t n;

    CHECK_OK(put_elastic_assign(&assign, &bytes, &n, &err), err);
    for (size_t i = 0; i < n; i++)
        CHECK_EQ(get_elastic_assign(&back, bytes, i, &err), HVD_PROTO);
    free(bytes);
    elastic_assign_release(&assign);
    CHECK_OK(put_elastic_ready(&ready, &bytes, &n, &err), err);
    for (size_t i = 0; i < n; i++)
        CHECK_EQ(get_elastic_ready(&again, bytes, i, &err), HVD_PROTO);
    free(bytes);
}

TEST(an_assignment_is_bounded_by_what_is_there)
{
    struct elastic_assign assign = sample_assign(), back;
    uint8_t *bytes;
    size_t n;

    CHECK_OK(put_elastic_assign(&assign, &bytes, &n, &err), err);
    bytes_put_u32(bytes + 12, 65536);
    CHECK_EQ(get_elastic_assign(&back, bytes, n, &err), HVD_PROTO);
    bytes_put_u32(bytes + 12, 2);
    bytes_put_u32(bytes + 4, 2);        /* own rank */
    CHECK_EQ(get_elastic_assign(&back, bytes, n, &err), HVD_PROTO);
    bytes_put_u32(bytes + 4, 1);
    bytes_put_u32(bytes + 16, 0);       /* number of a worker */
    CHECK_EQ(get_elastic_assign(&back, bytes, n, &err), HVD_PROTO);
    free(bytes);
    elastic_assign_release(&assign);
}

TEST(the_text_of_a_retirement_is_printable)
{
    char text[ELASTIC_RETIRE_MAX];

    CHECK_OK(get_elastic_retire(text, (const uint8_t *)"a\033b", 3, &err), err);
    CHECK_STR(text, "a?b");
    CHECK_EQ(get_elastic_retire(text, NULL, ELASTIC_RETIRE_MAX, &err), HVD_PROTO);
}
