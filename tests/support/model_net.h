/*
 * model_net.h: a network in virtual time for thousands of ranks in one process: transport.h once
 * more, over a queue of events.  Engine and collectives run on it unchanged; programs that
 * link it take the mesh from here and not from src/transport.
 *
 * What is modelled (a LogGP model with hosts):
 *   between hosts   a message costs its sender and its receiver `message_ns` of CPU, leaves
 *                   when the NIC of the host (all its ranks share it, each direction for itself) is
 *                   free, takes `latency_ns`, and bytes / rate at both NICs, which overlap.
 *   within a host   boards and arenas are real memory, shared by the ranks of the host;
 *                   others see a change after MODEL_NOTIFY_NS.  Messages cost little.
 *   reductions      and copies of collectives take bytes / MODEL_MEMORY of their rank's time.
 * What is not: congestion within the network, loss, other work of the CPUs, forming a job.
 *
 * With `phantom` no data moves and none is reduced, only time passes: vectors of 100 MiB on ten
 * thousand ranks need no memory.  Negotiation is real in any case.
 *
 * Thread: one drives everything.
 */
#ifndef TESTS_MODEL_NET_H
#define TESTS_MODEL_NET_H

#include "transport/transport.h"

struct model_kind {
    const char *name, *text;
    uint64_t latency_ns;                /* one way, between hosts */
    uint64_t message_ns;                /* of CPU, at the sender and at the receiver */
    double rate;                        /* bytes per ns, of a host's NIC and direction */
};

/* Ends with a NULL name.  Typical numbers of such networks, not measured on any. */
extern const struct model_kind model_kinds[];
const struct model_kind *model_kind_of(const char *name);       /* NULL: unknown */

#define MODEL_NOTIFY_NS 300             /* one CPU sees what another has written */
#define MODEL_LOCAL_NS 200              /* of CPU, for a message within a host */
#define MODEL_MEMORY 10.0               /* bytes per ns that a rank reads or writes */

struct model_options {
    const struct model_kind *kind;
    int size, per_host;
    bool phantom;
    bool rough;                         /* inputs whose sums depend on their order */
};

/* Of one rank, since model_reset. */
struct model_counts {
    uint64_t posts_out, posts_in;       /* messages between engines, other hosts */
    uint64_t sends_out, sends_in;       /* transfers of collectives, other hosts */
    uint64_t bytes_out, bytes_in;       /* of both, other hosts */
    uint64_t near;                      /* messages and transfers sent within the host */
};

struct model_net;

struct model_net *model_new(const struct model_options *opt);
void model_free(struct model_net *n);   /* after mesh_close of all */
struct mesh *model_mesh(struct model_net *n, int rank);

/* The clock of all ranks; also what clock_ns says. */
uint64_t model_now(const struct model_net *n);
/* From here on `rank` acts, not before `at_ns` nor before it is free; until model_end. */
void model_begin(struct model_net *n, int rank, uint64_t at_ns);
void model_end(struct model_net *n);
/* The next rank that has to be cranked, begun; -1: nothing will ever happen again. */
int model_next(struct model_net *n);

void model_reset(struct model_net *n);
const struct model_counts *model_count(const struct model_net *n, int rank);
/* Ranks of other hosts that it has ever sent to or heard of. */
int model_peers(const struct model_net *n, int rank);

#endif
