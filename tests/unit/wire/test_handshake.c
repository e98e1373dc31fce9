/* test_handshake.c: two honest sides agree; every other pair is refused. */
#include "check.h"

#include "base/clock.h"
#include "wire/bytes.h"
#include "wire/crypto.h"
#include "wire/handshake.h"
#include "wire/replay.h"

static const uint8_t key[HS_KEY] = "0123456789abcdef0123456789abcde";

static struct hs_identity identity(int self, int peer)
{
    struct hs_identity id = {HS_DATA, self, peer, 7, "job"};

    return id;
}

struct pair {
    struct hs_dialer d;
    struct hs_listener l;
    struct hs_keys dk, lk;
    uint8_t hello[HS_HELLO], reply[HS_REPLY], confirm[HS_CONFIRM];
    struct hvd_error err;
};

static void dial(struct pair *p)
{
    struct hs_identity id = identity(1, 2);

    memset(p, 0, sizeof *p);
    CHECK_OK(hs_dial(&p->d, key, &id, p->hello, &p->err), p->err);
}

static enum hvd_status accept_at(struct pair *p, struct hs_identity expect)
{
    return hs_accept(&p->l, key, &expect, p->hello, p->reply, &p->err);
}

static void agree(struct pair *p)
{
    dial(p);
    CHECK_OK(accept_at(p, identity(2, HS_ANY_RANK)), p->err);
    CHECK_OK(hs_dial_finish(&p->d, p->reply, p->confirm, &p->dk, &p->err), p->err);
    CHECK_OK(hs_accept_finish(&p->l, p->confirm, &p->lk, &p->err), p->err);
}

TEST(two_honest_sides_agree)
{
    struct pair p, q;

    agree(&p);
    CHECK_EQ(p.l.id.peer, 1);
    CHECK_EQ(p.l.id.purpose, HS_DATA);
    CHECK_STR(p.l.peer_version, hvd_version());
    CHECK_STR(p.d.peer_version, hvd_version());
    CHECK(memcmp(p.dk.send, p.lk.receive, HS_KEY) == 0);
    CHECK(memcmp(p.dk.receive, p.lk.send, HS_KEY) == 0);
    CHECK(memcmp(p.dk.send, p.dk.receive, HS_KEY) != 0);
    agree(&q);
    CHECK(memcmp(p.dk.send, q.dk.send, HS_KEY) != 0);
    CHECK(memcmp(p.reply + 8, q.reply + 8, 64) != 0);
}

TEST(no_secret_stays_after_release)
{
    static const struct pair zero;
    struct pair p;

    agree(&p);
    hs_dialer_release(&p.d);
    hs_listener_release(&p.l);
    CHECK(memcmp(&p.d, &zero.d, sizeof p.d) == 0);
    CHECK(memcmp(&p.l, &zero.l, sizeof p.l) == 0);
}

static void check_refused(struct hs_identity expect)
{
    static char first[HVD_ERROR_TEXT];
    struct pair p;

    dial(&p);
    CHECK_EQ(accept_at(&p, expect), HVD_AUTH);
    if (first[0] == '\0')
        strcpy(first, p.err.text);
    CHECK_STR(p.err.text, first);
}

TEST(another_job_generation_rank_or_purpose_is_refused_with_one_text)
{
    struct hs_identity id = identity(2, HS_ANY_RANK);

    strcpy(id.job_id, "jo");
    check_refused(id);
    strcpy(id.job_id, "job2");
    check_refused(id);
    id = identity(2, HS_ANY_RANK), id.generation = 6;
    check_refused(id);
    id = identity(3, HS_ANY_RANK);
    check_refused(id);
    id = identity(2, 3);
    check_refused(id);
    id = identity(2, HS_ANY_RANK), id.purpose = HS_WATCH;
    check_refused(id);
}

TEST(a_listener_may_leave_purpose_and_generation_open)
{
    struct hs_identity id = identity(2, HS_ANY_RANK);
    struct pair p;

    id.purpose = 0;
    id.generation = HS_ANY_GENERATION;
    dial(&p);
    CHECK_OK(accept_at(&p, id), p.err);
    CHECK_EQ(p.l.id.purpose, HS_DATA);
    CHECK_EQ(p.l.id.generation, 7u);
}

