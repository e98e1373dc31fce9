/*
 * stall.h: operations that wait for ranks: when to ask, when to report, when to end the
 * job, and the words of the report.  Pure: waits and the time come in, verdicts and text
 * go out; stall_watch.c acts on them.
 */
#ifndef HVD_ENGINE_STALL_H
#define HVD_ENGINE_STALL_H

#include "base/strbuf.h"

#include <stdint.h>

struct stall_times {
    uint64_t warn_us;                   /* waits older than this are reported; > 0 */
    uint64_t lead_us;                   /* missing ranks are asked that much earlier */
    uint64_t shutdown_us;               /* waits older than this end the job; 0: never */
    uint64_t reported_us;               /* last report; 0: none since all was well */
    bool asked;                         /* for the next report, at: */
    uint64_t asked_us;
};

enum stall_action { STALL_NOTHING, STALL_ASK, STALL_REPORT, STALL_SHUTDOWN };

/* seconds; a limit for shutdown below the one for warning counts as none. */
void stall_set_times(struct stall_times *s, double warn_s, double shutdown_s);

/* What is due when the oldest wait began at oldest_us; *next_us_p: when to look again if
 * nothing changes. */
enum stall_action stall_decide(const struct stall_times *s, uint64_t oldest_us,
                               uint64_t now_us, uint64_t *next_us_p);

struct stall_wait {
    const char *name;
    uint64_t since_us;
    const bool *missing;                /* by global rank */
    bool left_to_other;                 /* another rank sees the same and says so */
    uint8_t op;                         /* enum hvd_op */
    int set;                            /* id of the process set */
};

/* The report over the waits older than warn_us: a sentence, the line "Missing ranks:" and
 * a line "<rank>: [name, name, ...]" per missing rank, "<rank>!: [...]" if it is missing
 * for longer than the limit.  where[rank] (or where itself) may be NULL. */
void stall_describe(struct strbuf *out, const struct stall_times *s,
                    const struct stall_wait *waits, int wait_count, int rank_count,
                    const char *const *where, uint64_t now_us);

/* A wait of at least age_us for ranks that have all come to another kind of operation under the
 * same name of the user; NULL: none. */
const struct stall_wait *stall_find_kinds(const struct stall_wait *waits, int wait_count,
                                          int rank_count, uint64_t age_us, uint64_t now_us);
bool stall_is_other_kind(const struct stall_wait *a, const struct stall_wait *b);
/* The ranks that are missing at one of the kinds; a: what stall_find_kinds has found. */
void stall_kinds_concern(const struct stall_wait *a, const struct stall_wait *waits,
                         int wait_count, int rank_count, bool *concerned);
/* "the name x is used for different kinds of operation: allreduce by ranks 0; allgather by
 * ranks 1"; a: what stall_find_kinds has found. */
void stall_describe_kinds(struct strbuf *out, const struct stall_wait *a,
                          const struct stall_wait *waits, int wait_count, int rank_count);

/* The ranks missing for longer than `limit_us`; false: none. */
bool stall_missing(const struct stall_wait *waits, int wait_count, int rank_count,
                   uint64_t limit_us, uint64_t now_us, bool *missing);

#endif
