/*
 * dial.c: whom the door dials, at which address, and when again.  The rules that are named
 * here are those of door.c.
 */
#define LOG_COMPONENT "transport"
#include "door_int.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"

#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <sys/epoll.h>

#define STAGGER_US 100000
#define AGAIN_FIRST_US 20000
#define AGAIN_LAST_US 500000

struct dial *dial_find(const struct door *d, int peer, enum hs_purpose purpose)
{
    list_each(node, &d->dials) {
        struct dial *dial = list_entry(node, struct dial, node);

        if (dial->peer == peer && dial->purpose == purpose)
            return dial;
    }
    return NULL;
}

static void resolve(const struct door *d, struct dial *dial)
{
    const struct place *p = &d->places[dial->peer];
    const char *text = d->texts + p->at;

    for (int i = 0; i < p->count; i++) {
        dial->target_count += addresses_resolve(text, p->port,
                                                dial->targets + dial->target_count,
                                                DIAL_TARGETS - dial->target_count);
        text += strlen(text) + 1;
    }
}

/* Without memory the dial is given up as if its time were over, which needs none. */
void dial_begin(struct door *d, int peer, enum hs_purpose purpose, uint64_t until_us)
{
    struct dial *dial;

    if (door_has(d, peer, purpose) || dial_find(d, peer, purpose) != NULL)
        return;
    dial = calloc(1, sizeof *dial);
    if (dial == NULL) {
        struct hvd_error why;

        error_set(&why, HVD_NOMEM, -1, "no memory to connect to rank %d", peer);
        mesh_fail(d->m, &why);
        return;
    }
    dial->peer = peer;
    dial->purpose = purpose;
    dial->again_us = AGAIN_FIRST_US;
    dial->until_us = until_us;
    resolve(d, dial);
    error_set(&dial->why, HVD_TIMEOUT, peer, "no answer");
    list_append(&d->dials, &dial->node);
}

void dial_end(struct door *d, struct dial *dial)
{
    list_each_safe(node, &d->attempts) {
        struct attempt *a = list_entry(node, struct attempt, node);

        if (a->dial == dial)
            attempt_end(d, a);
    }
    if (d->hopeless == dial)
        d->hopeless = NULL;
    list_remove(&dial->node);
    free(dial);
}

/* Rule 3. */
static void keep_hint(struct dial *dial, int target, const struct hvd_error *why)
{
    const struct sockaddr_storage *at = &dial->targets[target];
    char text[NI_MAXHOST] = "?";

    getnameinfo((const struct sockaddr *)at, address_bytes(at), text, sizeof text, NULL, 0,
                NI_NUMERICHOST);
    dial->hint = *why;
    error_prefix(&dial->hint, "at %s", text);
}

/* The next address may start at once. */
void dial_failed(struct door *d, struct attempt *a, const struct hvd_error *why)
{
    struct dial *dial = a->dial;

    dial->why = *why;
    if (why->status == HVD_VERSION)
        d->hopeless = dial;
    else if (why->status == HVD_AUTH)
        keep_hint(dial, a->target, why);
    log_debug("rank %d: %s", dial->peer, why->text);
    attempt_end(d, a);
    dial->start_us = 0;
}

static void start_target(struct door *d, struct dial *dial, uint64_t now)
{
    const struct sockaddr_storage *to = &dial->targets[dial->next];
    struct attempt *a;
    int target = dial->next++;
    int fd = FAULT("tcp.connect")
                 ? -1
                 : socket(to->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    dial->start_us = now + STAGGER_US;
    if (fd < 0) {
        error_sys(&dial->why, dial->peer, "socket");
        return;
    }
    fork_add(fd);
    a = attempt_new(d, fd, dial, target);
    if (a == NULL)
        return;
    if (connect(fd, (const struct sockaddr *)to, address_bytes(to)) != 0 &&
        errno != EINPROGRESS) {
        struct hvd_error why;

        error_sys(&why, dial->peer, "connecting");
        dial_failed(d, a, &why);
        return;
    }
    door_follow(d, a);
}

static void dial_step(struct door *d, struct dial *dial, uint64_t now)
{
    if (now < dial->start_us)
        return;
    while (dial->next < dial->target_count && dial->busy[dial->next])
        dial->next++;                   /* rule 4 */
    if (dial->next < dial->target_count) {
        start_target(d, dial, now);
        return;
    }
    dial->next = 0;
    dial->start_us = now + dial->again_us;
    dial->again_us = dial->again_us * 2 < AGAIN_LAST_US ? dial->again_us * 2 : AGAIN_LAST_US;
}

/* Rule 7. */
static void give_up(struct door *d, struct dial *dial)
{
    struct mesh *m = d->m;
    struct strbuf text;
    struct hvd_error why;
    enum hvd_status cause;

    strbuf_init(&text);
    cause = dial_cause(dial, &text);
    error_set(&why, cause == HVD_VERSION ? cause : HVD_PEER_LOST, dial->peer,
              "rank %d on %s: no connection%s; an operation needs one within "
              "HOROVOD_GLOO_TIMEOUT_SECONDS, which is %.0f", dial->peer,
              m->topology.hosts[dial->peer], text.text, m->conf->timeout_s);
    strbuf_release(&text);
    dial_end(d, dial);
    mesh_fail(m, &why);
}

uint64_t dials_step(struct door *d, uint64_t now)
{
    uint64_t next = UINT64_MAX;

    list_each_safe(node, &d->dials) {
        struct dial *dial = list_entry(node, struct dial, node);

        if (now >= dial->until_us || (dial == d->hopeless && d->m->watch != NULL)) {
            give_up(d, dial);
            continue;
        }
        dial_step(d, dial, now);
        next = dial->start_us < next ? dial->start_us : next;
        next = dial->until_us < next ? dial->until_us : next;
    }
    return next;
}

enum hvd_status dial_cause(const struct dial *dial, struct strbuf *text)
{
    bool hinted = dial->hint.status != HVD_OK && dial->why.status != HVD_VERSION;

    if (hinted && dial->why.status == HVD_AUTH)
        strbuf_addf(text, " (%s)", dial->hint.text);
    else
        strbuf_addf(text, " (%s%s%s)", dial->why.text, hinted ? "; " : "",
                    hinted ? dial->hint.text : "");
    return dial->why.status == HVD_VERSION ? HVD_VERSION : hinted ? HVD_AUTH : HVD_TIMEOUT;
}
