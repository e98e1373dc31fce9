/* rdv_support.h: a server, workers in threads, and bad clients, for the tests here. */
#ifndef TESTS_RDV_SUPPORT_H
#define TESTS_RDV_SUPPORT_H

#include "check.h"

#include "base/clock.h"
#include "horovod/driver.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/server_int.h"
#include "wire/handshake.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

static const uint8_t test_key[HVD_KEY_BYTES] = "thirty-two bytes of a job's key";

static inline struct hvd_server_options server_options(int workers)
{
    struct hvd_server_options opt = {.size = sizeof opt, .key = test_key, .job_id = "job",
                                     .worker_count = workers, .timeout_s = 15};

    return opt;
}

static inline struct hvd_server *server_up(struct hvd_server_options opt)
{
    struct hvd_server *s = NULL;
    struct hvd_error err;

    CHECK_OK(hvd_server_new(&opt, &s, &err), err);
    CHECK(hvd_server_port(s) != 0);
    return s;
}

/* On a port below the range of clients, of which none can take it while nobody listens. */
static inline struct hvd_server *server_up_at_home(struct hvd_server_options opt)
{
    struct hvd_server *s = NULL;
    struct hvd_error err;

    opt.port = (uint16_t)(20000 + getpid() % 12000);
    while (hvd_server_new(&opt, &s, &err) != HVD_OK)
        opt.port = opt.port < 32000 ? opt.port + 1 : 20000;
    return s;
}

static inline struct table_entry worker_entry(int rank, int size, uint32_t generation)
{
    struct table_entry e = {
        .rank = rank, .size = size, .local_rank = rank, .local_size = size,
        .cross_rank = 0, .cross_size = 1, .pid = 1000 + rank, .generation = generation,
        .port = 4000, .addr_count = 1, .addrs = {"127.0.0.1"}, .version = "0.29.0",
        .config_text = "security=auth",
    };

    snprintf(e.host, sizeof e.host, "node%d", rank / 2);
    return e;
}

struct worker {
    struct rdv_options opt;
    struct table_entry entry;
    pthread_t thread;
    struct rdv_client *client;
    struct table table;
    enum hvd_status status;
    struct hvd_error err;
    uint64_t took_us;
};

static inline struct worker worker_of(uint16_t port, int rank, int size)
{
    struct worker w = {
        .opt = {.addrs = "127.0.0.1", .port = port, .key = test_key, .job_id = "job",
                .deadline_us = clock_us() + 15000000},
        .entry = worker_entry(rank, size, 0),
    };

    return w;
}

static inline void *worker_run(void *context)
{
    struct worker *w = context;
    uint64_t start = clock_us();

    w->status = rdv_join(&w->opt, &w->entry, &w->client, &w->table, &w->err);
    w->took_us = clock_us() - start;
    return NULL;
}

static inline void worker_start(struct worker *w)
{
    CHECK_EQ(pthread_create(&w->thread, NULL, worker_run, w), 0);
}

static inline void worker_wait(struct worker *w)
{
    pthread_join(w->thread, NULL);
}

/* In this thread. */
static inline enum hvd_status worker_join(struct worker *w)
{
    worker_run(w);
    return w->status;
}

static inline void worker_end(struct worker *w)
{
    rdv_close(w->client);
    w->client = NULL;
    table_release(&w->table);
}

/* Waits until the server's status holds `text`; the test's time limit ends it. */
static inline void await_status(struct hvd_server *s, const char *text)
{
    char status[4096];

    do {
        hvd_server_status(s, status, sizeof status);
        poll(NULL, 0, 1);
    } while (strstr(status, text) == NULL);
}

static inline void await_gone(struct hvd_server *s, const char *text)
{
    char status[4096];

    do {
        hvd_server_status(s, status, sizeof status);
        poll(NULL, 0, 1);
    } while (strstr(status, text) != NULL);
}

static inline struct server_counters counters_of(struct hvd_server *s)
{
    struct server_counters c;

    server_count(s, &c);
    return c;
}

/* ---- Bad clients: plain blocking sockets ------------------------------------------ */

static inline int raw_connect(uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0);
    CHECK_EQ(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static inline bool raw_send(int fd, const void *bytes, size_t n)
{
    return send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n;
}

/* True if n bytes came; false: the server ended the connection. */
static inline bool raw_receive(int fd, void *bytes, size_t n)
{
    return n == 0 || recv(fd, bytes, n, MSG_WAITALL) == (ssize_t)n;
}

/* True if the server ends the connection without another byte. */
static inline bool raw_is_dropped(int fd)
{
    uint8_t byte;
    ssize_t n = recv(fd, &byte, 1, 0);

    return n == 0 || (n < 0 && errno == ECONNRESET);
}

static inline struct hs_identity raw_identity(int rank, uint32_t generation)
{
    struct hs_identity id = {HS_RENDEZVOUS, rank, HS_ANY_RANK, generation, "job"};

    return id;
}

/* The whole proof; the channel is blocking. */
static inline void raw_prove(int fd, int rank, uint32_t generation, struct channel *c)
{
    struct hs_identity id = raw_identity(rank, generation);
    uint8_t hello[HS_HELLO], reply[HS_REPLY], confirm[HS_CONFIRM];
    struct hs_dialer d;
    struct hs_keys keys;
    struct hvd_error err;

    CHECK_OK(hs_dial(&d, test_key, &id, hello, &err), err);
    CHECK(raw_send(fd, hello, sizeof hello));
    CHECK(raw_receive(fd, reply, sizeof reply));
    CHECK_OK(hs_dial_finish(&d, reply, confirm, &keys, &err), err);
    CHECK(raw_send(fd, confirm, sizeof confirm));
    CHECK_OK(channel_init(c, fd, &keys, RDV_BODY_MAX, &err), err);
}

#endif