TEST(nobody_dials_itself)
{
    struct hs_identity id = identity(2, 2);
    struct hs_dialer d;
    struct hvd_error err;
    uint8_t hello[HS_HELLO];

    CHECK_EQ(hs_dial(&d, key, &id, hello, &err), HVD_INVALID);
}

TEST(another_key_is_refused_by_both_sides)
{
    uint8_t other[HS_KEY] = {1};
    struct hs_identity expect = identity(2, HS_ANY_RANK), id = identity(1, 2);
    struct pair p;

    dial(&p);
    CHECK_EQ(hs_accept(&p.l, other, &expect, p.hello, p.reply, &p.err), HVD_AUTH);
    /* A listener without the key cannot answer, even if it takes any hello. */
    CHECK_OK(hs_dial(&p.d, other, &id, p.hello, &p.err), p.err);
    CHECK_OK(hs_accept(&p.l, other, &expect, p.hello, p.reply, &p.err), p.err);
    p.d.key = key;
    CHECK_EQ(hs_dial_finish(&p.d, p.reply, p.confirm, &p.dk, &p.err), HVD_AUTH);
}

/* Every bit of every message counts. */
TEST(every_changed_bit_is_noticed)
{
    struct pair p;

    for (int bit = 0; bit < HS_HELLO * 8; bit += 5) {
        dial(&p);
        p.hello[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK_EQ(accept_at(&p, identity(2, HS_ANY_RANK)), HVD_AUTH);
    }
    for (int bit = 0; bit < HS_REPLY * 8; bit += 5) {
        dial(&p);
        CHECK_OK(accept_at(&p, identity(2, HS_ANY_RANK)), p.err);
        p.reply[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK_EQ(hs_dial_finish(&p.d, p.reply, p.confirm, &p.dk, &p.err), HVD_AUTH);
    }
    for (int bit = 0; bit < HS_CONFIRM * 8; bit += 3) {
        dial(&p);
        CHECK_OK(accept_at(&p, identity(2, HS_ANY_RANK)), p.err);
        CHECK_OK(hs_dial_finish(&p.d, p.reply, p.confirm, &p.dk, &p.err), p.err);
        p.confirm[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK_EQ(hs_accept_finish(&p.l, p.confirm, &p.lk, &p.err), HVD_AUTH);
    }
}

TEST(replays_are_refused)
{
    struct pair old, p;

    agree(&old);
    /* The old hello gets an answer, but the old confirm does not fit it. */
    p = old;
    CHECK_OK(accept_at(&p, identity(2, HS_ANY_RANK)), p.err);
    CHECK_EQ(hs_accept_finish(&p.l, old.confirm, &p.lk, &p.err), HVD_AUTH);
    dial(&p);
    CHECK_EQ(hs_dial_finish(&p.d, old.reply, p.confirm, &p.dk, &p.err), HVD_AUTH);
}

TEST(reflections_are_refused)
{
    struct pair p;

    dial(&p);
    CHECK_EQ(hs_dial_finish(&p.d, p.hello, p.confirm, &p.dk, &p.err), HVD_AUTH);
    /* Rank 1's own hello, sent back to rank 1's listener. */
    CHECK_EQ(accept_at(&p, identity(1, HS_ANY_RANK)), HVD_AUTH);
}

static void reprove(uint8_t *hello)
{
    static const char salt[] = "horovod handshake";
    struct hvd_error err;
    uint8_t k[HS_KEY];

    CHECK_OK(crypto_derive((struct crypto_span){key, HS_KEY},
                           (struct crypto_span){salt, sizeof salt - 1},
                           (struct crypto_span){"hello", 5}, k, sizeof k, &err), err);
    CHECK_OK(crypto_mac(k, hello, 224, hello + 224, &err), err);
}

TEST(versions_are_named_on_both_sides)
{
    struct pair p;

    dial(&p);
    bytes_put_u16(p.hello + 4, 9);
    memset(p.hello + 88, 0, 32);
    strcpy((char *)p.hello + 88, "9.8.7");
    reprove(p.hello);
    memcpy(p.d.hello, p.hello, HS_HELLO);
    CHECK_EQ(accept_at(&p, identity(2, HS_ANY_RANK)), HVD_VERSION);
    CHECK_HAS(p.err.text, "protocol 9 (horovod 9.8.7)");
    CHECK_HAS(p.err.text, hvd_version());
    CHECK_EQ(p.reply[6], 1);
    CHECK_EQ(hs_dial_finish(&p.d, p.reply, p.confirm, &p.dk, &p.err), HVD_AUTH);
}

/* A version counts when it is proved; else its number is a hint, and nothing else of the
 * stranger's bytes is shown. */
TEST(an_unproved_version_is_no_verdict)
{
    struct pair p;

    dial(&p);
    bytes_put_u16(p.hello + 4, 9);
    memcpy(p.hello + 88, "evil", 5);
    CHECK_EQ(accept_at(&p, identity(2, HS_ANY_RANK)), HVD_AUTH);
    CHECK_HAS(p.err.text, "protocol 9");
    CHECK(strstr(p.err.text, "evil") == NULL);
    dial(&p);
    memset(p.reply, 0, sizeof p.reply);
    memcpy(p.reply, "HvdR", 4);
    bytes_put_u16(p.reply + 4, 9);
    memcpy(p.reply + 88, "evil", 5);
    CHECK_EQ(hs_dial_finish(&p.d, p.reply, p.confirm, &p.dk, &p.err), HVD_AUTH);
    CHECK_HAS(p.err.text, "protocol 9");
    CHECK(strstr(p.err.text, "evil") == NULL);
}

/* ---- Replays ---------------------------------------------------------------------- */

TEST(a_hello_is_remembered)
{
    static uint8_t hello[HS_HELLO], other[HS_HELLO];
    struct replay r = {0};

    CHECK(!replay_has(&r, hello));
    for (uint32_t i = 1; i <= 5000; i++) {
        bytes_put_u32(hello + HS_AT_NONCE, i * 7);
        CHECK(!replay_has(&r, hello));
        replay_add(&r, hello);
        CHECK(replay_has(&r, hello));
    }
    for (uint32_t i = 1; i <= 5000; i++) {
        bytes_put_u32(hello + HS_AT_NONCE, i * 7);
        CHECK(replay_has(&r, hello));
        bytes_put_u32(hello + HS_AT_NONCE, i * 7 + 1);
        CHECK(!replay_has(&r, hello));
    }
    CHECK(!replay_has(&r, other));      /* of zeros, as an empty slot */
    replay_release(&r);
}

TEST(the_memory_of_hellos_is_bounded)
{
    static uint8_t hello[HS_HELLO];
    struct replay r = {0};

    for (uint32_t i = 1; i <= 2 * REPLAY_MAX; i++) {
        bytes_put_u32(hello + HS_AT_NONCE, i);
        replay_add(&r, hello);
        CHECK(replay_has(&r, hello));
        CHECK(r.count <= REPLAY_MAX && r.room <= 2 * REPLAY_MAX);
    }
    replay_release(&r);
}

/* A key holder that sends a point of low order would fix the shared secret. */
TEST(a_public_key_of_low_order_is_refused)
{
    struct pair p;

    dial(&p);
    memset(p.hello + 40, 0, 32);
    reprove(p.hello);
    CHECK_EQ(accept_at(&p, identity(2, HS_ANY_RANK)), HVD_AUTH);
}

TEST(costs_little)
{
    enum { ROUNDS = 100 };
    uint64_t start = clock_us();
    struct pair p;

    for (int i = 0; i < ROUNDS; i++)
        agree(&p);
    uint64_t us = (clock_us() - start) / ROUNDS;
    printf("both sides of a handshake: %llu us\n", (unsigned long long)us);
    CHECK(us < 20000);                  /* 0.3 ms; a loaded, sanitized machine: more */
}
