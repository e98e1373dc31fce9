/*
 * watch.c: the heartbeat thread: who is alive, and what the others have found out.
 *
 * It never waits for the owner of the mesh, and nobody holds a lock for long against it.
 *
 * 1. Every T/10 a rank beats: the time into its control line for the ranks of its host, a
 *    message on the watch connection for the others.
 * 2. Dead is who has ended without a goodbye (pidfd, end of the watch connection), at
 *    once, and who has not beaten for T + T/20.  Slow is not dead.
 * 3. Who wakes up late itself (stopped, no CPU, suspended machine) cannot judge others: it
 *    starts counting anew.
 * 4. Ranks finish forming at different times.  Until its first beat a peer has until the
 *    end of the time for forming.
 * 5. When a data connection ends, the owner asks here (watch_suspect): it is a departure
 *    if a goodbye comes within the grace, else the peer is lost.
 * 6. A verdict goes to all hosts once from everybody who learns it.
 * 7. Between hosts a rank is connected to few others (overlay.c).  A verdict, a departure, and
 *    news of the owner (mesh_spread) reach everybody because whoever hears of them hands
 *    them on: verdicts at once, by the board of its host, whose alarm wakes the other watch
 *    threads, and on its connections; departures with the next beat, by a map in shared
 *    memory, and all together; news by the owners.  When ranks have left and others go on,
 *    neighbours are chosen anew.
 * 8. A beat wakes nobody: it is shorter than SO_RCVLOWAT and is read when the receiver
 *    beats itself, and before it judges.  What is urgent is longer.
 * 9. Whoever started the job may end it: its connection is watched here, too.
 * 10. This thread keeps the door (door.c): it dials for the owner, and accepts.  A goodbye says
 *    whether its sender has a data connection to us; if so, and we have not seen it yet, the
 *    peer leaves when we have, so that what it sent before is read.
 * 11. When the agent of horovodrun has been killed, so are its children, by the kernel.  Behind a
 *    wrapper we are none of them, and end ourselves.
 *
 * Messages of a watch connection: wire/note.h, each followed by its GMAC.
 */
#define LOG_COMPONENT "transport"
#include "transport_int.h"
#include "base/thread.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/process.h"
#include "wire/note.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SEALED_MAX (NOTE_HEAD + NOTE_TEXT_MAX + SEAL_TAG)
#define BEAT_BYTES (NOTE_HEAD + SEAL_TAG)
#define WAKE_BYTES (3 * BEAT_BYTES + 1) /* two beats may wait, and one come early; a note that is
                                         * urgent has more */
#define FAREWELL_US 500000              /* how long leaving waits for the peers' echo */

/* Epoll data: of peer i's watch connection 2 i, of its process 2 i + 1, and these. */
#define EVENT_WAKE UINT64_MAX
#define EVENT_PUSH (UINT64_MAX - 1)
#define EVENT_AGENT (UINT64_MAX - 2)
#define EVENT_DOOR (UINT64_MAX - 3)
#define EVENT_ALARM (UINT64_MAX - 4)

#define RELINK_US 1000000               /* a job that ends does not choose anew */

/* A watch connection. */
struct talk {
    struct seal out, in;
    uint8_t input[SEALED_MAX], output[4 * SEALED_MAX];
    size_t got, pending, sent;          /* output: [sent, pending) is to be sent */
    int told;                           /* departures that were sent, rule 7 */
};

struct watched {
    int fd, pidfd;                      /* -1: none */
    struct talk *talk;                  /* of fd */
    bool watched;                       /* by us; others are watched by somebody else */
    bool near;                          /* on our host, by shared memory */
    bool gone;                          /* has left, or is dead: not judged any more */
    bool begun;                         /* has beaten at least once */
    uint64_t seen_us;                   /* last beat, by our clock */
};

