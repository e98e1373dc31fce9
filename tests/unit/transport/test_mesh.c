/* test_mesh.c: a real mesh of threads: shared memory, TCP, and both. */
#include "check.h"
#include "support/mesh_harness.h"

#include <stdlib.h>

static const struct harness kinds[] = {
    {.size = 1},
    {.size = 3},
    {.size = 3, .hosts = 3},
    {.size = 3, .hosts = 3, .security = "encrypt"},
    {.size = 5, .hosts = 2},
    {.size = 3, .shm_disable = true},
    {.size = 7, .hosts = 7},
};

/* Copies and compares of one pattern: cheap also under sanitizers. */
enum { PATTERN = 64 << 20, SEEDS = 1024 };
static uint8_t *pattern;

static void make_pattern(void)
{
    pattern = malloc(PATTERN + SEEDS);
    for (size_t i = 0; i < 65536 + 257; i++)
        pattern[i] = (uint8_t)((i * 2654435761u) >> 13);
    for (size_t have = 65536 + 257, n; have < PATTERN + SEEDS; have += n) {
        n = have < PATTERN + SEEDS - have ? have : PATTERN + SEEDS - have;
        memcpy(pattern + have, pattern, n);
    }
}

static void fill(uint8_t *data, size_t bytes, unsigned seed)
{
    memcpy(data, pattern + seed % SEEDS, bytes);
}

static bool is_filled(const uint8_t *data, size_t bytes, unsigned seed)
{
    return memcmp(data, pattern + seed % SEEDS, bytes) == 0;
}

static void run_kinds(harness_fn body)
{
    make_pattern();
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        harness_run(&kinds[i], body);
}

/* Every rank sends to every rank, itself included. */
static void exchange(struct harness_rank *r, size_t bytes, bool post_first)
{
    struct mesh_xfer send[HARNESS_RANKS], receive[HARNESS_RANKS];
    uint8_t *out[HARNESS_RANKS], *in[HARNESS_RANKS];

    for (int p = 0; p < r->size; p++) {
        out[p] = malloc(bytes + 1);
        in[p] = calloc(1, bytes + 1);
        fill(out[p], bytes, (unsigned)(r->rank * 16 + p));
        in[p][bytes] = 77;
        if (post_first)
            mesh_recv(r->mesh, p, bytes, in[p], bytes, &receive[p]);
    }
    if (post_first)
        harness_barrier(r);
    for (int p = 0; p < r->size; p++)
        mesh_send(r->mesh, p, bytes, out[p], bytes, &send[p]);
    if (!post_first && bytes < 4096) {
        harness_barrier(r);
        mesh_progress(r->mesh);
    }
    for (int p = 0; p < r->size && !post_first; p++)
        mesh_recv(r->mesh, p, bytes, in[p], bytes, &receive[p]);
    for (int p = 0; p < r->size; p++) {
        CHECK_EQ((int)harness_wait(r->mesh, &receive[p]), HVD_OK);
        CHECK_EQ((int)harness_wait(r->mesh, &send[p]), HVD_OK);
        CHECK(is_filled(in[p], bytes, (unsigned)(p * 16 + r->rank)));
        CHECK_EQ(in[p][bytes], 77);
        free(out[p]);
        free(in[p]);
    }
}

static void transfers_of_all_sizes(struct harness_rank *r)
{
    static const size_t sizes[] = {0, 1, 23, 24, 4095, 65536, 65537, 1000003};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        exchange(r, sizes[i], true);
        harness_barrier(r);
        exchange(r, sizes[i], false);
        harness_barrier(r);
    }
}

TEST(transfers_arrive_in_both_orders, .limit_s = 60)
{
    run_kinds(transfers_of_all_sizes);
}

static void one_large(struct harness_rank *r)
{
    exchange(r, 64 << 20, true);
}

TEST(a_transfer_of_64_mib, .limit_s = 60)
{
    make_pattern();
    harness_run(&(struct harness){.size = 2}, one_large);
    harness_run(&(struct harness){.size = 2, .hosts = 2}, one_large);
}

/* ---- Messages -------------------------------------------------------------------- */

struct inbox {
    int next[HARNESS_RANKS], total;
    volatile bool done;
    int expected;
};

static void on_message(void *context, int peer, const uint8_t *bytes, size_t n)
{
    struct inbox *box = context;
    int number = box->next[peer]++;

    CHECK_EQ(n, (size_t)(number * 37));
    CHECK(is_filled(bytes, n, (unsigned)(number + peer)));
    box->total++;
    box->done = box->total == box->expected;
}

static void messages_in_order(struct harness_rank *r)
{
    enum { COUNT = 200 };
    struct inbox box = {.expected = COUNT * r->size};
    uint8_t bytes[COUNT * 37];

    mesh_on_message(r->mesh, on_message, &box);
    for (int i = 0; i < COUNT; i++) {
        fill(bytes, (size_t)(i * 37), (unsigned)(i + r->rank));
        for (int p = 0; p < r->size; p++)
            CHECK_OK(mesh_post(r->mesh, p, bytes, (size_t)(i * 37), &r->err), r->err);
    }
    harness_wait_flag(r->mesh, &box.done);
    CHECK_EQ(box.total, box.expected);
    harness_barrier(r);
}

TEST(messages_arrive_in_order)
{
    run_kinds(messages_in_order);
}

/* ---- Who is where ---------------------------------------------------------------- */

static void layout(struct harness_rank *r)
{
    const struct mesh_topology *t = mesh_topology(r->mesh);

    CHECK_EQ(t->rank, r->rank);
    CHECK_EQ(t->size, 5);
    CHECK_EQ(t->host_count, 2);
    CHECK_EQ(t->local_rank, r->rank / 2);
    CHECK_EQ(t->local_size, r->rank % 2 == 0 ? 3 : 2);
    CHECK_EQ(t->cross_rank, r->rank == 4 ? 0 : r->rank % 2);
    CHECK_EQ(t->cross_size, r->rank == 4 ? 1 : 2);
    CHECK(!t->homogeneous);
    CHECK_EQ(t->local_ranks[1], 2 + r->rank % 2);
    CHECK_STR(t->hosts[3], "host-1");
    CHECK(mesh_board(r->mesh, NULL) != NULL);
}

TEST(ranks_know_their_place)
{
    harness_run(&(struct harness){.size = 5, .hosts = 2}, layout);
}
