/* test_channel.c: frames over a socket that gives and takes as it likes. */
#include "check.h"

#include "rendezvous/channel.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct channel a, b;
static struct hvd_error err;

static void open_channels(size_t limit)
{
    struct hs_keys keys = {{1}, {2}}, mirrored = {{2}, {1}};
    int fds[2];

    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    CHECK_OK(channel_init(&a, fds[0], &keys, limit, &err), err);
    CHECK_OK(channel_init(&b, fds[1], &mirrored, limit, &err), err);
}

static void close_channels(void)
{
    channel_release(&a);
    channel_release(&b);
}

static void check_next(const char *text)
{
    struct channel_message m;

    CHECK_OK(channel_receive(&b, &m, &err), err);
    CHECK_EQ(m.n, strlen(text));
    CHECK(memcmp(m.body, text, m.n) == 0);
}

TEST(messages_arrive_in_order)
{
    struct channel_message m;

    open_channels(1000);
    CHECK_EQ(channel_receive(&b, &m, &err), HVD_AGAIN);
    CHECK_OK(channel_send(&a, RDV_ENTRY, "one", 3, &err), err);
    CHECK_OK(channel_send(&a, RDV_VERDICT, "", 0, &err), err);
    CHECK_OK(channel_send(&a, RDV_TABLE, "three", 5, &err), err);
    check_next("one");
    check_next("");
    check_next("three");
    CHECK_EQ(channel_receive(&b, &m, &err), HVD_AGAIN);
    close(a.fd);
    a.fd = -1;
    CHECK_EQ(channel_receive(&b, &m, &err), HVD_PEER_LOST);
    close_channels();
}

/* Byte by byte, as a slow network may deliver it. */
TEST(a_message_may_come_in_any_pieces)
{
    struct channel_message m;
    uint8_t wire[64];
    int pieces[2];
    ssize_t n;

    open_channels(1000);
    CHECK_OK(channel_send(&a, RDV_ENTRY, "in pieces", 9, &err), err);
    n = recv(b.fd, wire, sizeof wire, 0);
    CHECK_EQ(n, RDV_HEADER + 9 + SEAL_TAG);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pieces), 0);
    CHECK(dup2(pieces[1], b.fd) == b.fd);
    for (ssize_t i = 0; i < n; i++) {
        CHECK_EQ(channel_receive(&b, &m, &err), HVD_AGAIN);
        CHECK_EQ(send(pieces[0], wire + i, 1, 0), 1);
    }
    check_next("in pieces");
    close_channels();
}

TEST(more_than_the_socket_takes_is_kept_and_flushed)
{
    size_t n = 4 << 20;
    uint8_t *big = malloc(n);
    struct channel_message m;
    enum hvd_status status;

    for (size_t i = 0; i < n; i++)
        big[i] = (uint8_t)(i * 7);
    open_channels(n);
    CHECK_OK(channel_send(&a, RDV_TABLE, big, n, &err), err);
    CHECK_OK(channel_send(&a, RDV_TABLE, "after", 5, &err), err);
    CHECK(a.unsent_n > a.unsent_at);
    while ((status = channel_receive(&b, &m, &err)) == HVD_AGAIN)
        channel_flush(&a, &err);
    CHECK_OK(status, err);
    CHECK_EQ(m.n, n);
    CHECK(memcmp(m.body, big, n) == 0);
    check_next("after");
    CHECK_OK(channel_flush(&a, &err), err);
    free(big);
    close_channels();
}

TEST(a_changed_byte_ends_it)
{
    struct channel_message m;
    uint8_t wire[64];
    ssize_t n;

    for (int i = 0; i < RDV_HEADER + 3 + SEAL_TAG; i++) {
        if (i < 4)                      /* a length: more bytes are awaited, or too many */
            continue;
        open_channels(1000);
        CHECK_OK(channel_send(&a, RDV_ENTRY, "abc", 3, &err), err);
        n = recv(b.fd, wire, sizeof wire, 0);
        wire[i] ^= 0x10;
        CHECK_EQ(send(a.fd, wire, (size_t)n, 0), n);
        CHECK_EQ(channel_receive(&b, &m, &err), HVD_PROTO);
        close_channels();
    }
}

TEST(a_message_above_the_limit_is_refused_by_its_header)
{
    struct channel_message m;

    open_channels(10);
    CHECK_OK(channel_send(&a, RDV_ENTRY, "0123456789a", 11, &err), err);
    CHECK_EQ(channel_receive(&b, &m, &err), HVD_PROTO);
    CHECK(b.body == NULL);
    close_channels();
}

TEST(a_closed_socket_is_a_lost_peer)
{
    open_channels(10);
    close(b.fd);
    b.fd = -1;
    CHECK_EQ(channel_send(&a, RDV_ENTRY, "x", 1, &err), HVD_PEER_LOST);
    close_channels();
}

TEST(release_accepts_what_was_never_opened)
{
    struct channel c = {0};

    channel_release(&c);
}
