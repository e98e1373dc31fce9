/*
 * link_out.c: turns what a link has to send into frames and writes them.
 *
 * 1. One frame at a time: it is begun (header made, sealed), written, ended.
 * 2. Messages go first; transfers take turns frame by frame, so that a small one does
 *    not wait for a large one.
 * 3. A frame is sealed when it is begun, because seals count frames in the order of the
 *    stream.
 * 4. GOODBYE is the last frame.
 */
#include "transport_int.h"

#include <stdlib.h>

#define ROUND_BYTES (4u << 20)          /* written at most before others get their turn */

bool link_has_output(const struct link *l)
{
    return l->out.active || !list_is_empty(&l->messages) || !list_is_empty(&l->sends) ||
           l->leaving;
}

void link_enqueue(struct link *l)
{
    if (l->queued || l->closed)
        return;
    list_append(&l->mesh->outgoing, &l->outgoing_node);
    l->queued = true;
}

static enum hvd_status seal_head(struct link *l, const uint8_t head[FRAME_HEADER],
                                 struct hvd_error *err)
{
    struct link_out *o = &l->out;

    o->prelude_n = FRAME_HEADER;
    if (l->level == LINK_PLAIN) {
        memcpy(o->prelude, head, FRAME_HEADER);
        return HVD_OK;
    }
    o->prelude_n += SEAL_TAG;
    if (l->level == LINK_ENCRYPT)
        return seal_encrypt(&l->seal_out, NULL, 0, head, FRAME_HEADER, o->prelude,
                            o->prelude + FRAME_HEADER, err);
    memcpy(o->prelude, head, FRAME_HEADER);
    return seal_sign(&l->seal_out, o->prelude, FRAME_HEADER, o->prelude + FRAME_HEADER,
                     err);
}

static enum hvd_status seal_body(struct link *l, struct hvd_error *err)
{
    struct link_out *o = &l->out;
    char *plain = o->kind == FRAME_MESSAGE ? (char *)o->message->data
                                           : (char *)l->record_out;

    if (l->level == LINK_PLAIN || o->body_n == 0 ||
        (l->level == LINK_AUTH && o->kind != FRAME_MESSAGE))
        return HVD_OK;
    o->trailer_n = SEAL_TAG;
    if (l->level == LINK_AUTH)
        return seal_sign(&l->seal_out, o->body, o->body_n, o->trailer, err);
    TRY(seal_encrypt(&l->seal_out, NULL, 0, o->body, o->body_n, plain, o->trailer, err));
    o->body = plain;
    return HVD_OK;
}

static bool choose(struct link *l, struct frame *f)
{
    struct link_out *o = &l->out;
    struct list *node = list_pop(&l->messages);
    size_t limit = l->level == LINK_ENCRYPT ? FRAME_RECORD_MAX : FRAME_BODY_MAX;
    size_t left;

    if (node != NULL) {
        o->message = list_entry(node, struct message, node);
        o->body = (char *)o->message->data;
        *f = (struct frame){FRAME_MESSAGE, (uint32_t)o->message->bytes, 0, 0};
        return true;
    }
    if (!list_is_empty(&l->sends)) {
        o->x = list_entry(l->sends.next, struct mesh_xfer, node);
        left = o->x->bytes - o->x->done;
        o->body = o->x->at + o->x->done;
        *f = (struct frame){FRAME_TRANSFER, (uint32_t)(left < limit ? left : limit),
                            o->x->tag, o->x->bytes};
        return true;
    }
    *f = (struct frame){FRAME_GOODBYE, 0, 0, 0};
    return l->leaving;
}

static enum hvd_status begin(struct link *l, bool *any_p, struct hvd_error *err)
{
    struct link_out *o = &l->out;
    uint8_t head[FRAME_HEADER];
    struct frame f;

    o->x = NULL;
    o->trailer_n = o->done = 0;
    *any_p = choose(l, &f);
    if (!*any_p)
        return HVD_OK;
    o->kind = f.kind;
    o->body_n = f.bytes;
    put_frame(head, &f);
    TRY(seal_head(l, head, err));
    TRY(seal_body(l, err));
    o->active = true;
    return HVD_OK;
}

