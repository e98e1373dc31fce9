/*
 * cached.h: a name that the cache knows: the tensor as all members agreed on it, its number,
 * and the way that its operations go.
 *
 * Thread: owner of the baton only.
 * Lifetime: from the EXECUTE that gives the number to the REVOKE or JOINED that takes it
 * back; if an operation of it is under way then that all have come to (dying), to the end of
 * that operation.  A local orphan keeps no cached name.
 */
#ifndef HVD_ENGINE_CACHED_H
#define HVD_ENGINE_CACHED_H

#include "base/recorder.h"
#include "engine/plan.h"

struct eager_room;
struct entry;
struct way;

/* A name the cache knows: the request as all members agreed on it. */
struct cached {
    char *name;
    uint16_t name_bytes;
    struct tensor_form form;
    uint32_t number, seq;
    uint32_t turn;                      /* last turn started on its board */
    struct plan plan;
    struct coll_call call;              /* ready but for buffers, count and turn */
    uint64_t count;                     /* elements of the input, unless sizes are open */
    bool open;                          /* members may bring any number of rows: each says
                                         * with its part how many */
    struct coll_task *kept;             /* of its operations in fast.c; NULL: none yet */
    struct recorder_form done;          /* what the recorder gets of each of them */
    struct way *way;                    /* of all its operations */
    struct entry *entry;                /* in flight by this number */
    bool dying;                         /* taken back; goes when its entry has ended */
    struct eager_room *room;            /* of the eager way; or NULL */
};

/* True if t is what all have agreed on under this name. */
bool cached_matches(const struct cached *c, const struct entry *t);
/* Remembers t under its number; takes the plan. */
enum hvd_status member_cache_add(struct engine *e, struct pset *s, const struct entry *t,
                                 const struct wire_tensor *w, struct plan *p);
void cached_free(struct pset *s, struct cached *c);

#endif
