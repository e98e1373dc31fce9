/*
 * collective.h: collectives over a team, as resumable tasks.
 *
 * A team is an ordered set of ranks.  Tasks of one team are told apart by (board, turn):
 * all members use the same pair for the same operation.  Boards [0, TEAM_BOARDS) are
 * independent of each other; on one board turns count 1, 2, 3, ... and a member starts
 * turn t + 1 only after its turn t is finished.  So tasks on different boards may run in
 * any order on different members, without any agreement between them.
 *
 * Within a host a task that was started but not joined by all members has changed nothing
 * (inputs, outputs) but the outputs of a broadcast, which depend on its root only; so it
 * can be cancelled and run again in another way: coll_cancel.
 * Once all members of the host have come it is `committed` and must be finished.
 *
 * Every element is combined in the order of team ranks within a host, then of hosts in
 * the order of their first team rank (many hosts: by pairs, see order.c): results do not
 * depend on algorithm, chunking, fusion or transport.
 *
 * Thread: the owner of the engine.
 */
#ifndef HVD_COLLECTIVE_COLLECTIVE_H
#define HVD_COLLECTIVE_COLLECTIVE_H

#include "collective/layout.h"
#include "reduce/reduce.h"
#include "transport/transport.h"

#define TEAM_BOARDS 2048                /* per team */
#define TEAM_SLOTS 64                   /* teams that can exist at once (process sets) */

struct coll_team;

/* Bytes of board area that TEAM_SLOTS teams need; mesh_options.board_bytes. */
size_t coll_board_bytes(void);

/* A team of ranks (ascending, we among them) at `slot`, the same on all members.  After
 * all members have freed it the slot may be used again with a higher `epoch`.
 * Owns: the caller; mesh is borrowed. */
enum hvd_status coll_team_new(struct mesh *mesh, const int *ranks, int count, int slot,
                              uint32_t epoch, struct coll_team **team_p,
                              struct hvd_error *err);
void coll_team_free(struct coll_team *team);

/* All members share one host's memory: tasks need no negotiation to be safe. */
bool coll_team_is_local(const struct coll_team *team);
/* Valid as long as the team. */
const struct layout *coll_team_layout(const struct coll_team *team);
/* Makes the connections between hosts that large sums of the team use, in the background. */
void coll_warm(struct coll_team *team);

enum coll_op { COLL_ALLREDUCE, COLL_ALLGATHER, COLL_BROADCAST, COLL_ALLTOALL,
               COLL_REDUCESCATTER, COLL_BARRIER, COLL_ADASUM, COLL_OP_COUNT };

struct coll_call {
    enum coll_op op;
    enum hvd_dtype dtype;
    enum red_op reduce;
    uint32_t board, turn;
    const void *in;
    void *out;                          /* may be equal to in (allreduce, broadcast) */
    size_t count;                       /* elements of `in`: allreduce, adasum, broadcast */
    const uint64_t *counts;             /* by team rank, elements. allgather: contributed;
                                         * reducescatter: received; alltoall: we send */
    const uint64_t *recv_counts;        /* alltoall: we receive, by team rank */
    uint64_t most;                      /* alltoall: the largest part that any member sends to any;
                                         * the same on all members; 0: not known, or nothing */
    int root;                           /* team rank */
    double prescale, postscale;
    int64_t divisor;
    const size_t *segments;             /* adasum of a fused buffer: elements per tensor */
    int segment_count;
    bool agreed;                        /* all members will come for certain: a broadcast
                                         * then ends when the root's data is there, and
                                         * cannot be cancelled (false: when all have come) */
    bool waited;                        /* a thread of ours waits for the result, so that
                                         * others can count on our work */
    bool open;                          /* sizes are said with the parts, see coll_sizes */
};

struct coll_task;

/* Publishes this rank's part and returns at once.  counts and segments are copied;
 * buffers are borrowed until the task is finished or cancelled.
 * Errors: HVD_NOMEM, HVD_UNSUPPORTED, HVD_INVALID. */
enum hvd_status coll_start(struct coll_team *team, const struct coll_call *call,
                           struct coll_task **task_p, struct hvd_error *err);

/* Does what can be done now.  HVD_AGAIN: more later (call again after mesh_progress or a
 * change of the boards); HVD_OK: outputs are complete and buffers may be reused; else
 * failed, outputs undefined. */
enum hvd_status coll_step(struct coll_task *task, struct hvd_error *err);

/*
 * Open sizes: an allgather or alltoall whose members do not know what the others bring.
 * `counts` has our own (allgather: counts[our team rank]); nobody reads `out` or
 * `recv_counts`.  When all have come, coll_sizes tells what each member contributes to our
 * output, by team rank, elements; until then NULL.  The task then waits for coll_place,
 * which gives room for all of it.
 */
bool coll_can_open(const struct coll_team *team, enum coll_op op);
const uint64_t *coll_sizes(const struct coll_task *task);
void coll_place(struct coll_task *task, void *out);

/* True: others wait for work of ours (staging copies, a share in a ring), so it must be
 * stepped soon even if nobody waits for the result here. */
bool coll_needs_us(const struct coll_task *task);

/* Whether team rank `member` has come to this task, as far as this host can see. */
bool coll_has_come(const struct coll_task *task, int member);
bool coll_is_committed(const struct coll_task *task);

void coll_finish(struct coll_task *task);       /* after a final result of coll_step */
void coll_cancel(struct coll_task *task);       /* any time before */

/*
 * An allreduce of a few bytes whose data somebody else moves: the steps of the one order.
 * HOST: the parts of one host into a partial result, of coll_partial_bytes an element;
 * HOSTS: these into the result; ALL: both, where every member has a host of its own; ONE: where
 * all are on one.  `src` in the order of members or hosts; dst may be one of them.
 */
enum coll_fold { COLL_FOLD_HOST, COLL_FOLD_HOSTS, COLL_FOLD_ALL, COLL_FOLD_ONE };
#define COLL_FOLD_MAX 64                /* sources */
void coll_fold(const struct coll_call *call, enum coll_fold step, const void *const *src,
               int n, size_t count, void *dst);
size_t coll_partial_bytes(enum hvd_dtype dtype);

/* Instead of coll_finish: the task is kept, to be started again with other buffers in
 * another turn of its board, and with `counts` of its own if its sizes are open; else its call
 * stays as it was checked. */
void coll_keep(struct coll_task *task);
enum hvd_status coll_restart(struct coll_task *task, const void *in, void *out,
                             const uint64_t *counts, uint32_t turn, struct hvd_error *err);
void coll_drop(struct coll_task *task);         /* the end of a task that was kept */

/* "op name sizes text" for each algorithm, and the rules in force; HOROVOD_ALGORITHMS. */
size_t coll_describe(char *buffer, size_t capacity);
/* Rules such as "allreduce 0-16kb gather, 16kb-inf pairwise"; checked, then used by teams
 * made afterwards.  Errors: HVD_INVALID. */
enum hvd_status coll_set_rules(const char *rules, struct hvd_error *err);

/* HOROVOD_HIERARCHICAL_*: -1 automatic, 0 never, 1 always. */
void coll_set_hierarchical(int allreduce, int allgather);

#endif
