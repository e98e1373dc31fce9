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
 * 7. A beat wakes nobody: it is shorter than SO_RCVLOWAT and is read when the receiver
 *    beats itself, and before it judges.  What is urgent is longer.
 * 8. Whoever started the job may end it: its connection is watched here, too.
 *
 * Messages of a watch connection, integers little endian:
 *   0 u32 kind | 4 u32 status | 8 i32 rank | 12 u32 text bytes, < 1024 | text | GMAC (16)
 * The text is filled up with zeros to URGENT_BYTES, except that of a beat, which is empty.
 */
#define LOG_COMPONENT "transport"
#include "transport_int.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "wire/bytes.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HEAD 16
#define NOTE_MAX (HEAD + HVD_ERROR_TEXT + SEAL_TAG)
#define BEAT_BYTES (HEAD + SEAL_TAG)
#define URGENT_BYTES 128                /* of text; more than WAKE_BYTES */
#define WAKE_BYTES (3 * BEAT_BYTES + 1) /* two beats may wait, and one come early */
#define FAREWELL_US 500000              /* how long leaving waits for the peers' echo */

/* Epoll data: of peer i's watch connection 2 i, of its process 2 i + 1, and these. */
#define EVENT_WAKE UINT64_MAX
#define EVENT_PUSH (UINT64_MAX - 1)

enum note_kind { NOTE_BEAT = 1, NOTE_VERDICT, NOTE_GOODBYE };

struct watched {
    int fd, pidfd;                      /* -1: none */
    bool near;                          /* on our host, by shared memory */
    bool gone;                          /* has left, or is dead: not judged any more */
    bool begun;                         /* has beaten at least once */
    bool dead_process;                  /* its pidfd says so */
    uint64_t seen_us;                   /* last beat, by our clock */
    struct seal out, in;
    uint8_t input[NOTE_MAX], output[NOTE_MAX];
    size_t got, pending, sent;
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
    _Atomic bool stop, goodbye;
    pthread_mutex_t lock;               /* guards suspects, suspect_count */
    int push_fd;                        /* rule 8; set before it is in the epoll */
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
    ssize_t n;

    if (p->fd < 0 || p->sent == p->pending)
        return;
    n = send(p->fd, p->output + p->sent, p->pending - p->sent,
             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0)
        p->sent += (size_t)n;           /* a failure is noticed by reading */
}

/* A note that does not fit is not sealed and not sent: a peer that does not read has
 * worse problems. */
static void note_send(struct watched *p, enum note_kind kind, const struct hvd_error *why)
{
    size_t length = why != NULL ? strnlen(why->text, HVD_ERROR_TEXT - 1) : 0;
    size_t text = kind == NOTE_BEAT || length > URGENT_BYTES ? length : URGENT_BYTES;

    flush_output(p);
    if (p->fd < 0 || p->sent < p->pending)
        return;
    memset(p->output + HEAD, 0, text);
    bytes_put_u32(p->output, (uint32_t)kind);
    bytes_put_u32(p->output + 4, why != NULL ? (uint32_t)why->status : 0);
    bytes_put_u32(p->output + 8, why != NULL ? (uint32_t)why->rank : 0);
    bytes_put_u32(p->output + 12, (uint32_t)text);
    if (length > 0)
        memcpy(p->output + HEAD, why->text, length);
    if (seal_sign(&p->out, p->output, HEAD + text, p->output + HEAD + text, NULL) !=
        HVD_OK)
        return;
    p->pending = HEAD + text + SEAL_TAG;
    p->sent = 0;
    flush_output(p);
}

static void tell_all(struct watch *w)
{
    const struct hvd_error *verdict = verdict_get(w->m);

    if (verdict == NULL || w->told)
        return;
    w->told = true;
    for (int i = 0; i < w->count; i++)
        note_send(&w->peers[i], NOTE_VERDICT, verdict);
}

/* ---- Ends ------------------------------------------------------------------------ */