static void end_transfer(struct link *l, struct mesh_xfer *x, size_t bytes)
{
    void *owner = x->owner;

    list_remove(&x->node);
    x->done += bytes;
    if (x->done < x->bytes) {
        list_append(&l->sends, &x->node);
        return;
    }
    if (owner != NULL)
        free(owner);                    /* x lies in it */
    else
        x->status = HVD_OK;
}

static bool link_is_far(const struct link *l)
{
    const struct mesh_topology *t = &l->mesh->topology;

    return t->host_of[l->peer] != t->host_of[t->rank];
}

static void end(struct link *l)
{
    struct link_out *o = &l->out;
    struct mesh_counters *c = &l->mesh->counters;

    o->active = false;
    c->frames_sent++;
    if (o->kind == FRAME_MESSAGE) {
        c->messages_sent++;
        c->far_messages_sent += link_is_far(l);
        c->message_bytes_sent += o->body_n;
        free(o->message);
        o->message = NULL;
    } else if (o->kind == FRAME_TRANSFER) {
        end_transfer(l, o->x, o->body_n);
        o->x = NULL;
    } else {
        l->leaving = false;
    }
}

/* The parts of the frame from byte o->done on. */
static int parts(const struct link_out *o, struct iovec iov[3])
{
    const void *at[3] = {o->prelude, o->body, o->trailer};
    size_t bytes[3] = {o->prelude_n, o->body_n, o->trailer_n}, skip = o->done;
    int count = 0;

    for (int i = 0; i < 3; i++) {
        size_t cut = skip < bytes[i] ? skip : bytes[i];

        skip -= cut;
        if (bytes[i] > cut)
            iov[count++] = (struct iovec){(char *)at[i] + cut, bytes[i] - cut};
    }
    return count;
}

/* True: the frame is out.  False: no room, or *failed_p. */
static bool write_frame(struct link *l, size_t *moved_p, bool *failed_p,
                        struct hvd_error *err)
{
    struct link_out *o = &l->out;
    size_t all = o->prelude_n + o->body_n + o->trailer_n;
    struct iovec iov[3];

    while (o->done < all) {
        ssize_t n = l->ops->write(l, iov, parts(o, iov), err);

        if (n <= 0) {
            *failed_p = n < 0;
            return false;
        }
        o->done += (size_t)n;
        *moved_p += (size_t)n;
    }
    return true;
}

int link_send(struct link *l)
{
    struct hvd_error err;
    size_t moved = 0;
    bool failed = false, any = true;
    int finished = 0;

    while (!l->closed && !l->pending && moved < ROUND_BYTES) {
        if (!l->out.active)
            failed = begin(l, &any, &err) != HVD_OK;
        if (failed || !any || !write_frame(l, &moved, &failed, &err))
            break;
        end(l);
        finished++;
    }
    l->mesh->counters.bytes_sent += moved;
    if (failed) {
        link_break(l, &err);
        return 1;
    }
    if (l->queued && !link_has_output(l)) {
        list_remove(&l->outgoing_node);
        l->queued = false;
        if (l->ops->want_room != NULL)
            l->ops->want_room(l, false);        /* or it would end every sleep */
    }
    return finished > 0 || moved > 0;
}

/* The stream needs the rest of a transfer that has begun; it goes out from a copy. */
void link_cancel_send(struct link *l, struct mesh_xfer *x)
{
    size_t left = x->bytes - x->done;
    struct mesh_xfer *copy;
    struct hvd_error err;

    if (l->out.x != x && x->done == 0) {
        list_remove(&x->node);
        return;
    }
    copy = malloc(sizeof *copy + left);
    if (copy == NULL) {
        list_remove(&x->node);
        l->out.active = false;
        error_set(&err, HVD_NOMEM, -1, "no memory to cancel a send to rank %d", l->peer);
        link_break(l, &err);
        return;
    }
    *copy = *x;
    memcpy(copy + 1, x->at + x->done, left);
    copy->at = (char *)(copy + 1) - x->done;
    copy->owner = copy;
    copy->node.prev->next = copy->node.next->prev = &copy->node;
    if (l->out.x == x) {
        if (l->out.body == x->at + x->done)
            l->out.body = copy->at + x->done;
        l->out.x = copy;
    }
}
