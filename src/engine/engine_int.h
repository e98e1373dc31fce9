/*
 * engine_int.h: the objects of the engine.
 *
 * Ownership and locks:
 *   baton   one owner at a time; guards everything but the next two
 *   front   (a mutex, never held across anything that blocks) guards the table of handles
 *           and the list of process sets as other threads see it
 *   handle  its `state` is atomic; its result is written before, and read after, it is done
 *   timeline_lock  held while a timeline is opened or closed
 * Order: timeline_lock, baton, then front.
 */
#ifndef HVD_ENGINE_ENGINE_INT_H
#define HVD_ENGINE_ENGINE_INT_H

#include "base/hash.h"
#include "base/mem.h"
#include "base/recorder.h"
#include "collective/collective.h"
#include "engine/dump.h"
#include "engine/engine.h"
#include "engine/negotiate.h"
#include "engine/stall.h"
#include "engine/timeline.h"
#include "engine/tune.h"

#include <pthread.h>
#include <stdatomic.h>

/* Boards [0, BATCH_BOARDS) carry negotiated batches in turn, the others cached names. */
#define BATCH_BOARDS 64
#define CACHE_NUMBERS (TEAM_BOARDS - BATCH_BOARDS)
/* Ranks above CPUs: yields before sleeping; about half a millisecond in all when only ranks
 * use the CPUs.  Others may take a time slice for each, and meanwhile nobody else can have the
 * baton, not even to look for stalls: hence the limit. */
#define ENGINE_YIELDS 300
#define ENGINE_YIELD_NS 3000000
/* negotiate_cache.c keeps that many numbers beyond the capacity. */
#define CACHE_SLACK 256

struct pset;
struct handle;
struct swap;
struct swap_room;
struct bundle;

enum entry_state {
    ENTRY_NEW,                          /* not seen by the engine yet */
    ENTRY_ANNOUNCED,                    /* in full, waits for a response */
    ENTRY_HIT,                          /* by cache number, waits for a response */
    ENTRY_DIRECT,                       /* its task runs on the board of its number */
    ENTRY_SWAP,                         /* it travels between the hosts, see swap.c */
    ENTRY_BATCH,                        /* part of a batch that runs */
    ENTRY_DONE,
};

/* How one tensor is executed: what the response (or the cache) says. */
struct plan {
    uint64_t *counts;                   /* see coll_call; NULL when not needed */
    uint64_t *recv_counts;
    int64_t *recv_rows;                 /* alltoall: rows from each member */
    uint64_t out_count;                 /* elements of the output */
    int64_t out_rows;                   /* its first dimension, -1: that of the input */
};

/* A name the cache knows: the request as all members agreed on it. */
struct cached {
    char *name;
    uint16_t name_bytes;
    uint8_t op, dtype, reduce, ndim;
    int32_t root;
    int64_t shape[HVD_DIMS_MAX];
    double prescale, postscale;
    uint32_t number, seq;
    uint32_t turn;                      /* last turn started on its board */
    struct plan plan;
    struct coll_call call;              /* ready but for buffers, count and turn */
    uint64_t count;                     /* elements of the input */
    struct coll_task *kept;             /* of its operations in fast.c; NULL: none yet */
    struct recorder_form done;          /* what the recorder gets of each of them */
    struct entry *entry;                /* in flight by this number */
    bool swaps;                         /* small: it travels with its announcement */
    bool dying;                         /* taken back; goes when its entry has ended */
    struct swap_room *room;             /* see swap.c; or NULL */
};

struct entry {
    struct list node;                   /* in e->direct while ENTRY_DIRECT */
    struct handle *handle;
    struct pset *set;                   /* may be gone once the entry is done */
    int set_size;
    enum entry_state state;
    uint8_t op, dtype, reduce, ndim;
    int32_t root;                       /* set rank; OP_SET_REMOVE: the id */
    int64_t shape[HVD_DIMS_MAX];
    double prescale, postscale;
    uint64_t count;                     /* elements of the input */
    const void *input;
    void *output;
    bool own_output;                    /* allocated by us, not taken yet */
    bool orphan;                        /* direct, but its number was taken back */
    char *name;                         /* owned */
    uint16_t name_bytes;
    uint16_t group_count;
    uint32_t group_key;
    int64_t *splits;                    /* owned; set ranks for OP_SET_ADD */
    uint32_t split_count;
    char *problem;                      /* owned */
    uint64_t submit_us;
    uint64_t wait_us;                   /* since when a thread sleeps for it; 0: none */
    uint32_t turn;                      /* ENTRY_SWAP: of its number */
    int last_missing;                   /* member that had not come when it was looked at */
    struct cached *cached;
    struct coll_task *task;
    int64_t out_rows;                   /* first dimension of the output */
    int64_t *recv_rows;                 /* owned; alltoall */
    int64_t value;
};

