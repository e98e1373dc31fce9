/*
 * channel.c: see channel.h.
 *
 * 1. The body of a frame is allocated when its header has come, never more than `limit`.
 * 2. A message is handed out only after its seal has been checked.
 */
#include "rendezvous/channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum hvd_status channel_init(struct channel *c, int fd, const struct hs_keys *keys,
                             size_t limit, struct hvd_error *err)
{
    memset(c, 0, sizeof *c);
    c->fd = fd;
    c->limit = limit;
    TRY(seal_init(&c->out, keys->send, err));
    return seal_init(&c->in, keys->receive, err);
}

void channel_release(struct channel *c)
{
    if (c->limit == 0)                  /* zeroed */
        return;
    if (c->fd >= 0) {
        shutdown(c->fd, SHUT_RDWR);     /* also if a forked child has a copy of it */
        close(c->fd);
    }
    seal_release(&c->out);
    seal_release(&c->in);
    free(c->unsent);
    free(c->body);
    memset(c, 0, sizeof *c);
    c->fd = -1;
}

/* ---- Sending ---------------------------------------------------------------------- */

static enum hvd_status append(struct channel *c, size_t n, uint8_t **at_p,
                              struct hvd_error *err)
{
    size_t kept = c->unsent_n - c->unsent_at;
    uint8_t *grown = malloc(kept + n);

    if (grown == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a message of %zu bytes", n);
    if (kept > 0)
        memcpy(grown, c->unsent + c->unsent_at, kept);
    free(c->unsent);
    c->unsent = grown;
    c->unsent_at = 0;
    c->unsent_n = kept + n;
    *at_p = grown + kept;
    return HVD_OK;
}

enum hvd_status channel_send(struct channel *c, enum rdv_kind kind, const void *body,
                             size_t n, struct hvd_error *err)
{
    enum hvd_status status;
    uint8_t *at = NULL;

    TRY(append(c, RDV_HEADER + n + SEAL_TAG, &at, err));
    put_rdv_header(at, kind, n);
    TRY(seal_encrypt(&c->out, at, RDV_HEADER, body, n, at + RDV_HEADER,
                     at + RDV_HEADER + n, err));
    status = channel_flush(c, err);
    return status == HVD_AGAIN ? HVD_OK : status;
}

enum hvd_status channel_flush(struct channel *c, struct hvd_error *err)
{
    while (c->unsent_at < c->unsent_n) {
        ssize_t n = send(c->fd, c->unsent + c->unsent_at, c->unsent_n - c->unsent_at,
                         MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return HVD_AGAIN;
        if (n < 0)
            return error_set(err, HVD_PEER_LOST, -1, "the connection broke: %s",
                             strerror(errno));
        c->unsent_at += (size_t)n;
    }
    free(c->unsent);
    c->unsent = NULL;
    c->unsent_at = c->unsent_n = 0;
    return HVD_OK;
}

/* ---- Receiving -------------------------------------------------------------------- */

/* Reads until c->got is `until`, into p, which is where byte `from` of the frame goes. */
static enum hvd_status fill(struct channel *c, uint8_t *p, size_t from, size_t until,
                            struct hvd_error *err)
{
    while (c->got < until) {
        ssize_t n = recv(c->fd, p + (c->got - from), until - c->got, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return HVD_AGAIN;
        if (n <= 0)
            return error_set(err, HVD_PEER_LOST, -1, "the connection was closed%s%s",
                             n < 0 ? ": " : "", n < 0 ? strerror(errno) : "");
        c->got += (size_t)n;
    }
    return HVD_OK;
}

static enum hvd_status begin_body(struct channel *c, size_t n, struct hvd_error *err)
{
    if (c->body != NULL)
        return HVD_OK;
    c->body = malloc(n + SEAL_TAG);
    if (c->body == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a message of %zu bytes", n);
    c->body_n = n;
    return HVD_OK;
}

enum hvd_status channel_receive(struct channel *c, struct channel_message *m,
                                struct hvd_error *err)
{
    if (c->body != NULL && c->got == RDV_HEADER + c->body_n + SEAL_TAG) {
        free(c->body);                  /* handed out by the last call */
        c->body = NULL;
        c->got = 0;
    }
    TRY(fill(c, c->header, 0, RDV_HEADER, err));
    TRY(get_rdv_header(c->header, c->limit, &m->kind, &m->n, err));
    TRY(begin_body(c, m->n, err));
    TRY(fill(c, c->body, RDV_HEADER, RDV_HEADER + m->n + SEAL_TAG, err));
    m->body = c->body;
    return seal_decrypt(&c->in, c->header, RDV_HEADER, c->body, m->n, c->body,
                        c->body + m->n, err);
}
