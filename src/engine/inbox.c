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

/* Ranks ascend. */
static int member_of(const struct pset *s, int rank)
{
    int low = 0, high = s->count;

    while (low < high) {
        int middle = (low + high) / 2;

        if (s->ranks[middle] == rank)
            return middle;
        if (s->ranks[middle] < rank)
            low = middle + 1;
        else
            high = middle;
    }
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
                              struct hvd_error *err);

/* At the coordinator: a message that came with those of others. */
static enum hvd_status take_forwarded(struct engine *e, struct pset *s, int member,
                                      const uint8_t *bytes, size_t n, struct hvd_error *err)
{
    struct wire_in in = wire_in_from(bytes, n);
    struct message_head head;

    TRY(get_message_head(&in, &head, err));
    if (head.kind != MESSAGE_REQUESTS || head.set != (uint32_t)s->id || head.epoch != s->epoch)
        return error_set(err, HVD_PROTO, -1, "a message of kind %d was handed on", head.kind);
    return to_set(e, s, s->ranks[member], &head, &in, err);
}

static enum hvd_status to_set(struct engine *e, struct pset *s, int peer,
                              const struct message_head *head, struct wire_in *in,
                              struct hvd_error *err)
{
    int member = member_of(s, peer);
    struct way *way;

    if (member < 0 || s->self < 0)
        return error_set(err, HVD_PROTO, peer, "rank %d is not of process set %d", peer,
                         s->id);
    if (head->kind == MESSAGE_RESPONSES && member == pset_source(s))
        return on_responses(s, in, head->count, err);
    if (s->neg != NULL)
        neg_on_ack(s->neg, member, head->acked);
    way = ways_for(s, head->kind);
    if (way != NULL)
        return way->ops->on_message(way, e, member, head, in, err);
    if (s->neg != NULL && head->kind == MESSAGE_REQUESTS)
        return on_requests(e, s, member, in, head->count, err);
    if (s->deep && head->kind == MESSAGE_FORWARD)
        return upward_on_forward(e, s, member, in, head->count, take_forwarded, err);
    return error_set(err, HVD_PROTO, peer, "message of kind %d", head->kind);
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
              "that it did not take part in cannot complete. If it had fewer batches than "
              "others, let every rank call hvd.join() after its last one", gone,
              e->topo->hosts[gone]);
}

/* A report that comes down the tree of a set (acked: its rank and one) goes on; who wrote it. */
static int hand_on_report(struct engine *e, int peer, const struct message_head *head,
                          const uint8_t *bytes, size_t n)
{
    const struct pset *s = head->set < TEAM_SLOTS ? e->sets[head->set] : NULL;

    if (head->acked == 0 || head->acked > (uint32_t)e->topo->size)
        return peer;
    if (s != NULL && s->epoch == head->epoch && s->self > 0 &&
        peer == s->ranks[pset_source(s)])
        pset_hand_on(e, s, bytes, n);
    return (int)head->acked - 1;
}

/* About stalls. */
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
        return on_talk(e, head.kind == MESSAGE_STALL ? hand_on_report(e, peer, &head, bytes, n)
                                                     : peer,
                       head.kind, &in, err);
    if (head.set >= TEAM_SLOTS)
        return error_set(err, HVD_PROTO, peer, "message for process set %u", head.set);
    s = e->sets[head.set];
    if (s == NULL || head.epoch > s->epoch) {
        keep_early(e, peer, &head, bytes, n);
        return HVD_OK;
    }
    if (head.epoch < s->epoch)
        return HVD_OK;                  /* of a set that was removed */
    if (head.kind == MESSAGE_REQUESTS && s->deep && s->self > 0 && member_of(s, peer) >= 0)
        return upward_take(e, s, member_of(s, peer), bytes, n, err);
    TRY(to_set(e, s, peer, &head, &in, err));
    if (head.kind == MESSAGE_RESPONSES && peer != e->topo->rank)
        pset_hand_on(e, s, bytes, n);
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