struct handle {
    hvd_handle id;
    atomic_uint done;                   /* futex word: 0, then 1 */
    struct hvd_error err;               /* first failure; HVD_OK */
    int count, left;
    struct entry entries[];
};

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
    bool direct;                        /* cached names need no coordinator */
    struct swap *swap;                  /* nor small ones here; NULL: they do */
    struct bundle *bundle;              /* others go through leaders; NULL: straight */
    struct coll_team *team;             /* NULL if not a member */
    struct negotiator *neg;             /* NULL if not the coordinator */
    struct hash inflight;               /* name -> entry */
    struct hash cache;                  /* name -> cached */
    struct cached **by_number;          /* CACHE_NUMBERS */
    struct strbuf requests, hits;       /* to be sent to the coordinator */
    uint32_t request_count, hit_count;
    struct list responses;              /* inbound, oldest first */
    bool ended;                         /* the last one has come; or we have sent it */
    uint32_t seq;                       /* last response done */
    uint64_t batches;                   /* batches started: gives board and turn */
    uint64_t running_mask;              /* boards of batches that run */
    int running, orphans;
    int joined_count;
    struct entry *join_entry;
    bool join_held;                     /* not announced yet, see member_flush */
    int hits_open;                      /* entries in ENTRY_HIT */
    int64_t unnamed[OP_KIND_COUNT];     /* counters of unnamed operations */
    bool ending;                        /* removal announced here: no new operations */
};

struct batch {
    struct list node;                   /* in e->batches */
    struct pset *set;
    uint32_t board;
    struct coll_task *task;
    struct plan *plans;                 /* by tensor */
    struct plan all;                    /* of the fused call, see pack.c */
    char *fused;                        /* fusion buffer, or scratch of a joined rank */
    uint64_t *counts;                   /* elements by tensor */
    size_t *segments;
    int count;
    uint8_t op, dtype, reduce;
    uint64_t start_us;
    struct entry *entries[];            /* NULL where this rank has joined */
};

enum engine_state {
    ENGINE_RUNNING,
    ENGINE_LEFT,                        /* a rank has shut down: nothing new starts */
    ENGINE_FAILED,                      /* the mesh has a verdict */
    ENGINE_STOPPED,                     /* engine_stop has begun */
};

struct op_stats {
    uint64_t count, bytes, errors;
    uint64_t timed, time_ns;            /* of those whose time was taken */
};

struct engine {
    struct mesh *mesh;
    struct config *conf;
    const struct mesh_topology *topo;
    bool dynamic_sets;
    struct pset *sets[TEAM_SLOTS];      /* by id */
    struct list direct, batches;
    struct list early;                  /* messages for sets that do not exist here yet */
    _Atomic enum engine_state state;
    struct hvd_error failure;           /* valid when state is not RUNNING */
    struct hvd_error farewell;          /* a rank has left in order; HVD_OK: nobody has */
    bool said_goodbye;                  /* we have told the others so */
    uint64_t linger_until_us;           /* when state is LEFT: what runs may end by then */
    int open_entries;                   /* not done yet */

    pthread_mutex_t front;
    struct handle **table;
    size_t table_size;                  /* power of two */
    hvd_handle next_id;
    struct handle *spare;               /* for a short run that has to wait; or NULL */
    int spare_rows;                     /* places of its recv_rows */

