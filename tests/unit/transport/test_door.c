/* test_door.c: data connections are made when they are needed: whoever needs them dials,
 * and every way in which that can end has one verdict. */
#include "base/clock.h"
#include "check.h"
#include "support/mesh_harness.h"
#include "transport/door_int.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

static int connected(const struct mesh *m)
{
    int count = 0;

    for (int p = 0; p < m->topology.size; p++)
        count += p != m->topology.rank && !m->links[p].pending;
    return count;
}

static void send_byte(struct harness_rank *r, int to, uint64_t tag)
{
    struct mesh_xfer x;

    mesh_send(r->mesh, to, tag, "q", 1, &x);
    CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
}

static void receive_byte(struct harness_rank *r, int from, uint64_t tag)
{
    struct mesh_xfer x;
    char in = 0;

    mesh_recv(r->mesh, from, tag, &in, 1, &x);
    CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
    CHECK_EQ(in, 'q');
}

/* ---- When there is a connection --------------------------------------------------- */

/* The lower rank dials the higher one, then the other way round; nobody else connects. */
static void dials(struct harness_rank *r)
{
    CHECK_EQ(connected(r->mesh), 0);
    harness_barrier(r);
    if (r->rank == 0)
        send_byte(r, 1, 1);
    else if (r->rank == 1)
        receive_byte(r, 0, 1);
    else if (r->rank == 3)
        send_byte(r, 2, 1);
    else
        receive_byte(r, 3, 1);
    harness_barrier(r);
    CHECK_EQ(connected(r->mesh), 1);
    harness_barrier(r);
}

TEST(what_is_needed_is_connected_and_nothing_else)
{
    harness_run(&(struct harness){.size = 4, .hosts = 4}, dials);
}

static void warms(struct harness_rank *r)
{
    mesh_warm(r->mesh, r->rank);
    mesh_warm(r->mesh, 1 - r->rank);
    mesh_warm(r->mesh, 1 - r->rank);
    while (connected(r->mesh) == 0) {
        mesh_progress(r->mesh);
        sched_yield();
    }
    harness_barrier(r);
}

TEST(a_connection_can_be_made_beforehand)
{
    harness_run(&(struct harness){.size = 2, .hosts = 2}, warms);
}

/* ---- Both dial --------------------------------------------------------------------- */

/* One connection comes of it, whoever was first; what both have sent arrives. */
static void cross(struct harness_rank *r)
{
    struct mesh_xfer in[HARNESS_RANKS], out[HARNESS_RANKS];
    char bytes[HARNESS_RANKS];

    harness_barrier(r);
    for (int p = 0; p < r->size; p++)
        mesh_send(r->mesh, p, 1, "q", 1, &out[p]);
    for (int p = 0; p < r->size; p++)
        mesh_recv(r->mesh, p, 1, &bytes[p], 1, &in[p]);
    for (int p = 0; p < r->size; p++) {
        CHECK_EQ((int)harness_wait(r->mesh, &in[p]), HVD_OK);
        CHECK_EQ((int)harness_wait(r->mesh, &out[p]), HVD_OK);
    }
    harness_barrier(r);
    CHECK(mesh_verdict(r->mesh) == NULL);
}

TEST(both_may_dial_at_once, .limit_s = 60)
{
    static const char *const late[] = {NULL, "tcp.accept delay=2", "tcp.connect delay=2",
                                       "tcp.accept after=1 times=3 mfile",
                                       "tcp.connect after=2 times=3 reset"};

    for (int i = 0; i < 30; i++)
        harness_run(&(struct harness){.size = 2, .hosts = 2, .fault = late[i % 5]}, cross);
    harness_run(&(struct harness){.size = 9, .hosts = 9}, cross);
    harness_run(&(struct harness){.size = 6, .hosts = 3, .security = "encrypt"}, cross);
}

/* ---- How a dial ends ---------------------------------------------------------------- */

static void wait_end(struct harness_rank *r, enum hvd_status status, const char *cause)
{
    struct mesh_xfer x;

    mesh_send(r->mesh, 1, 1, "q", 1, &x);
    CHECK_EQ((int)harness_wait(r->mesh, &x), (int)status);
    if (cause != NULL)
        CHECK_HAS(mesh_verdict(r->mesh)->text, cause);
}

static void dies_when_dialled(struct harness_rank *r)
{
    harness_barrier(r);
    if (r->rank == 0) {
        wait_end(r, HVD_PEER_LOST, "rank 1 on host-1: process ended");
        r->mesh = (mesh_close(r->mesh, false), NULL);
    } else {
        harness_wait_verdict(r->mesh);
    }
}

TEST(death_while_dialling_is_that_of_the_peer)
{
    int statuses[2];

    harness_run_processes(&(struct harness){.size = 2, .hosts = 2,
                                            .fault = "tcp.accept rank=1 kill"},
                          dies_when_dialled, statuses);
    CHECK(WIFSIGNALED(statuses[1]));
    CHECK_EQ(statuses[0], 0);
}

static void leaves_when_dialled(struct harness_rank *r)
{
    if (r->rank == 0)
        wait_end(r, HVD_SHUTDOWN, NULL);
    /* rank 1 leaves in order without reading anything */
}

TEST(a_peer_that_leaves_ends_the_dial)
{
    harness_run(&(struct harness){.size = 2, .hosts = 2, .fault = "tcp.connect after=1 mfile"},
                leaves_when_dialled);
}

/* Nobody listens where rank 1 is said to be: known to rank 0 when it dials, told to all. */
static void misplace(struct harness_rank *r)
{
    struct table_entry *e = (struct table_entry *)harness_entry(r, 1);

    r->conf.timeout_s = 1;
    if (r->rank != 0)
        return;
    while (*(volatile uint16_t *)&e->port == 0)
        sched_yield();
    e->port = 1;
}

static void cannot_reach(struct harness_rank *r)
{
    harness_barrier(r);
    if (r->rank == 0)
        wait_end(r, HVD_PEER_LOST, "rank 1 on host-1: no connection (connecting");
    harness_wait_verdict(r->mesh);
    CHECK_EQ(mesh_verdict(r->mesh)->rank, 1);
    r->mesh = (mesh_close(r->mesh, false), NULL);
}

TEST(a_peer_that_cannot_be_reached_is_named)
{
    harness_run_processes(&(struct harness){.size = 2, .hosts = 2, .prepare = misplace},
                          cannot_reach, NULL);
}
