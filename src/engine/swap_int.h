/* swap_int.h: what swap.c and swap_end.c share; formats and rules stand in swap.c. */
#ifndef HVD_ENGINE_SWAP_INT_H
#define HVD_ENGINE_SWAP_INT_H

#include "engine/engine_int.h"

/* Items for one peer or several, until they are sent together. */
struct swap_out {
    struct strbuf bytes;
    uint32_t count;
    bool ended;                         /* the last message has been sent */
};

struct swap {
    bool by_host;                       /* false: every member is a group of its own */
    int group_count, group;             /* groups, ours */
    int *group_of;                      /* by member */
    int *group_size;                    /* by group: members */
    int *leaders;                       /* by group: its first member */
    int *mates, mate_count, place;      /* members of our group; our place among them */
    struct swap_out up;                 /* parts, to our leader */
    struct swap_out across;             /* sums, to the other leaders */
    struct swap_out down;               /* results, to our mates */
    struct list early;                  /* items of numbers that we do not know yet */
    bool *ended;                        /* by member: its last message has come */
    int open;                           /* entries in ENTRY_SWAP */
    int waiting;                        /* turns that somebody has come to, at a leader */
    const void **sources;               /* for one reduction */
};

/* One turn of a number at a leader; two of them take turns. */
struct swap_turn {
    uint32_t turn;
    bool waiting;                       /* somebody has come, and not all have */
    uint64_t first_us;                  /* when the first one came */
    int parts, sums;
    bool *has_part, *has_sum;           /* by place, by group */
    char *part, *sum;                   /* by place, by group */
};

struct swap_room {
    size_t part_bytes, sum_bytes;
    struct swap_turn turns[2];          /* by parity of the turn */
};

static inline bool swap_leads(const struct swap *w)
{
    return w->place == 0;
}

#endif
