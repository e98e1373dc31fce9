/* test_transfers.c: what can happen to a transfer: cancelled, too long, many at once; and
 * to what waits for it: sleep, kicks, boards. */
#include "base/clock.h"
#include "base/thread.h"
#include "check.h"
#include "support/mesh_harness.h"
#include "support/sim_transport.h"
#include "transport/transport_int.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>

static const struct harness pairs[] = {
    {.size = 2},
    {.size = 2, .hosts = 2, .connect = true},
    {.size = 2, .hosts = 2, .connect = true, .security = "encrypt"},
};

static void run_pairs(harness_fn body)
{
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        harness_run(&pairs[i], body);
}

/* ---- Cancelling ------------------------------------------------------------------ */

enum { LARGE = 16 << 20 };              /* more than sockets hold and a round moves */

/* A large send is cancelled under way, its buffer overwritten; the receiver gets all of
 * what was there. */
static void cancelled_send(struct harness_rank *r)
{
    struct mesh_xfer x, y;
    char *data = malloc(LARGE), byte = 0;

    memset(data, r->rank == 0 ? 'a' : 0, LARGE);
    if (r->rank == 0) {
        mesh_send(r->mesh, 1, 1, data, LARGE, &x);
        CHECK_EQ((int)x.status, HVD_AGAIN);
        mesh_send(r->mesh, 1, 2, data, LARGE, &y);      /* not begun: never sent */
        mesh_cancel(r->mesh, &y);
        mesh_cancel(r->mesh, &x);
        memset(data, 'b', LARGE);
        mesh_send(r->mesh, 1, 3, "z", 1, &x);
        CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
        harness_barrier(r);
    } else {
        mesh_recv(r->mesh, 0, 1, data, LARGE, &x);
        mesh_recv(r->mesh, 0, 3, &byte, 1, &y);
        CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
        CHECK_EQ((int)harness_wait(r->mesh, &y), HVD_OK);
        for (int i = 0; i < LARGE; i++)
            CHECK_EQ(data[i], 'a');
        CHECK_EQ(byte, 'z');
        harness_barrier(r);
    }
    free(data);
}

TEST(a_cancelled_send_is_completed_from_a_copy)
{
    run_pairs(cancelled_send);
}

/* A receive is cancelled when part of it has come: the rest is dropped, and the same tag
 * serves the next transfer. */
static void cancelled_receive(struct harness_rank *r)
{
    struct mesh_xfer x;
    char *data = calloc(1, LARGE);

    if (r->rank == 0) {
        for (char turn = 1; turn <= 2; turn++) {
            memset(data, turn, LARGE);
            mesh_send(r->mesh, 1, 1, data, LARGE, &x);
            CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
        }
    } else {
        mesh_recv(r->mesh, 0, 1, data, LARGE, &x);
        while (x.done == 0)
            mesh_progress(r->mesh);
        CHECK_EQ((int)x.status, HVD_AGAIN);
        mesh_cancel(r->mesh, &x);
        memset(data, 0, LARGE);
        mesh_progress(r->mesh);
        CHECK_EQ(data[LARGE - 1], 0);
        mesh_recv(r->mesh, 0, 1, data, LARGE, &x);
        CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
        for (int i = 0; i < LARGE; i++)
            CHECK_EQ(data[i], 2);
    }
    harness_barrier(r);
    free(data);
}

TEST(a_cancelled_receive_drops_the_rest)
{
    run_pairs(cancelled_receive);
}

static void to_self(struct harness_rank *r)
{
    struct mesh_xfer x, y;
    char in = 0;

    mesh_recv(r->mesh, 0, 4, &in, 1, &x);
    mesh_cancel(r->mesh, &x);
    mesh_send(r->mesh, 0, 4, "s", 1, &y);
    CHECK_EQ((int)y.status, HVD_AGAIN);
    mesh_recv(r->mesh, 0, 4, &in, 1, &x);
    CHECK_EQ((int)x.status, HVD_OK);
    CHECK_EQ((int)y.status, HVD_OK);
    CHECK_EQ(in, 's');
}

TEST(a_rank_sends_to_itself)
{
    harness_run(&(struct harness){.size = 1}, to_self);
}

/* ---- Breaking the rules ---------------------------------------------------------- */

static void wrong_length(struct harness_rank *r)
{
    struct mesh_xfer x;
    char data[100] = {0};

    if (r->rank == 0)
        mesh_send(r->mesh, 1, 1, data, 100, &x);
    else
        mesh_recv(r->mesh, 0, 1, data, 99, &x);
    harness_wait_verdict(r->mesh);
    CHECK_EQ((int)mesh_verdict(r->mesh)->status, HVD_PROTO);
    CHECK_HAS(mesh_verdict(r->mesh)->text,
              "rank 0 sent 100 bytes for transfer 1, 99 were expected");
    if (r->rank == 1)
        CHECK_EQ((int)x.status, HVD_PROTO);
    mesh_recv(r->mesh, 1 - r->rank, 2, data, 1, &x);
    CHECK_EQ((int)x.status, HVD_PROTO);
}