struct watch {
    struct mesh *m;
    pthread_t thread;
    int epoll, wake;
    struct watched *peers;              /* by rank */
    int count;
    uint64_t t_us, period_us, limit_us, grace_us;
    uint64_t rearm_us;                  /* rule 3 */
    bool told;                          /* rule 6 */
    bool leaving;                       /* our goodbye is out */
    int *departures, departure_count;   /* in the order in which we have heard of them */
    uint64_t relink_us;                 /* when neighbours are chosen anew; 0: no need */
    _Atomic bool stop, goodbye;
    pthread_mutex_t lock;               /* guards suspects, suspect_count, needed, news */
    int *needed, needed_count;          /* peers that the owner has something for */
    struct list news;                   /* struct news, to be sent */
    int agent;                          /* pidfd, rule 11; -1: none */
    int push_fd;                        /* rule 9; set before it is in the epoll */
    mesh_push_fn push;
    void *push_context;
    struct suspect { uint64_t until_us; struct hvd_error why; } *suspects;  /* by rank */
    int suspect_count;
};

static const char *host_of(const struct watch *w, int peer)
{
    return w->m->topology.hosts[peer];
}

/* ---- Notes ----------------------------------------------------------------------- */

static void flush_output(struct watched *p)
{
    struct talk *t = p->talk;
    ssize_t n;

    if (t->sent == t->pending)
        return;
    n = send(p->fd, t->output + t->sent, t->pending - t->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0)
        t->sent += (size_t)n;           /* a failure is noticed by reading */
}

/* A note that does not fit is not sealed and not sent: a peer that does not read has
 * worse problems.  A beat that would wait is of no use. */
static bool note_send(struct watched *p, const struct note *n)
{
    size_t bytes = note_bytes(n);
    struct talk *t = p->talk;
    uint8_t *to;

    if (p->fd < 0)
        return false;
    flush_output(p);
    if (t->sent == t->pending)
        t->sent = t->pending = 0;
    if (bytes + SEAL_TAG > sizeof t->output - t->pending ||
        (n->kind == NOTE_BEAT && t->pending > 0))
        return false;
    to = t->output + t->pending;
    put_note(to, n);
    if (seal_sign(&t->out, to, bytes, to + bytes, NULL) != HVD_OK)
        return false;
    t->pending += bytes + SEAL_TAG;
    flush_output(p);
    return true;
}

static void send_to_all(struct watch *w, const struct note *n)
{
    for (int i = 0; i < w->count; i++)
        note_send(&w->peers[i], n);
}

static void tell_all(struct watch *w)
{
    const struct hvd_error *verdict = verdict_get(w->m);
    struct note note;

    if (verdict == NULL || w->told)
        return;
    w->told = true;
    note = note_of_verdict(verdict);
    send_to_all(w, &note);
}

/* ---- Ends ------------------------------------------------------------------------ */

/* A forked child may have a copy: closing alone does not end it. */
static void unfollow(struct watch *w, int *fd)
{
    if (*fd >= 0) {
        epoll_ctl(w->epoll, EPOLL_CTL_DEL, *fd, NULL);
        fork_close(*fd);
    }
    *fd = -1;
}

static void forget(struct watch *w, int peer)
{
    struct watched *p = &w->peers[peer];

    p->gone = true;
    unfollow(w, &p->fd);
    unfollow(w, &p->pidfd);
    pthread_mutex_lock(&w->lock);
    if (w->suspects[peer].until_us != 0) {
        w->suspects[peer].until_us = 0;
        w->suspect_count--;
    }
    pthread_mutex_unlock(&w->lock);
}

static void departed(struct watch *w, int peer)
{
    if (w->leaving)                     /* it only echoes our goodbye */
        forget(w, peer);
    if (w->leaving || atomic_load(&w->m->links[peer].going))
        return;
    atomic_fetch_or(&w->m->left[peer / 64], UINT64_C(1) << peer % 64);
    w->departures[w->departure_count++] = peer;
    w->relink_us = clock_us() + RELINK_US;
    forget(w, peer);
    if (w->m->door != NULL)
        door_forget(w->m->door, peer);
    atomic_store(&w->m->links[peer].going, true);
    atomic_store(&w->m->stirred, true);
    mesh_kick(w->m);
}

