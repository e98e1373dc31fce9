/*
 * self.c: a rank to itself.  A transfer is a copy between two buffers that are both
 * known; a message waits in the queue for the next mesh_progress.
 */
#include "transport_int.h"

#include <stdlib.h>

static struct mesh_xfer *take(struct list *xfers, uint64_t tag)
{
    list_each(node, xfers) {
        struct mesh_xfer *x = list_entry(node, struct mesh_xfer, node);

        if (x->tag == tag) {
            list_remove(&x->node);
            return x;
        }
    }
    return NULL;
}

static void copy(struct link *l, struct mesh_xfer *from, struct mesh_xfer *to)
{
    struct hvd_error err;

    if (from->bytes != to->bytes) {
        error_set(&err, HVD_PROTO, l->peer,
                  "rank %d sent itself %zu bytes for transfer %llx, %zu were expected",
                  l->peer, from->bytes, (unsigned long long)from->tag, to->bytes);
        mesh_fail(l->mesh, &err);
        from->status = to->status = HVD_PROTO;
        return;
    }
    if (from->bytes > 0)
        memmove(to->at, from->at, from->bytes);
    from->status = to->status = HVD_OK;
}

void self_send(struct link *l, struct mesh_xfer *x)
{
    struct mesh_xfer *to = take(&l->posted, x->tag);

    if (to != NULL)
        copy(l, x, to);
    else
        list_append(&l->sends, &x->node);
}

void self_receive(struct link *l, struct mesh_xfer *x)
{
    struct mesh_xfer *from = take(&l->sends, x->tag);

    if (from != NULL)
        copy(l, from, x);
    else
        list_append(&l->posted, &x->node);
}

int self_deliver(struct link *l)
{
    struct mesh *m = l->mesh;
    struct list *last = l->messages.prev, *node;
    int count = 0;

    while ((node = list_pop(&l->messages)) != NULL) {
        struct message *msg = list_entry(node, struct message, node);

        if (m->on_message != NULL)
            m->on_message(m->on_message_context, l->peer, msg->data, msg->bytes);
        m->counters.messages_sent++;
        m->counters.message_bytes_sent += msg->bytes;
        free(msg);
        count++;
        if (node == last)               /* what the handler added waits for the next */
            break;
    }
    return count;
}