static void forget(struct watch *w, int peer)
{
    struct watched *p = &w->peers[peer];

    p->gone = true;
    if (p->fd >= 0)
        fork_close(p->fd);
    if (p->pidfd >= 0)
        fork_close(p->pidfd);
    p->fd = p->pidfd = -1;
    pthread_mutex_lock(&w->lock);
    if (w->suspects[peer].until_us != 0) {
        w->suspects[peer].until_us = 0;
        w->suspect_count--;
    }
    pthread_mutex_unlock(&w->lock);
}

static void departed(struct watch *w, int peer)
{
    if (w->peers[peer].gone)
        return;
    forget(w, peer);
    atomic_store(&w->m->links[peer].going, true);
    atomic_store(&w->m->going, true);
    mesh_kick(w->m);
}

static bool has_said_goodbye(const struct watch *w, int peer)
{
    const struct mesh *m = w->m;

    if (atomic_load(&m->links[peer].left))
        return true;
    return w->peers[peer].near &&
           atomic_load(&m->host.region->control[m->topology.local_rank_of[peer]].goodbye);
}

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

static void note_take(struct watch *w, int peer, uint32_t text)
{
    struct watched *p = &w->peers[peer];
    struct hvd_error err = {0};

    if (seal_check(&p->in, p->input, HEAD + text, p->input + HEAD + text, NULL) !=
        HVD_OK) {
        error_set(&err, HVD_AUTH, peer, "a heartbeat of rank %d was changed on its way",
                  peer);
        forget(w, peer);
        mesh_fail(w->m, &err);
        return;
    }
    p->begun = true;
    p->seen_us = clock_us();
    if (bytes_get_u32(p->input) == NOTE_GOODBYE) {
        departed(w, peer);
    } else if (bytes_get_u32(p->input) == NOTE_VERDICT) {
        err.status = (enum hvd_status)bytes_get_u32(p->input + 4);
        err.rank = (int32_t)bytes_get_u32(p->input + 8);
        memcpy(err.text, p->input + HEAD, text);
        verdict_set(w->m, &err);
        tell_all(w);
        mesh_kick(w->m);
    }
}

/* The bytes that are needed before the next decision; 0: nonsense. */
static size_t note_need(const struct watched *p)
{
    uint32_t text;

    if (p->got < HEAD)
        return HEAD;
    text = bytes_get_u32(p->input + 12);
    return text >= HVD_ERROR_TEXT ? 0 : HEAD + text + SEAL_TAG;
}

static void watched_read(struct watch *w, int peer)
{
    struct watched *p = &w->peers[peer];
    size_t need;
    ssize_t n;

    while (p->fd >= 0) {
        need = note_need(p);
        if (need == 0) {
            lost(w, peer, "%s", "its heartbeats make no sense");
            return;
        }
        n = FAULT("watch.receive") ? -1
                                   : recv(p->fd, p->input + p->got, need - p->got,
                                          MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n == 0 || (n < 0 && errno == ECONNRESET))
            lost(w, peer, "%s", "process ended (killed?)");
        else if (n < 0)
            lost(w, peer, "connection lost (%s)", strerror(errno));
        if (n <= 0)
            return;
        p->got += (size_t)n;
        if (p->got == need && need > HEAD) {
            p->got = 0;
            note_take(w, peer, (uint32_t)(need - HEAD - SEAL_TAG));
        }
    }
}

/* ---- Beating and judging --------------------------------------------------------- */

