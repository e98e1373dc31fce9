/*
 * sink.h: a terminal, pipe or file the launcher writes whole lines to, without ever
 * blocking the event loop.
 */
#ifndef HVD_LAUNCH_SINK_H
#define HVD_LAUNCH_SINK_H

#include "base/strbuf.h"

#include <uv.h>

/* A sender stops above HIGH bytes and goes on at LOW.  They are near each other, so that a
 * reader of 256 KiB a second keeps everybody waiting for less than a second. */
#define SINK_HIGH (4u << 20)
#define SINK_LOW (SINK_HIGH - (256u << 10))

struct sink {
    int fd;                             /* -1: there is none, all is thrown away */
    int error;                          /* errno of the write that broke it, 0: none */
    bool is_ours;                       /* fd is a description of our own */
    bool is_watched, has_poll, is_socket;
    uv_poll_t poll;
    struct strbuf buf;
    size_t at;
    int owner;                          /* who wrote last */
    char last;                          /* the last byte, '\n' at the start */
    void (*on_drained)(struct sink *sink);
    void (*on_broken)(struct sink *sink);   /* once; what comes later is thrown away */
    void *data;
};

/* Writes to a copy of fd that does not block; fd itself stays as it is. */
void sink_open(struct sink *sink, uv_loop_t *loop, int fd);
void sink_close(struct sink *sink);

/* One line or piece of `owner`, with its prefix where a line starts.  A line another owner
 * has left without an end is ended first. */
void sink_put(struct sink *sink, int owner, const char *prefix, const char *bytes,
              size_t count);
size_t sink_unwritten(const struct sink *sink);

#endif
