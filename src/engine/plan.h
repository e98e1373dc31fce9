/*
 * plan.h: how tensors are executed: the plan of one, the batch of several.
 * Thread: owner of the baton only.
 */
#ifndef HVD_ENGINE_PLAN_H
#define HVD_ENGINE_PLAN_H

#include "base/list.h"
#include "collective/collective.h"
#include "wire/response.h"

struct engine;
struct entry;
struct pset;

/* How one tensor is executed: what the response (or the cache) says. */
struct plan {
    uint64_t *counts;                   /* see coll_call; NULL when not needed */
    uint64_t *recv_counts;
    int64_t *recv_rows;                 /* alltoall: rows from each member */
    uint64_t most;                      /* alltoall, see coll_call */
    uint64_t out_count;                 /* elements of the output */
    int64_t out_rows;                   /* its first dimension, -1: that of the input */
};

struct batch {
    struct list node;                   /* in e->batches */
    struct pset *set;
    uint32_t board;
    struct coll_task *task;
    struct device_run *device;          /* of tensors on GPUs: how far they are; else NULL */
    struct plan *plans;                 /* by tensor */
    struct plan all;                    /* of the fused call, see pack.c */
    char *fused;                        /* fusion buffer, or scratch of a joined rank */
    uint64_t *counts;                   /* elements by tensor */
    size_t *segments;
    int count;
    struct tensor_form form;            /* without shape */
    uint64_t start_us;
    struct entry *entries[];            /* NULL where this rank has joined */
};

/* plan.c */
enum hvd_status plan_make(struct plan *p, const struct pset *s, const struct entry *t,
                          const struct wire_tensor *w, struct hvd_error *err);
enum hvd_status plan_copy(struct plan *p, const struct plan *from, int members,
                          struct hvd_error *err);
void plan_release(struct plan *p);
enum red_op plan_reduce(uint8_t reduce);
void plan_call(struct coll_call *call, const struct pset *s,
               const struct tensor_form *f, const struct plan *p);
enum hvd_status entry_prepare_output(struct entry *t, const struct plan *p,
                                     struct hvd_error *err);
enum hvd_status entry_place(struct entry *t, const struct tensor_form *f, int members,
                            struct coll_task *task, struct hvd_error *err);
void plan_open_counts(uint64_t *counts, const struct tensor_form *f, const struct pset *s,
                      int64_t rows, const int64_t *splits);
void output_release(void *p);
void entry_drop_output(struct entry *t);        /* frees it if it is ours */
void *output_alloc(size_t bytes);

/* execute.c */
enum hvd_status execute_batch(struct engine *e, struct pset *s, struct batch *b,
                              const struct wire_batch *w);
struct batch *batch_new(int count);
void batch_free(struct engine *e, struct batch *b);
bool execute_step_all(struct engine *e);
/* A fusion buffer for all of b, and the collective over it (or over the one tensor that is alone);
 * for device.c, too. */
enum hvd_status batch_take_bytes(struct engine *e, struct batch *b, size_t bytes,
                                 struct hvd_error *err);
enum hvd_status batch_take_room(struct engine *e, struct batch *b, struct hvd_error *err);
enum hvd_status batch_start_task(struct engine *e, struct batch *b, struct hvd_error *err);
void execute_fail(struct engine *e, const struct pset *s, enum hvd_status status,
                  const struct hvd_error *why);

/* pack.c */
enum hvd_status pack_plan(struct batch *b, struct hvd_error *err);
size_t pack_bytes(const struct batch *b);
char *pack_result(const struct batch *b);
/* `each` is told which bytes of which tensor lie where in the buffer. */
typedef void (*pack_fn)(void *context, int tensor, size_t at, char *packed, size_t bytes);
void pack_walk_in(const struct batch *b, pack_fn each, void *context);
void pack_walk_out(const struct batch *b, pack_fn each, void *context);
void pack_neutral(const struct batch *b, char *packed, size_t bytes);
void pack_in(const struct batch *b);
void pack_out(const struct batch *b);

#endif
