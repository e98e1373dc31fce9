/*
 * transport_int.h: the structs of the transport folder, and the small vtable behind which
 * a pair of ranks exchanges bytes.
 *
 * 1. A link is one pair of ranks as one of them sees it.  It carries frames
 *    (wire/frame.h); link_out.c makes them, link_in.c takes them apart.
 * 2. A link_ops moves bytes of one ordered stream per direction without blocking and
 *    knows nothing of frames: shared-memory ring, TCP, the simulator of the tests.
 *    To itself a rank needs no stream (self.c).
 * 3. The owner of the engine owns the links.  The watch thread owns the watch
 *    connections; both meet in the verdict and in atomics only.
 */
#ifndef HVD_TRANSPORT_TRANSPORT_INT_H
#define HVD_TRANSPORT_TRANSPORT_INT_H

#include "transport/transport.h"
#include "wire/frame.h"
#include "wire/handshake.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define LINE 128                        /* bytes between words of different writers: two
                                         * cache lines, which x86 fetches in pairs */

/* ---- Links ------------------------------------------------------------------------- */

struct link;

struct link_ops {
    const char *name;
    /* Bytes taken, 0: full for now, -1: failed, *err is set. */
    ssize_t (*write)(struct link *l, const struct iovec *iov, int count,
                     struct hvd_error *err);
    /* Bytes read, 0: nothing for now, -1: failed, *err is set.  HVD_PEER_LOST: the
     * stream has ended. */
    ssize_t (*read)(struct link *l, void *to, size_t bytes, struct hvd_error *err);
    /* After the owner's last read of a round: tells the writer that there is room. */
    void (*read_done)(struct link *l);
    /* True: read (or write, when `sending`) would move something.  NULL: epoll tells. */
    bool (*can_move)(struct link *l, bool sending);
    /* Before sleeping: whether the sleeper is to be woken when there is room to write. */
    void (*want_room)(struct link *l, bool want);
    void (*close)(struct link *l);
};

enum link_level { LINK_PLAIN, LINK_AUTH, LINK_ENCRYPT };

struct message {
    struct list node;
    size_t bytes;
    uint8_t data[];
};

/* The frame that is being written: prelude, body, trailer. */
struct link_out {
    bool active;
    uint8_t prelude[FRAME_HEADER + SEAL_TAG], trailer[SEAL_TAG];
    size_t prelude_n, body_n, trailer_n, done;
    const char *body;
    struct mesh_xfer *x;                /* of a transfer */
    struct message *message;
    enum frame_kind kind;
};

/* A transfer that came before its receive was posted, or after it was cancelled. */
struct unexpected {
    struct list node;
    uint64_t tag, total;
    size_t got, capacity;
    bool discard;                       /* nobody will ask for it: drop the bytes */
    char *data;
};

/* The frame that is being read. */
struct link_in {
    uint8_t prelude[FRAME_HEADER + SEAL_TAG];
    size_t got;                         /* of the prelude, then of the body */
    bool has_head;                      /* prelude is complete and checked */
    struct frame frame;
    size_t need;                        /* bytes of body and trailer */
    struct mesh_xfer *x;                /* where a transfer goes: this */
    struct unexpected *u;               /* or this */
    struct message *message;
};

struct link {
    const struct link_ops *ops;         /* NULL: self */
    struct mesh *mesh;
    int peer;
    void *stream;                       /* of ops */
    enum link_level level;
    struct seal seal_out, seal_in;
    uint8_t *record_out, *record_in;    /* LINK_ENCRYPT: one record each */
    bool closed;                        /* nothing moves any more */
    _Atomic bool left;                  /* the peer has said goodbye, and all it has sent
                                         * before has been read */
    _Atomic bool going;                 /* the watch thread knows of its goodbye */
    bool leaving;                       /* we send GOODBYE after what is queued */
    bool queued;                        /* in mesh.outgoing */
    struct list outgoing_node;
    struct list messages;               /* struct message, to be sent */
    struct list sends;                  /* struct mesh_xfer, to be sent, in turn */
    struct list posted;                 /* struct mesh_xfer, receives not complete */
    struct list early;                  /* struct unexpected */
    struct link_out out;
    struct link_in in;
};

/* link_out.c */
int link_send(struct link *l);          /* frames finished or bytes moved, as a count */
void link_enqueue(struct link *l);      /* there is something to send */
void link_cancel_send(struct link *l, struct mesh_xfer *x);
bool link_has_output(const struct link *l);
/* link_in.c */
int link_receive(struct link *l);
void link_post(struct link *l, struct mesh_xfer *x);
void link_cancel_receive(struct link *l, struct mesh_xfer *x);
/* link.c */
void link_init(struct link *l, struct mesh *m, int peer);
enum hvd_status link_seal(struct link *l, enum link_level level,
                          const struct hs_keys *keys, struct hvd_error *err);
