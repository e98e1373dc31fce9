/* server.c: the rendezvous server's public functions (horovod/driver.h). */
#include "rendezvous/server_int.h"
#include "base/thread.h"

#include "base/clock.h"
#include "base/secret.h"
#include "base/strbuf.h"
#include "wire/crypto.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static uint64_t timeout_us(double timeout_s)
{
    return timeout_s > 0 ? (uint64_t)(timeout_s * 1e6) : 0;
}

static enum hvd_status check_options(const struct hvd_server_options *opt,
                                     struct hvd_error *err)
{
    if (opt->size != sizeof *opt)
        return error_set(err, HVD_INVALID, -1,
                         "hvd_server_options.size is %u, this library expects %zu",
                         opt->size, sizeof *opt);
    if (opt->key == NULL)
        return error_set(err, HVD_INVALID, -1, "the rendezvous server needs a job key");
    if (opt->job_id != NULL &&
        strlen(opt->job_id) >= sizeof ((struct hs_identity *)0)->job_id)
        return error_set(err, HVD_INVALID, -1, "job id '%s' is longer than 64 bytes",
                         opt->job_id);
    if (!(opt->timeout_s >= 0 && opt->timeout_s < 1e9))
        return error_set(err, HVD_INVALID, -1, "a time limit of %g s", opt->timeout_s);
    return HVD_OK;
}

static struct hvd_server *server_blank(void)
{
    struct hvd_server *s = calloc(1, sizeof *s);

    if (s == NULL)
        return NULL;
    pthread_mutex_init(&s->lock, NULL);
    s->epoll = s->wake = -1;
    s->worker_deadline_us = UINT64_MAX;
    list_init(&s->unproved);
    list_init(&s->workers);
    list_init(&s->dead);
    return s;
}

static enum hvd_status server_prepare(struct hvd_server *s,
                                      const struct hvd_server_options *opt,
                                      struct hvd_error *err)
{
    static const char *const local[] = {"127.0.0.1"};
    bool given = opt->listen_addrs != NULL && opt->listen_addr_count > 0;
    struct epoll_event wake = {.events = EPOLLIN, .data.ptr = NULL};

    crypto_algorithms();                /* not in the thread: the caller may fork */
    s->key = secret_new(HVD_KEY_BYTES);
    if (s->key == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the job key");
    memcpy(s->key, opt->key, HVD_KEY_BYTES);
    s->identity = (struct hs_identity){HS_RENDEZVOUS, HS_ANY_RANK, HS_ANY_RANK,
                                       HS_ANY_GENERATION, ""};
    snprintf(s->identity.job_id, sizeof s->identity.job_id, "%s",
             opt->job_id != NULL ? opt->job_id : "");
    TRY(meeting_init(&s->meeting, opt->generation, opt->worker_count,
                     timeout_us(opt->timeout_s), err));
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->epoll < 0 || s->wake < 0 ||
        epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->wake, &wake) != 0)
        return error_sys(err, -1, "the rendezvous server has no descriptor for its events");
    return listen_open(s, given ? opt->listen_addrs : local,
                       given ? opt->listen_addr_count : 1, opt->port, err);
}

/* No signal of the program is handled in the server's thread. */
static enum hvd_status server_start(struct hvd_server *s, struct hvd_error *err)
{
    int code;

    code = thread_start(&s->thread, loop_run, s);
    if (code != 0) {
        errno = code;
        return error_sys(err, -1, "the rendezvous server got no thread");
    }
    pthread_setname_np(s->thread, "hvd-rendezvous");
    return HVD_OK;
}

static void drop_all(struct hvd_server *s, struct list *peers)
{
    list_each_safe(node, peers)
        peer_drop(s, list_entry(node, struct peer, node));
}

/* Everything but the thread, which does not run (any more). */
static void server_destroy(struct hvd_server *s)
{
    s->heard = NULL;
    s->hooks.left = NULL;               /* their owner is about to go, too */
    drop_all(s, &s->unproved);
    drop_all(s, &s->workers);
    peer_free_dead(s);
    listen_close(s);
    if (s->epoll >= 0)
        close(s->epoll);
    if (s->wake >= 0)
        close(s->wake);
    free(s->table);
    meeting_release(&s->meeting);
    replay_release(&s->seen);
    secret_free(s->key, HVD_KEY_BYTES);
    secret_free(s->join_key, HVD_KEY_BYTES);
    pthread_mutex_destroy(&s->lock);
    explicit_bzero(s, sizeof *s);
    free(s);
}

