/*
 * link.c: the life of one pair of ranks: made, sealed, broken, failed, released.
 *
 * 1. Every transfer of a link ends exactly once: complete, cancelled, or by link_fail.
 * 2. A stream that ends is no verdict: the watch thread decides whether the peer has left
 *    or is lost (link_break); a broken protocol is one, and is told to all at once.
 */
#define LOG_COMPONENT "transport"
#include "transport_int.h"

#include "base/log.h"

#include <stdlib.h>

void link_init(struct link *l, struct mesh *m, int peer)
{
    *l = (struct link){.mesh = m, .peer = peer};
    list_init(&l->outgoing_node);
    list_init(&l->messages);
    list_init(&l->sends);
    list_init(&l->posted);
    list_init(&l->early);
}

enum hvd_status link_seal(struct link *l, enum link_level level,
                          const struct hs_keys *keys, struct hvd_error *err)
{
    l->level = level;
    TRY(seal_init(&l->seal_out, keys->send, err));
    TRY(seal_init(&l->seal_in, keys->receive, err));
    if (level != LINK_ENCRYPT)
        return HVD_OK;
    l->record_out = malloc(FRAME_RECORD_MAX + SEAL_TAG);
    l->record_in = malloc(FRAME_RECORD_MAX + SEAL_TAG);
    if (l->record_out == NULL || l->record_in == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for records to rank %d", l->peer);
    return HVD_OK;
}

static void drop_messages(struct link *l)
{
    struct list *node;

    while ((node = list_pop(&l->messages)) != NULL)
        free(list_entry(node, struct message, node));
    free(l->out.message);
    l->out.message = NULL;
}

/* A cancelled send has no reader any more; its copy goes with it. */
static void end_all(struct list *xfers, enum hvd_status status)
{
    struct list *node;

    while ((node = list_pop(xfers)) != NULL) {
        struct mesh_xfer *x = list_entry(node, struct mesh_xfer, node);

        x->status = status;
        free(x->owner);
    }
}

static void drop_early(struct link *l)
{
    struct list *node;

    while ((node = list_pop(&l->early)) != NULL) {
        struct unexpected *u = list_entry(node, struct unexpected, node);

        free(u->data);
        free(u);
    }
}

void link_fail(struct link *l, enum hvd_status status)
{
    l->closed = true;
    l->out.active = false;
    l->out.x = NULL;
    l->in.x = NULL;
    drop_messages(l);
    end_all(&l->sends, status);
    end_all(&l->posted, status);
    if (l->queued) {
        list_remove(&l->outgoing_node);
        l->queued = false;
    }
}

/* Every transfer keeps waiting: either the verdict ends it, or the peer has left. */
void link_break(struct link *l, const struct hvd_error *why)
{
    struct mesh *m = l->mesh;

    if (l->closed)
        return;
    l->closed = true;
    if (l->queued) {
        list_remove(&l->outgoing_node);
        l->queued = false;
    }
    if (l->ops->close != NULL)
        l->ops->close(l);
    if (why->status == HVD_PROTO || why->status == HVD_AUTH || why->status == HVD_NOMEM)
        mesh_fail(m, why);
    else
        watch_suspect(m, l->peer, why);
}

/* What has arrived can still be received; what has not never will be.  Who leaves because
 * of a verdict that we know as well is no reason of its own. */
void link_peer_left(struct link *l)
{
    const struct hvd_error *verdict = mesh_verdict(l->mesh);

    log_debug("rank %d has left", l->peer);
    link_fail(l, verdict != NULL ? verdict->status : HVD_SHUTDOWN);
    atomic_store(&l->left, true);
    if (l->ops != NULL && l->ops->close != NULL)
        l->ops->close(l);
}

void link_release(struct link *l)
{
    link_fail(l, HVD_SHUTDOWN);
    drop_early(l);
    free(l->in.message);
    free(l->record_out);
    free(l->record_in);
    if (l->ops != NULL && l->ops->close != NULL)
        l->ops->close(l);
    seal_release(&l->seal_out);
    seal_release(&l->seal_in);
}