void link_release(struct link *l);
void link_fail(struct link *l, enum hvd_status status);     /* ends all its transfers */
void link_break(struct link *l, const struct hvd_error *why);
void link_peer_left(struct link *l);
/* self.c */
void self_send(struct link *l, struct mesh_xfer *x);
void self_receive(struct link *l, struct mesh_xfer *x);
int self_deliver(struct link *l);
/* shm_ring.c */
extern const struct link_ops ring_ops;
size_t ring_bytes_for(int local_size);          /* of one ring, with its indices */
enum hvd_status ring_open(struct link *l, struct hvd_error *err);
/* tcp_conn.c */
extern const struct link_ops tcp_ops;
enum hvd_status tcp_open(struct link *l, int fd, struct hvd_error *err);
int tcp_fd(const struct link *l);

/* ---- Host region --------------------------------------------------------------------- */

enum sleep_state { AWAKE, ASLEEP, ASLEEP_BOARDS };

/* One per local rank.  Written by that rank, except `sleep`, which whoever rings the
 * doorbell sets back to AWAKE. */
struct control {
    alignas(LINE) atomic_uint sleep;            /* enum sleep_state */
    alignas(LINE) _Atomic uint64_t beat_us;     /* CLOCK_MONOTONIC of its last heartbeat */
    _Atomic uint32_t goodbye;                   /* 1: leaves in order */
    struct hvd_error verdict;                   /* its own; read when `winner` names it */
};

struct region {
    alignas(LINE) _Atomic uint32_t winner;      /* 0: all well; else the local rank + 1
                                                 * whose verdict was the first */
    struct control control[];
};

/* Where the parts of a host region of `local_size` ranks lie.  Known to all members, so
 * nothing of it is read from shared memory. */
struct region_layout {
    size_t ring_bytes, rings, board, board_bytes, bytes;
};

/* What this process knows of its host. */
struct host {
    struct region *region;              /* NULL: no memory is shared */
    struct region_layout layout;
    int fd;
    int count, self;                    /* local ranks, and which we are */
    int *doorbells;                     /* eventfd by local rank, our own included */
    char **arenas;                      /* by local rank: their memory, mapped here; ours
                                         * is the arena itself */
    size_t *arena_bytes;
    pid_t *pids;
    bool can_cma;
};

void region_layout(struct region_layout *out, int local_size, size_t board_bytes);
enum hvd_status region_create(const struct region_layout *layout, int *fd_p,
                              struct hvd_error *err);
enum hvd_status region_map(struct host *h, int fd, struct hvd_error *err);
/* Maps a peer's arena, which must be a sealed memfd of exactly `bytes`. */
enum hvd_status region_map_arena(struct host *h, int local_rank, int fd, size_t bytes,
                                 struct hvd_error *err);
void host_release(struct host *h);
char *host_ring(const struct host *h, int from, int to);

/* shm_meet.c */
struct mesh_listener;
enum hvd_status meet(struct mesh *m, struct mesh_listener *listener,
                     const struct table *table, struct hvd_error *err);

/* arena.c */
int arena_descriptor(size_t limit, size_t *bytes_p);    /* -1: none; stays ours */
void *arena_base(size_t *bytes_p);

/* ---- Verdict, watch, fork -------------------------------------------------------------- */

struct verdict {
    pthread_mutex_t lock;               /* guards the first write of `error` */
    _Atomic bool set;                   /* error is complete and does not change */
    struct hvd_error error;
};

void verdict_init(struct verdict *v);
void verdict_release(struct verdict *v);
/* What everybody on this host says, once anybody has spoken; NULL: all well. */
const struct hvd_error *verdict_get(struct mesh *m);
/* Speaks; the first wins.  Does not tell other hosts: watch_tell. */
const struct hvd_error *verdict_set(struct mesh *m, const struct hvd_error *why);

struct watch;
enum hvd_status watch_start(struct mesh *m, struct hvd_error *err);
void watch_stop(struct mesh *m, bool goodbye);
/* The data connection to this peer has ended: find out why.  Thread: any. */
void watch_suspect(struct mesh *m, int peer, const struct hvd_error *why);
void watch_tell(struct mesh *m);        /* there is a verdict.  Thread: any */

/* Descriptors that a forked child has to close. */
void fork_setup(void);
void fork_add(int fd);
void fork_close(int fd);                /* removes it from the list and closes it */
unsigned fork_count(void);              /* forks between the load and this process */