static enum hvd_status take_hooks(struct hvd_server *s, const struct guest_hooks *hooks,
                                  struct hvd_error *err)
{
    s->hooks = *hooks;
    s->identity.purpose = hooks->purpose;
    if (hooks->join_key == NULL)
        return HVD_OK;
    s->join_identity = (struct hs_identity){HS_JOIN, HS_ANY_RANK, HS_ANY_RANK,
                                            HS_ANY_GENERATION, ""};
    snprintf(s->join_identity.job_id, sizeof s->join_identity.job_id, "%s", hooks->join_id);
    s->join_key = secret_new(HVD_KEY_BYTES);
    if (s->join_key == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the join key");
    memcpy(s->join_key, hooks->join_key, HVD_KEY_BYTES);
    s->hooks.join_key = NULL;
    return HVD_OK;
}

enum hvd_status server_new(const struct hvd_server_options *opt,
                           const struct guest_hooks *hooks, struct hvd_server **server_p,
                           struct hvd_error *err)
{
    struct hvd_server *s;
    enum hvd_status status;

    TRY(check_options(opt, err));
    s = server_blank();
    if (s == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a rendezvous server");
    s->heard = opt->heard;
    s->context = opt->context;
    status = server_prepare(s, opt, err);
    if (hooks != NULL && status == HVD_OK)
        status = take_hooks(s, hooks, err);
    if (status == HVD_OK)
        status = server_start(s, err);
    if (status != HVD_OK) {
        server_destroy(s);
        return status;
    }
    *server_p = s;
    return HVD_OK;
}

enum hvd_status hvd_server_new(const struct hvd_server_options *opt,
                               struct hvd_server **server_p, struct hvd_error *err)
{
    return server_new(opt, NULL, server_p, err);
}

void hvd_server_free(struct hvd_server *server)
{
    if (server == NULL)
        return;
    pthread_mutex_lock(&server->lock);
    server->stop = true;
    pthread_mutex_unlock(&server->lock);
    server_wake(server);
    pthread_join(server->thread, NULL);
    server_destroy(server);
}

void server_wake(struct hvd_server *s)
{
    uint64_t one = 1;

    while (write(s->wake, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

uint16_t hvd_server_port(const struct hvd_server *server)
{
    return server->port;                /* fixed before the thread starts */
}

void hvd_server_next_generation(struct hvd_server *server, int worker_count)
{
    struct meeting next;
    struct hvd_error err;

    pthread_mutex_lock(&server->lock);
    if (meeting_init(&next, server->meeting.generation + 1, worker_count,
                     server->meeting.timeout_us, &err) == HVD_OK) {
        error_set(&err, HVD_ABORTED, -1, "generation %u of the job has begun",
                  next.generation);
        peer_tell_all(server, &err, false);
        meeting_release(&server->meeting);
        server->meeting = next;
        server->report = (struct hvd_error){.status = HVD_OK};
    } else {
        err.status = HVD_ABORTED;
        meeting_fail(&server->meeting, &err, -1, true);
        peer_tell_all(server, &err, true);
    }
    pthread_mutex_unlock(&server->lock);
    server_wake(server);
}

size_t hvd_server_status(struct hvd_server *server, char *buffer, size_t capacity)
{
    struct strbuf text;
    size_t length;

    strbuf_init(&text);
    pthread_mutex_lock(&server->lock);
    meeting_describe(&server->meeting, clock_us(), &text);
    pthread_mutex_unlock(&server->lock);
    if (capacity > 0)
        snprintf(buffer, capacity, "%s", text.text);
    length = text.length;
    strbuf_release(&text);
    return length;
}

void hvd_server_abort(struct hvd_server *server, int rank, const char *why)
{
    struct hvd_error err;

    error_set(&err, HVD_ABORTED, rank >= 0 && rank < TABLE_RANKS ? rank : -1, "%s", why);
    pthread_mutex_lock(&server->lock);
    meeting_fail(&server->meeting, &err, -1, true);
    peer_tell_all(server, &err, true);
    pthread_mutex_unlock(&server->lock);
    server_wake(server);
}

bool hvd_server_report(struct hvd_server *server, struct hvd_error *report)
{
    pthread_mutex_lock(&server->lock);
    *report = server->report;
    pthread_mutex_unlock(&server->lock);
    return report->status != HVD_OK;
}

bool hvd_server_hears(struct hvd_server *server, int rank)
{
    bool hears = false;

    pthread_mutex_lock(&server->lock);
    list_each_safe(node, &server->workers) {
        const struct peer *p = list_entry(node, struct peer, node);

        hears |= p->state != PEER_GUEST && p->rank == rank &&
                 p->generation == server->meeting.generation;
    }
    pthread_mutex_unlock(&server->lock);
    return hears;
}

void server_count(struct hvd_server *s, struct server_counters *counters)
{
    pthread_mutex_lock(&s->lock);
    *counters = s->counters;
    pthread_mutex_unlock(&s->lock);
}
