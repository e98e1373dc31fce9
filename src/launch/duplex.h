/*
 * duplex.h: frames of agent_wire.h over a pair of descriptors in an event loop.
 * Thread: that of the loop.
 */
#ifndef HVD_LAUNCH_DUPLEX_H
#define HVD_LAUNCH_DUPLEX_H

#include "launch/agent_wire.h"

#include <uv.h>

/* A sender of bulk stops above HIGH unsent bytes and goes on when LOW is reached. */
#define DUPLEX_HIGH (4u << 20)
#define DUPLEX_LOW (DUPLEX_HIGH - (256u << 10))

struct duplex;

/* The body is valid during the call only.  An error ends the channel with its text. */
typedef enum hvd_status (*duplex_frame_fn)(struct duplex *ch, unsigned type,
                                            const char *body, size_t bytes,
                                            struct hvd_error *err);
/* Called once: the peer has gone (err->status HVD_PEER_LOST) or broke the protocol. */
typedef void (*duplex_lost_fn)(struct duplex *ch, const struct hvd_error *err);

struct duplex {
    uv_loop_t *loop;
    uv_poll_t reader, writer;
    int in_fd, out_fd;                  /* -1 when closed */
    struct strbuf in, out;
    size_t in_at, out_at;               /* bytes already used */
    bool is_reading, is_writing;
    bool expects_magic;                 /* the magic has not come yet */
    bool lost;
    int handles;                        /* of libuv that are not closed yet */
    duplex_frame_fn on_frame;
    duplex_lost_fn on_lost;
    void (*on_drained)(struct duplex *ch);     /* NULL or: much was unsent, now little */
    void (*on_closed)(struct duplex *ch);      /* NULL or: its memory may go */
    void *owner;
};

/* Takes over both descriptors (they may be equal).  Set callbacks and owner before. */
enum hvd_status duplex_open(struct duplex *ch, uv_loop_t *loop, int in_fd, int out_fd,
                             struct hvd_error *err);
/* Closes the descriptors; on_closed follows when the memory may go. */
void duplex_close(struct duplex *ch);

/* Where frames are put; duplex_flush sends them. */
static inline struct strbuf *duplex_out(struct duplex *ch)
{
    return &ch->out;
}
void duplex_flush(struct duplex *ch);
size_t duplex_unsent(const struct duplex *ch);
/* Bytes in the clear, before the first frame (the magic). */
void duplex_send_raw(struct duplex *ch, const void *bytes, size_t count);

void duplex_pause(struct duplex *ch);         /* reads no more ... */
void duplex_resume(struct duplex *ch);        /* ... until this */

#endif
