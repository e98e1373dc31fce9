/*
 * engine.h: names, negotiation, fusion and completion of operations over one mesh.
 * Implements the middle of horovod.h; src/api checks arguments and owns the life cycle.
 */
#ifndef HVD_ENGINE_ENGINE_H
#define HVD_ENGINE_ENGINE_H

#include "base/config.h"
#include "transport/transport.h"

struct engine;
struct look_question;
struct look_rank;

struct engine_options {
    struct mesh *mesh;                  /* borrowed */
    struct config *conf;                /* borrowed; autotune changes tunable rows */
    bool dynamic_sets;
    bool thread;                        /* false: the caller drives (simulator, tests) */
    /* The first operations of this rank are about to fail, and nobody has heard of it yet:
     * why.  Once; not when this rank itself leaves.  NULL: nobody wants to know.  It must
     * neither block nor call the engine. */
    void (*failing)(void *context, const struct hvd_error *why);
    void *context;
};

/* Owns: the caller, engine_free after engine_stop. */
enum hvd_status engine_new(const struct engine_options *opt, struct engine **engine_p,
                           struct hvd_error *err);
/* Tells the others, lets what is committed finish (a second at most), fails the rest and
 * ends the thread.  True: nothing had failed before, so whatever fails from now on does so
 * because this rank has left.  Blocks: bounded.  Idempotent. */
bool engine_stop(struct engine *e);
void engine_free(struct engine *e);

/* Static sets, before any other operation; ids count from 1 in this order. */
enum hvd_status engine_add_static_set(struct engine *e, const int *ranks, int count,
                                      struct hvd_error *err);

/* Thread: any, for all that follow; see horovod.h. */
enum hvd_status engine_submit(struct engine *e, const struct hvd_request *req, int count,
                              hvd_handle *handle_p, struct hvd_error *err);
enum hvd_status engine_submit_then(struct engine *e, const struct hvd_request *req,
                                   int count, hvd_done_fn done, void *context,
                                   hvd_handle *handle_p, struct hvd_error *err);
enum hvd_status engine_run(struct engine *e, const struct hvd_request *req,
                           struct hvd_error *err);
enum hvd_status engine_run_start(struct engine *e, const struct hvd_request *req,
                                 hvd_handle *handle_p, struct hvd_error *err);
enum hvd_status engine_run_take(struct engine *e, const struct hvd_request *req,
                                struct hvd_output *out, int64_t *splits, int room,
                                hvd_handle *handle_p, struct hvd_error *err);
enum hvd_status engine_poll(struct engine *e, hvd_handle id, struct hvd_error *err);
enum hvd_status engine_wait(struct engine *e, hvd_handle id, int64_t timeout_us,
                            struct hvd_error *err);
void engine_release(struct engine *e, hvd_handle id);
enum hvd_status engine_output(struct engine *e, hvd_handle id, int index, bool take,
                              struct hvd_output *out, struct hvd_error *err);
enum hvd_status engine_stream_wait(struct engine *e, hvd_handle id, uint64_t stream,
                                   struct hvd_error *err);

/* Collective over all ranks; the id is the value of the handle's output. */
enum hvd_status engine_submit_add_set(struct engine *e, const int *ranks, int count,
                                      hvd_handle *handle_p, struct hvd_error *err);
enum hvd_status engine_submit_remove_set(struct engine *e, int id, hvd_handle *handle_p,
                                         struct hvd_error *err);
/* See hvd_warm_process_set. */
void engine_warm_set(struct engine *e, int id);
int engine_set_ids(struct engine *e, int *ids, int capacity);
/* The members of a set, -1 if there is none; *self_p is our position or -1. */
int engine_set_ranks(struct engine *e, int id, int *ranks, int capacity, int *self_p);

/* True inside a function given to engine_submit_then. */
bool engine_is_in_callback(void);

/* The simulator's turn of the crank: everything that can be done now.  True: something moved. */
bool engine_crank(struct engine *e);

size_t engine_stats_json(struct engine *e, char *buffer, size_t capacity);
int engine_recorder_write(struct engine *e, int fd);
/* From now on the flight recorder is written to its file on a stall, on a failure of the
 * job and, if nobody else handles it, on SIGUSR2. */
void engine_enable_dumps(struct engine *e);
enum hvd_status engine_timeline_start(struct engine *e, const char *path,
                                      bool mark_cycles, struct hvd_error *err);
enum hvd_status engine_timeline_stop(struct engine *e, struct hvd_error *err);
void engine_set_where(hvd_where_fn where);
/* What hvd_set_where answers; 0: nothing. */
size_t engine_where(char *buffer, size_t capacity);
/* Fills in what the engine knows, for a viewer; what: LOOK_WITH_*.  Blocks: for the baton. */
void engine_look(struct engine *e, const struct look_question *q, struct look_rank *r);

#endif
