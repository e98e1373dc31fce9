/* membership_int.h: the parts of the membership machine.
 *
 *   membership.c         events, and what follows from them (membership_settle)
 *   membership_hosts.c   hosts, slots, blacklist: which slots are wanted
 *   membership_form.c    a generation: who, in which order, with which numbers
 *   membership_leave.c   notice to a worker, a host, the whole job
 *   membership_queue.c   actions on their way out, and the texts of what happened
 */
#ifndef HVD_ELASTIC_MEMBERSHIP_INT_H
#define HVD_ELASTIC_MEMBERSHIP_INT_H

#include "elastic/membership.h"

#define PATIENCE_US 30000000            /* rule 4 */
#define REPAIRS_MAX 3                   /* rule 3 */
#define REPAIR_PAUSE_US 1000000         /* times the repairs so far */
#define UNENDING_US 30000000            /* beyond the grace: its end is not waited for */
#define ACCUSED_MAX 2                   /* rule 10 */
#define HEALTHY_US 60000000             /* a worker that lived so long was no failed repair */

/* What is true in each state of a worker. */
#define WORKER_STATES(X)                                                               \
    X(STARTING, "was started and has not asked for an assignment")                     \
    X(READY, "waits for an assignment")                                                \
    X(MEMBER, "has the assignment of the present generation")                          \
    X(GONE, "its connection has ended, its process perhaps not yet")                   \
    X(RETIRED, "was told to leave")                                                    \
    X(STOPPED, "is being ended by force")                                              \
    X(ENDED, "its process has ended")

enum worker_state {
#define WORKER_STATE_ENUM(name, text) WORKER_##name,
    WORKER_STATES(WORKER_STATE_ENUM)
#undef WORKER_STATE_ENUM
};

struct member_worker {
    enum worker_state state;
    int host, slot;
    uint64_t since_us;                  /* of the state */
    uint64_t started_us;
    bool connected, was_connected;
    bool is_member;                     /* of the present generation, whatever its state */
    bool is_formed;                     /* has met the others of its generation */
    bool is_leaving;                    /* it has had notice */
    bool has_committed;                 /* since it was started */
    bool counted;                       /* its failure was dealt with */
    int rank;                           /* in the present generation */
    int accused;                        /* rule 10 */
    uint32_t first_generation;          /* 0: was in none */
    uint64_t commits;
    unsigned told_update;               /* bits of the last update it got */
};

struct host_slot {
    int worker;                         /* the last one started there; 0: none */
    int restarts;                       /* used of restarts_per_slot */
    int repairs;                        /* in a row, without a commit; rule 3 */
    bool was_killed;                    /* its worker: not the program's fault */
    bool is_empty;                      /* given up: its worker has left with notice */
    uint64_t not_before_us;             /* of the next start */
};

struct member_host {
    char name[HVD_HOST_MAX];
    int slot_count;                     /* that discovery gives now */
    struct host_slot *slots;
    int slot_capacity;
    bool is_listed;
    bool is_going;                      /* has had notice; until it is listed anew */
    uint64_t age;                       /* order of hosts; grows */
    uint64_t black_until_us;            /* 0: not blacklisted */
    int black_count;
};

struct action {
    struct member_action a;
    struct member_place *places;        /* owned */
    char *text, *host;                  /* owned */
};

struct membership {
    struct membership_options opt;
    struct member_host *hosts;
    int host_count, host_capacity;
    int *order;                         /* host indexes by age, host_capacity of them */
    uint64_t next_age;
    struct member_worker *workers;             /* [number - 1] */
    int worker_count, worker_capacity;
    uint32_t generation;
    int resets;
    bool has_begun;                     /* np slots were there */
    bool is_broken;                     /* a member is ready, or has gone */
    bool had_failure;                   /* since the generation was formed: sync */
    bool is_finishing;                  /* rule 9 */
    bool is_leaving;                    /* rule 11 */
    bool is_over;
    uint64_t broken_us;
    uint64_t short_us;                  /* since when slots are too few; 0: they are not */
    uint32_t version;                   /* of the last update */
    unsigned update;                    /* its bits */
    uint64_t update_key;                /* which change it announced */
    int unhandled;                      /* worker whose failure no generation dealt with */
    int first_failed;                   /* of all; 0: none */
    int finished;                       /* worker that ended with 0 */
    uint64_t settled_us;                /* time of the last event */
    struct strbuf events;               /* since the generation was formed: who and why */
    struct strbuf lost;                 /* all that were lost, for the last words */
    struct strbuf discovery;            /* what discovery said last */
    uint64_t random;
    struct action *queue;
    int queue_at, queue_count, queue_capacity;
};

/* membership.c */
struct member_worker *worker_of(const struct membership *m, int number);
void worker_enter(struct membership *m, struct member_worker *w, enum worker_state state,
                  uint64_t now_us);
bool worker_is_alive(const struct member_worker *w);   /* may still take part */
void membership_settle(struct membership *m, uint64_t now_us);

/* membership_leave.c */
void leave_end(struct membership *m);           /* rule 11: the last worker has ended */

/* membership_hosts.c */
void hosts_take(struct membership *m, const struct hvd_host *hosts, int count);
struct member_host *host_find(const struct membership *m, const char *name);
/* The first host that is on the same machine: driver.h, hvd_driver_hosts. */
int host_machine(const struct membership *m, int host);
/* Slots of available hosts, up to max_np. */
int slots_wanted(const struct membership *m, uint64_t now_us);
bool slot_is_wanted(const struct membership *m, int host, int slot, uint64_t now_us);
bool worker_is_wanted(const struct membership *m, const struct member_worker *w, uint64_t now_us);
void hosts_failed(struct membership *m, struct member_worker *w, uint64_t now_us);  /* rule 3 */
/* Whether a slot that failed before the first generation is worth another try: somebody else
 * has shown that the program works, or the worker was killed. */
bool hosts_may_repair(const struct membership *m);
/* Slots whose workers have left with notice are of use again, once these have ended. */
void hosts_use_empty(struct membership *m);
void hosts_start_missing(struct membership *m, uint64_t now_us);
uint64_t hosts_deadline_us(const struct membership *m, uint64_t now_us);
void hosts_return(struct membership *m, uint64_t now_us);      /* cooldowns that are over */

/* membership_form.c */
/* All living members are ready: the next generation, or the end of all (rule 11). */
void form_next(struct membership *m, uint64_t now_us);
bool form_is_better_root(const struct member_worker *a, const struct member_worker *b);
void form_guess(struct membership *m, int worker, struct member_place *place, int *size_p);

/* membership_queue.c */
struct action *action_put(struct membership *m, enum member_action_kind kind, int worker);
void membership_say(struct membership *m, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void membership_end(struct membership *m, bool ok, int worker, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void queue_release(struct membership *m);

/* Zeroed; and room for one more: the old array grows.  Never NULL: out of memory ends the
 * process, as the driver could not do its duty any more. */
void *array_new(int count, size_t item_bytes);
void *array_grow(void *array, int count, int *capacity_p, size_t item_bytes);

#endif
