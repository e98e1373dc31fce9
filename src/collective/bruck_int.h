/* bruck_int.h: gathering of small blocks, see bruck.c. */
#ifndef HVD_COLLECTIVE_BRUCK_INT_H
#define HVD_COLLECTIVE_BRUCK_INT_H

#include "collective/msg_int.h"

struct bruck {
    int round, rounds;
    bool open;                          /* the round's transfers are under way */
    size_t *at;                         /* n + 1 places in room, from our own block on */
    char *room;
    struct msg_pack pack;               /* receive and send of each round */
};

/* bytes: by member.  mine: our block. */
enum hvd_status bruck_start(struct coll_task *t, struct bruck *b, const size_t *bytes,
                            const void *mine, struct hvd_error *err);
enum hvd_status bruck_step(struct coll_task *t, struct bruck *b, struct hvd_error *err);
void bruck_release(struct coll_task *t, struct bruck *b);
char *bruck_block(const struct coll_task *t, const struct bruck *b, int member);

#endif