static void suspect(struct watch *w, int peer, const struct hvd_error *why)
{
    pthread_mutex_lock(&w->lock);
    if (w->suspects[peer].until_us == 0) {
        w->suspect_count++;
        w->suspects[peer].until_us = clock_us() + w->grace_us +
                                     (w->peers[peer].watched ? 0 : w->limit_us);
        w->suspects[peer].why = *why;
    }
    pthread_mutex_unlock(&w->lock);
}

/* Rule 10. */
static void said_goodbye(struct watch *w, int peer, bool connected)
{
    struct mesh *m = w->m;
    struct hvd_error why;

    if (!connected || m->door == NULL || door_has(m->door, peer, HS_DATA)) {
        departed(w, peer);
        return;
    }
    forget(w, peer);
    error_set(&why, HVD_SHUTDOWN, peer, "rank %d has left", peer);
    suspect(w, peer, &why);
}

static bool has_said_goodbye(const struct watch *w, int peer)
{
    const struct mesh *m = w->m;

    if (atomic_load(&m->links[peer].left) || atomic_load(&m->left[peer / 64]) >> peer % 64 & 1)
        return true;
    return w->peers[peer].near &&
           atomic_load(&m->host.region->control[m->topology.local_rank_of[peer]].goodbye);
}

#define ENDED "process ended (killed?); if nobody did that, see dmesg: out of memory?"

static void lost(struct watch *w, int peer, const char *format, const char *detail)
{
    char cause[256];
    struct hvd_error err;

    if (w->peers[peer].gone)
        return;
    if (has_said_goodbye(w, peer)) {
        departed(w, peer);
        return;
    }
    snprintf(cause, sizeof cause, format, detail);
    error_set(&err, HVD_PEER_LOST, peer, "rank %d on %s: %s", peer, host_of(w, peer),
              cause);
    verdict_set(w->m, &err);
    tell_all(w);                        /* also to the one who may only have slept */
    forget(w, peer);
    mesh_kick(w->m);
}

/* ---- Reading --------------------------------------------------------------------- */

/* Rule 7: those whom somebody has heard of.  The next beat acts on it. */
static void take_departures(struct watch *w, const struct note *n)
{
    int rank;

    for (int i = 0; (rank = get_note_left(n, i)) != -1; i++)
        if (rank >= 0 && rank < w->count)
            atomic_fetch_or(&w->m->left[rank / 64], UINT64_C(1) << rank % 64);
}

static void take_verdict(struct watch *w, int peer, const struct note *n)
{
    struct hvd_error verdict, err;

    if (get_note_verdict(&verdict, n, &err) != HVD_OK) {
        lost(w, peer, "its heartbeats make no sense (%s)", err.text);
        return;
    }
    verdict_set(w->m, &verdict);
    tell_all(w);
    mesh_kick(w->m);
}

/* The note in `input`, with its GMAC. */
static void note_take(struct watch *w, int peer, size_t bytes)
{
    struct watched *p = &w->peers[peer];
    const uint8_t *input = p->talk->input;
    struct hvd_error err = {0};
    struct note n;

    if (seal_check(&p->talk->in, input, bytes, input + bytes, NULL) != HVD_OK) {
        error_set(&err, HVD_AUTH, peer, "a heartbeat of rank %d was changed on its way",
                  peer);
        forget(w, peer);
        mesh_fail(w->m, &err);
        return;
    }
    p->begun = true;
    p->seen_us = clock_us();
    get_note(&n, input);
    if (n.kind == NOTE_GOODBYE)
        said_goodbye(w, peer, n.status != 0);
    else if (n.kind == NOTE_LEFT)
        take_departures(w, &n);
    else if (n.kind == NOTE_VERDICT)
        take_verdict(w, peer, &n);
    else if (n.kind == NOTE_NEWS)
        mesh_take_news(w->m, peer, n.text, n.bytes);
}

