/*
 * collective_int.h: what the files of collective/ share: the team, the task, and how an
 * algorithm describes itself.  Boards have their own header, board_int.h.
 */
#ifndef HVD_COLLECTIVE_COLLECTIVE_INT_H
#define HVD_COLLECTIVE_COLLECTIVE_INT_H

#include "collective/collective.h"
#include "collective/pattern.h"

#include <stdatomic.h>

#define MEMBER_MAX (1 << 20)
#define PART_BITS 10                    /* sub-turns of a composed algorithm */

struct coll_alg;
struct board_state;
struct scratch;

/* One line of the selection: sizes below `limit` (and not taken by a line before). */
struct select_line {
    uint64_t limit;
    const struct coll_alg *alg;
};

#define SELECT_LINES 16

struct coll_team {
    struct mesh *mesh;                  /* borrowed */
    int count, me;                      /* members, our team rank */
    int slot;
    uint32_t epoch;
    int *ranks;                         /* by team rank: global rank */
    struct layout layout;
    size_t cache_bytes;                 /* last level cache of a CPU */

    /* Memory shared by all members (direct), see board_int.h. */
    bool direct;
    char *heads, *slots;                /* of this team, NULL if not direct */
    size_t heads_offset, slots_offset;  /* of them in the board area */
    size_t head_bytes, slot_bytes;      /* per board, per member and parity */
    int *local_ranks;                   /* by team rank: the mesh's local rank */
    struct board_state *boards;         /* TEAM_BOARDS of them */

    /* Teams over several hosts, for hierarchical algorithms; else NULL. */
    struct coll_team *local;            /* the members of our host */
    struct coll_team *cross;            /* members at our place on each host; NULL when
                                         * we carry nothing between hosts */
    int carriers;                       /* members of the smallest host */
    int *local_teamrank;                /* by local team rank: team rank */

    struct select_line select[COLL_OP_COUNT][SELECT_LINES];
    struct coll_task *free_tasks;
    struct scratch *scratch;
    bool owns_scratch;
    const void **src;                   /* 2 * count places each, valid within one step */
    void **dst;
};

/* One operation under way.  `state` belongs to the algorithm; it is not zeroed. */
struct coll_task {
    const struct coll_alg *alg;
    struct coll_team *team;
    struct coll_task *next;             /* in free_tasks */
    struct coll_call call;              /* counts and segments lie in `copied` */
    enum hvd_dtype out_type;            /* call.dtype, or the type of partial results */
    uint32_t part;                      /* sub-turn of a composed algorithm, else 0 */
    size_t bytes;                       /* of call.count elements */
    size_t all_bytes;                   /* read and written by all members of a host, about:
                                         * set by algorithms that copy */
    void *copied;                       /* block of scratch, NULL: nothing copied */
    uint64_t stamp;                     /* see board.c, rule 1 */
    unsigned parity;
    struct board_state *board;
    int seen;                           /* members [0, seen) are known to have come */
    bool published;                     /* our line of the board carries our stamp */
    bool committed;                     /* all members of the board have come */
    bool left;                          /* we read nothing of the others any more */
    bool sized, placed;                 /* open sizes: coll_sizes, coll_place */
    _Alignas(16) unsigned char state[];
};

/*
 * An algorithm describes itself in its own file; catalog.c admits it with one line.
 * start publishes or posts and returns at once; step does what it can (HVD_AGAIN: more
 * later); release gives back all that start and step took, after any result or none.
 */
struct coll_alg {
    enum coll_op op;
    const char *name, *text;
    size_t state_bytes;
    bool (*can)(const struct coll_team *team);
    bool opens;                         /* takes calls with open sizes */
    uint64_t (*limit)(const struct coll_team *team);    /* sizes below; NULL: all */
    enum hvd_status (*start)(struct coll_task *task, struct hvd_error *err);
    enum hvd_status (*step)(struct coll_task *task, struct hvd_error *err);
    void (*release)(struct coll_task *task);            /* NULL: nothing to give back */
    bool (*needs_us)(const struct coll_task *task);     /* NULL: only until published */
    bool (*has_come)(const struct coll_task *task, int member); /* NULL: by the board */
    bool (*is_committed)(const struct coll_task *task);         /* NULL: by the board */
};

/* catalog.c */
extern const struct coll_alg *const catalog_algs[];
extern const int catalog_alg_count;
extern const char *const catalog_op_names[COLL_OP_COUNT];
extern const char catalog_default_rules[];
size_t catalog_state_bytes(void);         /* of the algorithm with the largest state */

/* select.c */
enum hvd_status select_apply(struct coll_team *team, struct hvd_error *err);
const struct coll_alg *select_choose(const struct coll_team *team,
                                     const struct coll_call *call);

/* task.c: as coll_start, for a part of a composed operation. */
enum hvd_status task_start(struct coll_team *team, const struct coll_call *call,
                           uint32_t part, enum hvd_dtype out_type,
                           struct coll_task **task_p, struct hvd_error *err);
/* Where sizes that are open are written, by team rank (coll_sizes). */
uint64_t *task_open_sizes(struct coll_task *task);
/* Steps *task_p and finishes it when it succeeds (then *task_p is NULL). */
enum hvd_status task_drive(struct coll_task **task_p, struct hvd_error *err);
/* The size by which algorithms are chosen; the same on all members. */
uint64_t task_size(const struct coll_team *team, const struct coll_call *call);
size_t task_type_bytes(enum hvd_dtype dtype);
bool task_can_always(const struct coll_team *team);
bool task_can_direct(const struct coll_team *team);

/* team.c */
extern int team_hier_allreduce, team_hier_allgather;    /* coll_set_hierarchical */

/* scratch.c: blocks of memory that are kept for the next operation. */
struct scratch *scratch_new(void);
void scratch_free(struct scratch *s);
/* 64-byte aligned, not zeroed.  NULL: none left. */
void *scratch_get(struct scratch *s, size_t bytes);
void *scratch_get_shared(struct scratch *s, size_t bytes);      /* from the arena */
void scratch_put(struct scratch *s, void *block);               /* either; NULL is fine */

/* order.c: the one order in which elements are combined. */
/* sources: by team rank.  Reduces `count` elements into ndst destinations, of type
 * task->out_type, with the scaling of the call. */
enum hvd_status order_reduce(struct coll_task *task, const void *const *sources,
                             void *const *dst, int ndst, size_t count, bool stream,
                             struct hvd_error *err);
/* True if the team is one of many hosts with a member on each, whose sums are made by pairs. */
bool order_is_tree(const struct coll_team *team);
/* The same of a team with any number of members on its hosts. */
bool order_is_by_pairs(const struct coll_team *team);
/* The type in which a sum that is not complete is kept. */
enum hvd_dtype order_partial_type(enum hvd_dtype dtype);

#endif
