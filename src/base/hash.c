/* hash.c: linear probing; grows at three quarters, counting removed slots. */
#include "base/hash.h"

#include <stdlib.h>

static struct hash_slot *find(const struct hash *table, const char *key,
                              size_t key_bytes, uint32_t code)
{
    size_t mask = table->capacity - 1;

    for (size_t i = code & mask;; i = (i + 1) & mask) {
        struct hash_slot *slot = &table->slots[i];

        if (slot->key == NULL)
            return slot;
        if (slot->code == code && slot->value != NULL && slot->key_bytes == key_bytes &&
            memcmp(slot->key, key, key_bytes) == 0)
            return slot;
    }
}

void *hash_get(const struct hash *table, const char *key, size_t key_bytes)
{
    if (table->live == 0)
        return NULL;
    return find(table, key, key_bytes, hash_code(key, key_bytes))->value;
}

static int grow(struct hash *table)
{
    struct hash bigger = {0};

    bigger.capacity = table->capacity == 0 ? 64 : table->capacity;
    while (table->live * 2 >= bigger.capacity)
        bigger.capacity *= 2;
    bigger.slots = calloc(bigger.capacity, sizeof *bigger.slots);
    if (bigger.slots == NULL)
        return -1;
    for (size_t i = 0; i < table->capacity; i++) {
        const struct hash_slot *old = &table->slots[i];

        if (old->key == NULL || old->value == NULL)
            continue;
        *find(&bigger, old->key, old->key_bytes, old->code) = *old;
    }
    bigger.used = bigger.live = table->live;
    free(table->slots);
    *table = bigger;
    return 0;
}

int hash_reserve(struct hash *table)
{
    return (table->used + 1) * 4 > table->capacity * 3 ? grow(table) : 0;
}

int hash_put(struct hash *table, const char *key, size_t key_bytes, void *value)
{
    uint32_t code = hash_code(key, key_bytes);
    struct hash_slot *slot;

    if (hash_reserve(table) != 0)
        return -1;
    slot = find(table, key, key_bytes, code);
    if (slot->key == NULL) {
        table->used++;
        table->live++;
    }
    *slot = (struct hash_slot){key, (uint32_t)key_bytes, code, value};
    return 0;
}

void *hash_remove(struct hash *table, const char *key, size_t key_bytes)
{
    struct hash_slot *slot;
    void *value;

    if (table->live == 0)
        return NULL;
    slot = find(table, key, key_bytes, hash_code(key, key_bytes));
    value = slot->value;
    if (value != NULL) {
        slot->value = NULL;
        slot->key_bytes = 0;
        slot->key = "";
        table->live--;
    }
    return value;
}

void hash_release(struct hash *table)
{
    free(table->slots);
    *table = (struct hash){0};
}