TEST(lengths_that_differ_end_the_mesh)
{
    run_pairs(wrong_length);
}

/* A peer that writes nonsense into the indices of its ring. */
static void hostile_ring(struct harness_rank *r)
{
    struct mesh_xfer x;
    char byte;

    if (r->rank == 0) {
        _Atomic uint64_t *head = (_Atomic uint64_t *)host_ring(&r->mesh->host, 0, 1);

        atomic_store(head, (uint64_t)1 << 40);
        doorbell_ring(r->mesh, 1, ASLEEP);
    } else {
        mesh_recv(r->mesh, 0, 1, &byte, 1, &x);
        CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_PROTO);
    }
    harness_wait_verdict(r->mesh);
    CHECK_HAS(mesh_verdict(r->mesh)->text, "rank 0 broke the indices of its ring");
}

TEST(nonsense_in_a_ring_is_noticed)
{
    harness_run(&(struct harness){.size = 2}, hostile_ring);
}

/* Bytes that do not fit their seal, because another key has sealed them. */
static void tampered(struct harness_rank *r)
{
    struct mesh_xfer x;
    char byte;

    if (r->rank == 0) {
        uint8_t other[HS_KEY] = {1};

        seal_release(&r->mesh->links[1].seal_out);
        CHECK_OK(seal_init(&r->mesh->links[1].seal_out, other, &r->err), r->err);
        CHECK_OK(mesh_post(r->mesh, 1, "hello", 5, &r->err), r->err);
    } else {
        mesh_recv(r->mesh, 0, 1, &byte, 1, &x);
        CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_AUTH);
    }
    harness_wait_verdict(r->mesh);
    CHECK_HAS(mesh_verdict(r->mesh)->text, "rank 0 were changed on their way");
}

TEST(changed_bytes_are_noticed)
{
    harness_run(&pairs[1], tampered);
    harness_run(&pairs[2], tampered);
}

/* ---- Many at once ---------------------------------------------------------------- */

/* A small transfer that is handed in after a large one arrives first. */
static void small_overtakes(struct harness_rank *r)
{
    enum { BYTES = 32 << 20 };
    struct mesh_xfer large, small;
    char *data = calloc(1, BYTES), byte = 0;

    if (r->rank == 0) {
        mesh_send(r->mesh, 1, 1, data, BYTES, &large);
        mesh_send(r->mesh, 1, 2, "s", 1, &small);
        CHECK_EQ((int)harness_wait(r->mesh, &large), HVD_OK);
        CHECK_EQ((int)harness_wait(r->mesh, &small), HVD_OK);
    } else {
        mesh_recv(r->mesh, 0, 1, data, BYTES, &large);
        mesh_recv(r->mesh, 0, 2, &byte, 1, &small);
        CHECK_EQ((int)harness_wait(r->mesh, &small), HVD_OK);
        CHECK_EQ((int)large.status, HVD_AGAIN);
        CHECK_EQ((int)harness_wait(r->mesh, &large), HVD_OK);
    }
    harness_barrier(r);
    free(data);
}

TEST(a_small_transfer_does_not_wait_for_a_large_one)
{
    run_pairs(small_overtakes);
}

/* ---- Waking ---------------------------------------------------------------------- */

/* A storm of single bytes between sleepers: a lost wake-up is a hang. */
static void ping_pong(struct harness_rank *r)
{
    enum { TURNS = 3000 };
    struct mesh_xfer x, y;
    char in, out = 'p';
    int next = (r->rank + 1) % r->size, previous = (r->rank + r->size - 1) % r->size;

    for (uint64_t i = 0; i < TURNS; i++) {
        mesh_recv(r->mesh, previous, i, &in, 1, &x);
        if (r->rank == 0)
            mesh_send(r->mesh, next, i, &out, 1, &y);
        CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
        if (r->rank != 0)
            mesh_send(r->mesh, next, i, &out, 1, &y);
        CHECK_EQ((int)harness_wait(r->mesh, &y), HVD_OK);
    }
}

TEST(no_wake_up_is_lost, .limit_s = 60)
{
    harness_run(&(struct harness){.size = 2}, ping_pong);
    harness_run(&(struct harness){.size = 3, .hosts = 3}, ping_pong);
    harness_run(&(struct harness){.size = 4, .hosts = 2}, ping_pong);
}

