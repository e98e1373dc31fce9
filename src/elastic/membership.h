/*
 * membership.h: who belongs to an elastic job, and what follows when somebody comes, goes or
 * dies.  A pure machine: events go in, actions come out; no socket, no clock (every event
 * carries the time), no random number that its seed does not give.  One thread at a time.
 *
 * Words
 *   worker      a process, known by its number, which is never given twice
 *   slot        a place for a worker on a host
 *   generation  the workers that train together, with ranks; numbered from 1 on
 *   member      a worker of the present generation
 *   wanted      a slot that the hosts, --max-np and what has failed leave to the job
 *
 * Rules
 *  1. The first generation forms when the hosts have had np slots and every worker that was
 *     started is ready or has failed; a later one as soon as every living member is ready
 *     and at least min-np ready workers are on wanted slots.  Nobody waits for a worker
 *     that starts.
 *  2. A worker that ends with another code than 0, loses its connection, is silent, or does
 *     not get ready within the limit has failed.  Workers that were stopped or retired by
 *     this machine have not, whatever their code is.
 *  3. A failure takes its host off the job (for ever, or for the cooldown), unless the slot
 *     has restarts left, or the others would be fewer than min-np: then the slot is started
 *     again, in place, but at most REPAIRS_MAX times without a commit of the newcomer.
 *  4. A new worker waits beside the job.  When all that are starting have come (or after
 *     PATIENCE_US), the members get an update, and the next commit takes them in.
 *  5. Members that are not wanted any more get an update; they go when all members are
 *     ready, never before.
 *  6. Somebody of the last generation goes on in every later one: the state lives in the
 *     members.  When the last of them has gone, the job has failed.
 *  7. An update says what is different from the present generation; what was undone is
 *     withdrawn by an update of nothing.  Versions count up and never come back.
 *  8. Rank 0, from whom the state comes: of those who were members the one with most
 *     commits, of these the longest-lived, of these the first in order.  The others in the
 *     order of hosts (old ones first) and slots.
 *  9. A worker that ended with 0 while others still train: the job is finishing; nothing is
 *     started any more, who has not joined yet is sent home; who is left goes on as long as
 *     there are min-np of them.
 * 10. A worker that is here, but that others name as lost ACCUSED_MAX times without a
 *     generation that has met in between, is cut off from them and has failed: of two that
 *     name each other, the worse root.  Otherwise a cut between two hosts would be an endless
 *     series of resets.
 * 11. A job that is told to leave as a whole starts nobody and forms no generation any more:
 *     the members get an update, are retired when all of them are ready, and the job ends
 *     well when the last one has ended, unless one has failed on the way.
 */
#ifndef HVD_ELASTIC_MEMBERSHIP_H
#define HVD_ELASTIC_MEMBERSHIP_H

#include "base/error.h"
#include "base/strbuf.h"
#include "horovod/driver.h"

#define MEMBERSHIP_NONE UINT64_MAX      /* no deadline */

struct membership_options {
    int np;                             /* slots that must be there before the start */
    int min_np, max_np;                 /* max_np 0: no limit */
    int reset_limit;                    /* -1: none */
    int restarts_per_slot;
    uint64_t elastic_timeout_us;        /* too few slots, or a member that does not get ready */
    double cooldown_lo_s, cooldown_hi_s;        /* 0: blacklisted for ever */
    uint32_t grace_ms;                  /* of STOP */
    uint32_t gone_ms;                   /* from the end of a connection to the news of its
                                         * process */
    uint64_t seed;                      /* of the cooldown's random part */
};

struct membership;

struct membership *membership_new(const struct membership_options *opt);
void membership_free(struct membership *m);

/* ---- Events; each may bring actions ------------------------------------------------- */

/* What discovery has found, in its order; copied. */
void membership_hosts(struct membership *m, const struct hvd_host *hosts, int count,
                      uint64_t now_us);
void membership_discovery_failed(struct membership *m, const char *why, uint64_t now_us);

/* False: that worker is unknown, has ended, was removed, or is connected already. */
bool membership_connected(struct membership *m, int worker, uint64_t now_us);
/* It asks for an assignment.  generation: the one it was in; failed: that one broke.
 * False: the message does not fit, its sender is to be cut off. */
bool membership_ready(struct membership *m, int worker, uint32_t generation, bool failed,
                      uint64_t commits, uint64_t now_us);
/* It names the rank of that generation that it has lost, before it is ready. */
void membership_accuse(struct membership *m, int worker, uint32_t generation, int lost_rank);
void membership_formed(struct membership *m, int worker, uint32_t generation,
                       uint64_t now_us);
void membership_committed(struct membership *m, int worker, uint32_t generation,
                          uint64_t now_us);
void membership_disconnected(struct membership *m, int worker, const char *why,
                             uint64_t now_us);
void membership_ended(struct membership *m, int worker, int code, int signal,
                      const char *text, uint64_t now_us);
/* This worker, all workers of this host, the whole job have been told to leave. */
void membership_notice(struct membership *m, int worker, uint64_t now_us);
void membership_host_notice(struct membership *m, const char *host, uint64_t now_us);
void membership_leave(struct membership *m, uint64_t now_us);

/* When membership_tick is due at the latest; MEMBERSHIP_NONE: never by itself. */
uint64_t membership_deadline_us(const struct membership *m);
void membership_tick(struct membership *m, uint64_t now_us);

/* ---- Actions ------------------------------------------------------------------------ */

enum member_action_kind {
    MEMBER_START,                       /* worker, host, slot, place */
    MEMBER_STOP,                        /* worker, grace_ms */
    MEMBER_ASSIGN,                      /* generation, places, count, sync, version */
    MEMBER_RETIRE,                      /* worker, text */
    MEMBER_UPDATE,                      /* worker, version, update */
    MEMBER_SAY,                         /* text */
    MEMBER_END,                         /* ok, worker (0: none), text; always the last */
};

/* Where a worker stands in a generation. */
struct member_place {
    int worker;
    int rank, local_rank, local_size, cross_rank, cross_size;
};

struct member_action {
    enum member_action_kind kind;
    int worker;
    const char *host;
    int slot;
    uint32_t grace_ms;
    uint32_t generation, version;
    unsigned update;                    /* bits of elastic_message.h */
    bool sync, ok;
    const struct member_place *places;  /* by rank; of START: a first guess, one */
    int count;                          /* of places, the size; of START: a guess */
    const char *text;
};

/* The next action, in order.  False: none.  What it points to is valid until the next
 * call. */
bool membership_next(struct membership *m, struct member_action *action);

/* ---- Looking ------------------------------------------------------------------------ */

/* The worker's name in messages: "node1[0]". */
void membership_name(const struct membership *m, int worker, char *name, size_t capacity);
/* A line per worker that has not ended. */
void membership_describe(const struct membership *m, uint64_t now_us, struct strbuf *text);

#endif