/* The bytes that are needed before the next decision; 0: nonsense. */
static size_t note_need(const struct talk *t)
{
    size_t bytes;

    if (t->got < NOTE_HEAD)
        return NOTE_HEAD;
    bytes = get_note_bytes(t->input);
    return bytes > 0 ? bytes + SEAL_TAG : 0;
}

static void watched_read(struct watch *w, int peer)
{
    struct watched *p = &w->peers[peer];
    struct talk *t = p->talk;
    size_t need;
    ssize_t n;

    while (p->fd >= 0) {
        need = note_need(t);
        if (need == 0) {
            lost(w, peer, "%s", "its heartbeats make no sense");
            return;
        }
        n = FAULT("watch.receive") ? -1
                                   : recv(p->fd, t->input + t->got, need - t->got,
                                          MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n == 0 || (n < 0 && errno == ECONNRESET))
            lost(w, peer, "%s", ENDED);
        else if (n < 0)
            lost(w, peer, "connection lost (%s)", strerror(errno));
        if (n <= 0)
            return;
        t->got += (size_t)n;
        if (t->got == need && need > NOTE_HEAD) {
            t->got = 0;
            note_take(w, peer, need - SEAL_TAG);
        }
    }
}

/* ---- Beating and judging --------------------------------------------------------- */

static void beat(struct watch *w, uint64_t now)
{
    if (FAULT("watch.beat"))
        return;
    atomic_store_explicit(&w->m->control->beat_us, now, memory_order_release);
    send_to_all(w, &(struct note){.kind = NOTE_BEAT});
}

/* Rule 7.  What this host has heard of; our neighbours hear it from us. */
static void spread_departures(struct watch *w)
{
    struct mesh *m = w->m;

    for (int i = 0; i < w->count; i++)
        if (atomic_load_explicit(&m->left[i / 64], memory_order_relaxed) >> i % 64 & 1 &&
            i != m->topology.rank && !atomic_load(&m->links[i].going) &&
            (m->door == NULL || !door_expects(m->door, i, HS_DATA)))
            departed(w, i);
    for (int i = 0; i < w->count; i++) {
        struct watched *p = &w->peers[i];
        uint8_t text[4 * NOTE_RANKS_MAX];
        struct note n;

        if (p->fd < 0 || p->talk->told == w->departure_count)
            continue;
        n = note_of_left(w->departures + p->talk->told, w->departure_count - p->talk->told, text);
        if (note_send(p, &n))
            p->talk->told += (int)n.bytes / 4;
    }
}

/* Rule 7.  The higher rank of a pair dials. */
static void relink(struct watch *w)
{
    struct mesh *m = w->m;
    bool *gone = calloc((size_t)w->count * 2, sizeof *gone), *want = gone + w->count;

    w->relink_us = 0;
    for (int i = 0; i < w->count && gone != NULL; i++)
        gone[i] = atomic_load(&m->links[i].going);
    if (gone != NULL && m->door != NULL && mesh_watches(m, gone, want))
        for (int i = 0; i < m->topology.rank; i++)
            if (want[i] && w->peers[i].fd < 0)
                door_watch(m->door, i);
    free(gone);
}

static void read_all(struct watch *w)
{
    for (int i = 0; i < w->count; i++)
        watched_read(w, i);
}

static void look_near(struct watch *w, int peer)
{
    struct mesh *m = w->m;
    struct control *c = &m->host.region->control[m->topology.local_rank_of[peer]];
    uint64_t beat_us = atomic_load_explicit(&c->beat_us, memory_order_acquire);

    if (atomic_load(&c->goodbye)) {
        departed(w, peer);
        return;
    }
    if (beat_us == 0)
        return;
    w->peers[peer].begun = true;
    w->peers[peer].seen_us = beat_us;
}

