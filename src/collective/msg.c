/*
 * msg.c: transfers of a task.
 *
 * Tag, 64 bits:  slot 6 | epoch 6 | board 11 | turn 10 | part 10 | stage 3 | index 18.
 * Two tasks that are under way at once differ in slot or board, or follow each other
 * closely in turn; so the low bits of turn and epoch are enough.
 */
#include "collective/msg_int.h"

enum hvd_status msg_take(struct coll_task *t, int count, struct msg_pack *pack,
                         struct hvd_error *err)
{
    pack->x = scratch_get(t->team->scratch, (size_t)count * sizeof *pack->x);
    if (pack->x == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for %d transfers", count);
    pack->count = count;
    for (int i = 0; i < count; i++)
        pack->x[i].status = HVD_OK;
    return HVD_OK;
}

void msg_drop(struct coll_task *t, struct msg_pack *pack)
{
    for (int i = 0; i < pack->count; i++)
        if (pack->x[i].status == HVD_AGAIN)
            mesh_cancel(t->team->mesh, &pack->x[i]);
    scratch_put(t->team->scratch, pack->x);
    *pack = (struct msg_pack){0};
}

static uint64_t msg_tag(const struct coll_task *t, unsigned stage, unsigned index)
{
    uint64_t tag = (uint64_t)t->team->slot & 63;

    BUG_ON(stage > 7 || index >= 1u << 18);
    tag = tag << 6 | (t->team->epoch & 63);
    tag = tag << 11 | t->call.board;
    tag = tag << 10 | (t->call.turn & 1023);
    tag = tag << 10 | t->part;
    tag = tag << 3 | stage;
    return tag << 18 | index;
}

void msg_send(struct coll_task *t, int member, unsigned stage, unsigned index,
              const void *data, size_t bytes, struct mesh_xfer *x)
{
    x->status = HVD_OK;
    if (bytes > 0)
        mesh_send(t->team->mesh, t->team->ranks[member], msg_tag(t, stage, index), data,
                  bytes, x);
}

void msg_recv(struct coll_task *t, int member, unsigned stage, unsigned index,
              void *data, size_t bytes, struct mesh_xfer *x)
{
    x->status = HVD_OK;
    if (bytes > 0)
        mesh_recv(t->team->mesh, t->team->ranks[member], msg_tag(t, stage, index), data,
                  bytes, x);
}

enum hvd_status msg_check(struct coll_task *t, const struct mesh_xfer *x, int count,
                          struct hvd_error *err)
{
    const struct hvd_error *why;
    enum hvd_status worst = HVD_OK;

    for (int i = 0; i < count; i++) {
        if (x[i].status == HVD_AGAIN)
            worst = HVD_AGAIN;
        else if (x[i].status != HVD_OK) {
            why = mesh_verdict(t->team->mesh);
            if (why != NULL && err != NULL)
                *err = *why;
            return why != NULL ? why->status
                               : error_set(err, x[i].status, -1, "a transfer failed");
        }
    }
    return worst;
}

bool msg_needs_us(const struct coll_task *t)
{
    (void)t;
    return true;
}

bool msg_has_come(const struct coll_task *t, int member)
{
    (void)t, (void)member;
    return false;
}
