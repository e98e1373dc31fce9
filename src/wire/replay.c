/* replay.c: see replay.h.  A hash table with open addressing; nonces are random, so a part
 * of them is the hash. */
#include "wire/replay.h"

#include <stdlib.h>
#include <string.h>

#define ROOM_FIRST 256

/* Where the nonce is, or the empty slot where it belongs. */
static uint64_t *find(const struct replay *r, const uint64_t nonce[2])
{
    size_t i = (size_t)nonce[0] & (r->room - 1);

    while ((r->slots[i][0] != 0 || r->slots[i][1] != 0) &&
           (r->slots[i][0] != nonce[0] || r->slots[i][1] != nonce[1]))
        i = (i + 1) & (r->room - 1);
    return r->slots[i];
}

bool replay_has(const struct replay *r, const uint8_t hello[HS_HELLO])
{
    uint64_t nonce[2];

    memcpy(nonce, hello + HS_AT_NONCE, sizeof nonce);
    if (r->room == 0 || (nonce[0] == 0 && nonce[1] == 0))
        return false;
    return memcmp(find(r, nonce), nonce, sizeof nonce) == 0;
}

static bool grow(struct replay *r)
{
    struct replay more = {.room = r->room == 0 ? ROOM_FIRST : r->room * 2,
                          .count = r->count};

    more.slots = calloc(more.room, sizeof *more.slots);
    if (more.slots == NULL)
        return false;
    for (size_t i = 0; i < r->room; i++)
        if (r->slots[i][0] != 0 || r->slots[i][1] != 0)
            memcpy(find(&more, r->slots[i]), r->slots[i], sizeof *r->slots);
    free(r->slots);
    *r = more;
    return true;
}

void replay_add(struct replay *r, const uint8_t hello[HS_HELLO])
{
    uint64_t nonce[2];

    if (r->count == REPLAY_MAX)
        replay_release(r);
    if (r->count * 2 >= r->room && !grow(r))
        return;
    memcpy(nonce, hello + HS_AT_NONCE, sizeof nonce);
    memcpy(find(r, nonce), nonce, sizeof nonce);
    r->count++;
}

void replay_release(struct replay *r)
{
    free(r->slots);
    *r = (struct replay){0};
}