    atomic_uint baton;                  /* 0 free, 1 taken, 2 taken and wanted */
    atomic_int waiting;                 /* user threads that sleep on a handle */
    pthread_t thread;
    bool has_thread;
    bool has_sockets;                   /* the mesh has */
    atomic_bool stop;
    bool boards;                        /* a change of the boards matters while asleep */
    atomic_bool held;                   /* announcements wait for more of them */
    uint64_t flush_due_us;              /* announcements wait for more until then; 0: none */
    _Atomic uint64_t sleep_until_us;    /* of the thread, when it sleeps; 0: awake */
    _Atomic uint64_t doze_until_us;     /* until then the sockets may stay off; 0: they are on,
                                         * or there are none.  Changed by the owner only */
    uint64_t left_us;                   /* when the owner last left nothing open */
    int close_count;                    /* times in a row that this was soon after the last, up
                                         * to DOZE_AFTER */
    double spin_us;

    struct { char *at; size_t bytes; bool used; } *fusion;      /* buffers, kept */
    int fusion_count;
    struct recorder *recorder;
    struct op_stats stats[HVD_OP_COUNT];
    uint64_t cache_hits, cache_misses, fast_runs;
    struct peer_wait { uint64_t count, us; } *peer_waits;       /* by rank: came last */
    struct dump *dump;
    bool dumps_enabled;
    struct stall *stall;                /* NULL: disabled */
    bool heard;                         /* announcements came: the thread's timer is old */
    struct tune *tune;                  /* rank 0, while autotune looks for values */
    pthread_mutex_t timeline_lock;
    struct timeline *timeline;          /* NULL: nothing is recorded */
};

/* handle.c */
struct handle *handle_new(int count);
void handle_free(struct handle *h);
hvd_handle handle_publish(struct engine *e, struct handle *h);
struct handle *handle_find(struct engine *e, hvd_handle id);
void handle_forget(struct engine *e, struct handle *h);
const char *engine_op_text(uint8_t op);
void entry_complete(struct engine *e, struct entry *entry, enum hvd_status status,
                    const struct hvd_error *err);

/* submit.c */
enum hvd_status entry_fill(struct engine *e, struct entry *entry,
                           const struct hvd_request *req, struct hvd_error *err);
void entry_begin(struct engine *e, struct entry *entry);

/* plan.c */
enum hvd_status plan_make(struct plan *p, const struct pset *s, const struct entry *t,
                          const struct wire_tensor *w, struct hvd_error *err);
enum hvd_status plan_copy(struct plan *p, const struct plan *from, int members,
                          struct hvd_error *err);
void plan_release(struct plan *p);
enum red_op plan_reduce(uint8_t reduce);
void plan_call(struct coll_call *call, const struct pset *s, uint8_t op, uint8_t dtype,
               uint8_t reduce, int root, double prescale, double postscale,
               const struct plan *p);
enum hvd_status entry_prepare_output(struct entry *t, const struct plan *p,
                                     struct hvd_error *err);
void output_free(void *p);
void *output_alloc(size_t bytes);

/* announce.c */
void entry_announce(struct engine *e, struct entry *entry, struct cached *revoked);
void entry_announce_hit(struct engine *e, struct entry *entry, struct cached *c);
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
enum hvd_status member_cache_add(struct engine *e, struct pset *s, const struct entry *t,
                                 const struct wire_tensor *w, struct plan *p);
void cached_free(struct pset *s, struct cached *c);

/* direct_run.c: cached names of one host */
void direct_start(struct engine *e, struct entry *t, struct cached *c);
bool direct_step(struct engine *e, struct entry *t);
bool direct_step_all(struct engine *e);
bool cached_matches(const struct cached *c, const struct entry *t);
void direct_take_back(struct engine *e, struct pset *s, struct cached *c, uint32_t turn);
bool direct_is_open(const struct engine *e, const struct pset *s);

/* swap.c, swap_end.c, swap_wait.c: small cached tensors between hosts */
enum hvd_status swap_new(const struct engine *e, const struct pset *s,
                         struct swap **swap_p, struct hvd_error *err);