/* When this peer has to be judged next; rules 2 to 4. */
static uint64_t judge(struct watch *w, int peer, uint64_t now)
{
    struct watched *p = &w->peers[peer];
    uint64_t since, limit = w->limit_us;
    char text[32];

    if (p->near)
        look_near(w, peer);
    else if (now >= p->seen_us + limit)
        watched_read(w, peer);          /* rule 8 */
    if (p->gone)
        return UINT64_MAX;
    since = p->begun && p->seen_us > w->rearm_us ? p->seen_us : w->rearm_us;
    if (!p->begun && w->m->deadline_us > since)
        since = w->m->deadline_us;
    if (now < since + limit)
        return since + limit;
    /* T, not how long it was: ranks that judge at once say the same. */
    snprintf(text, sizeof text, "%.1f", (double)w->t_us / 1e6);
    lost(w, peer, "no heartbeat for %s s, which HOROVOD_HEARTBEAT_SECONDS sets (stopped, or its "
         "host is unreachable)", text);
    return UINT64_MAX;
}

/* Rule 5. */
static uint64_t judge_suspects(struct watch *w, uint64_t now)
{
    uint64_t next = UINT64_MAX;

    for (int i = 0; i < w->count; i++) {
        struct hvd_error why = {0};

        pthread_mutex_lock(&w->lock);
        if (w->suspect_count == 0) {
            pthread_mutex_unlock(&w->lock);
            break;
        }
        if (w->suspects[i].until_us != 0 && w->suspects[i].until_us <= now)
            why = w->suspects[i].why;
        else if (w->suspects[i].why.status == HVD_SHUTDOWN && w->suspects[i].until_us != 0 &&
                 door_has(w->m->door, i, HS_DATA))
            why = w->suspects[i].why;
        else if (w->suspects[i].until_us != 0 && w->suspects[i].until_us < next)
            next = w->suspects[i].until_us;
        pthread_mutex_unlock(&w->lock);
        if (why.status == HVD_SHUTDOWN)
            departed(w, i);
        else if (why.status != HVD_OK)
            lost(w, i, "%s", why.text);
    }
    return next;
}

static uint64_t judge_all(struct watch *w, uint64_t now)
{
    uint64_t next = judge_suspects(w, now);

    if (verdict_get(w->m) != NULL) {
        tell_all(w);
        return UINT64_MAX;
    }
    for (int i = 0; i < w->count; i++) {
        uint64_t due = UINT64_MAX;

        if (w->peers[i].watched && !w->peers[i].gone)
            due = judge(w, i, now);

        next = due < next ? due : next;
    }
    return next;
}

/* ---- The thread ------------------------------------------------------------------ */

static enum hvd_status follow(struct watch *w, int fd, uint64_t what, struct hvd_error *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = what};

    if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        return error_sys(err, -1, "epoll of the watch");
    return HVD_OK;
}

/* Rule 9.  First out of the epoll: it may be closed here while a forked child has a copy. */
static void pushed(struct watch *w)
{
    struct hvd_error err;
    enum hvd_status status;

    epoll_ctl(w->epoll, EPOLL_CTL_DEL, w->push_fd, NULL);
    status = w->push(w->push_context, &err);
    if (status == HVD_AGAIN)
        follow(w, w->push_fd, EVENT_PUSH, &err);
    else if (status == HVD_ABORTED)
        mesh_fail(w->m, &err);
}

/* Rule 11.  Nobody is left who could wait for us to end in order. */
static void agent_ended(const struct watch *w)
{
    log_error("horovodrun has been killed (its agent was process %s): this process ends",
              w->m->conf->agent);
    kill(getpid(), SIGKILL);
}

static void handle(struct watch *w, uint64_t what)
{
    int peer = (int)(what / 2);
    uint64_t rung;

    if (what == EVENT_PUSH) {
        pushed(w);
    } else if (what == EVENT_AGENT) {
        agent_ended(w);
    } else if (what == EVENT_ALARM) {   /* judge_all tells it; once is enough */
        epoll_ctl(w->epoll, EPOLL_CTL_DEL, w->m->host.alarm, NULL);
    } else if (what == EVENT_DOOR) {
        return;                         /* keep_door */
    } else if (what == EVENT_WAKE) {
        if (read(w->wake, &rung, sizeof rung) < 0)
            return;
    } else if (what % 2 == 1) {
        lost(w, peer, "%s", ENDED);
    } else {
        watched_read(w, peer);
    }
}

