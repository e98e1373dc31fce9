/* test_warm.c: what coll_warm connects is what large sums use, and no more. */
#include "check.h"
#include "coll_case.h"

#include "transport/transport_int.h"

#include <sched.h>

static int connected(const struct mesh *m)
{
    int count = 0;

    for (int p = 0; p < m->topology.size; p++)
        count += p != m->topology.rank && m->topology.host_of[p] !=
                 m->topology.host_of[m->topology.rank] && !m->links[p].pending;
    return count;
}

/* Context: the number of connections of each rank. */
static void body(struct harness_rank *r)
{
    static const size_t counts[] = {8192, 100003, 600011};
    const int *expected = r->harness->context;
    struct coll_bed bed;

    bed_open(&bed, r, 0, 0, 1);
    CHECK_EQ(connected(r->mesh), 0);
    harness_barrier(r);
    coll_warm(bed.team);
    while (connected(r->mesh) < expected[r->rank]) {
        mesh_progress(r->mesh);
        sched_yield();
    }
    harness_barrier(r);
    for (int i = 0; i < 3; i++)
        case_run(&bed, &(struct coll_case){.op = COLL_ALLREDUCE, .dtype = HVD_F32,
                                           .count = counts[i]});
    CHECK_EQ(connected(r->mesh), expected[r->rank]);
    harness_barrier(r);
    bed_close(&bed);
}

static void warm(int size, int hosts, const int *expected)
{
    harness_run(&(struct harness){.size = size, .hosts = hosts, .context = (void *)expected,
                                  .board_bytes = coll_board_bytes()}, body);
}

TEST(a_few_hosts_meet_each_other)
{
    warm(3, 3, (int[]){2, 2, 2});
}

TEST(a_member_meets_those_with_its_slice)
{
    warm(6, 3, (int[]){2, 2, 2, 2, 2, 2});
}

/* 11 hosts: 8 leaves, of which three are two hosts each. */
TEST(many_hosts_meet_their_partners)
{
    warm(11, 11, (int[]){4, 1, 4, 1, 4, 1, 3, 3, 3, 3, 3});
}