void swap_free(struct swap *w);
bool swap_fits(const struct pset *s, const struct cached *c);
void swap_start(struct engine *e, struct entry *t, struct cached *c);
void swap_withdraw(struct entry *t);    /* its turn is left: it starts over or fails */
void swap_forget(struct pset *s, struct cached *c);
bool swap_has_open(const struct pset *s);
uint32_t swap_pending(const struct pset *s);    /* items to be sent */
bool swap_is_full(const struct pset *s);        /* enough for a message */
void swap_flush(struct engine *e, struct pset *s);
enum hvd_status swap_on_message(struct engine *e, struct pset *s, int member,
                                struct wire_in *in, uint32_t count,
                                struct hvd_error *err);
bool swap_has_early(const struct pset *s);
void swap_replay(struct engine *e, struct pset *s);
bool swap_end(struct engine *e, struct pset *s);
bool swap_is_waiting(const struct pset *s);
bool swap_has_report(const struct pset *s);     /* for all members */
/* missing: room for one flag per member */
void swap_each_waiting(const struct pset *s, uint64_t since_us, bool *missing,
                       neg_stall_fn each, void *context);
int swap_missing_member(const struct entry *t);
void swap_leave(struct engine *e, struct pset *s, enum hvd_status status,
                const struct hvd_error *why);

/* bundle.c: hits and responses of a host in one message */
enum hvd_status bundle_new(const struct engine *e, const struct pset *s,
                           struct bundle **bundle_p, struct hvd_error *err);
void bundle_free(struct bundle *b);
/* The member that our hits go to, and that responses come from. */
int bundle_source(const struct pset *s);
bool bundle_leads(const struct pset *s);        /* we bundle the hits of others */
void bundle_add(struct pset *s, uint32_t number, uint32_t seq, uint64_t now_us);
enum hvd_status bundle_on_hits(struct pset *s, int member, struct wire_in *in,
                               uint32_t count, struct hvd_error *err);
enum hvd_status bundle_on_message(struct engine *e, struct pset *s, int leader,
                                  struct wire_in *in, uint32_t count,
                                  struct hvd_error *err);
void bundle_forget(struct pset *s, uint32_t number);
uint64_t bundle_due_us(const struct pset *s);   /* when to flush; UINT64_MAX: never */
uint32_t bundle_pending(const struct pset *s);  /* items to be sent */
bool bundle_flush(struct engine *e, struct pset *s);
void bundle_drop(struct pset *s);               /* they are not sent */
void bundle_hand_on(struct engine *e, const struct pset *s, const void *bytes, size_t n);
void bundle_say_end(struct engine *e, struct pset *s);
bool bundle_has_ended(const struct engine *e, const struct pset *s);

/* fast.c: the short way, if it is open.  HVD_AGAIN: *handle_p is under way, or NULL if the
 * way is not open. */
enum hvd_status fast_run(struct engine *e, const struct hvd_request *req,
                         struct handle **handle_p, struct hvd_error *err);

/* execute.c */
enum hvd_status execute_batch(struct engine *e, struct pset *s, struct batch *b,
                              const struct wire_batch *w);
struct batch *batch_new(int count);
void batch_free(struct engine *e, struct batch *b);
bool execute_step_all(struct engine *e);
void execute_fail(struct engine *e, const struct pset *s, enum hvd_status status,
                  const struct hvd_error *why);

/* pack.c */
enum hvd_status pack_plan(struct batch *b, struct hvd_error *err);
size_t pack_bytes(const struct batch *b);
char *pack_result(const struct batch *b);
void pack_in(const struct batch *b);
void pack_out(const struct batch *b);

/* procset.c */
enum hvd_status pset_new(struct engine *e, int id, int slot, uint32_t epoch,
                         const int *ranks, int count, struct pset **set_p,
                         struct hvd_error *err);
void pset_free(struct engine *e, struct pset *s);
struct pset *pset_find(struct engine *e, int id);
void pset_put_head(const struct pset *s, enum message_kind kind, struct strbuf *out);
void entry_fail(struct engine *e, struct entry *t, enum hvd_status status,
                const struct hvd_error *why);
void pset_fail(struct engine *e, struct pset *s, enum hvd_status status,
               const struct hvd_error *why, bool committed_too);
void pset_cache_clear(struct pset *s);

