/*
 * host_int.h: what the ranks of one host share: the region (control lines, rings, board
 * area) and their arenas.
 */
#ifndef HVD_TRANSPORT_HOST_INT_H
#define HVD_TRANSPORT_HOST_INT_H

#include "transport/transport.h"

#include <stdalign.h>
#include <stdatomic.h>

#define LINE 128                        /* bytes between words of different writers: two
                                         * cache lines, which x86 fetches in pairs */

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
    size_t left, ring_bytes, rings, board, board_bytes, bytes;
};

/* What this process knows of its host. */
struct host_share {
    struct region *region;              /* NULL: no memory is shared */
    struct region_layout layout;
    int fd;
    int alarm;                          /* eventfd of all of them: readable from the first
                                         * verdict on; -1: none */
    int count, self;                    /* local ranks, and which we are */
    int *doorbells;                     /* eventfd by local rank, our own included */
    char **arenas;                      /* by local rank: their memory, mapped here; ours
                                         * is the arena itself */
    size_t *arena_bytes;
    uint64_t **touched;                 /* by local rank: shm_touch.c, rule 2 */
    pid_t *pids;
    bool can_cma;
};

void region_layout(struct region_layout *out, int local_size, int size,
                   size_t board_bytes);
/* Words of a map with a bit for each rank. */
static inline size_t left_words(int size)
{
    return ((size_t)size + 63) / 64;
}
enum hvd_status region_create(const struct region_layout *layout, int *fd_p,
                              struct hvd_error *err);
enum hvd_status region_map(struct host_share *h, int fd, struct hvd_error *err);
/* Maps a peer's arena, which must be a sealed memfd of exactly `bytes`. */
enum hvd_status region_map_arena(struct host_share *h, int local_rank, int fd, size_t bytes,
                                 struct hvd_error *err);
void host_release(struct host_share *h);
/* shm_touch.c */
void touch_release(struct host_share *h);

char *host_ring(const struct host_share *h, int from, int to);

/* shm_meet.c */
struct mesh_listener;
enum hvd_status shm_meet(struct mesh *m, struct mesh_listener *listener,
                     const struct table *table, struct hvd_error *err);

/* arena.c */
int arena_descriptor(size_t limit, size_t *bytes_p);    /* -1: none; stays ours */
void *arena_base(size_t *bytes_p);

#endif
