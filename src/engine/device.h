/*
 * device.h: batches of tensors on GPUs.  They go the way of all batches, in the order of the
 * responses; instead of a task they have a run, whose works the thread of the device does
 * (gpu/gpu.h).
 *
 *   OPENING    the first of a set: its members agree on NCCL or host memory (device_open.c)
 *   WAITING    behind it
 *   NCCL       NCCL is at it
 *   IN         the device copies into host memory (device_staged.c),
 *   TASK       the CPU's collective runs there,
 *   OUT        and the device copies back
 *   RING       the same in chunks, of one large tensor (device_ring.c)
 *   BROKEN     it has failed, and so has the job; the verdict ends it
 *
 * Thread: owner of the baton, but for device_note_caller.
 */
#ifndef HVD_ENGINE_DEVICE_H
#define HVD_ENGINE_DEVICE_H

#include "engine/engine_int.h"
#include "gpu/gpu.h"

enum device_phase { RUN_OPENING, RUN_WAITING, RUN_NCCL, RUN_IN, RUN_TASK, RUN_OUT,
                    RUN_RING, RUN_BROKEN };

struct device_run {
    enum device_phase phase;
    struct gpu_work work;
    bool under_way;                     /* the device's thread has `work` */
    bool told;                          /* the entries are done, the work is not */
    struct gpu_event **after;           /* of the entries' handles */
    int after_count;
    struct gpu_new *news;               /* outputs that the runtime allocates */
    int *of_new;                        /* by tensor: -1: none */
    int new_count;
    struct gpu_piece *pieces;
    int piece_count;
    struct gpu_call *calls;
    void *fill;                         /* neutral elements, where this rank has joined */
    struct device_ring *ring;           /* of RING; else NULL */
    void *result;                       /* RING: where it goes */
};

enum device_state { DEVICE_ASKING, DEVICE_AGREEING, DEVICE_CONNECTING, DEVICE_READY };

/* What the members have agreed on, and how far they are. */
struct device_set {
    enum device_state state;
    int index;                          /* of this rank; -1: it has none, and has joined */
    int backend;                        /* HVD_GPU_*; NONE: `refusal` */
    struct hvd_error refusal;
    struct device_hello *hellos;        /* by member, while they agree */
    struct gpu_comm *comm;              /* NCCL */
    int lanes;
    uint64_t sequence;                  /* batches of NCCL */
};

/* In the thread that submits, before it has the baton. */
enum hvd_status device_note_caller(struct handle *h, const struct hvd_request *req, int count,
                                   struct hvd_error *err);
enum hvd_status device_check(struct engine *e, struct entry *t, const struct hvd_request *req,
                             struct hvd_error *err);
enum hvd_status device_begin(struct engine *e, struct batch *b, struct hvd_error *err);
/* HVD_AGAIN: not done. */
enum hvd_status device_step(struct engine *e, struct batch *b, struct hvd_error *err);
void device_cancel(struct engine *e, struct batch *b);
void device_run_free(struct device_run *r);     /* may be NULL */
void device_close(struct pset *s);
/* The work is handed to the device; its thread tells the engine. */
enum hvd_status device_start(struct engine *e, struct batch *b, struct hvd_error *err);
enum hvd_status device_start_work(struct engine *e, const struct batch *b, struct gpu_work *w,
                                  struct hvd_error *err);
enum hvd_status device_await_work(const struct engine *e, struct gpu_work *w,
                                  struct hvd_error *err);
/* The job has failed: waits for the end of the work.  False: it does not come. */
bool device_give_up(struct engine *e, struct gpu_work *w);
/* HVD_AGAIN: under way. */
enum hvd_status device_await(struct engine *e, struct batch *b, struct hvd_error *err);
enum hvd_status device_make_news(struct batch *b, struct hvd_error *err);

/* device_open.c */
enum hvd_status device_open_begin(struct engine *e, struct batch *b, struct hvd_error *err);
enum hvd_status device_open_step(struct engine *e, struct batch *b, struct hvd_error *err);

/* device_staged.c */
enum hvd_status staged_begin(struct engine *e, struct batch *b, struct hvd_error *err);
enum hvd_status staged_step(struct engine *e, struct batch *b, struct hvd_error *err);

/* device_ring.c */
bool ring_fits(const struct engine *e, const struct batch *b);
enum hvd_status ring_begin(struct engine *e, struct batch *b, struct hvd_error *err);
enum hvd_status ring_step(struct engine *e, struct batch *b, struct hvd_error *err);
bool ring_cancel(struct engine *e, struct batch *b);    /* false: see device_give_up */
void ring_free(struct device_ring *g);                  /* may be NULL */

/* What a member says; see device_open.c. */
struct device_hello {
    uint8_t backend, forced, lanes, has_device;
    int32_t nccl_version;
    uint8_t uuid[16];
    char problem[232];                  /* "": none */
    uint8_t ids[GPU_STREAMS_MAX][GPU_ID_BYTES];
};

/* Pure: what `count` members agree on; ranks and hosts for the text. */
int device_decide(const struct device_hello *hellos, int count, const int *ranks,
                  struct hvd_error *why);

#endif
