/*
 * transport.h: bytes between the ranks of one job: the mesh.
 *
 * The mesh knows ranks, not tensors.  Between two ranks there is one ordered stream per
 * direction (shared-memory ring, TCP, self, or the simulator of the tests, behind the
 * vtable of transport_int.h).  On top of it:
 *
 *   messages   mesh_post: small, copied, delivered in order to the message handler;
 *              sealed on sockets.  The engine negotiates with them.
 *   transfers  mesh_send / mesh_recv: any size, matched by (peer, tag), not copied when
 *              the receive was posted first.  Collectives move data with them.
 *   host       memory shared by the ranks of one host: a zeroed board area, and an arena
 *              per rank from which hvd_alloc takes buffers that all local ranks can reach.
 *
 * Thread: the owner of the engine only (one at a time), unless said otherwise.
 * A lost peer makes the mesh fail: every transfer ends with the same verdict.
 */
#ifndef HVD_TRANSPORT_TRANSPORT_H
#define HVD_TRANSPORT_TRANSPORT_H

#include "base/config.h"
#include "base/list.h"
#include "wire/table.h"

#include <sys/types.h>

struct mesh;
struct mesh_listener;

/* ---- Forming --------------------------------------------------------------------- */

struct mesh_options {
    const struct config *conf;          /* borrowed until mesh_close */
    const uint8_t *key;                 /* HS_KEY bytes; borrowed as long as the mesh lives */
    const char *job_id;
    uint32_t generation;
    uint64_t deadline_us;
    size_t board_bytes;                 /* of the shared board area of each host */
};

/* Opens the listeners and fills the address part of *self.  Nothing is accepted yet. */
enum hvd_status mesh_listen(const struct mesh_options *opt, struct table_entry *self,
                            struct mesh_listener **listener_p, struct hvd_error *err);
void mesh_listener_free(struct mesh_listener *listener);

/* Makes what forming and watching need; data connections are made when they are used first.
 * The listener is taken over in any case: it lives as long as the mesh, so that other ranks
 * can dial; nobody without the job key gets in.
 * Blocks: until the deadline.  Errors: HVD_TIMEOUT (names the peers that are missing),
 * HVD_AUTH, HVD_VERSION, HVD_MISMATCH (topology), HVD_SYS, HVD_NOMEM. */
enum hvd_status mesh_open(const struct mesh_options *opt, struct mesh_listener *listener,
                          const struct table *table, struct mesh **mesh_p,
                          struct hvd_error *err);

/* Ends it: `goodbye` tells the peers that this rank leaves in order (they do not count it
 * as lost).  Memory of the arena stays until it is freed. */
void mesh_close(struct mesh *mesh, bool goodbye);

/* ---- Who is who ------------------------------------------------------------------ */

struct mesh_topology {
    int rank, size;
    int host_count;
    int *host_of;                       /* by rank: index of its host, in order of the
                                         * lowest rank of each host */
    int *local_rank_of;                 /* by rank: position among the ranks of its host */
    int local_rank, local_size;         /* among the ranks of our host; whether they
                                         * share memory is what mesh_board says */
    int *local_ranks;                   /* by local rank: global rank */
    int cross_rank, cross_size;
    bool homogeneous;
    char (*hosts)[254];                 /* by rank: host name */
};

const struct mesh_topology *mesh_topology(const struct mesh *mesh);

/* ---- Messages -------------------------------------------------------------------- */

#define MESH_MESSAGE_MAX (16u << 20)

/* Called by mesh_progress; may post, send, receive and cancel, not make progress. */
typedef void (*mesh_message_fn)(void *context, int peer, const uint8_t *bytes, size_t n);
void mesh_on_message(struct mesh *mesh, mesh_message_fn handler, void *context);

/* Copies the bytes and sends them, in order with other messages to that peer.  To self is
 * allowed: delivered by the next mesh_progress.  Errors: HVD_NOMEM, the verdict,
 * HVD_SHUTDOWN (that peer has left). */
