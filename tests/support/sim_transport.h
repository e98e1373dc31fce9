/*
 * sim_transport.h: meshes of one process whose ranks talk through simulated streams:
 * bytes come late and in odd pieces, pairs overtake each other, a pair can be cut.  All of
 * it follows from the seed when one thread drives all ranks.
 *
 * Ranks of one host (host_of, or rank % hosts) share a real host region and arena, so boards,
 * mesh_notify, mesh_find and mesh_address work as in a job.
 */
#ifndef TESTS_SIM_TRANSPORT_H
#define TESTS_SIM_TRANSPORT_H

#include "transport/transport.h"

struct sim;

struct sim_options {
    int size, hosts;                    /* hosts 0: one */
    const int *host_of;                 /* by rank, below hosts, none empty; NULL: dealt out */
    uint64_t seed;
    int delay;                          /* polls until written bytes can be read, at most */
    bool one_byte;                      /* every read and write moves one byte */
    bool no_memory;                     /* no board area, no shared arenas */
    size_t board_bytes;                 /* 0: 1 MiB */
};

struct sim *sim_new(const struct sim_options *opt);
/* The mesh of a rank; closed by the caller with mesh_close, before sim_free. */
struct mesh *sim_mesh(struct sim *sim, int rank);
/* Nothing passes between a and b any more, and both notice. */
void sim_cut(struct sim *sim, int a, int b);
void sim_free(struct sim *sim);

#endif
