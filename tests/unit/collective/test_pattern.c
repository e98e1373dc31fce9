/* test_pattern.c: index arithmetic, for every number of members up to some. */
#include "check.h"
#include "collective/pattern.h"

#define MANY 70

TEST(slices_cover_everything_once)
{
    static const size_t counts[] = {0, 1, 63, 64, 65, 1000, 4097, (size_t)5 << 31};

    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
        for (int n = 1; n < MANY; n++) {
            size_t at = 0;

            for (int i = 0; i < n; i++) {
                size_t begin, length = pattern_slice(counts[c], n, i, &begin);

                CHECK_EQ(begin, at);
                CHECK(length == 0 || begin % 64 == 0);
                at += length;
            }
            CHECK_EQ(at, counts[c]);
        }
}

TEST(slices_differ_by_one_unit_at_most)
{
    size_t begin, first = pattern_slice(100000, 7, 0, &begin);
    size_t last = pattern_slice(100000, 7, 6, &begin);

    CHECK(first - last <= 128);
}

TEST(chunks_are_few_and_large_enough)
{
    for (int members = 2; members <= 64; members *= 2)
        for (size_t bytes = 16; bytes < (size_t)1 << 42; bytes *= 3) {
            size_t chunk = pattern_chunk(bytes / 4, 4, members, 16384);
            size_t chunks = (bytes / 4 + chunk - 1) / chunk;

            CHECK(chunk * 4 % 4096 == 0);
            CHECK(chunks <= 16384);
            CHECK(chunk * 4 >= 4096);
            if (bytes >= (size_t)members * 8192)
                CHECK(chunks >= (size_t)members / 2);
            if (bytes < (size_t)1 << 30)
                CHECK(chunk * 4 <= 256 << 10);
        }
}

TEST(rounds_are_the_logarithm)
{
    CHECK_EQ(pattern_rounds(1), 0);
    CHECK_EQ(pattern_rounds(2), 1);
    CHECK_EQ(pattern_rounds(3), 2);
    CHECK_EQ(pattern_rounds(8), 3);
    CHECK_EQ(pattern_rounds(9), 4);
}

/* Blocks are appended in the order me, me + 1, ...: after all rounds there are n. */
TEST(bruck_gathers_all_blocks)
{
    for (int n = 1; n < MANY; n++)
        for (int me = 0; me < n; me++) {
            int held = 1;

            for (int k = 0; k < pattern_rounds(n); k++) {
                int to, from, blocks, peer_to, peer_from, peer_blocks;

                pattern_bruck(n, me, k, &to, &from, &blocks);
                pattern_bruck(n, from, k, &peer_to, &peer_from, &peer_blocks);
                CHECK_EQ(peer_to, me);
                CHECK_EQ(peer_blocks, blocks);
                CHECK_EQ(from, (me + held) % n);
                held += blocks;
            }
            CHECK_EQ(held, n);
        }
}

/* Everybody but the root is the child of its parent, once. */
TEST(the_tree_reaches_everybody)
{
    for (int n = 1; n < MANY; n++)
        for (int root = 0; root < n; root++) {
            int children = 0;

            for (int me = 0; me < n; me++) {
                int child;

                for (int i = 0; (child = pattern_tree_child(n, root, me, i)) >= 0; i++) {
                    CHECK_EQ(pattern_tree_parent(n, root, child), me);
                    CHECK(child != root);
                    children++;
                }
            }
            CHECK_EQ(pattern_tree_parent(n, root, root), -1);
            CHECK_EQ(children, n - 1);
        }
}

TEST(powers_of_two_are_not_above)
{
    for (int n = 1; n < 300; n++) {
        int power = pattern_power(n);

        CHECK(power <= n && 2 * power > n && (power & (power - 1)) == 0);
    }
}
