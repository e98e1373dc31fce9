/*
 * link_in.c: reads frames from a link: messages to the handler, transfers into the
 * buffers that were posted for them.
 *
 * 1. The header is checked (and unsealed) before its length is used.
 * 2. A transfer goes straight into the posted buffer; one that nobody has asked for yet
 *    is kept in memory that grows with what has come, not with what is announced.
 * 3. A receive that is posted while its transfer is arriving takes over at that byte.
 * 4. A message is handed over after the reader's state is ready for the next frame, so
 *    that the handler may post, send, receive and cancel.
 */
#include "transport_int.h"

#include <stdlib.h>

#define ROUND_BYTES (4u << 20)          /* read at most before others get their turn */

static enum hvd_status unseal_head(struct link *l, struct hvd_error *err)
{
    struct link_in *in = &l->in;
    uint8_t *tag = in->prelude + FRAME_HEADER;
    enum hvd_status status = HVD_OK;

    if (l->level == LINK_AUTH)
        status = seal_check(&l->seal_in, in->prelude, FRAME_HEADER, tag, err);
    else if (l->level == LINK_ENCRYPT)
        status = seal_decrypt(&l->seal_in, NULL, 0, in->prelude, FRAME_HEADER,
                              in->prelude, tag, err);
    if (status != HVD_OK)
        return error_set(err, HVD_AUTH, l->peer,
                         "bytes from rank %d were changed on their way", l->peer);
    return HVD_OK;
}

static struct mesh_xfer *find_posted(struct link *l, uint64_t tag)
{
    list_each(node, &l->posted) {
        struct mesh_xfer *x = list_entry(node, struct mesh_xfer, node);

        if (x->tag == tag)
            return x;
    }
    return NULL;
}

static struct unexpected *find_early(struct link *l, uint64_t tag)
{
    list_each(node, &l->early) {
        struct unexpected *u = list_entry(node, struct unexpected, node);

        if (u->tag == tag && (u->got < u->total || !u->discard))
            return u;
    }
    return NULL;
}

static enum hvd_status wrong_length(int peer, uint64_t tag, uint64_t sent, size_t asked,
                                    struct hvd_error *err)
{
    return error_set(err, HVD_PROTO, peer,
                     "rank %d sent %llu bytes for transfer %llx, %zu were expected", peer,
                     (unsigned long long)sent, (unsigned long long)tag, asked);
}

static enum hvd_status early_grow(struct link *l, struct unexpected *u, size_t more,
                                  struct hvd_error *err)
{
    size_t need = u->got + more, capacity = u->capacity;
    char *data;

    if (u->discard || need <= capacity)
        return HVD_OK;
    capacity = need < 2 * capacity ? 2 * capacity : need;
    if (capacity > u->total)
        capacity = u->total;
    data = realloc(u->data, capacity);
    if (data == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for %zu bytes from rank %d", need,
                         l->peer);
    u->data = data;
    u->capacity = capacity;
    return HVD_OK;
}

static enum hvd_status begin_early(struct link *l, struct hvd_error *err)
{
    struct link_in *in = &l->in;
    const struct frame *f = &in->frame;
    struct unexpected *u = find_early(l, f->tag);

    if (u == NULL) {
        u = calloc(1, sizeof *u);
        if (u == NULL)
            return error_set(err, HVD_NOMEM, -1, "no memory for a transfer");
        u->tag = f->tag;
        u->total = f->total;
        list_append(&l->early, &u->node);
    }
    if (u->total != f->total || f->bytes > u->total - u->got)
        return wrong_length(l->peer, f->tag, f->total, u->total, err);
    if (!u->discard)
        l->mesh->counters.unexpected_bytes += f->bytes;
    in->u = u;
    return early_grow(l, u, f->bytes, err);
}

static enum hvd_status begin_transfer(struct link *l, struct hvd_error *err)
{
    struct link_in *in = &l->in;
    const struct frame *f = &in->frame;
    size_t limit = l->level == LINK_ENCRYPT ? FRAME_RECORD_MAX : FRAME_BODY_MAX;

    in->need = f->bytes;
    if (l->level == LINK_ENCRYPT && f->bytes > 0)
        in->need += SEAL_TAG;
    if (f->bytes > limit || (f->bytes == 0 && f->total > 0))
        return error_set(err, HVD_PROTO, l->peer, "rank %d sent a frame of %u bytes",
                         l->peer, f->bytes);
    if (find_early(l, f->tag) == NULL)
        in->x = find_posted(l, f->tag);
    if (in->x == NULL)
        return begin_early(l, err);
    if (f->total != in->x->bytes || f->bytes > in->x->bytes - in->x->done)
        return wrong_length(l->peer, f->tag, f->total, in->x->bytes, err);
    return HVD_OK;
}