/* The same through the board area. */
static void board_ping_pong(struct harness_rank *r)
{
    enum { TURNS = 5000 };
    _Atomic uint64_t *flags = mesh_board(r->mesh, NULL);
    int peer = 1 - r->rank;

    CHECK_OK(mesh_board_reserve(r->mesh, 0, 4096, &r->err), r->err);
    harness_barrier(r);
    for (uint64_t i = 1; i <= TURNS; i++) {
        if (r->rank == 0) {
            atomic_store_explicit(&flags[0], i, memory_order_release);
            mesh_notify(r->mesh, -1);
        }
        while (atomic_load(&flags[peer * 16]) < i) {
            if (!mesh_arm(r->mesh, true)) {
                mesh_progress(r->mesh);
                continue;
            }
            if (atomic_load(&flags[peer * 16]) < i)
                mesh_sleep(r->mesh, -1);
            mesh_disarm(r->mesh);
        }
        if (r->rank == 1) {
            atomic_store_explicit(&flags[16], i, memory_order_release);
            mesh_notify(r->mesh, 0);
        }
    }
}

TEST(no_wake_up_of_a_board_is_lost, .limit_s = 60)
{
    harness_run(&(struct harness){.size = 2}, board_ping_pong);
}

/* A socket that was full once has room again; nobody waits for that any more. */
static void sleeps_after_a_full_socket(struct harness_rank *r)
{
    struct mesh_xfer x;
    char *data = calloc(1, LARGE);
    uint64_t start, slept = 0;

    if (r->rank == 0) {
        mesh_send(r->mesh, 1, 1, data, LARGE, &x);
        while (!mesh_arm(r->mesh, false))
            mesh_progress(r->mesh);     /* until nothing fits */
        mesh_disarm(r->mesh);
        atomic_store(harness_word(r, 0), 1);
        CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
        CHECK(mesh_arm(r->mesh, false));
        for (int i = 0; i < 10 && slept < 30000; i++) {     /* a signal may end one */
            start = clock_us();
            mesh_sleep(r->mesh, 30000);
            slept = clock_us() - start;
        }
        CHECK(slept >= 30000);
        mesh_disarm(r->mesh);
        atomic_store(harness_word(r, 0), 2);
    } else {
        while (atomic_load(harness_word(r, 0)) == 0)
            sched_yield();
        mesh_recv(r->mesh, 0, 1, data, LARGE, &x);
        CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
        while (atomic_load(harness_word(r, 0)) < 2)
            sched_yield();
    }
    free(data);
}

TEST(a_socket_with_room_wakes_nobody)
{
    harness_run(&pairs[1], sleeps_after_a_full_socket);
    harness_run(&pairs[2], sleeps_after_a_full_socket);
}

/* In a doze nobody is woken by a socket; a kick and arming work as ever. */
static void dozes(struct harness_rank *r)
{
    struct mesh_xfer x;
    char in;

    if (r->rank == 1) {
        while (atomic_load(harness_word(r, 0)) == 0)
            sched_yield();
        mesh_send(r->mesh, 0, 1, "q", 1, &x);
        CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
        atomic_store(harness_word(r, 0), 2);
        while (atomic_load(harness_word(r, 0)) < 3)
            sched_yield();
        return;
    }
    mesh_recv(r->mesh, 1, 1, &in, 1, &x);
    while (!mesh_doze(r->mesh))
        mesh_progress(r->mesh);
    atomic_store(harness_word(r, 0), 1);
    while (atomic_load(harness_word(r, 0)) < 2)
        sched_yield();
    CHECK(!mesh_sleep(r->mesh, 10000));
    mesh_kick(r->mesh);
    CHECK(mesh_sleep(r->mesh, -1));
    CHECK(mesh_arm(r->mesh, false));
    CHECK(mesh_sleep(r->mesh, -1));
    mesh_disarm(r->mesh);
    CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
    atomic_store(harness_word(r, 0), 3);
}

static void has_nothing_to_doze_for(struct harness_rank *r)
{
    CHECK(!mesh_doze(r->mesh));
}

TEST(a_doze_is_not_ended_by_sockets)
{
    harness_run(&pairs[1], dozes);
    harness_run(&(struct harness){.size = 2}, has_nothing_to_doze_for);
}

/* Rank 1 has left in order; rank 0 writes to it before it reads what came before that. */
static void reads_what_came_before_the_end(struct harness_rank *r)
{
    struct link *l = &r->mesh->links[1 - r->rank];
    struct mesh_xfer x;
    uint64_t word = 7;

    if (r->rank == 1) {
        mesh_send(r->mesh, 0, 1, &word, sizeof word, &x);
        CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
        return;
    }
    while (!atomic_load(&l->going))
        sched_yield();                  /* nothing of it is read meanwhile */
    shutdown(*(int *)l->stream, SHUT_WR);               /* writing fails from now on */
    word = 0;
    mesh_recv(r->mesh, 1, 1, &word, sizeof word, &x);
    CHECK_OK(mesh_post(r->mesh, 1, "late", 4, &r->err), r->err);
    CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
    CHECK_EQ((int)word, 7);
}

