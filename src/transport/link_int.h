/*
 * link_int.h: one pair of ranks, and the small vtable behind which it exchanges bytes.
 *
 * 1. A link is one pair of ranks as one of them sees it.  It carries frames
 *    (wire/frame.h); link_out.c makes them, link_in.c takes them apart.
 * 2. A link_ops moves bytes of one ordered stream per direction without blocking and
 *    knows nothing of frames: shared-memory ring, TCP, the simulator of the tests.
 *    To itself a rank needs no stream (self.c).
 */
#ifndef HVD_TRANSPORT_LINK_INT_H
#define HVD_TRANSPORT_LINK_INT_H

#include "transport/transport.h"
#include "wire/frame.h"
#include "wire/handshake.h"

#include <stdatomic.h>
#include <sys/uio.h>

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
    bool pending;                       /* there is no connection yet; nothing moves */
    bool wanted;                        /* ... and it has been asked for */
    bool closed;                        /* nothing moves any more */
    bool leaving;                       /* we send GOODBYE after what is queued */
    bool queued;                        /* in mesh.outgoing */
    struct list outgoing_node;
    struct list messages;               /* struct message, to be sent */
    struct list sends;                  /* struct mesh_xfer, to be sent, in turn */
    struct list posted;                 /* struct mesh_xfer, receives not complete */
    struct list early;                  /* struct unexpected */
    struct link_out out;
    struct link_in in;
    /* Apart from the owner's fields: the watch thread uses these, too. */
    _Atomic bool left;                  /* the peer has said goodbye, and all it has sent
                                         * before has been read */
    _Atomic bool going;                 /* the watch thread knows of its goodbye */
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
extern const struct link_ops pending_ops;
enum hvd_status tcp_open(struct link *l, int fd, struct hvd_error *err);
int tcp_fd(const struct link *l);

#endif