static enum hvd_status begin_message(struct link *l, struct hvd_error *err)
{
    struct link_in *in = &l->in;
    size_t bytes = in->frame.bytes;

    in->need = bytes + (l->level != LINK_PLAIN && bytes > 0 ? SEAL_TAG : 0);
    in->message = malloc(sizeof *in->message + in->need);
    if (in->message == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a message of %zu bytes",
                         bytes);
    in->message->bytes = bytes;
    return HVD_OK;
}

static enum hvd_status begin_frame(struct link *l, struct hvd_error *err)
{
    struct link_in *in = &l->in;

    TRY(unseal_head(l, err));
    TRY(get_frame(&in->frame, in->prelude, l->peer, err));
    in->has_head = true;
    in->got = in->need = 0;
    if (in->frame.kind == FRAME_MESSAGE)
        return begin_message(l, err);
    if (in->frame.kind == FRAME_TRANSFER)
        return begin_transfer(l, err);
    return HVD_OK;
}

static char *transfer_target(struct link *l)
{
    struct link_in *in = &l->in;

    if (in->x != NULL)
        return in->x->at + in->x->done;
    return in->u->discard || in->u->data == NULL ? NULL : in->u->data + in->u->got;
}

/* Bytes of a plain transfer; a discarded one is read into the void. */
static ssize_t read_transfer(struct link *l, struct hvd_error *err)
{
    struct link_in *in = &l->in;
    char *to = transfer_target(l), waste[4096];
    size_t want = in->need - in->got;
    ssize_t n;

    if (to == NULL) {
        to = waste;
        want = want < sizeof waste ? want : sizeof waste;
    }
    n = l->ops->read(l, to, want, err);
    if (n > 0 && in->x != NULL)
        in->x->done += (size_t)n;
    else if (n > 0)
        in->u->got += (size_t)n;
    return n;
}

static ssize_t read_some(struct link *l, struct hvd_error *err)
{
    struct link_in *in = &l->in;
    size_t head = FRAME_HEADER + (l->level != LINK_PLAIN ? SEAL_TAG : 0);

    if (!in->has_head)
        return l->ops->read(l, in->prelude + in->got, head - in->got, err);
    if (in->message != NULL)
        return l->ops->read(l, in->message->data + in->got, in->need - in->got, err);
    if (l->level == LINK_ENCRYPT)
        return l->ops->read(l, l->record_in + in->got, in->need - in->got, err);
    return read_transfer(l, err);
}

static enum hvd_status unseal_message(struct link *l, struct hvd_error *err)
{
    struct message *msg = l->in.message;
    enum hvd_status status = HVD_OK;

    if (l->level == LINK_PLAIN || msg->bytes == 0)
        return HVD_OK;
    if (l->level == LINK_AUTH)
        status = seal_check(&l->seal_in, msg->data, msg->bytes, msg->data + msg->bytes,
                            err);
    else
        status = seal_decrypt(&l->seal_in, NULL, 0, msg->data, msg->bytes, msg->data,
                              msg->data + msg->bytes, err);
    if (status != HVD_OK)
        return error_set(err, HVD_AUTH, l->peer,
                         "a message of rank %d was changed on its way", l->peer);
    return HVD_OK;
}

static enum hvd_status unseal_record(struct link *l, struct hvd_error *err)
{
    struct link_in *in = &l->in;
    size_t bytes = in->frame.bytes;
    char *to = transfer_target(l);

    if (l->level != LINK_ENCRYPT || bytes == 0)
        return HVD_OK;
    if (seal_decrypt(&l->seal_in, NULL, 0, l->record_in, bytes,
                     to != NULL ? (void *)to : l->record_in, l->record_in + bytes,
                     err) != HVD_OK)
        return error_set(err, HVD_AUTH, l->peer,
                         "bytes from rank %d were changed on their way", l->peer);
    if (in->x != NULL)
        in->x->done += bytes;
    else
        in->u->got += bytes;
    return HVD_OK;
}

static void early_free(struct unexpected *u)
{
    list_remove(&u->node);
    free(u->data);
    free(u);
}