static uint64_t wait_until(struct watch *w, uint64_t until, uint64_t now)
{
    struct epoll_event events[32];
    int n, ms = until <= now ? 0 : (int)((until - now) / 1000 + 1);

    n = epoll_wait(w->epoll, events, 32, ms);
    now = clock_us();
    if (now > until && now - until > w->limit_us / 4)
        w->rearm_us = now;              /* rule 3 */
    for (int i = 0; i < n; i++)
        handle(w, events[i].data.u64);
    return now;
}

/* Our goodbye is out; each peer closes its side when it has read it. */
static void farewell(struct watch *w)
{
    uint64_t now = clock_us(), until = now + FAREWELL_US;
    struct note note = {.kind = NOTE_GOODBYE, .rank = w->m->topology.rank};
    bool waiting = true;

    w->leaving = true;
    if (w->m->door != NULL)             /* nobody comes any more */
        epoll_ctl(w->epoll, EPOLL_CTL_DEL, door_fd(w->m->door), NULL);
    atomic_store(&w->m->control->goodbye, 1);
    for (int i = 0; i < w->count; i++) {
        note.status = w->m->door != NULL && door_has(w->m->door, i, HS_DATA);
        note_send(&w->peers[i], &note);
        if (w->peers[i].fd >= 0)
            shutdown(w->peers[i].fd, SHUT_WR);
        atomic_store(&w->m->links[i].left, true);       /* its end is no loss now */
    }
    while (waiting && now < until) {
        waiting = false;
        for (int i = 0; i < w->count; i++)
            waiting = waiting || w->peers[i].fd >= 0;
        if (waiting)
            now = wait_until(w, until, now);
    }
}

static void send_news(struct watch *w)
{
    struct list *node;

    do {
        pthread_mutex_lock(&w->lock);
        node = list_pop(&w->news);
        pthread_mutex_unlock(&w->lock);
        if (node != NULL) {
            struct news *n = list_entry(node, struct news, node);

            send_to_all(w, &(struct note){NOTE_NEWS, 0, (int32_t)n->bytes, n->data, n->bytes});
            free(n);
        }
    } while (node != NULL);
}

/* Rule 10; when the next thing is due there. */
static uint64_t keep_door(struct watch *w)
{
    struct door *d = w->m->door;
    int peer;

    if (d == NULL)
        return UINT64_MAX;
    do {
        pthread_mutex_lock(&w->lock);
        peer = w->needed_count > 0 ? w->needed[--w->needed_count] : -1;
        pthread_mutex_unlock(&w->lock);
        if (peer >= 0 && !atomic_load(&w->m->links[peer].going))
            door_need(d, peer);
    } while (peer >= 0);
    return door_step(d);
}

static void *run(void *context)
{
    struct watch *w = context;
    uint64_t now = clock_us(), next_beat = now + w->period_us, next, due;

    pthread_setname_np(pthread_self(), "hvd-watch");
    while (!atomic_load(&w->stop)) {
        if (now >= next_beat) {
            beat(w, now);
            read_all(w);
            spread_departures(w);
            if (w->relink_us != 0 && now >= w->relink_us)
                relink(w);
            next_beat = now + w->period_us;
        }
        send_news(w);
        due = keep_door(w);
        next = judge_all(w, now);
        next = due < next ? due : next;
        now = wait_until(w, next < next_beat ? next : next_beat, now);
    }
    tell_all(w);
    send_news(w);
    if (atomic_load(&w->goodbye))
        farewell(w);
    return NULL;
}

/* ---- Life ------------------------------------------------------------------------ */

static enum hvd_status watched_init(struct watch *w, int peer, struct hvd_error *err)
{
    struct mesh *m = w->m;
    struct watched *p = &w->peers[peer];
    struct proved *c = &m->watch_connections[peer];
    int urgent = WAKE_BYTES;

