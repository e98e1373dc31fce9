/*
 * server_int.h: the parts of the rendezvous server.
 *
 *   server.c         the public functions of driver.h
 *   server_listen.c  sockets that listen, and who sits on a port that is taken
 *   server_loop.c    the thread: events, accepting, deadlines
 *   server_peer.c    one connection: proof, entry, table or verdict
 *   server_guest.c   ... or, with hooks, what guests.h says
 *
 * One lock guards everything.  The thread holds it except while it sleeps in epoll_wait,
 * the public functions while they run, so that all of it reads like one thread.
 */
#ifndef HVD_RENDEZVOUS_SERVER_INT_H
#define HVD_RENDEZVOUS_SERVER_INT_H

#include "base/list.h"
#include "horovod/driver.h"
#include "rendezvous/channel.h"
#include "rendezvous/guests.h"
#include "rendezvous/meeting.h"
#include "wire/replay.h"

#include <netinet/in.h>
#include <pthread.h>

#define SERVER_LISTENERS 64
#define SERVER_UNPROVED 256             /* RELIABILITY S4; more push the oldest out */
#define SERVER_UNSENT ((size_t)128 << 20)       /* bytes of tables that wait for their sockets */

#define PEER_STATES(X)                                                                 \
    X(HELLO,   "nothing proved; reads a HELLO")                                        \
    X(CONFIRM, "its HELLO fits, the REPLY is sent; reads a CONFIRM")                   \
    X(ENTRY,   "proved; reads an entry")                                               \
    X(WAITING, "has a seat, the table is not complete")                                \
    X(RUNNING, "has the table, or is owed it")                                         \
    X(GUEST,   "proved; what it says is for the hooks")                                \
    X(DEAD,    "closed; freed at the end of the turn")

enum peer_state {
#define PEER_ENUM(name, text) PEER_##name,
    PEER_STATES(PEER_ENUM)
#undef PEER_ENUM
};

struct listener {
    int fd;
    struct sockaddr_storage address;
    socklen_t address_n;
};

struct peer {
    struct list node;                   /* in server.unproved, .workers or .dead */
    enum peer_state state;
    int fd;                             /* from ENTRY on owned by channel */
    bool wants_write;                   /* epoll watches for it */
    bool owed;                          /* RUNNING: its table is not sent yet */
    uint64_t deadline_us;               /* of the state; RUNNING: none */
    enum hs_purpose purpose;            /* proved */
    int rank;                           /* proved; WAITING, RUNNING: its seat */
    uint32_t generation;                /* proved; of that seat */
    size_t got;                         /* bytes in buffer */
    uint8_t buffer[HS_HELLO];
    struct hs_listener proof;           /* in CONFIRM */
    struct channel channel;
    void *tag;                          /* GUEST: of the hooks */
    bool failed;                        /* GUEST: could not be sent to */
    char address[INET6_ADDRSTRLEN + 16];
};

_Static_assert(sizeof(struct peer) <= 4096, "RELIABILITY S4: cost of a stranger");

/* Numbers for tests and debugging. */
struct server_counters {
    uint64_t accepted, refused, pushed_out, entries, tables, verdicts, accept_pauses;
};

struct server_refusals {                /* for at most one log line a second */
    uint64_t logged_us;
    unsigned count;                     /* since then */
};

struct hvd_server {
    pthread_mutex_t lock;
    pthread_t thread;
    bool stop;
    int epoll, wake;                    /* wake: an eventfd */
    uint16_t port;
    struct listener listeners[SERVER_LISTENERS];
    int listener_count;
    bool listening;                     /* false: paused until listen_again_us */
    uint64_t listen_again_us;
    uint8_t *key;                       /* HVD_KEY_BYTES of secret memory */
    uint8_t *join_key;                  /* likewise; NULL: none */
    struct hs_identity identity, join_identity;
    struct meeting meeting;
    struct replay seen;                 /* HELLOs that were answered, of all generations */
    struct list unproved;               /* HELLO, CONFIRM, ENTRY, in the order they came */
    int unproved_count;
    struct list workers;                /* WAITING, RUNNING, GUEST */
    uint8_t *table;                     /* that is owed to some; NULL: to nobody */
    size_t table_bytes;
    uint64_t worker_deadline_us;        /* no worker's own deadline is earlier */
    struct list dead;
    struct hvd_error report;            /* of the first worker of the generation that has
                                         * told why it failed; HVD_OK: none has */
    void (*heard)(void *context);       /* of the options */
    void *context;
    struct server_counters counters;
    struct server_refusals refusals;
    struct guest_hooks hooks;           /* .came NULL: none, there is a meeting */
    uint64_t hooks_due_us;              /* their next turn */
};

void server_count(struct hvd_server *s, struct server_counters *counters);
void server_wake(struct hvd_server *s);

/* server.c: `hooks` NULL: a server of its own */
enum hvd_status server_new(const struct hvd_server_options *opt,
                           const struct guest_hooks *hooks, struct hvd_server **server_p,
                           struct hvd_error *err);

/* server_listen.c */
enum hvd_status listen_open(struct hvd_server *s, const char *const *addresses, int count,
                            uint16_t port, struct hvd_error *err);
void listen_close(struct hvd_server *s);

/* server_loop.c */
void *loop_run(void *server);

/* server_peer.c; all may move any peer to the list of the dead, never free one. */
void peer_accepted(struct hvd_server *s, int fd, const struct sockaddr_storage *from);
void peer_handle(struct hvd_server *s, struct peer *p, uint32_t events);
void peer_drop(struct hvd_server *s, struct peer *p);
void peer_push_out_oldest(struct hvd_server *s);
void peer_expire(struct hvd_server *s, uint64_t now_us);
uint64_t peer_next_deadline_us(const struct hvd_server *s);
void peer_free_dead(struct hvd_server *s);
void peer_send_tables(struct hvd_server *s);    /* to those for whom there was no room */
void peer_watch(struct hvd_server *s, struct peer *p);  /* for what it wants to write */
/* err to all who wait (they leave), and, `running`, to all who run (they stay). */
void peer_tell_all(struct hvd_server *s, const struct hvd_error *err, bool running);

/* server_guest.c */
void guest_came(struct hvd_server *s, struct peer *p);          /* it has proved itself */
void guest_handle(struct hvd_server *s, struct peer *p, uint32_t events);
void guest_turn(struct hvd_server *s, uint64_t now_us);

#endif
