/* stall_int.h: what stall_watch.c and stall_waits.c share. */
#ifndef HVD_ENGINE_STALL_INT_H
#define HVD_ENGINE_STALL_INT_H

#include "engine/engine_int.h"

#define STALL_ASK_MOST 64               /* ranks are asked where they are: a report names some */

/* stall_stuck.c */
struct stuck {
    uint64_t next_us;                   /* next look; 0: not armed */
    bool asked;                         /* at the last look */
};

struct stall {
    struct stall_times times;
    struct stuck stuck;
    uint64_t next_us;                   /* next look; 0: not armed */
    uint64_t reports;
    bool kinds;                         /* the job ends, for one name of different kinds */
    bool dumped;                        /* since all was well */
    uint64_t bytes_seen, moved_us;      /* what the mesh had moved at the last look; when it
                                         * had last moved something between two looks */
    char **where;                       /* by rank: the last answer, owned */
    bool *asleep;                       /* by rank: it has answered so, or need not */
};

/* The waits of one look; names and flags are copies. */
struct waits {
    struct engine *e;
    const struct pset *set;             /* whose negotiator is walked */
    struct stall_wait *list;
    int count, capacity;
    uint64_t oldest_us;
};

/* The oldest operation of this rank, NULL: none, and how many there are. */
const struct entry *stall_oldest_entry(const struct engine *e, int *count_p);

/* Asks a rank where it is. */
void stall_ask(struct engine *e, int rank);

/* stall_stuck.c.  A thread of this rank sleeps in the one operation that is under way. */
bool stuck_is_asleep(const struct engine *e);
uint64_t stuck_due_us(struct engine *e);
/* True: operations were ended. */
bool stuck_look(struct engine *e, const struct waits *w, uint64_t now_us);

void waits_init(struct waits *w, struct engine *e);
void waits_release(struct waits *w);
void waits_collect(struct waits *w, uint64_t now_us);
/* neg_stall_fn of w->set; context: the waits */
void waits_add(void *context, const char *name, uint8_t op, uint64_t first_us,
               const bool *missing);

#endif
