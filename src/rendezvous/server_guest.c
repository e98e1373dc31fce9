/*
 * server_guest.c: proved peers of a server with hooks, see guests.h.
 *
 * 1. A guest may speak at any time; everything that has come is handed out in one turn.
 * 2. `left` is called once for each guest that stayed, and never within guest_send.
 */
#include "rendezvous/server_int.h"

#include <string.h>
#include <sys/epoll.h>

static struct peer *peer_of(struct guest *g)
{
    return (struct peer *)g;
}

/* Sends it away, and tells. */
static void dismiss(struct hvd_server *s, struct peer *p, const char *why)
{
    void *tag = p->tag;

    p->tag = NULL;
    peer_drop(s, p);
    if (tag != NULL && s->hooks.left != NULL)
        s->hooks.left(s->hooks.context, tag, why);
}

void guest_came(struct hvd_server *s, struct peer *p)
{
    if (!s->hooks.came(s->hooks.context, (struct guest *)p, p->rank, &p->tag)) {
        p->tag = NULL;
        peer_drop(s, p);
        return;
    }
    guest_handle(s, p, EPOLLIN);        /* it may have spoken already */
}

void guest_handle(struct hvd_server *s, struct peer *p, uint32_t events)
{
    struct channel_message m;
    struct hvd_error err;
    enum hvd_status status = HVD_AGAIN;

    if (events & EPOLLOUT)
        status = channel_flush(&p->channel, &err);
    while (status == HVD_OK || status == HVD_AGAIN) {
        status = channel_receive(&p->channel, &m, &err);
        if (status == HVD_AGAIN) {
            peer_watch(s, p);
            return;
        }
        if (status != HVD_OK)
            break;
        s->hooks.said(s->hooks.context, p->tag, &m);
        if (p->state == PEER_DEAD)      /* the hook has dropped it */
            return;
    }
    dismiss(s, p, err.text);
}

void guest_turn(struct hvd_server *s, uint64_t now_us)
{
    s->hooks_due_us = s->hooks.turn(s->hooks.context, now_us);
    list_each_safe(node, &s->workers) {
        struct peer *p = list_entry(node, struct peer, node);

        if (p->state == PEER_GUEST && p->failed) {
            dismiss(s, p, "the connection broke");
            s->hooks_due_us = 0;        /* they may have something to do about it */
        }
    }
}

enum hvd_status guests_server_new(const struct hvd_server_options *opt,
                                  const struct guest_hooks *hooks,
                                  struct hvd_server **server_p, struct hvd_error *err)
{
    return server_new(opt, hooks, server_p, err);
}

void guest_send(struct hvd_server *s, struct guest *guest, enum rdv_kind kind,
                const void *body, size_t n)
{
    struct peer *p = peer_of(guest);
    struct hvd_error err;

    if (p->failed)
        return;
    if (channel_send(&p->channel, kind, body, n, &err) != HVD_OK)
        p->failed = true;
    else
        peer_watch(s, p);
}

void guest_drop(struct hvd_server *s, struct guest *guest)
{
    peer_of(guest)->tag = NULL;
    peer_drop(s, peer_of(guest));
}

void guest_take(struct hvd_server *s, struct guest *guest, struct channel *channel)
{
    struct peer *p = peer_of(guest);

    epoll_ctl(s->epoll, EPOLL_CTL_DEL, p->fd, NULL);
    *channel = p->channel;
    memset(&p->channel, 0, sizeof p->channel);
    p->fd = -1;
    guest_drop(s, guest);
}

enum hs_purpose guest_purpose(const struct guest *guest)
{
    return ((const struct peer *)guest)->purpose;
}

const char *guest_address(const struct guest *guest)
{
    return ((const struct peer *)guest)->address;
}

void guests_lock(struct hvd_server *server)
{
    pthread_mutex_lock(&server->lock);
}

void guests_unlock(struct hvd_server *server)
{
    pthread_mutex_unlock(&server->lock);
    server_wake(server);
}

void guests_unlock_quietly(struct hvd_server *server)
{
    pthread_mutex_unlock(&server->lock);
}
