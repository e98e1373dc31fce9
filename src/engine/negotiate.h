/*
 * negotiate.h: what the coordinator of one process set knows and decides.  Pure: members,
 * requests and the time come in as arguments, responses go out as bytes.  No socket, no
 * clock, no thread.
 */
#ifndef HVD_ENGINE_NEGOTIATE_H
#define HVD_ENGINE_NEGOTIATE_H

#include "wire/response.h"

#define NEG_SETS_MAX 63                 /* beside the global one; TEAM_SLOTS - 1 */

struct negotiator;

/* Numbers beyond the capacity of the cache, which wait for acknowledgements meanwhile. */
#define CACHE_SLACK 256

struct neg_options {
    int member_count;
    const int *ranks;                   /* global rank by member; copied */
    int cache_capacity;                 /* 0: no cache */
    bool open_sizes;                    /* cached allgathers and alltoalls say their sizes
                                         * with each operation */
    uint64_t fusion_bytes;              /* 0: no fusion */
    uint64_t window_us;                 /* how long ready tensors wait for more */
    bool group_fusion;                  /* groups may fuse with other tensors */
    /* The coordinator has promised not to start this number any more; its own member must
     * know before anything else happens.  May be NULL. */
    void (*on_promise)(void *context, uint32_t cached);
    void *context;
};

/* NULL: out of memory. */
struct negotiator *neg_new(const struct neg_options *opt);
void neg_free(struct negotiator *n);

/* An announcement of `member`.  Errors: HVD_PROTO (announced twice, a root or a number of
 * splits that cannot be), HVD_NOMEM. */
enum hvd_status neg_on_request(struct negotiator *n, int member,
                               const struct wire_request *r, uint64_t now_us,
                               struct hvd_error *err);
/* A cached tensor is announced by number; stale numbers are dropped. */
void neg_on_hit(struct negotiator *n, int member, uint32_t cached, uint32_t seq,
                uint64_t now_us);
/* `member` has done with all responses up to seq. */
void neg_on_ack(struct negotiator *n, int member, uint32_t seq);

/* The coordinator's own use of a cached tensor: a name in use is not evicted, and the
 * least recently used one goes first. */
void neg_started(struct negotiator *n, uint32_t cached, uint32_t turn);
void neg_ended(struct negotiator *n, uint32_t cached);

/* Appends the responses that are due, in their final order; *count_p of them. */
enum hvd_status neg_emit(struct negotiator *n, uint64_t now_us, struct strbuf *out,
                         uint32_t *count_p, struct hvd_error *err);
/* False: neg_emit would do nothing. */
bool neg_has_work(const struct negotiator *n);
/* When neg_emit has to be called again even if nothing comes; UINT64_MAX: never. */
uint64_t neg_due_us(const struct negotiator *n);

/* Values that autotune changes. */
void neg_tune(struct negotiator *n, uint64_t fusion_bytes, uint64_t window_us);
/* Puts a TUNE response into the order. */
void neg_put_tune(struct negotiator *n, double cycle_ms, uint64_t fusion_bytes);

/* Ids of process sets, when this is the coordinator of the global set. */
/* The slot it gets, -1: out of memory. */
int neg_know_set(struct negotiator *n, int id, const int *ranks, int count);

/* Calls `each` for every tensor that waits for members since before `since_us`.
 * missing[m] is true for members that have neither announced it nor joined. */
typedef void (*neg_stall_fn)(void *context, const char *name, uint8_t op,
                             uint64_t first_us, const bool *missing);
void neg_each_stalled(const struct negotiator *n, uint64_t since_us, neg_stall_fn each,
                      void *context);

/* Those who have announced this tensor get the error; who has not may announce it anew.
 * False: nobody waits for it here. */
bool neg_give_up(struct negotiator *n, const char *name, const struct hvd_error *why);

/* Some member waits for others. */
bool neg_is_waiting(const struct negotiator *n);

/* How often each member was the last to come, and how long the first had waited then. */
struct neg_late {
    uint64_t count, us;
};
const struct neg_late *neg_late(const struct negotiator *n);

struct neg_counters {
    uint64_t responses, batches, fused_tensors, fused_bytes, errors, evictions, revokes;
};
void neg_count(const struct negotiator *n, struct neg_counters *counters);

#endif
