/* barrier_board.c: within a host: come, and wait until all have come. */
#include "collective/board_int.h"

extern const struct coll_alg barrier_board;

static bool publish(struct coll_task *t)
{
    if (!board_is_free(t))
        return false;
    board_line(t, t->team->me)->in_kind = BOARD_NONE;
    board_publish(t);
    return true;
}

static enum hvd_status board_start(struct coll_task *t, struct hvd_error *err)
{
    TRY(board_enter(t, 0, err));
    publish(t);
    return HVD_OK;
}

static enum hvd_status board_step(struct coll_task *t, struct hvd_error *err)
{
    (void)err;
    if ((!t->published && !publish(t)) || !board_all_came(t))
        return HVD_AGAIN;
    return HVD_OK;
}

const struct coll_alg barrier_board = {
    .op = COLL_BARRIER, .name = "board", .text = "one host: flags in shared memory",
    .can = task_can_direct, .start = board_start, .step = board_step,
};