TEST(a_write_that_fails_loses_nothing_that_came)
{
    harness_run(&pairs[1], reads_what_came_before_the_end);
}

static void *kicker(void *context)
{
    mesh_kick(context);
    return NULL;
}

/* A kick ends the sleep that is under way, or the next one. */
static void kicked(struct harness_rank *r)
{
    pthread_t id;

    for (int i = 0; i < 500; i++) {
        CHECK_EQ(pthread_create(&id, NULL, kicker, r->mesh), 0);
        mesh_sleep(r->mesh, -1);
        pthread_join(id, NULL);
    }
    mesh_kick(r->mesh);
    mesh_sleep(r->mesh, -1);
}

TEST(a_kick_ends_a_sleep)
{
    harness_run(&(struct harness){.size = 1}, kicked);
}

/* A thread sleeps while another one owns and uses the mesh: it is not woken by what the
 * owner handles itself, and wakes when the owner has armed and gone. */
struct sleeper {
    struct mesh *mesh;
    _Atomic int wakes;
};

static void *sleep_once(void *context)
{
    struct sleeper *s = context;

    mesh_sleep(s->mesh, -1);
    atomic_fetch_add(&s->wakes, 1);
    return NULL;
}

/* A barrier that does not touch the mesh. */
static void come_together(struct harness_rank *r, int word)
{
    atomic_fetch_add(harness_word(r, word), 1);
    while (atomic_load(harness_word(r, word)) < (uint64_t)r->size)
        sched_yield();
}

static void two_threads(struct harness_rank *r)
{
    struct sleeper s = {.mesh = r->mesh};
    struct mesh_xfer x, y;
    pthread_t id;
    char in;

    if (r->rank == 0) {
        while (!mesh_arm(r->mesh, false))
            mesh_progress(r->mesh);
        CHECK_EQ(pthread_create(&id, NULL, sleep_once, &s), 0);
        while (!atomic_load(&r->mesh->sleeping))
            sched_yield();
        mesh_disarm(r->mesh);
    }
    come_together(r, 1);
    for (uint64_t i = 0; i < 100; i++) {
        mesh_recv(r->mesh, 1 - r->rank, i, &in, 1, &x);
        mesh_send(r->mesh, 1 - r->rank, i, "q", 1, &y);
        while (x.status == HVD_AGAIN || y.status == HVD_AGAIN)
            if (mesh_progress(r->mesh) == 0)
                sched_yield();
    }
    CHECK_EQ(atomic_load(&s.wakes), 0);
    if (r->rank == 0) {
        mesh_recv(r->mesh, 1, 1000, &in, 1, &x);
        while (!mesh_arm(r->mesh, false))
            mesh_progress(r->mesh);
        atomic_store(harness_word(r, 0), 1);
        pthread_join(id, NULL);
        mesh_disarm(r->mesh);
        CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
    } else {
        while (atomic_load(harness_word(r, 0)) == 0)
            sched_yield();
        mesh_send(r->mesh, 0, 1000, "q", 1, &x);
        CHECK_EQ((int)harness_wait(r->mesh, &x), HVD_OK);
    }
    harness_barrier(r);
}

TEST(a_thread_sleeps_while_another_owns_the_mesh)
{
    run_pairs(two_threads);
}

/* ---- Goodbye --------------------------------------------------------------------- */

struct box {
    int count;
    volatile bool done;
};

static void count_message(void *context, int peer, const uint8_t *bytes, size_t n)
{
    struct box *box = context;

    box->count++;
    box->done = box->count == 300;
}

/* What was sent before a goodbye arrives, also when nobody read it at that time. */
static void last_words(struct harness_rank *r)
{
    struct box box = {0};
    char text[100] = {0};

    if (r->rank == 0) {
        for (int i = 0; i < 300; i++)
            CHECK_OK(mesh_post(r->mesh, 1, text, sizeof text, &r->err), r->err);
        return;
    }
    mesh_on_message(r->mesh, count_message, &box);
    harness_wait_flag(r->mesh, &box.done);
    CHECK_EQ(box.count, 300);
    while (!mesh_has_left(r->mesh, 0)) {
        mesh_progress(r->mesh);
        sched_yield();
    }
    CHECK(mesh_verdict(r->mesh) == NULL);
}

TEST(last_words_arrive)
{
    run_pairs(last_words);
    for (int i = 0; i < 20; i++)        /* the connection is made for them */
        harness_run(&(struct harness){.size = 2, .hosts = 2}, last_words);
}
