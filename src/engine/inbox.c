/*
 * inbox.c: messages of other engines (and of our own, as coordinator of a set).
 * A message for a process set that does not exist here yet is kept until it does: its
 * sender has met the response that makes it a little earlier.
 */
#include "engine/engine_int.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>

#define LOG_COMPONENT "engine"

struct early {
    struct list node;
    int peer;
    uint32_t set, epoch;
    size_t n;
    uint8_t bytes[];
};

static int member_of(const struct pset *s, int rank)
{
    for (int i = 0; i < s->count; i++)
        if (s->ranks[i] == rank)
            return i;
    return -1;
}

static enum hvd_status on_requests(struct engine *e, struct pset *s, int member,
                                   struct wire_in *in, uint32_t count,
                                   struct hvd_error *err)
{
    uint64_t now_us = clock_us();
    struct wire_request r;

    e->heard = true;
    for (uint32_t i = 0; i < count; i++) {
        TRY(get_request(in, &r, err));
        trace_ready(e, s, member, &r);
        TRY(neg_on_request(s->neg, member, &r, now_us, err));
    }
    return HVD_OK;
}

static enum hvd_status on_hits(struct engine *e, struct pset *s, int member,
                               struct wire_in *in, uint32_t count, struct hvd_error *err)
{
    uint64_t now_us = clock_us();

    e->heard = true;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = get_u32(in), seq = get_u32(in);

        if (in->failed)
            return error_set(err, HVD_PROTO, -1, "hits cut short");
        trace_hit(e, s, number);
        neg_on_hit(s->neg, member, number, seq, now_us);
    }
    return HVD_OK;
}

/* Keeps the bytes until member_process has done them. */
static enum hvd_status on_responses(struct pset *s, struct wire_in *in, uint32_t count,
                                    struct hvd_error *err)
{
    size_t n = wire_left(in);
    struct inbound *m;

    if (count == 0) {
        s->ended = true;
        return HVD_OK;
    }
    m = malloc(sizeof *m + n);
    if (m == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for responses");
    m->n = n;
    m->at = 0;
    m->left = count;
    memcpy(m->bytes, in->at, n);
    list_append(&s->responses, &m->node);
    return HVD_OK;
}

static enum hvd_status to_set(struct engine *e, struct pset *s, int peer,
                              const struct message_head *head, struct wire_in *in,
                              struct hvd_error *err)
{
    int member = member_of(s, peer);

    if (member < 0)
        return error_set(err, HVD_PROTO, peer, "rank %d is not of process set %d", peer,
                         s->id);
    if (head->kind == MESSAGE_RESPONSES && member == bundle_source(s))
        return on_responses(s, in, head->count, err);
    if (head->kind == MESSAGE_SWAP)
        return swap_on_message(e, s, member, in, head->count, err);
    if (head->kind == MESSAGE_HITS && bundle_leads(s)) {
        e->heard = true;
        return bundle_on_hits(s, member, in, head->count, err);
    }
    if (s->neg == NULL)
        return error_set(err, HVD_PROTO, peer, "message for the coordinator");
    neg_on_ack(s->neg, member, head->acked);
    if (head->kind == MESSAGE_REQUESTS)
        return on_requests(e, s, member, in, head->count, err);
    if (head->kind == MESSAGE_HITS)
        return on_hits(e, s, member, in, head->count, err);
    if (head->kind == MESSAGE_BUNDLE) {
        e->heard = true;
        return bundle_on_message(e, s, member, in, head->count, err);
    }
    return head->kind == MESSAGE_ACK
               ? HVD_OK
               : error_set(err, HVD_PROTO, peer, "message of kind %d", head->kind);
}

/* `peer` says that rank `gone` has left.  What came before is done first: check_verdict acts
 * on it. */
static void on_leave(struct engine *e, int peer, int gone)
{
    if (e->farewell.status != HVD_OK)
        return;
    if (gone < 0 || gone >= e->topo->size)
        gone = peer;
    error_set(&e->farewell, HVD_SHUTDOWN, gone,
              "Horovod has been shut down: rank %d on %s has left the job, by a call of "
              "shutdown or because its script ended (perhaps with an exception); operations "
              "that it did not take part in cannot complete", gone, e->topo->hosts[gone]);
}

/* About stalls; concerns no process set. */
static enum hvd_status on_talk(struct engine *e, int peer, enum message_kind kind,
                               struct wire_in *in, struct hvd_error *err)
{
    struct wire_text text;

    if (kind == MESSAGE_ASK) {
        stall_on_ask(e, peer);
        return HVD_OK;
    }
    TRY(get_wire_text(in, &text, err));
    if (kind == MESSAGE_WHERE)
        stall_on_where(e, peer, &text);
    else
        stall_on_report(e, peer, &text);
    return HVD_OK;
}

static void keep_early(struct engine *e, int peer, const struct message_head *head,
                       const uint8_t *bytes, size_t n)
{
    struct early *m = malloc(sizeof *m + n);

    if (m == NULL)
        return;                         /* the stall report will tell */
    m->peer = peer;
    m->set = head->set;
    m->epoch = head->epoch;
    m->n = n;
    memcpy(m->bytes, bytes, n);
    list_append(&e->early, &m->node);
}

static enum hvd_status dispatch(struct engine *e, int peer, const uint8_t *bytes,
                                size_t n, struct hvd_error *err)
{
    struct wire_in in = wire_in_from(bytes, n);
    struct message_head head;
    struct pset *s;

    TRY(get_message_head(&in, &head, err));
    if (head.kind == MESSAGE_LEAVE) {
        on_leave(e, peer, (int)head.set);
        return HVD_OK;
    }
    if (head.kind >= MESSAGE_STALL && head.kind <= MESSAGE_WHERE)
        return on_talk(e, peer, head.kind, &in, err);
    if (head.set >= TEAM_SLOTS)
        return error_set(err, HVD_PROTO, peer, "message for process set %u", head.set);
    s = e->sets[head.set];
    if (s == NULL || head.epoch > s->epoch) {
        keep_early(e, peer, &head, bytes, n);
        return HVD_OK;
    }
    if (head.epoch < s->epoch)
        return HVD_OK;                  /* of a set that was removed */
    TRY(to_set(e, s, peer, &head, &in, err));
    if (head.kind == MESSAGE_RESPONSES && peer != e->topo->rank)
        bundle_hand_on(e, s, bytes, n);
    return HVD_OK;
}

void engine_on_message(void *context, int peer, const uint8_t *bytes, size_t n)
{
    struct engine *e = context;
    struct hvd_error err;

    if (dispatch(e, peer, bytes, n, &err) == HVD_OK)
        return;
    error_prefix(&err, "message of rank %d on %s", peer, e->topo->hosts[peer]);
    err.rank = peer;
    mesh_fail(e->mesh, &err);
}

void engine_replay_early(struct engine *e, struct pset *s)
{
    list_each_safe(node, &e->early) {
        struct early *m = list_entry(node, struct early, node);

        if (m->set != (uint32_t)s->id || m->epoch > s->epoch)
            continue;
        list_remove(&m->node);
        engine_on_message(e, m->peer, m->bytes, m->n);
        free(m);
    }
}