/* cycle.c */
bool engine_progress(struct engine *e);
void engine_press(struct engine *e);
void engine_mark_cycle(struct engine *e);
void engine_fail(struct engine *e, enum engine_state state, const struct hvd_error *why);
void engine_say_goodbye(struct engine *e, int gone);
bool baton_try(struct engine *e);
void baton_take(struct engine *e);
void baton_give(struct engine *e);

/* One of them; false: enough.  *start_ns_p: 0 before the first. */
bool engine_yield(int count, uint64_t *start_ns_p);
bool engine_drive(struct engine *e, struct handle *h);
void engine_leave(struct engine *e);
void engine_send_held(struct engine *e);
void engine_leave_submit(struct engine *e, bool needs_us);
enum hvd_status engine_start_thread(struct engine *e, struct hvd_error *err);
void engine_join_thread(struct engine *e);
enum hvd_status engine_wait_handle(struct engine *e, struct handle *h, int64_t timeout_us);

/* engine.c */
void engine_begin(struct engine *e, struct handle *h);
/* Takes h; req NULL: its entries are filled. */
enum hvd_status engine_submit_handle(struct engine *e, struct handle *h,
                                     const struct hvd_request *req, bool waits,
                                     hvd_handle *handle_p, struct hvd_error *err);

/* stats.c */
void stats_note_wait(struct engine *e, struct handle *h);
void stats_note_sleep(struct engine *e);
void stats_end_wait(struct engine *e, const struct entry *t);

/* stall_watch.c */
struct stall *stall_new(const struct engine *e);        /* NULL: disabled */
void stall_free(struct engine *e);
uint64_t stall_due_us(struct engine *e);
void stall_look(struct engine *e);
char *stall_where(struct engine *e);
void stall_on_ask(struct engine *e, int peer);
void stall_on_where(struct engine *e, int peer, const struct wire_text *t);
void stall_on_report(struct engine *e, int peer, const struct wire_text *t);
uint64_t stall_report_count(const struct engine *e);

/* trace.c: entries in the timeline; a branch while nothing is recorded. */
#define TRACED(e) __builtin_expect((e)->timeline != NULL, 0)
#define trace_submit(e, t) (TRACED(e) ? trace_submit_slow(e, t) : (void)0)
#define trace_ready(e, s, m, r) (TRACED(e) ? trace_ready_slow(e, s, m, r) : (void)0)
#define trace_hit(e, s, number) (TRACED(e) ? trace_hit_slow(e, s, number) : (void)0)
#define trace_pass(e, s, name, n) (TRACED(e) ? trace_pass_slow(e, s, name, n) : (void)0)
#define trace_begin(e, t) (TRACED(e) ? trace_begin_slow(e, t) : (void)0)
#define trace_direct(e, t) (TRACED(e) ? trace_direct_slow(e, t) : (void)0)
#define trace_activity(e, t, a) (TRACED(e) ? trace_activity_slow(e, t, a) : (void)0)
#define trace_batch(e, b, a) (TRACED(e) ? trace_batch_slow(e, b, a) : (void)0)
#define trace_end(e, t, status) (TRACED(e) ? trace_end_slow(e, t, status) : (void)0)
void trace_submit_slow(struct engine *e, const struct entry *t);
void trace_ready_slow(struct engine *e, const struct pset *s, int member,
                      const struct wire_request *r);
void trace_hit_slow(struct engine *e, const struct pset *s, uint32_t number);
/* The negotiation of a name has ended without an entry here. */
void trace_pass_slow(struct engine *e, const struct pset *s, const char *name,
                     uint16_t name_bytes);
void trace_begin_slow(struct engine *e, const struct entry *t);
/* A cached operation of one host is committed; may be repeated. */
void trace_direct_slow(struct engine *e, const struct entry *t);
/* NULL: none (entry), the transfer (batch) */
void trace_activity_slow(struct engine *e, const struct entry *t, const char *activity);
void trace_batch_slow(struct engine *e, const struct batch *b, const char *activity);
void trace_end_slow(struct engine *e, const struct entry *t, enum hvd_status status);
void trace_start_configured(struct engine *e);
void trace_stop(struct engine *e);

/* inbox.c */
void engine_on_message(void *context, int peer, const uint8_t *bytes, size_t n);
void engine_replay_early(struct engine *e, struct pset *s);

#endif