static void beat(struct watch *w, uint64_t now)
{
    if (FAULT("watch.beat"))
        return;
    atomic_store_explicit(&w->m->control->beat_us, now, memory_order_release);
    for (int i = 0; i < w->count; i++)
        if (w->peers[i].fd >= 0)
            note_send(&w->peers[i], NOTE_BEAT, NULL);
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
        watched_read(w, peer);          /* rule 7 */
    if (p->gone)
        return UINT64_MAX;
    since = p->begun && p->seen_us > w->rearm_us ? p->seen_us : w->rearm_us;
    if (!p->begun && w->m->deadline_us > since)
        since = w->m->deadline_us;
    if (now < since + limit)
        return since + limit;
    /* T, not how long it was: ranks that judge at once say the same. */
    snprintf(text, sizeof text, "%.1f", (double)w->t_us / 1e6);
    lost(w, peer, "no heartbeat for %s s (stopped, or its host is unreachable)", text);
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
        else if (w->suspects[i].until_us != 0 && w->suspects[i].until_us < next)
            next = w->suspects[i].until_us;
        pthread_mutex_unlock(&w->lock);
        if (why.status != HVD_OK)
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
        uint64_t due = w->peers[i].gone ? UINT64_MAX : judge(w, i, now);

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

/* Rule 8.  First out of the epoll: it may be closed here while a forked child has a copy. */
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

static void handle(struct watch *w, uint64_t what)
{
    int peer = (int)(what / 2);
    uint64_t rung;

    if (what == EVENT_PUSH) {
        pushed(w);
    } else if (what == EVENT_WAKE) {
        if (read(w->wake, &rung, sizeof rung) < 0)
            return;
    } else if (what % 2 == 1) {
        lost(w, peer, "%s", "process ended (killed?)");
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
    bool waiting = true;

    atomic_store(&w->m->control->goodbye, 1);
    for (int i = 0; i < w->count; i++) {
        note_send(&w->peers[i], NOTE_GOODBYE, NULL);
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

static void *run(void *context)
{
    struct watch *w = context;
    uint64_t now = clock_us(), next_beat = now + w->period_us, next;

    pthread_setname_np(pthread_self(), "hvd-watch");
    while (!atomic_load(&w->stop)) {
        if (now >= next_beat) {
            beat(w, now);
            read_all(w);
            next_beat = now + w->period_us;
        }
        next = judge_all(w, now);
        now = wait_until(w, next < next_beat ? next : next_beat, now);
    }
    tell_all(w);
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
    p->fd = c->fd;
    c->fd = -1;
    if (p->fd >= 0) {
        TRY(seal_init(&p->out, c->keys.send, err));
        TRY(seal_init(&p->in, c->keys.receive, err));
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

static enum hvd_status watch_init(struct watch *w, struct mesh *m, struct hvd_error *err)
{
    size_t n = (size_t)m->topology.size;
    uint64_t t_us = (uint64_t)(m->conf->heartbeat_s * 1e6);

    *w = (struct watch){.m = m, .epoll = -1, .wake = -1, .count = (int)n,
                        .t_us = t_us, .period_us = t_us / 10,
                        .limit_us = t_us + t_us / 20};
    pthread_mutex_init(&w->lock, NULL);
    w->grace_us = t_us / 4 < 250000 ? t_us / 4 : 250000;
    w->rearm_us = clock_us();
    w->peers = calloc(n, sizeof *w->peers);
    w->suspects = calloc(n, sizeof *w->suspects);
    if (w->peers == NULL || w->suspects == NULL)
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
        seal_release(&p->out);
        seal_release(&p->in);
    }
    if (w->epoll >= 0)
        fork_close(w->epoll);
    if (w->wake >= 0)
        fork_close(w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w->peers);
    free(w->suspects);
    free(w);
}

/* Signals are for the threads of the user. */
static int start_thread(struct watch *w)
{
    sigset_t all, before;
    int code;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = FAULT("watch.start") ? EAGAIN : pthread_create(&w->thread, NULL, run, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
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
        atomic_store(&m->going, true);
        return;
    }
    pthread_mutex_lock(&w->lock);
    if (w->suspects[peer].until_us == 0) {
        w->suspect_count++;
        w->suspects[peer].until_us = clock_us() + w->grace_us;
        w->suspects[peer].why = *why;
    }
    pthread_mutex_unlock(&w->lock);
    wake(w);
}

void watch_tell(struct mesh *m)
{
    if (m->watch != NULL)
        wake(m->watch);
    else if (m->tell != NULL)
        m->tell(m, m->tell_context);
}
