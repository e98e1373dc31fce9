/* lists.h: strings and lists of the engine's messages: a length, and what it counts. */
#ifndef HVD_WIRE_LISTS_H
#define HVD_WIRE_LISTS_H

#include "wire/message.h"

static inline void put_string(struct strbuf *out, const char *text, uint16_t n)
{
    put_u16(out, n);
    strbuf_add(out, text, n);
}

static inline const char *get_string(struct wire_in *in, uint16_t *n_p, size_t limit)
{
    *n_p = get_u16(in);
    if (*n_p > limit)
        in->failed = true;
    return (const char *)get_bytes(in, *n_p);
}

/* n items of `bytes` each, in place. */
static inline const uint8_t *get_list(struct wire_in *in, uint32_t *n_p, size_t bytes)
{
    *n_p = get_u32(in);
    if (*n_p > LIST_LIMIT)
        in->failed = true;
    return get_bytes(in, *n_p * bytes);
}

static inline void put_list(struct strbuf *out, const uint8_t *items, uint32_t n, size_t bytes)
{
    put_u32(out, n);
    if (n > 0)
        strbuf_add(out, items, n * bytes);
}

#endif