enum hvd_status mesh_post(struct mesh *mesh, int peer, const void *bytes, size_t n,
                          struct hvd_error *err);

#define MESH_NEWS_MAX 256

/* Tells all ranks of this host and some of others, which are chosen so that everybody hears
 * it when everybody who does hands it on (spreads it, too), once.  Comes as a message from
 * whoever told it; on its way to another host it may overtake other messages.
 * Errors: as mesh_post. */
enum hvd_status mesh_spread(struct mesh *mesh, const void *bytes, size_t n,
                            struct hvd_error *err);

/* Makes the connection to that peer in the background, before something is sent to it.
 * Otherwise the first message or transfer does, and waits for it. */
void mesh_warm(struct mesh *mesh, int peer);

/* ---- Transfers ------------------------------------------------------------------- */

struct mesh_xfer {
    enum hvd_status status;             /* HVD_AGAIN while under way */
    /* private to the mesh: */
    bool sending;
    struct list node;
    int peer;
    uint64_t tag;
    char *at;
    size_t bytes, done;
    void *owner;
};

/* Borrow the buffer and *x until x->status is not HVD_AGAIN or mesh_cancel.  The lengths
 * of both sides must agree, else the mesh ends with HVD_PROTO.  Tags of transfers that
 * are under way between two ranks in one direction are unique.  A transfer with a peer
 * that has said goodbye ends with HVD_SHUTDOWN. */
void mesh_send(struct mesh *mesh, int peer, uint64_t tag, const void *data, size_t bytes,
               struct mesh_xfer *x);
void mesh_recv(struct mesh *mesh, int peer, uint64_t tag, void *data, size_t bytes,
               struct mesh_xfer *x);
/* Gives the buffer back.  A send that has begun is completed from a copy. */
void mesh_cancel(struct mesh *mesh, struct mesh_xfer *x);

/* ---- Progress and waiting -------------------------------------------------------- */

/* Moves whatever can move without blocking; the number of things that happened. */
int mesh_progress(struct mesh *mesh);

/*
 * Sleeping, in three steps, so that the thread that sleeps does not own the mesh:
 *
 *   owner:    mesh_arm    says "nobody polls" in the sleep word (with `boards`: a change
 *                         of the board area matters, too), full fence, looks at rings and
 *                         sockets once more.  False: something can move; not armed.
 *   anybody:  mesh_sleep  blocks in epoll_wait until something can move, mesh_kick, a
 *                         mesh_notify (if armed with boards) or timeout_us (-1: none).
 *                         Touches nothing that the owner changes, so another thread may
 *                         own and use the mesh meanwhile.  One thread at a time.  False:
 *                         nothing but the time has passed.
 *   owner:    mesh_disarm says "polled" again (a plain store); cheap, may be repeated.
 *
 * Whoever uses the mesh while a thread is in mesh_sleep disarms first and arms again
 * before giving up ownership.  After mesh_arm(boards) the caller itself must look at its
 * boards once more before it sleeps or gives up ownership.
 *
 * To arm and disarm for what comes over sockets are system calls.  mesh_doze is mesh_arm
 * without boards and without these: nobody is woken by a socket.  Whoever dozes arms in the end.
 * False: something can move or has to be sent, or there are no sockets; not armed.
 */
bool mesh_arm(struct mesh *mesh, bool boards);
bool mesh_doze(struct mesh *mesh);
bool mesh_sleep(struct mesh *mesh, int64_t timeout_us);
void mesh_disarm(struct mesh *mesh);
/* Thread: any; async-signal-safe.  Ends a mesh_sleep under way, or the next one. */
void mesh_kick(struct mesh *mesh);
/* Whether something may come over sockets: not all ranks share memory. */
bool mesh_has_sockets(const struct mesh *mesh);
/* Microseconds worth spinning before mesh_arm; 0 when the host has more ranks than CPUs
 * (then sched_yield between looks). */
