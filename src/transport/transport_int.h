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

/* ---- Forming --------------------------------------------------------------------- */

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

/* ---- Mesh ------------------------------------------------------------------------ */

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
    bool sockets_on;                    /* in epoll_sleep */
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
