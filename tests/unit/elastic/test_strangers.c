/*
 * test_strangers.c: who gets no connection to the driver of an elastic job: strangers, machines
 * that join without the join key, tapes of honest ones, workers that are not expected.
 */
#include "../rendezvous/rdv_support.h"

#include "wire/elastic_message.h"

#include <pthread.h>
#include <stdlib.h>

static const uint8_t join_key[HVD_KEY_BYTES] = "the key of those who may join...";

static struct hvd_driver *driver_up(const uint8_t *joins)
{
    struct hvd_driver_options opt = {.size = sizeof opt, .key = test_key, .job_id = "job",
                                     .np = 1, .min_np = 1, .reset_limit = -1,
                                     .grace_s = 5, .join_key = joins};
    struct hvd_host host = {"localhost", 1};
    struct hvd_driver *d = NULL;
    struct hvd_error err;

    CHECK_OK(hvd_driver_new(&opt, &d, &err), err);
    hvd_driver_hosts(d, &host, 1);
    return d;
}

static struct hvd_driver_action next(struct hvd_driver *d, enum hvd_driver_kind kind)
{
    struct hvd_driver_action a = {0};
    struct pollfd p = {.fd = hvd_driver_fd(d), .events = POLLIN};

    for (;;) {
        while (hvd_driver_next(d, &a) == HVD_OK)
            if (a.kind == kind)
                return a;
        CHECK(poll(&p, 1, 15000) == 1);
    }
}

static struct hs_identity identity(enum hs_purpose purpose, int number)
{
    struct hs_identity id = {purpose, number, HS_ANY_RANK, 0, ""};

    snprintf(id.job_id, sizeof id.job_id, "%s",
             purpose == HS_JOIN ? ELASTIC_JOIN_ID : "job");
    return id;
}

/* What was sent, for who repeats it. */
static struct { uint8_t hello[HS_HELLO], confirm[HS_CONFIRM]; } tape;

/* False: refused at the proof. */
static bool prove(int fd, const uint8_t *key, enum hs_purpose purpose, int number,
                  struct channel *c)
{
    struct hs_identity id = identity(purpose, number);
    uint8_t reply[HS_REPLY];
    struct hs_dialer d;
    struct hs_keys keys;
    struct hvd_error err;

    CHECK_OK(hs_dial(&d, key, &id, tape.hello, &err), err);
    CHECK(raw_send(fd, tape.hello, sizeof tape.hello));
    if (!raw_receive(fd, reply, sizeof reply))
        return false;
    CHECK_OK(hs_dial_finish(&d, reply, tape.confirm, &keys, &err), err);
    CHECK(raw_send(fd, tape.confirm, sizeof tape.confirm));
    CHECK_OK(channel_init(c, fd, &keys, RDV_BODY_MAX, &err), err);
    return true;
}

static bool is_refused(struct hvd_driver *d, const uint8_t *key, enum hs_purpose purpose,
                       int number)
{
    int fd = raw_connect(hvd_driver_port(d));
    struct channel c = {0};
    bool refused = !prove(fd, key, purpose, number, &c) || raw_is_dropped(fd);

    if (c.limit > 0)
        channel_release(&c);
    else
        close(fd);
    return refused;
}

struct guest_machine {
    struct hvd_join_options opt;
    int fd;
    enum hvd_status status;
    struct hvd_error err;
};

static void *join_thread(void *context)
{
    struct guest_machine *m = context;

    m->status = hvd_join(&m->opt, m->fd, &m->err);
    return NULL;
}

static struct hvd_join_options join_options(struct hvd_driver *d, const uint8_t *key)
{
    return (struct hvd_join_options){.size = sizeof(struct hvd_join_options),
                                     .addrs = "127.0.0.1", .port = hvd_driver_port(d),
                                     .key = key, .host = "node7", .slots = 3,
                                     .timeout_s = 15};
}

TEST(a_machine_joins_and_is_heard)
{
    struct hvd_driver *d = driver_up(join_key);
    struct guest_machine m = {.opt = join_options(d, join_key)};
    struct hvd_driver_action a;
    pthread_t thread;
    char text[100000], back[sizeof text];
    int pair[2];

    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    m.fd = pair[1];
    CHECK_EQ(pthread_create(&thread, NULL, join_thread, &m), 0);
    a = next(d, HVD_DRIVER_JOIN);
    CHECK_STR(a.host, "node7");
    CHECK_EQ(a.slot, 3);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i * 7);
    CHECK_EQ(write(pair[0], text, sizeof text), (ssize_t)sizeof text);
    CHECK_EQ(recv(a.fd, back, sizeof back, MSG_WAITALL), (ssize_t)sizeof back);
    CHECK(memcmp(text, back, sizeof text) == 0);
    CHECK_EQ(write(a.fd, text, 1000), 1000);
    CHECK_EQ(recv(pair[0], back, 1000, MSG_WAITALL), 1000);
    CHECK(memcmp(text, back, 1000) == 0);
    close(pair[0]);                     /* its agent has ended */
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_OK(m.status, m.err);
    CHECK_EQ(read(a.fd, back, 1), 0);
    close(a.fd);
    close(pair[1]);
    hvd_driver_free(d);
}

