/* test_hash.c: the table against a plain array, with growth and many removals. */
#include "base/hash.h"

#include "check.h"

#include <stdint.h>
#include <stdlib.h>

#define KEYS 2000

static char keys[KEYS][16];

static void make_keys(void)
{
    for (int i = 0; i < KEYS; i++)
        snprintf(keys[i], sizeof keys[i], "grad/%d", i);
}

static void *get(const struct hash *table, int i)
{
    return hash_get(table, keys[i], strlen(keys[i]));
}

TEST(an_empty_table_has_nothing)
{
    struct hash table = {0};

    CHECK(hash_get(&table, "x", 1) == NULL);
    CHECK(hash_remove(&table, "x", 1) == NULL);
    hash_release(&table);
}

TEST(values_survive_growth)
{
    struct hash table = {0};

    make_keys();
    for (int i = 0; i < KEYS; i++)
        CHECK_EQ(hash_put(&table, keys[i], strlen(keys[i]), keys[i]), 0);
    CHECK_EQ(table.live, (size_t)KEYS);
    for (int i = 0; i < KEYS; i++)
        CHECK(get(&table, i) == keys[i]);
    CHECK(hash_get(&table, "grad/2000", 9) == NULL);
    hash_release(&table);
}

TEST(put_replaces)
{
    struct hash table = {0};
    int a, b;

    hash_put(&table, "name", 4, &a);
    hash_put(&table, "name", 4, &b);
    CHECK(hash_get(&table, "name", 4) == &b);
    CHECK_EQ(table.live, (size_t)1);
    hash_release(&table);
}

TEST(the_length_is_part_of_the_key)
{
    struct hash table = {0};
    int a, b;

    hash_put(&table, "grad/10", 6, &a);
    hash_put(&table, "grad/10", 7, &b);
    CHECK(hash_get(&table, "grad/1", 6) == &a);
    CHECK(hash_get(&table, "grad/10", 7) == &b);
    CHECK(hash_get(&table, "", 0) == NULL);
    hash_release(&table);
}

/* Names that come and go must not make the table grow without end. */
TEST(removed_slots_are_used_again)
{
    struct hash table = {0};

    make_keys();
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < 40; i++)
            hash_put(&table, keys[round * 7 + i], strlen(keys[round * 7 + i]), keys[i]);
        for (int i = 0; i < 40; i++)
            CHECK(hash_remove(&table, keys[round * 7 + i],
                              strlen(keys[round * 7 + i])) == keys[i]);
    }
    CHECK_EQ(table.live, (size_t)0);
    CHECK(table.capacity <= 128);
    hash_release(&table);
}

TEST(agrees_with_an_array_over_random_steps)
{
    struct hash table = {0};
    void *expected[KEYS] = {0};
    unsigned seed = 1;

    make_keys();
    for (int step = 0; step < 50000; step++) {
        int i = rand_r(&seed) % KEYS;
        size_t length = strlen(keys[i]);

        if (rand_r(&seed) % 3 != 0) {
            expected[i] = &keys[rand_r(&seed) % KEYS];
            CHECK_EQ(hash_put(&table, keys[i], length, expected[i]), 0);
        } else {
            CHECK(hash_remove(&table, keys[i], length) == expected[i]);
            expected[i] = NULL;
        }
    }
    for (int i = 0; i < KEYS; i++)
        CHECK(get(&table, i) == expected[i]);
    hash_release(&table);
}
