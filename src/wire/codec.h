/*
 * codec.h: writing and reading of bytes.  All integers are little endian.  A reader that
 * runs out of bytes, or meets a length it does not believe, sets `failed` and gives zeros
 * from then on, so that a decoder checks once, at its end.
 */
#ifndef HVD_WIRE_CODEC_H
#define HVD_WIRE_CODEC_H

#include "base/strbuf.h"

#include <stdint.h>
#include <string.h>

struct wire_in {
    const uint8_t *at, *end;
    bool failed;
};

static inline struct wire_in wire_in_from(const void *bytes, size_t n)
{
    return (struct wire_in){bytes, (const uint8_t *)bytes + n, false};
}

static inline size_t wire_left(const struct wire_in *in)
{
    return (size_t)(in->end - in->at);
}

/* n bytes in place, NULL when there are not so many. */
static inline const uint8_t *get_bytes(struct wire_in *in, size_t n)
{
    const uint8_t *p = in->at;

    if (in->failed || wire_left(in) < n) {
        in->failed = true;
        return NULL;
    }
    in->at += n;
    return p;
}

static inline uint64_t get_uint(struct wire_in *in, int bytes)
{
    const uint8_t *p = get_bytes(in, (size_t)bytes);
    uint64_t value = 0;

    for (int i = bytes - 1; p != NULL && i >= 0; i--)
        value = value << 8 | p[i];
    return value;
}

static inline uint8_t get_u8(struct wire_in *in) { return (uint8_t)get_uint(in, 1); }
static inline uint16_t get_u16(struct wire_in *in) { return (uint16_t)get_uint(in, 2); }
static inline uint32_t get_u32(struct wire_in *in) { return (uint32_t)get_uint(in, 4); }
static inline uint64_t get_u64(struct wire_in *in) { return get_uint(in, 8); }

static inline double get_f64(struct wire_in *in)
{
    uint64_t bits = get_u64(in);
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void put_uint(struct strbuf *out, uint64_t value, int bytes)
{
    uint8_t b[8];

    for (int i = 0; i < bytes; i++)
        b[i] = (uint8_t)(value >> (8 * i));
    strbuf_add(out, b, (size_t)bytes);
}

static inline void put_u8(struct strbuf *out, unsigned v) { put_uint(out, v, 1); }
static inline void put_u16(struct strbuf *out, unsigned v) { put_uint(out, v, 2); }
static inline void put_u32(struct strbuf *out, uint32_t v) { put_uint(out, v, 4); }
static inline void put_u64(struct strbuf *out, uint64_t v) { put_uint(out, v, 8); }

static inline void put_f64(struct strbuf *out, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    put_u64(out, bits);
}

#endif