    if (peer == m->topology.rank) {
        p->gone = true;
        return HVD_OK;
    }
    p->near = m->links[peer].ops == &ring_ops;
    p->watched = p->near || c->fd >= 0;
    if (c->fd >= 0) {
        p->talk = calloc(1, sizeof *p->talk);
        if (p->talk == NULL)
            return error_set(err, HVD_NOMEM, -1, "no memory for the watch");
        p->fd = c->fd;
        c->fd = -1;
        TRY(seal_init(&p->talk->out, c->keys.send, err));
        TRY(seal_init(&p->talk->in, c->keys.receive, err));
        explicit_bzero(c, sizeof *c);
        c->fd = -1;
        setsockopt(p->fd, SOL_SOCKET, SO_RCVLOWAT, &urgent, sizeof urgent);
        return follow(w, p->fd, (uint64_t)peer * 2, err);
    }
    if (!p->near)
        return HVD_OK;
    p->pidfd = (int)syscall(SYS_pidfd_open,
                            m->host.pids[m->topology.local_rank_of[peer]], 0);
    if (p->pidfd < 0)
        return HVD_OK;                  /* an old kernel: heartbeats remain */
    fork_add(p->pidfd);
    return follow(w, p->pidfd, (uint64_t)peer * 2 + 1, err);
}

static enum hvd_status follow_agent(struct watch *w, struct hvd_error *err)
{
    w->agent = process_open(w->m->conf->agent);
    if (w->agent < 0)
        return HVD_OK;
    fork_add(w->agent);
    return follow(w, w->agent, EVENT_AGENT, err);
}

static enum hvd_status watch_init(struct watch *w, struct mesh *m, struct hvd_error *err)
{
    size_t n = (size_t)m->topology.size;
    uint64_t t_us = (uint64_t)(m->conf->heartbeat_s * 1e6);

    *w = (struct watch){.m = m, .epoll = -1, .wake = -1, .agent = -1, .count = (int)n,
                        .t_us = t_us, .period_us = t_us / 10,
                        .limit_us = t_us + t_us / 20};
    pthread_mutex_init(&w->lock, NULL);
    list_init(&w->news);
    w->grace_us = t_us / 4 < 250000 ? t_us / 4 : 250000;
    w->rearm_us = clock_us();
    w->peers = calloc(n, sizeof *w->peers);
    w->suspects = calloc(n, sizeof *w->suspects);
    w->needed = calloc(n, sizeof *w->needed);
    w->departures = calloc(n, sizeof *w->departures);
    if (w->peers == NULL || w->suspects == NULL || w->needed == NULL || w->departures == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the watch");
    for (size_t i = 0; i < n; i++)
        w->peers[i].fd = w->peers[i].pidfd = -1;
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->epoll >= 0)
        fork_add(w->epoll);
    if (w->wake >= 0)
        fork_add(w->wake);
    if (w->epoll < 0 || w->wake < 0)
        return error_sys(err, -1, "descriptors of the watch");
    TRY(follow(w, w->wake, EVENT_WAKE, err));
    TRY(follow_agent(w, err));
    if (m->door != NULL)
        TRY(follow(w, door_fd(m->door), EVENT_DOOR, err));
    if (m->host.alarm >= 0)
        TRY(follow(w, m->host.alarm, EVENT_ALARM, err));
    for (int i = 0; i < w->count; i++)
        TRY(watched_init(w, i, err));
    return HVD_OK;
}

static void watch_free(struct watch *w)
{
    for (int i = 0; i < w->count && w->peers != NULL; i++) {
        struct watched *p = &w->peers[i];

        if (p->fd >= 0)
            fork_close(p->fd);
        if (p->pidfd >= 0)
            fork_close(p->pidfd);
        if (p->talk != NULL) {
            seal_release(&p->talk->out);
            seal_release(&p->talk->in);
            free(p->talk);
        }
    }
    if (w->epoll >= 0)
        fork_close(w->epoll);
    if (w->wake >= 0)
        fork_close(w->wake);
    if (w->agent >= 0)
        fork_close(w->agent);
    send_news(w);                       /* to nobody */
    pthread_mutex_destroy(&w->lock);
    free(w->peers);
    free(w->suspects);
    free(w->needed);
    free(w->departures);
    free(w);
}

