/*
 * driver_link.c: see driver_link.h.
 *
 * 1. `lock` guards the channel and the answer; the thread holds it except while it sleeps.
 * 2. An update counts only if its version is newer than that of the assignment: one word
 *    holds version and bits, so that readers need no lock.
 * 3. A forked child closes its copies at once: the driver shall see the end of this process,
 *    not that of its children.
 * 4. A driver that has gone is an error for who waits for it, and for nobody else: the
 *    generation trains on.
 */
#include "elastic/driver_link.h"
#include "base/thread.h"

#define LOG_COMPONENT "elastic"
#include "base/clock.h"
#include "base/log.h"
#include "rendezvous/channel.h"
#include "rendezvous/rdv_dial.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SILENCE_MS 300000               /* of the driver, while somebody waits for it: its
                                         * host has gone; it says PING every second */

struct driver_link {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    struct channel channel;
    int wake;                           /* eventfd for the thread */
    bool is_lost;                       /* lost_text says why */
    bool is_waiting;                    /* in driver_link_join */
    bool has_answer;
    enum hvd_status answer;             /* HVD_OK: assign; else error */
    struct elastic_assign assign;
    struct hvd_error error;
    bool is_over;                       /* error is the verdict, for ever */
    uint32_t known_version;             /* in the present assignment */
    _Atomic uint64_t update;            /* version << 32 | bits */
    void (*on_verdict)(const struct hvd_error *verdict);
};

/* ---- Forks --------------------------------------------------------------------------- */

static struct driver_link *_Atomic open_link;   /* of this process; there is one */

/* Rule 3. */
static void close_in_child(void)
{
    struct driver_link *m = atomic_load(&open_link);

    if (m == NULL)
        return;
    close(m->channel.fd);
    close(m->wake);
    m->channel.fd = m->wake = -1;
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, close_in_child);
}

