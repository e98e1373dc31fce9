/*
 * transport_int.h: the mesh and what forms, watches and wakes it.  Links are in link_int.h,
 * what the ranks of a host share in host_int.h.
 *
 * The owner of the engine owns the links.  The watch thread owns the watch connections;
 * both meet in the verdict and in atomics only.
 */
#ifndef HVD_TRANSPORT_TRANSPORT_INT_H
#define HVD_TRANSPORT_TRANSPORT_INT_H

#include "host_int.h"
#include "link_int.h"

#include <pthread.h>
#include <sys/socket.h>

/* ---- Verdict, watch, fork -------------------------------------------------------- */

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

/* A message that is spread, on its way between owner and watch thread. */
struct news {
    struct list node;
    int peer;                           /* who told it to us */
    size_t bytes;
    uint8_t data[];
};

struct watch;
struct proved;
enum hvd_status watch_start(struct mesh *m, struct hvd_error *err);
void watch_stop(struct mesh *m, bool goodbye);
/* A watch connection to this peer; takes it over. */
void watch_take(struct mesh *m, int peer, struct proved *p);
/* An operation needs a data connection to this peer.  Thread: any. */
void watch_need(struct mesh *m, int peer);
/* To all who are connected to this watch.  Thread: any.  Errors: HVD_NOMEM. */
enum hvd_status watch_spread(struct mesh *m, const void *bytes, size_t n,
                             struct hvd_error *err);
/* The data connection to this peer has ended: find out why.  Thread: any. */
void watch_suspect(struct mesh *m, int peer, const struct hvd_error *why);
void watch_tell(struct mesh *m);        /* there is a verdict.  Thread: any */

/* Descriptors that a forked child has to close. */
void fork_setup(void);
void fork_add(int fd);
void fork_close(int fd);                /* removes it from the list and closes it */
unsigned fork_count(void);              /* forks between the load and this process */

/* ---- Forming --------------------------------------------------------------------- */

#define LISTEN_SOCKETS TABLE_ADDRS

struct mesh_listener {
    int fds[LISTEN_SOCKETS];
    int count;
    int local_fd;                       /* unix socket of the meeting, -1: none */
    char local_path[108];               /* its name, "@..." */
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
struct sockaddr_un;
/* The address of an abstract name "@..."; returns its length. */
socklen_t local_address(const char *name, struct sockaddr_un *at);

enum hvd_status topology_build(struct mesh_topology *t, const struct table *table,
                               int rank, struct hvd_error *err);
void topology_release(struct mesh_topology *t);

/* overlay.c: sets out[r] for each rank of another host that `t->rank` watches; gone, by rank,
 * may be NULL.  False: no memory. */
bool overlay_neighbours(const struct mesh_topology *t, const bool *gone, bool *out);

/* A proved connection.  Owned by whom it was given to. */
struct proved {
    int fd;
    struct hs_keys keys;
};

/* door.c: connections to ranks that are reached by TCP.  The thread that forms the mesh,
 * then the watch thread. */
struct door;
/* Becomes m->door, also when it fails, and owns the listener then. */
enum hvd_status door_new(struct mesh *m, struct mesh_listener *listener,
                         const struct table *table, struct hvd_error *err);
void door_free(struct door *d);
/* Watch connections to every rank for which want[rank] is set, until the deadline. */
enum hvd_status door_form(struct door *d, const bool *want, struct hvd_error *err);
int door_fd(const struct door *d);      /* readable: there is something to do */
/* Does what there is to do without waiting; when the next thing is due. */
uint64_t door_step(struct door *d);
void door_need(struct door *d, int peer);       /* a data connection */
void door_watch(struct door *d, int peer);      /* a watch connection, which we dial */
void door_forget(struct door *d, int peer);     /* it has left */
bool door_expects(const struct door *d, int peer, enum hs_purpose purpose);
bool door_has(const struct door *d, int peer, enum hs_purpose purpose);
void tcp_tune(int fd, const struct config *conf, bool same_machine);

/* ---- Mesh ------------------------------------------------------------------------ */

struct mesh {
    const struct config *conf;
    const uint8_t *key;                 /* borrowed */
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
    _Atomic bool stirred;               /* the watch thread has set a link's `going`, or
                                         * added to `arrivals` or `news` */
    pthread_mutex_t lock;               /* guards arrivals, news */
    struct list news;                   /* messages that came to the watch thread */
    struct list arrivals;               /* data connections that the owner has not seen */
    int far_count;                      /* ranks that are reached by TCP */
    struct door *door;                  /* NULL: there are none */
    mesh_message_fn on_message;
    void *on_message_context;
    struct mesh_counters counters;
    struct host_share host;
    struct control *control;            /* ours: in the region, or `alone` */
    struct control *alone;
    _Atomic uint64_t *left;             /* by rank, a bit: it has left; in the region, or: */
    _Atomic uint64_t *alone_left;
    struct verdict verdict;
    struct watch *watch;
    struct proved *watch_connections;   /* between forming and watch_start */

    int doorbell;                       /* eventfd */
    int epoll_sockets;                  /* data connections; nested in: */
    int epoll_sleep;                    /* doorbell and epoll_sockets */
    bool armed;
    bool sockets_on;                    /* in epoll_sleep */
    _Atomic bool kicked;
    _Atomic bool sleeping;              /* a thread is in mesh_sleep */
    _Atomic uint64_t kicks, sleeps;
    /* Of a mesh without a watch (tests): there is a verdict; the mesh ends. */
    void (*tell)(struct mesh *m, void *context);
    void (*gone)(struct mesh *m, void *context);
    void *tell_context;
};

/* On our host, and memory is shared with it. */
bool mesh_is_near(const struct mesh *m, int peer);
/* Sets out[r] for each rank to which there is to be a watch connection.  False: no memory. */
bool mesh_watches(const struct mesh *m, const bool *gone, bool *out);
/* A data connection to this peer is proved; takes it over.  Thread: of the door. */
void mesh_take_data(struct mesh *m, int peer, struct proved *p);
/* News that came on the watch connection of this peer.  Thread: watch. */
void mesh_take_news(struct mesh *m, int peer, const void *bytes, size_t n);
/* The owner opens the links that have been connected since. */
int mesh_take_arrivals(struct mesh *m);
int mesh_deliver_news(struct mesh *m);  /* ... and hears what came */

/* mesh_form.c: what mesh_open does first; the simulator starts here, too. */
enum hvd_status mesh_new(const struct mesh_options *opt, const struct table *table,
                         int rank, struct mesh **mesh_p, struct hvd_error *err);
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