static void end_transfer(struct link_in *in)
{
    struct mesh_xfer *x = in->x;
    struct unexpected *u = in->u;

    in->x = NULL;
    in->u = NULL;
    if (x != NULL && x->done == x->bytes) {
        list_remove(&x->node);
        x->status = HVD_OK;
    }
    if (u != NULL && u->discard && u->got == u->total)
        early_free(u);
}

static enum hvd_status end_frame(struct link *l, struct hvd_error *err)
{
    struct link_in *in = &l->in;
    struct mesh *m = l->mesh;
    struct message *msg = in->message;

    if (msg != NULL)
        TRY(unseal_message(l, err));
    else if (in->frame.kind == FRAME_TRANSFER)
        TRY(unseal_record(l, err));
    in->has_head = false;
    in->got = 0;
    in->message = NULL;
    if (in->frame.kind == FRAME_GOODBYE) {
        link_peer_left(l);
    } else if (in->frame.kind == FRAME_TRANSFER) {
        end_transfer(in);
    } else {
        if (m->on_message != NULL)
            m->on_message(m->on_message_context, l->peer, msg->data, msg->bytes);
        free(msg);
    }
    return HVD_OK;
}

/* One step of the reader; HVD_AGAIN: nothing to read now. */
static enum hvd_status step(struct link *l, size_t *moved_p, struct hvd_error *err)
{
    struct link_in *in = &l->in;
    size_t head = FRAME_HEADER + (l->level != LINK_PLAIN ? SEAL_TAG : 0);
    ssize_t n;

    if (in->has_head && in->got == in->need)
        return end_frame(l, err);
    n = read_some(l, err);
    if (n < 0)
        return err->status;
    if (n == 0)
        return HVD_AGAIN;
    *moved_p += (size_t)n;
    in->got += (size_t)n;
    if (!in->has_head && in->got == head)
        return begin_frame(l, err);
    return HVD_OK;
}

int link_receive(struct link *l)
{
    enum hvd_status status = HVD_OK;
    struct hvd_error err;
    size_t moved = 0;

    while (!l->closed && status == HVD_OK && moved < ROUND_BYTES)
        status = step(l, &moved, &err);
    if (status == HVD_OK && !l->closed)
        l->mesh->more = true;
    l->mesh->counters.bytes_received += moved;
    if (moved > 0 && l->ops->read_done != NULL)
        l->ops->read_done(l);
    if (status != HVD_OK && status != HVD_AGAIN) {
        link_break(l, &err);
        return 1;
    }
    return moved > 0;
}

/* Rule 3. */
static void take_over(struct link *l, struct unexpected *u, struct mesh_xfer *x)
{
    struct hvd_error err;

    if (u->total != x->bytes) {
        list_append(&l->posted, &x->node);
        wrong_length(l->peer, x->tag, u->total, x->bytes, &err);
        mesh_fail(l->mesh, &err);
        return;
    }
    if (u->got > 0)
        memcpy(x->at, u->data, u->got);
    x->done = u->got;
    if (l->in.u == u) {
        l->in.u = NULL;
        l->in.x = x;
    }
    if (x->done == x->bytes && l->in.x != x)
        x->status = HVD_OK;
    else if (l->closed)
        x->status = HVD_SHUTDOWN;
    else
        list_append(&l->posted, &x->node);
    early_free(u);
}

void link_post(struct link *l, struct mesh_xfer *x)
{
    struct unexpected *u = find_early(l, x->tag);

    if (u != NULL && !u->discard)
        take_over(l, u, x);
    else if (atomic_load(&l->left))
        x->status = HVD_SHUTDOWN;
    else
        list_append(&l->posted, &x->node);
}

/* The rest of a transfer that has begun is dropped when it comes. */
void link_cancel_receive(struct link *l, struct mesh_xfer *x)
{
    struct unexpected *u;
    struct hvd_error err;

    list_remove(&x->node);
    if (l->in.x != x && x->done == 0)
        return;
    u = calloc(1, sizeof *u);
    if (u == NULL) {
        l->in.x = NULL;
        error_set(&err, HVD_NOMEM, -1, "no memory to cancel a receive");
        link_break(l, &err);
        return;
    }
    *u = (struct unexpected){.tag = x->tag, .total = x->bytes, .got = x->done,
                             .discard = true};
    list_append(&l->early, &u->node);
    if (l->in.x == x) {
        l->in.x = NULL;
        l->in.u = u;
    }
}
