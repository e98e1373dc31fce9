/* test_digest.c: different bytes have different digests. */
#include "check.h"

#include "horovod/horovod.h"

#define BYTES 200

TEST(the_same_bytes_have_one_digest_wherever_they_lie)
{
    char a[BYTES + 1], b[BYTES + 1];

    for (size_t n = 0; n <= BYTES; n++) {
        for (size_t i = 0; i < n; i++)
            a[i] = b[i + 1] = (char)(i * 7);
        CHECK_EQ(hvd_digest(a, n, 3), hvd_digest(b + 1, n, 3));
    }
}

TEST(every_bit_counts)
{
    char bytes[BYTES] = {0};

    for (size_t n = 1; n <= BYTES; n++) {
        uint64_t before = hvd_digest(bytes, n, 0);

        for (size_t bit = 0; bit < 8 * n; bit++) {
            bytes[bit / 8] ^= (char)(1 << bit % 8);
            CHECK(hvd_digest(bytes, n, 0) != before);
            bytes[bit / 8] ^= (char)(1 << bit % 8);
        }
    }
}

TEST(length_order_and_seed_count)
{
    const uint64_t one[8] = {1, 2}, two[8] = {2, 1};
    const uint64_t far[8] = {0, 2, 0, 0, 0, 1}, apart[8] = {0, 1, 0, 0, 0, 2};

    CHECK(hvd_digest(one, 16, 0) != hvd_digest(one, 24, 0));
    CHECK(hvd_digest(one, 64, 0) != hvd_digest(two, 64, 0));
    CHECK(hvd_digest(far, 64, 0) != hvd_digest(apart, 64, 0));
    CHECK(hvd_digest(one, 64, 0) != hvd_digest(one, 64, 1));
    CHECK(hvd_digest(one, 0, 0) != hvd_digest(one, 0, 1));
}
