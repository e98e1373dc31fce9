/*
 * door_int.h: the door of a mesh: where connections are made and accepted, from the forming
 * of the mesh to its end.  door.c holds the rules; dial.c says whom to dial when.
 *
 * One thread at a time: the one that forms the mesh, then the watch thread.
 */
#ifndef HVD_TRANSPORT_DOOR_INT_H
#define HVD_TRANSPORT_DOOR_INT_H

#include "transport_int.h"

#include "base/strbuf.h"
#include "wire/replay.h"

#define DIAL_TARGETS 32                 /* addresses of one peer */

/* Where a rank can be dialled; by rank. */
struct place {
    uint16_t port;
    uint8_t count;                      /* addresses, one after another, each ends with 0 */
    bool same_kernel;
    uint32_t at;                        /* of the first, in door.texts */
};

enum attempt_state {
    ATTEMPT_CONNECTING,                 /* connect() under way */
    ATTEMPT_REPLY,                      /* hello sent, reading the reply */
    ATTEMPT_HELLO,                      /* accepted, reading hello */
    ATTEMPT_CONFIRM,                    /* reply sent, reading confirm */
    ATTEMPT_DEAD,                       /* ended; freed at the end of the step */
};

struct attempt {
    struct list node;
    enum attempt_state state;
    int fd;
    struct dial *dial;                  /* NULL: accepted */
    int target;                         /* index of its address in the dial */
    uint64_t deadline_us;               /* of one that was accepted */
    size_t got;
    uint8_t buffer[HS_REPLY];           /* the largest of the three */
    union {
        struct hs_dialer dialer;
        struct hs_listener listener;
    } hs;
};

/* One connection that we have to make; it ends when there is one. */
struct dial {
    struct list node;
    int peer;
    enum hs_purpose purpose;
    int target_count, next;
    uint64_t start_us;                  /* when the next address is due */
    uint64_t again_us;                  /* pause after all have been tried */
    uint64_t until_us;                  /* rule 7 */
    struct sockaddr_storage targets[DIAL_TARGETS];
    bool busy[DIAL_TARGETS];            /* an attempt is under way */
    struct hvd_error why;               /* of the last failure */
    struct hvd_error hint;              /* rule 3; HVD_OK: there is none */
};

struct door {
    struct mesh *m;
    struct mesh_listener *listener;     /* ours */
    struct place *places;               /* by rank */
    char *texts;
    uint8_t *made;                      /* by rank: bit of each purpose that is connected */
    struct replay seen;                 /* HELLOs that were answered */
    struct list attempts;               /* oldest first */
    struct list dead;                   /* attempts: events may still point to them */
    struct list dials;
    int stranger_count;                 /* accepted, no HELLO proved */
    int guest_count;                    /* accepted, HELLO proved */
    int epoll;
    bool accepting;                     /* the listeners are in the epoll */
    uint64_t accept_us;                 /* not before: out of descriptors */
    const struct dial *hopeless;        /* that peer runs another version */
};

struct attempt *attempt_new(struct door *d, int fd, struct dial *dial, int target);
void attempt_end(struct door *d, struct attempt *a);
void door_follow(struct door *d, struct attempt *a);    /* its socket, in the epoll */

/* dial.c */
void dial_begin(struct door *d, int peer, enum hs_purpose purpose, uint64_t until_us);
void dial_end(struct door *d, struct dial *dial);
struct dial *dial_find(const struct door *d, int peer, enum hs_purpose purpose);
/* What is due; when the next thing is. */
uint64_t dials_step(struct door *d, uint64_t now);
void dial_failed(struct door *d, struct attempt *a, const struct hvd_error *why);
/* Adds what is known of the way to the peer.  HVD_TIMEOUT, or what says more. */
enum hvd_status dial_cause(const struct dial *dial, struct strbuf *text);

#endif
