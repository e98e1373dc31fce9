/* test_seal.c: what is sealed arrives unchanged and in order, or not at all. */
#include "check.h"

#include "base/clock.h"
#include "wire/handshake.h"

static const uint8_t key[HS_KEY] = "a key of thirty-two bytes, exact";
static struct seal out, in;
static struct hvd_error err;

static void open_pair(void)
{
    CHECK_OK(seal_init(&out, key, &err), err);
    CHECK_OK(seal_init(&in, key, &err), err);
}

static void close_pair(void)
{
    seal_release(&out);
    seal_release(&in);
}

TEST(signed_messages_arrive_in_order)
{
    uint8_t tags[3][SEAL_TAG];

    open_pair();
    for (int i = 0; i < 3; i++)
        CHECK_OK(seal_sign(&out, "hello", 5, tags[i], &err), err);
    CHECK(memcmp(tags[0], tags[1], SEAL_TAG) != 0);
    for (int i = 0; i < 3; i++)
        CHECK_OK(seal_check(&in, "hello", 5, tags[i], &err), err);
    close_pair();
}

TEST(a_repeated_or_skipped_message_does_not_fit_and_kills_the_seal)
{
    uint8_t tags[2][SEAL_TAG];

    open_pair();
    for (int i = 0; i < 2; i++)
        CHECK_OK(seal_sign(&out, "hello", 5, tags[i], &err), err);
    CHECK_EQ(seal_check(&in, "hello", 5, tags[1], &err), HVD_PROTO);
    CHECK_HAS(err.text, "message 0");
    CHECK_EQ(seal_check(&in, "hello", 5, tags[0], &err), HVD_PROTO);
    CHECK_EQ(seal_sign(&in, "hello", 5, tags[0], &err), HVD_PROTO);
    close_pair();
}

TEST(every_changed_bit_of_a_signed_message_is_noticed)
{
    uint8_t message[64] = {1, 2, 3}, tag[SEAL_TAG];

    for (int bit = 0; bit < (int)sizeof message * 8; bit++) {
        open_pair();
        CHECK_OK(seal_sign(&out, message, sizeof message, tag, &err), err);
        message[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK_EQ(seal_check(&in, message, sizeof message, tag, &err), HVD_PROTO);
        close_pair();
    }
}

TEST(encrypted_messages_come_back_and_changed_ones_do_not)
{
    uint8_t plain[100], cipher[100], back[100], tag[SEAL_TAG];

    for (int i = 0; i < 100; i++)
        plain[i] = (uint8_t)i;
    open_pair();
    for (int i = 0; i < 3; i++) {
        CHECK_OK(seal_encrypt(&out, "head", 4, plain, 100, cipher, tag, &err), err);
        CHECK(memcmp(plain, cipher, 100) != 0);
        CHECK_OK(seal_decrypt(&in, "head", 4, cipher, 100, back, tag, &err), err);
        CHECK(memcmp(plain, back, 100) == 0);
    }
    CHECK_OK(seal_sign(&out, "mixed", 5, tag, &err), err);
    CHECK_OK(seal_check(&in, "mixed", 5, tag, &err), err);
    CHECK_OK(seal_encrypt(&out, "head", 4, plain, 100, cipher, tag, &err), err);
    CHECK_EQ(seal_decrypt(&in, "heat", 4, cipher, 100, back, tag, &err), HVD_PROTO);
    for (int i = 0; i < 100; i++)
        CHECK_EQ(back[i], 0);           /* nothing unproved is handed out */
    close_pair();
}

TEST(encrypts_in_place_and_empty)
{
    uint8_t bytes[] = "in place", tag[SEAL_TAG];

    open_pair();
    CHECK_OK(seal_encrypt(&out, NULL, 0, bytes, 8, bytes, tag, &err), err);
    CHECK_OK(seal_decrypt(&in, NULL, 0, bytes, 8, bytes, tag, &err), err);
    CHECK_STR((char *)bytes, "in place");
    CHECK_OK(seal_encrypt(&out, "h", 1, NULL, 0, NULL, tag, &err), err);
    CHECK_OK(seal_decrypt(&in, "h", 1, NULL, 0, NULL, tag, &err), err);
    close_pair();
}

TEST(the_key_changes_on_both_sides_at_the_same_message)
{
    const uint64_t last = (1u << 22) - 1;
    uint8_t tag[SEAL_TAG], before[HS_KEY];

    open_pair();
    out.counter = in.counter = last;
    memcpy(before, out.key, HS_KEY);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(seal_sign(&out, "x", 1, tag, &err), err);
        CHECK_OK(seal_check(&in, "x", 1, tag, &err), err);
    }
    CHECK(memcmp(before, out.key, HS_KEY) != 0);
    CHECK(memcmp(in.key, out.key, HS_KEY) == 0);
    close_pair();
}

TEST(costs_little)
{
    enum { ROUNDS = 20000 };
    uint8_t message[64] = {0}, tag[SEAL_TAG];
    uint64_t start;

    open_pair();
    start = clock_ns();
    for (int i = 0; i < ROUNDS; i++) {
        CHECK_OK(seal_sign(&out, message, 64, tag, &err), err);
        CHECK_OK(seal_check(&in, message, 64, tag, &err), err);
    }
    printf("sign or check 64 bytes: %llu ns\n",
           (unsigned long long)((clock_ns() - start) / ROUNDS / 2));
    close_pair();
}