double mesh_spin_us(const struct mesh *mesh);

/* NULL while all is well; else the first failure, the same on all survivors as far as
 * they can know: a lost peer (rank, host, cause), an abort, a broken protocol.
 * Thread: any. */
const struct hvd_error *mesh_verdict(const struct mesh *mesh);
/* Fails the mesh with this verdict and tells all peers.  Thread: any. */
void mesh_fail(struct mesh *mesh, const struct hvd_error *why);
/* Reads what came from outside the mesh.  HVD_AGAIN: nothing; HVD_ABORTED: the job is over,
 * err says why; else the descriptor is of no use any more, and may have been closed. */
typedef enum hvd_status (*mesh_push_fn)(void *context, struct hvd_error *err);
/* Has the watch thread call `push` whenever fd can be read, until mesh_close; the mesh fails
 * with the verdict that it brings.  Once, after mesh_open.  Errors: HVD_SYS. */
enum hvd_status mesh_follow(struct mesh *mesh, int fd, mesh_push_fn push, void *context,
                            struct hvd_error *err);
/* True while a transfer with that peer is under way that needs it: bytes that it has not sent,
 * or that it does not take. */
bool mesh_is_owed(const struct mesh *mesh, int peer);
/* True once that peer has said goodbye. */
bool mesh_has_left(const struct mesh *mesh, int peer);

/* ---- Host memory ----------------------------------------------------------------- */

/* The board area of this host: zeroed when the mesh was formed, mapped by all local
 * ranks (at different addresses).  NULL: this rank shares memory with nobody (disabled,
 * or no memory); collectives then use transfers only. */
void *mesh_board(const struct mesh *mesh, size_t *bytes_p);
/* Takes the pages [offset, offset + bytes) so that touching them cannot fail later. */
enum hvd_status mesh_board_reserve(struct mesh *mesh, size_t offset, size_t bytes,
                                   struct hvd_error *err);

/* After a release-store to the board area: wakes local ranks that are armed with
 * `boards`.  Contains the full fence.  `local_rank` -1: all. */
void mesh_notify(struct mesh *mesh, int local_rank);

/* Where p .. p + bytes lies in this rank's arena; false: not there (private memory). */
bool mesh_find(const struct mesh *mesh, const void *p, size_t bytes, uint64_t *offset_p);
/* Address in this process of `offset` in a local rank's arena; NULL when out of bounds. */
void *mesh_address(const struct mesh *mesh, int local_rank, uint64_t offset, size_t bytes);

/* Maps the pages of bytes [at, at + n) of a buffer in a local rank's arena, with some more
 * of it, unless that was done before: stores to pages that are not mapped are slow.  A
 * buffer that lies elsewhere is left alone. */
void mesh_touch(struct mesh *mesh, int local_rank, const void *buffer, size_t bytes,
                size_t at, size_t n);

/* For process_vm_readv between local ranks; false: not permitted here. */
bool mesh_can_cma(const struct mesh *mesh);
pid_t mesh_pid(const struct mesh *mesh, int local_rank);

/* ---- The arena of this process, which outlives jobs ------------------------------ */

/* 64-byte aligned, zeroed.  NULL: none left.  Thread: any. */
void *arena_alloc(size_t bytes);
void *arena_alloc_dirty(size_t bytes);          /* with old bytes of this process in it */
void arena_free(void *p);
bool arena_owns(const void *p);

/* ---- Numbers --------------------------------------------------------------------- */

struct mesh_counters {
    uint64_t messages_sent, message_bytes_sent, frames_sent, bytes_sent, bytes_received;
    uint64_t far_messages_sent;         /* of messages_sent: to ranks of other hosts */
    uint64_t unexpected_bytes;          /* received before the receive was posted */
    uint64_t sleeps, kicks;
};
void mesh_count(const struct mesh *mesh, struct mesh_counters *counters);

#endif
