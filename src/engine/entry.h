/*
 * entry.h: one tensor of one operation on this rank, and the handle that a caller has of it.
 *
 * Thread: a handle is filled by the thread that submits it, before anybody else knows it;
 * then its entries belong to the owner of the baton, until `done` is set.  From then on
 * nobody writes, and the results are read by whoever has the id.
 * Lifetime: from the moment `done` is set, hvd_release of another thread may free the handle
 * with its entries at any time: entry_complete is the last to touch an entry, and whoever
 * calls it does not use the entry (nor, if it was the last one, the handle) afterwards.
 */
#ifndef HVD_ENGINE_ENTRY_H
#define HVD_ENGINE_ENTRY_H

#include "base/list.h"
#include "wire/form.h"

#include <stdatomic.h>

#define BARRIER_NAME "barrier.noname"   /* of every barrier: one at a time in a set */

struct cached;
struct coll_task;
struct engine;
struct gpu_event;
struct handle;
struct pset;
struct way;

enum entry_state {
    ENTRY_NEW,                          /* not seen by the engine yet */
    ENTRY_ANNOUNCED,                    /* in full, waits for a response */
    ENTRY_CACHED,                       /* by its number, on its way */
    ENTRY_BATCH,                        /* part of a batch that runs */
    ENTRY_DONE,
};

struct entry {
    struct list node;                   /* in e->running, if its way steps it */
    struct handle *handle;
    struct pset *set;                   /* may be gone once the entry is done */
    int set_size;
    enum entry_state state;
    struct tensor_form form;
    uint64_t count;                     /* elements of the input */
    const void *input;
    void *output;
    bool own_output;                    /* allocated by us, not taken yet */
    bool orphan;                        /* local or eager, but its number was taken back */
    char *name;                         /* owned */
    uint16_t name_bytes;
    uint16_t group_count;
    uint32_t group_key;
    int64_t *splits;                    /* owned; set ranks for OP_SET_ADD */
    uint32_t split_count;
    char *problem;                      /* owned */
    uint64_t submit_us;
    uint64_t wait_us;                   /* since when a thread sleeps for it; 0: none */
    uint32_t turn;                      /* of its number, between hosts */
    int last_missing;                   /* member that had not come when it was looked at */
    struct way *way;                    /* while ENTRY_CACHED */
    struct cached *cached;              /* its name, while ENTRY_CACHED and that lives */
    struct coll_task *task;
    int64_t out_rows;                   /* first dimension of the output */
    int64_t *recv_rows;                 /* owned; alltoall */
    int64_t value;
    struct gpu_event *ready;            /* what the caller's stream had to do before; or NULL */
    struct gpu_event *end;              /* of its operation, where the caller's stream has to
                                         * wait for it; or NULL */
};

/* What is called when a handle is done.  The handle owns it until then, e->completions from
 * then on, since the handle may be released first. */
struct completion {
    struct list node;
    hvd_done_fn call;
    void *context;
    hvd_handle handle;
    struct hvd_error err;
};

struct handle {
    hvd_handle id;
    struct completion *then;            /* NULL: nothing is called */
    atomic_uint done;                   /* futex word: 0, then 1 */
    struct hvd_error err;               /* first failure; HVD_OK */
    int count, left;
    int device;                         /* of all its tensors; -1: the CPU */
    struct entry entries[];
};

/* handle.c */
struct handle *handle_new(int count);
void handle_free(struct handle *h);
/* Thread: any, for these three. */
hvd_handle handle_publish(struct engine *e, struct handle *h);
struct handle *handle_find(struct engine *e, hvd_handle id);
void handle_forget(struct engine *e, struct handle *h);
const char *engine_op_text(uint8_t op);
/* The one place where an operation becomes done; see lifetime. */
void entry_complete(struct engine *e, struct entry *entry, enum hvd_status status,
                    const struct hvd_error *err);

/* completion.c */
struct completion *completion_take(struct engine *e, struct handle *h);
void completion_put(struct engine *e, struct completion *c);
void completions_run(struct engine *e);         /* not with the baton */

/* submit.c */
enum hvd_status entry_fill(struct engine *e, struct entry *entry,
                           const struct hvd_request *req, struct hvd_error *err);
/* The entry enters the engine.  It may have ended when this returns. */
void entry_begin(struct engine *e, struct entry *entry);
/* It goes the way of its name; called by that way. */
void entry_set_out(struct engine *e, struct entry *entry, struct cached *c);
/* Ends it wherever it is. */
void entry_fail(struct engine *e, struct entry *t, enum hvd_status status,
                const struct hvd_error *why);

#endif
