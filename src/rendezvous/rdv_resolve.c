/*
 * rdv_resolve.c: addresses of the rendezvous server.
 *
 * 1. What is a number is never asked for; only names go to the resolver.
 * 2. getaddrinfo has time limits of its own that nobody can set, so it runs in a thread;
 *    after LOOKUP_US the thread is left behind and frees its lookup when it is done.  One
 *    that is done in time is waited for: it has memory of the resolver until its end.
 */
#include "rendezvous/rdv_dial.h"
#include "base/thread.h"

#define LOG_COMPONENT "rendezvous"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOOKUP_US 5000000
#define HOST_BYTES 256

struct lookup {
    pthread_t thread;                   /* the caller's, who ends it in lookup_finish */
    pthread_mutex_t lock;               /* guards all below */
    pthread_cond_t done_changed;
    bool done;
    int users;                          /* who comes last frees it */
    int code;                           /* of getaddrinfo */
    struct addrinfo *found;
    char host[HOST_BYTES];
};

static const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};

static void lookup_leave(struct lookup *l)
{
    bool last;

    pthread_mutex_lock(&l->lock);
    last = --l->users == 0;
    pthread_mutex_unlock(&l->lock);
    if (!last)
        return;
    if (l->found != NULL)
        freeaddrinfo(l->found);
    pthread_cond_destroy(&l->done_changed);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static void *lookup_run(void *context)
{
    struct lookup *l = context;
    struct addrinfo *found = NULL;
    int code = getaddrinfo(l->host, NULL, &hints, &found);

    pthread_mutex_lock(&l->lock);
    l->code = code;
    l->found = found;
    l->done = true;
    pthread_cond_signal(&l->done_changed);
    pthread_mutex_unlock(&l->lock);
    lookup_leave(l);
    return NULL;
}

static struct lookup *lookup_new(const char *host)
{
    struct lookup *l = calloc(1, sizeof *l);
    pthread_condattr_t clock;

    if (l == NULL)
        return NULL;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->done_changed, &clock);
    pthread_condattr_destroy(&clock);
    l->users = 2;
    snprintf(l->host, sizeof l->host, "%s", host);
    return l;
}

/* NULL: errno. */
static struct lookup *lookup_start(const char *host)
{
    struct lookup *l = lookup_new(host);
    int code;

    if (l == NULL)
        return NULL;
    code = thread_start(&l->thread, lookup_run, l);
    if (code == 0)
        return l;
    l->users = 1;
    lookup_leave(l);
    errno = code;
    return NULL;
}

static void add_target(const struct addrinfo *a, uint16_t port,
                       struct dial_target targets[DIAL_TARGETS], int *count_p)
{
    struct dial_target *t = &targets[*count_p];
    char numeric[NI_MAXHOST];

    if (*count_p == DIAL_TARGETS || a->ai_addrlen > sizeof t->address ||
        (a->ai_family != AF_INET && a->ai_family != AF_INET6))
        return;
    memset(t, 0, sizeof *t);
    memcpy(&t->address, a->ai_addr, a->ai_addrlen);
    t->address_n = a->ai_addrlen;
    if (a->ai_family == AF_INET)
        ((struct sockaddr_in *)&t->address)->sin_port = htons(port);
    else
        ((struct sockaddr_in6 *)&t->address)->sin6_port = htons(port);
    if (getnameinfo(a->ai_addr, a->ai_addrlen, numeric, sizeof numeric, NULL, 0,
                    NI_NUMERICHOST) != 0)
        return;
    snprintf(t->text, sizeof t->text, "%.60s port %u", numeric, port);
    ++*count_p;
}

/* Waits for one lookup; true: targets were added. */
static enum hvd_status lookup_finish(struct lookup *l, uint16_t port, uint64_t until_us,
                                     struct dial_target targets[DIAL_TARGETS],
                                     int *count_p, struct hvd_error *err)
{
    const struct timespec until = {(time_t)(until_us / 1000000),
                                   (long)(until_us % 1000000 * 1000)};
    enum hvd_status status = HVD_OK;
    bool done;
    int code = 0;

    pthread_mutex_lock(&l->lock);
    while (!l->done && code == 0)
        code = pthread_cond_timedwait(&l->done_changed, &l->lock, &until);
    done = l->done;
    if (!done)
        status = error_set(err, HVD_SYS, -1,
                           "the name server did not answer for the rendezvous host '%s'",
                           l->host);
    else if (l->code != 0)
        status = error_set(err, HVD_SYS, -1, "the rendezvous host '%s' is unknown: %s",
                           l->host, gai_strerror(l->code));
    else
        for (const struct addrinfo *a = l->found; a != NULL; a = a->ai_next)
            add_target(a, port, targets, count_p);
    pthread_mutex_unlock(&l->lock);
    if (done)
        pthread_join(l->thread, NULL);
    else
        pthread_detach(l->thread);
    lookup_leave(l);
    return status;
}

/* The next host of the list without blanks and brackets; false: that was all. */
static bool next_host(const char **list_p, char host[HOST_BYTES])
{
    const char *p = *list_p + strspn(*list_p, ", \t[");
    size_t n = strcspn(p, ", \t]");

    if (n == 0 || n >= HOST_BYTES)
        return false;
    memcpy(host, p, n);
    host[n] = '\0';
    *list_p = p + n + strspn(p + n, "]");
    return true;
}

static bool add_numeric(const char *host, uint16_t port,
                        struct dial_target targets[DIAL_TARGETS], int *count_p)
{
    struct addrinfo numeric = hints, *found;

    numeric.ai_flags = AI_NUMERICHOST;
    if (getaddrinfo(host, NULL, &numeric, &found) != 0)
        return false;
    add_target(found, port, targets, count_p);
    freeaddrinfo(found);
    return true;
}

enum hvd_status resolve_targets(const char *list, uint16_t port, uint64_t deadline_us,
                                struct dial_target targets[DIAL_TARGETS], int *count_p,
                                struct hvd_error *err)
{
    struct lookup *lookups[DIAL_TARGETS];
    uint64_t until_us = clock_us() + LOOKUP_US;
    const char *rest = list;
    char host[HOST_BYTES];
    int lookup_count = 0;

    *count_p = 0;
    error_set(err, HVD_INVALID, -1, "'%.200s' names no rendezvous server", list);
    while (lookup_count < DIAL_TARGETS && next_host(&rest, host)) {
        if (add_numeric(host, port, targets, count_p))
            continue;
        lookups[lookup_count] = lookup_start(host);
        if (lookups[lookup_count] != NULL)
            lookup_count++;
        else
            error_sys(err, -1, "no thread to look up the rendezvous host '%s'", host);
    }
    if (deadline_us < until_us)
        until_us = deadline_us;
    for (int i = 0; i < lookup_count; i++)
        if (lookup_finish(lookups[i], port, until_us, targets, count_p, err) != HVD_OK)
            log_warn("%s", err->text);
    return *count_p > 0 ? HVD_OK : err->status;
}