/* ---- Forming ----------------------------------------------------------------------------- */

#define LISTEN_SOCKETS TABLE_ADDRS

struct mesh_listener {
    int fds[LISTEN_SOCKETS];
    int count;
    int local_fd;                       /* unix socket of the meeting, -1: none */
    char local_dir[108], local_path[108];
    unsigned born;                      /* fork_count() when it was made */
};

struct address {
    char text[TABLE_ADDR_BYTES];        /* numeric, without a scope */
    struct sockaddr_storage at;         /* port 0; a link-local one with its scope */
};

/* Usable addresses of this machine, filtered by the names in iface ("": all), at most
 * TABLE_ADDRS.  Errors: HVD_INVALID, an interface that is not there. */
enum hvd_status addresses_find(const char *iface, struct address out[TABLE_ADDRS],
                               int *count_p, struct hvd_error *err);
/* What to connect to for an address of the table: one, or one per interface for a
 * link-local address.  Hostile text gives 0. */
int addresses_resolve(const char *text, uint16_t port, struct sockaddr_storage *out,
                      int capacity);
socklen_t address_bytes(const struct sockaddr_storage *at);
void machine_identify(const struct config *conf, uint8_t machine[16], char host[254]);

bool machine_is_same_kernel(const uint8_t a[16], const uint8_t b[16]);

void listener_drop_local(struct mesh_listener *listener);

enum hvd_status topology_build(struct mesh_topology *t, const struct table *table,
                               int rank, struct hvd_error *err);
void topology_release(struct mesh_topology *t);

/* A proved connection.  Owned by whom it was given to. */
struct proved {
    int fd;
    struct hs_keys keys;
};

/* tcp_form.c: both connections to every rank for which want[rank] is set. */
struct tcp_pairs {
    const bool *want;
    struct proved *data, *watch;        /* by rank; fd -1: not yet */
};
enum hvd_status tcp_form(struct mesh *m, struct mesh_listener *listener,
                         const struct table *table, const struct tcp_pairs *pairs,
                         struct hvd_error *err);
void tcp_tune(int fd, const struct config *conf, bool same_machine);

/* ---- Mesh ----------------------------------------------------------------------------------- */

struct mesh {
    const struct config *conf;
    uint8_t key[HS_KEY];
    char job_id[65];
    uint32_t generation;
    uint64_t deadline_us;
    size_t board_bytes;
    unsigned born;                      /* fork_count() when it was opened */
    struct mesh_topology topology;
    struct link *links;                 /* by rank */
    struct link **rings;                /* links that are polled by looking */
    int ring_count;
    struct link **sockets;              /* links that epoll tells about */
    int socket_count;
    struct list outgoing;               /* links that have something to send */
    bool more;                          /* a round ended before everything was read */
    bool failed;                        /* the verdict has been given to all transfers */
    _Atomic bool going;                 /* the watch thread has set a link's `going` */
    mesh_message_fn on_message;
    void *on_message_context;
    struct mesh_counters counters;
    struct host host;
    struct control *control;            /* ours: in the region, or `alone` */
    struct control *alone;
    struct verdict verdict;
    struct watch *watch;
    struct proved *watch_connections;   /* between forming and watch_start */

    int doorbell;                       /* eventfd */
    int epoll_sockets;                  /* data connections; nested in: */
    int epoll_sleep;                    /* doorbell and epoll_sockets */
    bool armed;
    _Atomic bool kicked;
    _Atomic bool sleeping;              /* a thread is in mesh_sleep */
    _Atomic uint64_t kicks, sleeps;
    /* Of a mesh without a watch (tests): there is a verdict; the mesh ends. */
    void (*tell)(struct mesh *m, void *context);
    void (*gone)(struct mesh *m, void *context);
    void *tell_context;
};

/* mesh_form.c: what mesh_open does first; the simulator starts here, too. */
enum hvd_status mesh_new(const struct mesh_options *opt, const struct table *table,
                         int rank, struct mesh **mesh_p, struct hvd_error *err);
void mesh_free(struct mesh *m);
/* Whether we are in a forked child. */
static inline bool mesh_is_forked(const struct mesh *m)
{
    return m->born != fork_count();
}

/* wait.c */
enum hvd_status wait_init(struct mesh *m, struct hvd_error *err);
void wait_release(struct mesh *m);
enum hvd_status wait_add_socket(struct mesh *m, struct link *l, int fd,
                                struct hvd_error *err);
void doorbell_ring(struct mesh *m, int local_rank, enum sleep_state at_least);
int wait_poll_sockets(struct mesh *m);

#endif