/* Signals are for the threads of the user. */
static int start_thread(struct watch *w)
{
    int code;

    code = FAULT("watch.start") ? EAGAIN : thread_start(&w->thread, run, w);
    return code;
}

enum hvd_status watch_start(struct mesh *m, struct hvd_error *err)
{
    struct watch *w;
    enum hvd_status status;

    if (m->topology.size == 1)
        return HVD_OK;
    w = malloc(sizeof *w);
    if (w == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the watch");
    status = watch_init(w, m, err);
    if (status == HVD_OK) {
        m->watch = w;
        beat(w, clock_us());            /* nobody has formed the mesh without a beat */
        errno = start_thread(w);
        if (errno != 0)
            status = error_sys(err, -1, "thread of the watch");
    }
    if (status != HVD_OK) {
        m->watch = NULL;
        watch_free(w);
    }
    return status;
}

static void wake(struct watch *w)
{
    uint64_t one = 1;
    ssize_t n = write(w->wake, &one, sizeof one);

    (void)n;
}

void watch_stop(struct mesh *m, bool goodbye)
{
    struct watch *w = m->watch;

    if (w == NULL)
        return;
    atomic_store(&w->goodbye, goodbye);
    atomic_store(&w->stop, true);
    wake(w);
    pthread_join(w->thread, NULL);
    m->watch = NULL;
    watch_free(w);
}

enum hvd_status mesh_follow(struct mesh *m, int fd, mesh_push_fn push, void *context,
                            struct hvd_error *err)
{
    struct watch *w = m->watch;

    if (w == NULL)
        return HVD_OK;
    w->push_fd = fd;
    w->push = push;
    w->push_context = context;
    return follow(w, fd, EVENT_PUSH, err);
}

void watch_suspect(struct mesh *m, int peer, const struct hvd_error *why)
{
    struct watch *w = m->watch;

    if (w == NULL) {
        mesh_fail(m, why);
        return;
    }
    if (atomic_load(&m->links[peer].going)) {
        atomic_store(&m->stirred, true);
        return;
    }
    suspect(w, peer, why);
    wake(w);
}

enum hvd_status watch_spread(struct mesh *m, const void *bytes, size_t n,
                             struct hvd_error *err)
{
    struct watch *w = m->watch;
    struct news *news;

    if (w == NULL || m->far_count == 0)
        return HVD_OK;
    news = malloc(sizeof *news + n);
    if (news == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for news");
    news->bytes = n;
    memcpy(news->data, bytes, n);
    pthread_mutex_lock(&w->lock);
    list_append(&w->news, &news->node);
    pthread_mutex_unlock(&w->lock);
    wake(w);
    return HVD_OK;
}

/* Each peer once: the owner does not ask again. */
void watch_need(struct mesh *m, int peer)
{
    struct watch *w = m->watch;

    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->needed[w->needed_count++] = peer;
    pthread_mutex_unlock(&w->lock);
    wake(w);
}

/* One that is made later than at forming begins to count now. */
void watch_take(struct mesh *m, int peer, struct proved *p)
{
    struct hvd_error err;

    m->watch_connections[peer] = *p;
    if (m->watch == NULL)
        return;
    m->watch->peers[peer].seen_us = clock_us();
    m->watch->peers[peer].begun = true;
    if (watched_init(m->watch, peer, &err) != HVD_OK)
        mesh_fail(m, &err);
}

void watch_tell(struct mesh *m)
{
    if (m->watch != NULL)
        wake(m->watch);
    else if (m->tell != NULL)
        m->tell(m, m->tell_context);
}
