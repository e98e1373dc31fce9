/* negotiate_int.h: the coordinator's state, for negotiate*.c. */
#ifndef HVD_ENGINE_NEGOTIATE_INT_H
#define HVD_ENGINE_NEGOTIATE_INT_H

#include "base/hash.h"
#include "base/list.h"
#include "engine/negotiate.h"

/* A request that is kept; name, problem and splits lie behind it. */
struct neg_request {
    struct wire_request r;
    char bytes[];
};

/* A name that at least one member has announced. */
struct neg_tensor {
    struct list order;                  /* in n->pending until ready, then in n->ready */
    const char *name;                   /* of the first request */
    uint16_t name_bytes;
    struct neg_request **by_member;     /* NULL: not announced */
    int announced;
    int lowest;                         /* member, of those who have */
    uint64_t first_us, ready_us;
    bool is_ready;
};

/* A failed operation that some members have not announced yet: their next announcement of
 * its name belongs to it and gets the same error. */
struct neg_tomb {
    struct list node;                   /* in n->tombs, oldest first */
    char *name;
    uint16_t name_bytes;
    bool *owed;                         /* by member */
    int owed_count;
    struct hvd_error why;
};

struct neg_cached {
    struct list lru;                    /* in n->lru while live */
    struct list ready;                  /* in n->ready_cached while all have hit */
    bool live, in_use, is_ready;
    uint32_t seq;                       /* of the response that gave the number */
    uint32_t turn;                      /* last turn the coordinator has used */
    struct neg_request *request;        /* the coordinator's, with its name */
    uint64_t count, bytes;
    bool *hit;
    int hits;
    uint64_t first_us, ready_us;
};

struct neg_retired {
    uint32_t cached, seq;
};

struct negotiator {
    struct neg_options opt;
    int *ranks;
    struct hash names;                  /* -> neg_tensor */
    struct list tombs;                  /* neg_tomb.node; mostly empty */
    struct list pending, ready;         /* neg_tensor.order */
    struct list ready_cached;           /* neg_cached.ready */
    struct hash cached_names;           /* -> neg_cached */
    struct neg_cached *cached;          /* cache_capacity + slack numbers */
    int cached_limit, cached_live;
    struct list lru;                    /* least recently used first */
    struct neg_retired *retired;        /* ring of numbers that wait for acks */
    int retired_first, retired_count;
    int half_hit;                       /* cached names that some members have hit */
    struct neg_late *late;              /* by member */
    uint32_t *free_numbers;
    int free_count;
    uint32_t *acked;                    /* by member */
    uint32_t seq;                       /* of the last response */
    bool *joined;
    int joined_count;
    int last_joined;
    int64_t join_counters[OP_KIND_COUNT];
    struct strbuf out;                  /* responses decided while requests came in */
    uint32_t out_count;
    struct { int id, slot, *ranks, count; } *sets;      /* known process sets */
    int set_count;
    int *free_ids, free_id_count, next_id;
    int last_slot;                      /* given most recently */
    uint32_t set_epoch;
    struct neg_counters counters;
};

/* negotiate_check.c: HVD_OK, or the first disagreement of contract 4.2 between `member`, who has
 * announced t, and those who had before, the lowest of whom is t->lowest. */
enum hvd_status neg_check(const struct negotiator *n, const struct neg_tensor *t, int member,
                          struct hvd_error *err);

/* negotiate_cache.c */
bool neg_cache_init(struct negotiator *n);
void neg_cache_release(struct negotiator *n);
/* A number for t, -1 if it is not to be cached.  May put a REVOKE into n->out.  Its seq is
 * set, and in_use cleared, by whoever writes the response that gives it. */
int neg_cache_assign(struct negotiator *n, struct neg_tensor *t, uint64_t count,
                     uint64_t bytes);
/* `turn`: the last one that the promising member has come to. */
void neg_cache_revoke(struct negotiator *n, struct neg_cached *c, int promising,
                      uint32_t turn);
/* Forgets all without a response (JOINED says it). */
void neg_cache_clear(struct negotiator *n);
uint32_t neg_cache_number(const struct negotiator *n, const struct neg_cached *c);

/* fuse.c: writes all that is ready, whatever the window says.  What cannot be written for
 * lack of memory stays, and n->out tells. */
void neg_flush(struct negotiator *n);

/* negotiate_sets.c */
void neg_add_set(struct negotiator *n, struct neg_tensor *t);
void neg_remove_set(struct negotiator *n, struct neg_tensor *t);
void neg_sets_release(struct negotiator *n);

/* negotiate.c */
void neg_note_last(struct negotiator *n, int member, uint64_t first_us, uint64_t now_us);
void neg_begin_response(struct negotiator *n, enum response_kind kind);
void neg_fail(struct negotiator *n, struct neg_tensor *t, const struct hvd_error *why);
const struct neg_request *neg_any_request(const struct negotiator *n,
                                          const struct neg_tensor *t);
struct neg_request *neg_request_copy(const struct wire_request *r);
uint64_t neg_elements(const struct wire_request *r);
void neg_tensor_free(struct negotiator *n, struct neg_tensor *t);

#endif
