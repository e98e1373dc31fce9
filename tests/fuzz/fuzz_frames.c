/*
 * fuzz_frames.c: a stream of frames from a peer, in pieces of any size, against receives
 * that are posted, taken over and cancelled on the way.
 *
 *   byte 0: bits 0-3 receives posted at the start, bits 4-7 size of the pieces
 *   byte 1: after how many pieces the others are posted and one is cancelled
 *   the rest: the stream
 */
#include "transport/transport_int.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TAGS = 4 };
static const size_t lengths[TAGS] = {0, 1, 100, 5000};

struct feed {
    const uint8_t *at;
    size_t left, piece;
};

static struct mesh *mesh;
static size_t message_bytes;

static ssize_t feed_read(struct link *l, void *to, size_t bytes, struct hvd_error *err)
{
    struct feed *f = l->stream;
    size_t n = bytes < f->piece ? bytes : f->piece;

    n = n < f->left ? n : f->left;
    if (n > 0)
        memcpy(to, f->at, n);
    f->at += n;
    f->left -= n;
    return (ssize_t)n;
}

static ssize_t feed_write(struct link *l, const struct iovec *iov, int count,
                          struct hvd_error *err)
{
    ssize_t n = 0;

    for (int i = 0; i < count; i++)
        n += (ssize_t)iov[i].iov_len;
    return n;
}

static const struct link_ops feed_ops = {.name = "feed", .read = feed_read,
                                         .write = feed_write};

static void on_message(void *context, int peer, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        message_bytes += bytes[i];
}

static void make_mesh(void)
{
    static struct table_entry entries[2] = {{.rank = 0, .size = 2, .local_rank = -1,
        .local_size = -1, .cross_rank = -1, .cross_size = -1}, {.rank = 1, .size = 2}};
    static struct config conf;
    struct mesh_options opt = {.conf = &conf};
    struct table table = {1, 2, entries};
    struct hvd_error err;

    entries[1].machine[0] = 1;
    BUG_ON(mesh_new(&opt, &table, 0, &mesh, &err) != HVD_OK);
    mesh_on_message(mesh, on_message, NULL);
}

static void post(struct link *l, struct mesh_xfer *x, int tag, char *buffer)
{
    *x = (struct mesh_xfer){.status = HVD_AGAIN, .peer = 1, .tag = (uint64_t)tag,
                            .at = buffer, .bytes = lengths[tag]};
    list_init(&x->node);
    link_post(l, x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mesh_xfer x[TAGS] = {0};
    struct feed feed = {0};
    struct link *l;
    char *buffers[TAGS];
    int rounds;

    if (size < 2)
        return 0;
    if (mesh == NULL)
        make_mesh();
    atomic_store(&mesh->verdict.set, false);
    l = &mesh->links[1];
    link_init(l, mesh, 1);
    l->ops = &feed_ops;
    l->stream = &feed;
    for (int i = 0; i < TAGS; i++) {
        buffers[i] = malloc(lengths[i] + 1);
        if (data[0] >> i & 1)
            post(l, &x[i], i, buffers[i]);
    }
    feed.piece = (size_t)1 << (data[0] >> 4);
    feed.at = data + 2;
    rounds = data[1];
    feed.left = (size_t)rounds * 16 < size - 2 ? (size_t)rounds * 16 : size - 2;
    link_receive(l);
    for (int i = 0; i < TAGS; i++)
        if (!(data[0] >> i & 1))
            post(l, &x[i], i, buffers[i]);
        else if (x[i].status == HVD_AGAIN && i % 2 == 0)
            link_cancel_receive(l, &x[i]);
    feed.left = (size_t)(data + size - feed.at);
    link_receive(l);
    link_release(l);
    l->ops = NULL;
    for (int i = 0; i < TAGS; i++) {
        BUG_ON(x[i].done > lengths[i]);
        free(buffers[i]);
    }
    return 0;
}
