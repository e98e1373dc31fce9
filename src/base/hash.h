/*
 * hash.h: a string-keyed table with open addressing, owned by one thread.
 * Keys are borrowed: the caller keeps them alive while they are in the table.
 */
#ifndef HVD_BASE_HASH_H
#define HVD_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct hash_slot {
    const char *key;                    /* NULL: never used */
    uint32_t key_bytes;
    uint32_t code;
    void *value;                        /* NULL: removed */
};

struct hash {
    struct hash_slot *slots;            /* power of two, NULL while empty */
    size_t capacity, used, live;
};

static inline uint32_t hash_code(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = 0x9e3779b97f4a7c15u ^ bytes;

    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t word;

        memcpy(&word, p, 8);
        h = (h ^ word) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    for (; bytes > 0; bytes--)
        h = (h ^ *p++) * 0x100000001b3u;
    h ^= h >> 29;
    return (uint32_t)(h ^ h >> 32);
}

void *hash_get(const struct hash *table, const char *key, size_t key_bytes);
/* Replaces a value of the same key.  -1: out of memory, the table is unchanged. */
int hash_put(struct hash *table, const char *key, size_t key_bytes, void *value);
/* After 0, the next hash_put cannot fail.  -1: out of memory. */
int hash_reserve(struct hash *table);
void *hash_remove(struct hash *table, const char *key, size_t key_bytes);
void hash_release(struct hash *table);

#endif
