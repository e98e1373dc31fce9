/*
 * bytes.h: integers in byte formats, little endian, and a reader that cannot leave its
 * buffer.  A reader that was asked for more than is left gives zeros from then on and
 * says so in `failed`; the decoder looks once, at its end.
 */
#ifndef HVD_WIRE_BYTES_H
#define HVD_WIRE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline void bytes_put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline void bytes_put_u32(uint8_t *p, uint32_t v)
{
    bytes_put_u16(p, (uint16_t)v);
    bytes_put_u16(p + 2, (uint16_t)(v >> 16));
}

static inline void bytes_put_u64(uint8_t *p, uint64_t v)
{
    bytes_put_u32(p, (uint32_t)v);
    bytes_put_u32(p + 4, (uint32_t)(v >> 32));
}

static inline uint16_t bytes_get_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t bytes_get_u32(const uint8_t *p)
{
    return (uint32_t)bytes_get_u16(p) | (uint32_t)bytes_get_u16(p + 2) << 16;
}

static inline uint64_t bytes_get_u64(const uint8_t *p)
{
    return (uint64_t)bytes_get_u32(p) | (uint64_t)bytes_get_u32(p + 4) << 32;
}

struct reader {
    const uint8_t *at, *end;
    bool failed;                        /* asked for more than there was */
};

static inline void reader_init(struct reader *r, const void *bytes, size_t n)
{
    r->at = bytes;
    r->end = r->at + n;
    r->failed = false;
}

static inline size_t reader_left(const struct reader *r)
{
    return (size_t)(r->end - r->at);
}

/* The next n bytes, or NULL (and failed). */
static inline const uint8_t *reader_take(struct reader *r, size_t n)
{
    const uint8_t *p = r->at;

    if (r->failed || n > reader_left(r)) {
        r->failed = true;
        return NULL;
    }
    r->at += n;
    return p;
}

static inline uint8_t reader_u8(struct reader *r)
{
    const uint8_t *p = reader_take(r, 1);

    return p == NULL ? 0 : *p;
}

static inline uint16_t reader_u16(struct reader *r)
{
    const uint8_t *p = reader_take(r, 2);

    return p == NULL ? 0 : bytes_get_u16(p);
}

static inline uint32_t reader_u32(struct reader *r)
{
    const uint8_t *p = reader_take(r, 4);

    return p == NULL ? 0 : bytes_get_u32(p);
}

static inline uint64_t reader_u64(struct reader *r)
{
    const uint8_t *p = reader_take(r, 8);

    return p == NULL ? 0 : bytes_get_u64(p);
}

#endif