TEST(the_end_of_the_job_is_the_end_of_who_joined)
{
    struct hvd_driver *d = driver_up(join_key);
    struct guest_machine m = {.opt = join_options(d, join_key)};
    struct hvd_driver_action a;
    pthread_t thread;
    int pair[2];

    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    m.fd = pair[1];
    CHECK_EQ(pthread_create(&thread, NULL, join_thread, &m), 0);
    a = next(d, HVD_DRIVER_JOIN);
    hvd_driver_free(d);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(m.status, HVD_PEER_LOST);
    close(a.fd);
    close(pair[0]);
    close(pair[1]);
}

TEST(joining_needs_the_key)
{
    struct hvd_driver *d = driver_up(join_key);
    struct hvd_join_options opt = join_options(d, test_key);
    struct hvd_error err;
    int pair[2];

    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    opt.timeout_s = 0.3;
    CHECK_EQ(hvd_join(&opt, pair[1], &err), HVD_AUTH);          /* the key of the workers */
    CHECK(is_refused(d, test_key, HS_JOIN, 0));
    CHECK(is_refused(d, join_key, HS_ELASTIC, 1));              /* a joiner is no worker */
    CHECK(is_refused(d, join_key, HS_RENDEZVOUS, 0));
    CHECK(is_refused(d, (const uint8_t *)"somebody else's key, 32 bytes...", HS_JOIN, 0));
    close(pair[0]);
    close(pair[1]);
    hvd_driver_free(d);
}

TEST(nobody_joins_a_job_without_a_join_key)
{
    struct hvd_driver *d = driver_up(NULL);
    static const uint8_t zeros[HVD_KEY_BYTES];

    CHECK(is_refused(d, join_key, HS_JOIN, 0));
    CHECK(is_refused(d, zeros, HS_JOIN, 0));
    CHECK(is_refused(d, test_key, HS_JOIN, 0));
    hvd_driver_free(d);
}

/* The tape of an honest one opens no door, neither while it is here nor later. */
static void check_replay(struct hvd_driver *d)
{
    uint8_t reply[HS_REPLY];
    int fd = raw_connect(hvd_driver_port(d));

    CHECK(raw_send(fd, tape.hello, sizeof tape.hello));
    raw_send(fd, tape.confirm, sizeof tape.confirm);
    CHECK(!raw_receive(fd, reply, sizeof reply));
    close(fd);
}

TEST(a_replayed_join_is_refused)
{
    struct hvd_driver *d = driver_up(join_key);
    struct elastic_join join = {.slots = 1, .host = "node7"};
    uint8_t bytes[ELASTIC_JOIN_MAX];
    int fd = raw_connect(hvd_driver_port(d));
    struct channel c;
    struct hvd_error err;

    CHECK(prove(fd, join_key, HS_JOIN, 0, &c));
    check_replay(d);
    CHECK_OK(channel_send(&c, RDV_JOIN, bytes, put_elastic_join(&join, bytes), &err), err);
    close(next(d, HVD_DRIVER_JOIN).fd);
    channel_release(&c);
    check_replay(d);
    hvd_driver_free(d);
}

TEST(who_joined_says_join_first_and_bytes_then)
{
    struct hvd_driver *d = driver_up(join_key);
    static const enum rdv_kind kinds[] = {RDV_BYTES, RDV_READY, RDV_NOTICE, RDV_PONG};
    struct hvd_error err;

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        int fd = raw_connect(hvd_driver_port(d));
        struct channel c;

        CHECK(prove(fd, join_key, HS_JOIN, 0, &c));
        CHECK_OK(channel_send(&c, kinds[i], "abcdef", 6, &err), err);
        CHECK(raw_is_dropped(fd));
        channel_release(&c);
    }
    hvd_driver_free(d);
}

TEST(a_worker_comes_once_and_only_if_it_is_expected)
{
    struct hvd_driver *d = driver_up(NULL);
    int worker = next(d, HVD_DRIVER_START).worker, fd = raw_connect(hvd_driver_port(d));
    struct channel c;

    CHECK(is_refused(d, test_key, HS_ELASTIC, worker + 1));     /* never started */
    CHECK(is_refused(d, test_key, HS_ELASTIC, 0));
    CHECK(prove(fd, test_key, HS_ELASTIC, worker, &c));
    check_replay(d);
    CHECK(is_refused(d, test_key, HS_ELASTIC, worker));         /* it is here already */
    channel_release(&c);
    CHECK(is_refused(d, test_key, HS_ELASTIC, worker));         /* ... and was here */
    hvd_driver_free(d);
}

TEST(a_worker_of_a_removed_slot_does_not_come_back)
{
    struct hvd_driver *d = driver_up(NULL);
    struct hvd_host other = {"127.0.0.1", 1};
    int worker = next(d, HVD_DRIVER_START).worker;

    hvd_driver_hosts(d, &other, 1);     /* its host has gone before it came */
    CHECK_EQ(next(d, HVD_DRIVER_STOP).worker, worker);
    CHECK(is_refused(d, test_key, HS_ELASTIC, worker));
    hvd_driver_worker_ended(d, worker, 143, 15, "");
    CHECK(is_refused(d, test_key, HS_ELASTIC, worker));
    hvd_driver_free(d);
}
