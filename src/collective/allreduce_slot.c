/*
 * allreduce_slot.c: small vectors within a host.  Each member puts its input beside its
 * flag (up to LINE_INLINE bytes) or into its slot, and when all have come reduces all of
 * them itself: one exchange, and nobody has to come back.
 */
#include "collective/board_int.h"

#include <string.h>

extern const struct coll_alg allreduce_slot;

static bool publish(struct coll_task *t)
{
    struct board_line *line = board_line(t, t->team->me);
    bool small = t->bytes <= LINE_INLINE;

    if (!board_is_free(t))
        return false;
    line->in_kind = small ? BOARD_INLINE : BOARD_SLOT;
    memcpy(small ? line->bytes : board_slot(t, t->team->me), t->call.in, t->bytes);
    board_publish(t);
    return true;
}

static enum hvd_status slot_start(struct coll_task *t, struct hvd_error *err)
{
    TRY(board_enter(t, direct_slot_bytes(t, t->bytes), err));
    publish(t);
    return HVD_OK;
}

static enum hvd_status slot_step(struct coll_task *t, struct hvd_error *err)
{
    const void **src = t->team->src;
    bool small = t->bytes <= LINE_INLINE;

    if ((!t->published && !publish(t)) || !board_all_came(t))
        return HVD_AGAIN;
    for (int i = 0; i < t->team->count; i++)
        src[i] = small ? board_line(t, i)->bytes : board_slot(t, i);
    return order_reduce(t, src, &t->call.out, 1, t->call.count, false, err);
}

static uint64_t slot_limit(const struct coll_team *team)
{
    return team->slot_bytes + 1;
}

const struct coll_alg allreduce_slot = {
    .op = COLL_ALLREDUCE, .name = "slot",
    .text = "one host, small: flag and payload in shared memory, each reduces all",
    .can = task_can_direct, .limit = slot_limit, .start = slot_start, .step = slot_step,
};
