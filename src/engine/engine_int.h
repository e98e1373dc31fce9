/*
 * engine_int.h: the engine itself: who may touch what, and what drives it.  Its objects have
 * headers of their own: entry.h, cached.h, plan.h, procset.h, way.h, trace.h.
 *
 * Ownership and locks:
 *   baton   one owner at a time; guards everything but the next two
 *   front   (a mutex, never held across anything that blocks) guards the table of handles
 *           and the list of process sets as other threads see it
 *   handle  its `state` is atomic; its result is written before, and read after, it is done
 *   completions_lock  never held across a call
 *   timeline_lock  held while a timeline is opened or closed
 * Order: timeline_lock, baton, then front or completions_lock.
 */
#ifndef HVD_ENGINE_ENGINE_INT_H
#define HVD_ENGINE_ENGINE_INT_H

#include "engine/dump.h"
#include "engine/engine.h"
#include "engine/procset.h"
#include "engine/stall.h"
#include "engine/timeline.h"
#include "engine/trace.h"
#include "engine/tune.h"

#include <pthread.h>

/* Ranks above CPUs: yields before sleeping; about half a millisecond in all when only ranks
 * use the CPUs.  Others may take a time slice for each, and meanwhile nobody else can have the
 * baton, not even to look for stalls: hence the limit. */
#define ENGINE_YIELDS 300
#define ENGINE_YIELD_NS 3000000

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
    struct list running;                /* entries that their way steps */
    struct list batches;
    struct list early;                  /* messages for sets that do not exist here yet */
    _Atomic enum engine_state state;
    struct hvd_error failure;           /* valid when state is not RUNNING */
    struct hvd_error farewell;          /* a rank has left in order; HVD_OK: nobody has */
    bool said_goodbye;                  /* we have told the others so */
    void (*failing)(void *context, const struct hvd_error *why);        /* of the options */
    void *context;
    bool has_told;                      /* `failing` was called */
    uint64_t linger_until_us;           /* when state is LEFT: what runs may end by then */
    int open_entries;                   /* not done yet */

    pthread_mutex_t front;
    struct handle **table;
    size_t table_size;                  /* power of two */
    hvd_handle next_id;
    struct handle *spare;               /* for a short run that has to wait; or NULL */
    int spare_rows;                     /* places of its recv_rows */

    pthread_mutex_t completions_lock;   /* guards the next two */
    struct list completions;            /* to be called, oldest first */
    bool completing;                    /* somebody calls them */
    int completions_open;               /* handles with one that are not done: as if somebody
                                         * waited for them all the time */
    atomic_bool has_completions;        /* some may be there; looked at with the baton */

    atomic_uint baton;                  /* 0 free, 1 taken, 2 taken and perhaps wanted */
    atomic_int wanting;                 /* threads that wait for it */
#ifndef NDEBUG
    pthread_t owner;                    /* valid while it is taken */
#endif
    atomic_int waiting;                 /* user threads that sleep on a handle */
    pthread_t thread;
    atomic_bool has_thread;             /* ended at shutdown, beside users of the engine */
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

    int device_index;                   /* GPU that this process used last; -1: none */
    uint64_t cancel_until_us;           /* works of GPUs that fail are waited for; 0: not yet */
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
    char *tuned;                        /* what it has found, for the statistics */
    pthread_mutex_t timeline_lock;
    struct timeline *timeline;          /* NULL: nothing is recorded */
};

static inline bool engine_has_thread(const struct engine *e)
{
    return atomic_load_explicit(&e->has_thread, memory_order_relaxed);
}

/* fast.c: the short way, if it is open.  HVD_AGAIN: *handle_p is under way, or NULL if the
 * way is not open. */
enum hvd_status fast_run(struct engine *e, const struct hvd_request *req,
                         struct handle **handle_p, struct hvd_error *err);
enum hvd_status fast_take(struct engine *e, const struct hvd_request *req,
                          struct hvd_output *out, int64_t *splits, int room,
                          struct handle **handle_p, struct hvd_error *err);

/* cycle.c */
bool engine_progress(struct engine *e);
void engine_press(struct engine *e);
void engine_mark_cycle(struct engine *e);
void engine_fail(struct engine *e, enum engine_state state, const struct hvd_error *why);
void engine_say_goodbye(struct engine *e, int gone);
void engine_tell_failure(struct engine *e);     /* before operations fail: engine_options */

/* The baton.  Whoever calls what says "owner" has it; debug builds check that in the places
 * that everything passes. */
bool baton_try(struct engine *e);
void baton_take(struct engine *e);
void baton_give(struct engine *e);
#ifdef NDEBUG
#define ASSERT_OWNER(e) ((void)(e))
#else
bool baton_is_ours(struct engine *e);
#define ASSERT_OWNER(e) BUG_ON(!baton_is_ours(e))
#endif

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
/* This rank cannot go on: the job ends, for all. */
void engine_break(struct engine *e, struct hvd_error *err);
/* Takes h; req NULL: its entries are filled. */
enum hvd_status engine_submit_handle(struct engine *e, struct handle *h,
                                     const struct hvd_request *req, bool waits,
                                     hvd_handle *handle_p, struct hvd_error *err);

/* stats.c */
void stats_note_wait(struct engine *e, struct handle *h);
void stats_note_sleep(struct engine *e);
void stats_end_wait(struct engine *e, const struct entry *t);
void stats_add_late(const struct engine *e, struct neg_late *late);     /* by rank */

/* stall_watch.c */
struct stall *stall_new(const struct engine *e);        /* NULL: disabled */
void stall_free(struct engine *e);
uint64_t stall_due_us(struct engine *e);
bool stall_look(struct engine *e);
void stall_on_ask(struct engine *e, int peer);
void stall_on_where(struct engine *e, int peer, const struct wire_text *t);
void stall_on_report(struct engine *e, int peer, const struct wire_text *t);
uint64_t stall_report_count(const struct engine *e);

/* inbox.c */
void engine_on_message(void *context, int peer, const uint8_t *bytes, size_t n);
void engine_replay_early(struct engine *e, struct pset *s);

#endif