static void wake(struct driver_link *m)
{
    uint64_t one = 1;

    while (write(m->wake, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

/* ---- What the driver says ------------------------------------------------------------ */

static void give_answer(struct driver_link *m, enum hvd_status status)
{
    m->has_answer = true;
    m->answer = status;
    pthread_cond_broadcast(&m->changed);
}

static enum hvd_status take_assign(struct driver_link *m, const struct channel_message *msg,
                                   struct hvd_error *err)
{
    if (!m->is_waiting || m->has_answer)
        return error_set(err, HVD_PROTO, -1, "an assignment that nobody has asked for");
    TRY(get_elastic_assign(&m->assign, msg->body, msg->n, err));
    m->known_version = m->assign.version;
    atomic_store(&m->update, 0);
    give_answer(m, HVD_OK);
    return HVD_OK;
}

static enum hvd_status take_retire(struct driver_link *m, const struct channel_message *msg,
                                   struct hvd_error *err)
{
    char text[ELASTIC_RETIRE_MAX];

    TRY(get_elastic_retire(text, msg->body, msg->n, err));
    if (!m->is_waiting)
        return error_set(err, HVD_PROTO, -1, "retired without having asked");
    give_answer(m, error_set(&m->error, HVD_RETIRED, -1,
                             "this worker is no longer needed: %s", text));
    return HVD_OK;
}

/* Rule 2. */
static enum hvd_status take_update(struct driver_link *m, const struct channel_message *msg,
                                   struct hvd_error *err)
{
    uint32_t version, bits;

    TRY(get_elastic_pair(&version, &bits, ELASTIC_REMOVED | ELASTIC_ADDED | ELASTIC_LEAVE,
                         msg->body, msg->n, err));
    if (version > m->known_version)
        atomic_store(&m->update, (uint64_t)version << 32 | bits);
    return HVD_OK;
}

static enum hvd_status take_verdict(struct driver_link *m, const struct channel_message *msg,
                                    struct hvd_error *err)
{
    struct hvd_error verdict;

    TRY(get_rdv_verdict(&verdict, msg->body, msg->n, err));
    verdict.status = HVD_ABORTED;
    m->error = verdict;
    m->is_over = true;
    if (m->is_waiting)
        give_answer(m, HVD_ABORTED);
    return HVD_OK;
}

static enum hvd_status take_message(struct driver_link *m, const struct channel_message *msg,
                                    struct hvd_error *err)
{
    switch (msg->kind) {
    case RDV_ASSIGN:
        return take_assign(m, msg, err);
    case RDV_RETIRE:
        return take_retire(m, msg, err);
    case RDV_UPDATE:
        return take_update(m, msg, err);
    case RDV_VERDICT:
        return take_verdict(m, msg, err);
    case RDV_PING:
        return channel_send(&m->channel, RDV_PONG, NULL, 0, err);
    default:
        return error_set(err, HVD_PROTO, -1, "a message of kind %d", (int)msg->kind);
    }
}

/* ---- The thread ---------------------------------------------------------------------- */

static void lose(struct driver_link *m, const char *why)
{
    log_info("the driver of the job has gone: %s", why);
    m->is_lost = true;
    if (!m->is_over)
        error_set(&m->error, HVD_PEER_LOST, -1, "the driver of the elastic job has gone: %s",
                  why);
    if (m->is_waiting && !m->has_answer)
        give_answer(m, m->is_over ? HVD_ABORTED : HVD_PEER_LOST);
}

static void read_all(struct driver_link *m)
{
    struct channel_message msg;
    struct hvd_error err;
    enum hvd_status status = channel_flush(&m->channel, &err);

    while (status == HVD_OK || status == HVD_AGAIN) {
        status = channel_receive(&m->channel, &msg, &err);
        if (status == HVD_AGAIN)
            return;
        if (status == HVD_OK)
            status = take_message(m, &msg, &err);
    }
    lose(m, err.text);
}

static void drain(struct driver_link *m)
{
    uint64_t count;

    while (read(m->wake, &count, sizeof count) < 0 && errno == EINTR)
        ;
}

static void *driver_link_run(void *context)
{
    struct driver_link *m = context;
    bool is_told = false;

    pthread_mutex_lock(&m->lock);
    for (;;) {
        struct pollfd p[2] = {{.fd = m->wake, .events = POLLIN},
                              {.fd = m->is_lost ? -1 : m->channel.fd, .events = POLLIN}};
        int count;

        if (m->channel.unsent_n > 0)
            p[1].events |= POLLOUT;
        pthread_mutex_unlock(&m->lock);
        count = poll(p, 2, SILENCE_MS);
        pthread_mutex_lock(&m->lock);
        if (p[0].revents != 0)
            drain(m);
        if (!m->is_lost && p[1].revents != 0)
            read_all(m);
        if (count == 0 && m->is_waiting && !m->is_lost)
            lose(m, "it gives no sign of life");
        if (m->is_over && !is_told && m->on_verdict != NULL) {
            struct hvd_error verdict = m->error;

            is_told = true;
            pthread_mutex_unlock(&m->lock);
            m->on_verdict(&verdict);
            pthread_mutex_lock(&m->lock);
        }
    }
    return NULL;
}

/* No signal of the program is handled in this thread. */
static enum hvd_status start_thread(struct driver_link *m, struct hvd_error *err)
{
    int code;

    code = thread_start(&m->thread, driver_link_run, m);
    if (code != 0) {
        errno = code;
        return error_sys(err, -1, "the connection to the elastic driver got no thread");
    }
    pthread_setname_np(m->thread, "hvd-elastic");
    return HVD_OK;
}

/* ---- Opening and closing ------------------------------------------------------------- */

static enum hvd_status connect_driver(struct driver_link *m,
                                      const struct driver_link_options *opt,
                                      struct hvd_error *err)
{
    struct hs_identity id = {HS_ELASTIC, opt->worker, HS_ANY_RANK, 0, ""};
    struct dial_target targets[DIAL_TARGETS];
    struct dial_result result;
    enum hvd_status status;
    int count;

    snprintf(id.job_id, sizeof id.job_id, "%s", opt->job_id);
    TRY(resolve_targets(opt->addrs, opt->port, opt->deadline_us, targets, &count, err));
    TRY(dial_race(targets, count, opt->key, &id, 0, opt->deadline_us, &result, err));
    status = channel_init(&m->channel, result.fd, &result.keys, RDV_BODY_MAX, err);
    explicit_bzero(&result.keys, sizeof result.keys);
    return status;
}

enum hvd_status driver_link_open(const struct driver_link_options *opt,
                                 struct driver_link **link_p, struct hvd_error *err)
{
    struct driver_link *m = calloc(1, sizeof *m);
    enum hvd_status status;

    if (m == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the elastic job");
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    m->on_verdict = opt->on_verdict;
    m->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    status = m->wake < 0 ? error_sys(err, -1, "no descriptor for the elastic job")
                         : connect_driver(m, opt, err);
    if (status == HVD_OK)
        status = start_thread(m, err);
    if (status != HVD_OK) {
        driver_link_forget(m);
        return status;
    }
    atomic_store(&open_link, m);
    *link_p = m;
    return HVD_OK;
}

void driver_link_forget(struct driver_link *m)
{
    if (m == NULL)
        return;
    atomic_store(&open_link, NULL);
    channel_release(&m->channel);
    if (m->wake >= 0)
        close(m->wake);
    free(m);
}

/* ---- Saying -------------------------------------------------------------------------- */

/* With the lock. */
static void say(struct driver_link *m, enum rdv_kind kind, const void *body, size_t n)
{
    struct hvd_error err;

    if (m->is_lost)
        return;
    if (channel_send(&m->channel, kind, body, n, &err) != HVD_OK)
        lose(m, err.text);
    else if (m->channel.unsent_n > 0)
        wake(m);                        /* the thread sends the rest */
}

enum hvd_status driver_link_join(struct driver_link *m, const struct elastic_ready *ready,
                                 struct elastic_assign *assign, struct hvd_error *err)
{
    enum hvd_status status;
    uint8_t *bytes;
    size_t n;

    TRY(put_elastic_ready(ready, &bytes, &n, err));
    pthread_mutex_lock(&m->lock);
    m->is_waiting = true;
    m->has_answer = false;
    if (m->is_over || m->is_lost)
        give_answer(m, m->is_over ? HVD_ABORTED : HVD_PEER_LOST);
    else
        say(m, RDV_READY, bytes, n);
    while (!m->has_answer)
        pthread_cond_wait(&m->changed, &m->lock);
    m->is_waiting = false;
    status = m->answer;
    if (status == HVD_OK)
        *assign = m->assign;
    else
        *err = m->error;
    memset(&m->assign, 0, sizeof m->assign);
    pthread_mutex_unlock(&m->lock);
    free(bytes);
    return status;
}

void driver_link_progress(struct driver_link *m, uint32_t generation,
                          enum elastic_progress what)
{
    uint8_t pair[ELASTIC_PAIR];

    put_elastic_pair(pair, generation, what);
    pthread_mutex_lock(&m->lock);
    say(m, RDV_PROGRESS, pair, sizeof pair);
    pthread_mutex_unlock(&m->lock);
}

void driver_link_leave(struct driver_link *m)
{
    pthread_mutex_lock(&m->lock);
    say(m, RDV_NOTICE, NULL, 0);
    pthread_mutex_unlock(&m->lock);
}

unsigned driver_link_pending(const struct driver_link *m, uint32_t *version_p)
{
    uint64_t word = atomic_load_explicit(&m->update, memory_order_relaxed);

    *version_p = (uint32_t)(word >> 32);
    return (uint32_t)word;
}
