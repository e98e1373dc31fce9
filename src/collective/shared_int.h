/* shared_int.h: the state of allreduce_shared.c and its ring, allreduce_staged.c. */
#ifndef HVD_COLLECTIVE_SHARED_INT_H
#define HVD_COLLECTIVE_SHARED_INT_H

#include "collective/board_int.h"

#define HALVES 2                        /* members: allreduce_staged.c, rule 4 */

struct shared {
    size_t chunk;                       /* elements */
    unsigned chunks;
    unsigned low;                       /* chunks before are known to be done */
    bool found;                         /* places are filled */
    bool has_rings;                     /* of any member */
    bool has_private;                   /* outputs that are written by CMA */
    bool stream;
    struct direct_place *in, *out;      /* by member */
    struct direct_place *now;           /* by member: inputs of the chunk in work */
    uint16_t *rings;                    /* by member: chunks in its ring, 0: none */

    /* Our ring, NULL if our buffers can be reached where they are. */
    char *ring;
    unsigned ring_chunks;
    unsigned put, taken;                /* chunks copied in, and out */
    bool half;                          /* of the chunks: those we do not reduce */
    bool halves[HALVES];                /* the same, by member */
};

/* Only this member reduces the chunk, and its part is not in the ring (rule 4). */
static inline bool shared_is_own(const struct coll_task *t, unsigned chunk)
{
    const struct shared *s = (const struct shared *)t->state;

    return s->half && chunk % HALVES == (unsigned)t->team->me;
}

static inline size_t shared_elements(const struct coll_task *t, unsigned chunk)
{
    const struct shared *s = (const struct shared *)t->state;
    size_t first = chunk * s->chunk;

    return t->call.count - first < s->chunk ? t->call.count - first : s->chunk;
}

/* Whether a ring of ours would hold only half of the chunks. */
bool staged_is_half(const struct coll_task *t);
/* Takes a ring, says so in the line and copies the first chunks in.  False: there is no
 * memory, and the line is unchanged. */
bool staged_open(struct coll_task *t, struct board_line *line);
/* Copies out what is done and in what there is room for; whether anything moved. */
bool staged_move(struct coll_task *t);
/* All members with rings have put the chunk in. */
bool staged_has(const struct coll_task *t, unsigned chunk);

#endif
