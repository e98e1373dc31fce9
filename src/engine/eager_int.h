/*
 * eager_int.h: what eager.c, eager_end.c and eager_wait.c share; formats and rules stand in
 * eager.c.
 */
#ifndef HVD_ENGINE_EAGER_INT_H
#define HVD_ENGINE_EAGER_INT_H

#include "engine/engine_int.h"

/* Items for one peer or several, until they are sent together. */
struct eager_out {
    struct strbuf bytes;
    uint32_t count;
    bool ended;                         /* the last message has been sent */
};

struct eager {
    struct way way;
    bool by_host;                       /* false: every member is a group of its own */
    const struct layout *groups;        /* of the set; or our own */
    struct layout own;
    struct eager_out up;                /* parts, to our leader */
    struct eager_out across;            /* sums, to the other leaders */
    struct eager_out down;              /* results, to our mates */
    struct list early;                  /* items of numbers that we do not know yet */
    bool *ended;                        /* by member: its last message has come */
    int open;                           /* entries under way here */
    int waiting;                        /* turns that somebody has come to, at a leader */
    const void **sources;               /* for one reduction */
};

/* One turn of a number at a leader; two of them take turns. */
struct eager_turn {
    uint32_t turn;
    bool waiting;                       /* somebody has come, and not all have */
    uint64_t first_us;                  /* when the first one came */
    int parts, sums;
    bool *has_part, *has_sum;           /* by place, by group */
    char *part, *sum;                   /* by place, by group */
};

struct eager_room {
    size_t part_bytes, sum_bytes;
    struct eager_turn turns[2];         /* by parity of the turn */
};

static inline struct eager *eager_of(const struct way *w)
{
    return (struct eager *)w;
}

/* eager.c */
bool eager_flush(struct way *way, struct engine *e, bool held);

/* eager_end.c */
bool eager_end(struct way *way, struct engine *e);
void eager_leave(struct way *way, struct engine *e, enum hvd_status status,
                 const struct hvd_error *why);

/* eager_wait.c */
bool eager_waits(const struct entry *t);
bool eager_has_come(const struct entry *t, int member);
bool eager_has_report(const struct way *way);
void eager_each_waiting(const struct way *way, uint64_t since_us, bool *missing,
                        neg_stall_fn each, void *context);

#endif
