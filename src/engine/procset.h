/*
 * procset.h: a process set on this rank: its members and their layout, the ways of its cached
 * tensors, what is in flight, and what its coordinator has said.
 *
 * Thread: owner of the baton only, but for the list of sets and the members of each, which
 * other threads read under `front`.
 * Lifetime: a response of the global set makes and removes sets; so whoever walks e->sets and
 * lets responses be done looks its set up again afterwards.
 */
#ifndef HVD_ENGINE_PROCSET_H
#define HVD_ENGINE_PROCSET_H

#include "base/hash.h"
#include "engine/cached.h"
#include "engine/entry.h"
#include "engine/negotiate.h"
#include "engine/tree.h"
#include "engine/way.h"

/* Boards [0, BATCH_BOARDS) carry negotiated batches in turn, the others cached names. */
#define BATCH_BOARDS 64
#define CACHE_NUMBERS (TEAM_BOARDS - BATCH_BOARDS)

/* A response that waits for its turn. */
struct inbound {
    struct list node;
    size_t n, at;
    uint32_t left;                      /* responses in it that are still to be done */
    uint8_t bytes[];
};

struct pset {
    int id, slot;
    uint32_t epoch;
    int *ranks, count;
    int self;                           /* our position, -1: not a member */
    bool local;                         /* all members share this host's memory */
    bool open_sizes;                    /* its cached allgathers and alltoalls: cached.open */
    const struct layout *layout;        /* of its team; NULL if not a member */
    int fanout;                         /* of the tree of its hosts */
    struct tree_node tree;              /* our host in it */
    bool deep;                          /* some hosts are not children of the first */
    struct way *ways[WAYS_MAX];         /* in the order in which they are asked */
    int way_count;
    struct coll_team *team;             /* NULL if not a member */
    struct negotiator *neg;             /* NULL if not the coordinator */
    struct hash inflight;               /* name -> entry */
    struct hash cache;                  /* name -> cached */
    struct cached **by_number;          /* CACHE_NUMBERS */
    struct strbuf requests;             /* to be sent to the coordinator */
    uint32_t request_count;
    struct strbuf upward;               /* to be handed on, see upward.c */
    uint32_t upward_count;
    struct list responses;              /* inbound, oldest first */
    bool ended;                         /* the last one has come; or we have sent it */
    uint32_t seq;                       /* last response done */
    uint64_t batches;                   /* batches started: gives the board */
    uint32_t turns[BATCH_BOARDS];       /* last turns of their boards */
    int device_index;                   /* GPU of this rank in this set; -1: none yet */
    struct device_set *device;          /* what the members agreed on for GPUs; or NULL */
    uint64_t running_mask;              /* boards of batches that run */
    int running, orphans;
    int joined_count;
    struct entry *join_entry;
    bool join_held;                     /* not announced yet, see member_flush */
    int hits_open;                      /* entries that a CACHED response runs */
    int64_t unnamed[OP_KIND_COUNT];     /* counters of unnamed operations */
    uint64_t *counts;                   /* by member, of a call that is being started */
    bool ending;                        /* removal announced here: no new operations */
};

enum hvd_status pset_new(struct engine *e, int id, int slot, uint32_t epoch,
                         const int *ranks, int count, struct pset **set_p,
                         struct hvd_error *err);
void pset_free(struct engine *e, struct pset *s);
struct pset *pset_find(struct engine *e, int id);
/* True while this rank may start numbers: it has not promised to stop (JOIN). */
bool pset_starts_cached(const struct pset *s);
/* Finds its place in the tree of hosts: layout and fanout are known. */
void pset_find_tree(struct pset *s);
void pset_put_head(const struct pset *s, enum message_kind kind, struct strbuf *out);
void pset_fail(struct engine *e, struct pset *s, enum hvd_status status,
               const struct hvd_error *why, bool committed_too);

/* responses.c */
bool pset_leads(const struct pset *s);
int pset_source(const struct pset *s);
void pset_hand_on(struct engine *e, const struct pset *s, const void *bytes, size_t n);
void pset_say_end(struct engine *e, struct pset *s);
bool pset_has_ended(struct engine *e, struct pset *s);
/* Calls `each` for every rank that hears of this one, or of whom this one hears: all that share
 * an edge of the tree with it. */
void pset_each_neighbour(struct engine *e, const struct pset *s,
                         void (*each)(struct engine *e, int rank, void *context), void *context);

/* upward.c */
typedef enum hvd_status (*upward_fn)(struct engine *e, struct pset *s, int member,
                                     const uint8_t *bytes, size_t n, struct hvd_error *err);
int upward_to(const struct pset *s);
enum hvd_status upward_take(struct engine *e, struct pset *s, int member, const uint8_t *bytes,
                            size_t n, struct hvd_error *err);
enum hvd_status upward_on_forward(struct engine *e, struct pset *s, int sender,
                                  struct wire_in *in, uint32_t count, upward_fn take,
                                  struct hvd_error *err);
bool upward_flush(struct engine *e, struct pset *s);

/* announce.c */
void entry_announce(struct engine *e, struct entry *entry, struct cached *revoked);
void member_flush(struct engine *e, struct pset *s);
/* Completes the head of a message and sends it. */
void member_send(struct engine *e, struct pset *s, int member, struct strbuf *out,
                 uint32_t count);

/* member.c, member_batch.c: this rank as a member of a set */
enum hvd_status member_execute(struct engine *e, struct pset *s, struct wire_in *in,
                               struct hvd_error *err);
enum hvd_status member_execute_cached(struct engine *e, struct pset *s,
                                      struct wire_in *in, struct hvd_error *err);
void member_process(struct engine *e, struct pset *s);

#endif
