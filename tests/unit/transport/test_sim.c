/* test_sim.c: the simulator behind the vtable, driven by one thread. */
#include "check.h"
#include "support/sim_transport.h"

#include <stdlib.h>

enum { RANKS = 4, SIZES = 4 };
static const size_t sizes[SIZES] = {0, 1, 777, 70001};

static void progress_all(struct sim *sim, int size)
{
    for (int r = 0; r < size; r++)
        mesh_progress(sim_mesh(sim, r));
}

static void close_all(struct sim *sim, int size)
{
    for (int r = 0; r < size; r++)
        mesh_close(sim_mesh(sim, r), false);
    sim_free(sim);
}

static void exchange(const struct sim_options *opt)
{
    static struct mesh_xfer send[RANKS][RANKS][SIZES], receive[RANKS][RANKS][SIZES];
    static char in[RANKS][RANKS][SIZES][70001], out[70001];
    struct sim *sim = sim_new(opt);
    int left = RANKS * RANKS * SIZES;

    for (size_t i = 0; i < sizeof out; i++)
        out[i] = (char)(i * 7);
    for (int a = 0; a < RANKS; a++)
        for (int b = 0; b < RANKS; b++)
            for (int k = 0; k < SIZES; k++) {
                mesh_send(sim_mesh(sim, a), b, (uint64_t)k, out, sizes[k], &send[a][b][k]);
                if ((a + b + k) % 2 == 0)
                    progress_all(sim, RANKS);
                mesh_recv(sim_mesh(sim, b), a, (uint64_t)k, in[a][b][k], sizes[k],
                          &receive[a][b][k]);
            }
    for (int turn = 0; left > 0 && turn < 10000000; turn++) {
        progress_all(sim, RANKS);
        left = 0;
        for (int i = 0; i < RANKS * RANKS * SIZES; i++)
            left += (&receive[0][0][0])[i].status == HVD_AGAIN ||
                    (&send[0][0][0])[i].status == HVD_AGAIN;
    }
    CHECK_EQ(left, 0);
    for (int i = 0; i < RANKS * RANKS * SIZES; i++)
        CHECK(memcmp(in[i / SIZES / RANKS][i / SIZES % RANKS][i % SIZES], out,
                     sizes[i % SIZES]) == 0);
    close_all(sim, RANKS);
}

TEST(late_and_torn_bytes_arrive_whole)
{
    for (uint64_t seed = 0; seed < 20; seed++)
        exchange(&(struct sim_options){.size = RANKS, .hosts = 1 + (int)seed % 3,
                                       .seed = seed, .delay = (int)seed});
}

TEST(single_bytes_arrive_whole)
{
    exchange(&(struct sim_options){.size = RANKS, .hosts = 2, .seed = 1, .one_byte = true});
}

TEST(a_cut_is_known_to_all)
{
    struct sim *sim = sim_new(&(struct sim_options){.size = 4, .hosts = 2, .delay = 3});
    struct mesh_xfer x;
    char byte;

    mesh_recv(sim_mesh(sim, 3), 0, 9, &byte, 1, &x);
    sim_cut(sim, 0, 1);
    for (int i = 0; i < 10; i++)
        progress_all(sim, 4);
    for (int r = 0; r < 4; r++) {
        const struct hvd_error *verdict = mesh_verdict(sim_mesh(sim, r));

        CHECK(verdict != NULL);
        CHECK_EQ((int)verdict->status, HVD_PEER_LOST);
    }
    CHECK_EQ((int)x.status, HVD_PEER_LOST);
    close_all(sim, 4);
}

TEST(ranks_of_a_host_share_boards_and_arenas)
{
    struct sim *sim = sim_new(&(struct sim_options){.size = 4, .hosts = 2});
    struct mesh *a = sim_mesh(sim, 0), *b = sim_mesh(sim, 2);
    struct hvd_error err;
    uint64_t offset;
    char *p = arena_alloc(100), *q;
    size_t bytes;

    CHECK(p != NULL && mesh_find(a, p, 100, &offset));
    q = mesh_address(b, 0, offset, 100);
    CHECK(q != NULL && q != p);
    p[99] = 5;
    CHECK_EQ(q[99], 5);
    CHECK_OK(mesh_board_reserve(a, 0, 4096, &err), err);
    ((char *)mesh_board(a, &bytes))[17] = 3;
    CHECK_EQ(((char *)mesh_board(b, NULL))[17], 3);
    CHECK_EQ(bytes, (size_t)1 << 20);
    arena_free(p);
    close_all(sim, 4);
}
