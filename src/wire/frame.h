/*
 * frame.h: the header of everything that travels between two ranks of a mesh, on rings
 * and sockets alike.  All integers little endian.
 *
 *   0 u32 kind | 4 u32 body bytes of this frame
 *   8 u64 tag (transfer) | 16 u64 bytes of the whole transfer
 *
 * What follows depends on how the connection is sealed:
 *
 *   plain    header, body
 *   auth     header, GMAC of the header (16), body; a message: and GMAC of its body (16)
 *   encrypt  header encrypted, tag (16), body encrypted, tag (16) unless it is empty
 *
 * 1. A transfer is cut into frames of at most FRAME_BODY_MAX (FRAME_RECORD_MAX when
 *    encrypted), in order; frames of several transfers may alternate.
 * 2. A message is one frame of at most FRAME_MESSAGE_MAX.
 * 3. Nothing comes after GOODBYE.
 */
#ifndef HVD_WIRE_FRAME_H
#define HVD_WIRE_FRAME_H

#include "base/error.h"
#include "wire/bytes.h"

#define FRAME_HEADER 24
#define FRAME_BODY_MAX (1u << 20)
#define FRAME_RECORD_MAX (64u << 10)
#define FRAME_MESSAGE_MAX (16u << 20)

enum frame_kind { FRAME_MESSAGE = 1, FRAME_TRANSFER, FRAME_GOODBYE };

struct frame {
    enum frame_kind kind;
    uint32_t bytes;                     /* of the body of this frame */
    uint64_t tag, total;                /* transfers only, else 0 */
};

static inline void put_frame(uint8_t out[FRAME_HEADER], const struct frame *f)
{
    bytes_put_u32(out, (uint32_t)f->kind);
    bytes_put_u32(out + 4, f->bytes);
    bytes_put_u64(out + 8, f->tag);
    bytes_put_u64(out + 16, f->total);
}

/* Errors: HVD_PROTO, with the rank that sent it. */
static inline enum hvd_status get_frame(struct frame *f, const uint8_t in[FRAME_HEADER],
                                        int peer, struct hvd_error *err)
{
    uint32_t kind = bytes_get_u32(in), limit;

    f->kind = (enum frame_kind)kind;
    f->bytes = bytes_get_u32(in + 4);
    f->tag = bytes_get_u64(in + 8);
    f->total = bytes_get_u64(in + 16);
    if (kind < FRAME_MESSAGE || kind > FRAME_GOODBYE)
        return error_set(err, HVD_PROTO, peer, "rank %d sent a frame of kind %u", peer,
                         kind);
    limit = f->kind == FRAME_TRANSFER  ? FRAME_BODY_MAX
            : f->kind == FRAME_MESSAGE ? FRAME_MESSAGE_MAX
                                       : 0;
    if (f->bytes > limit || (f->kind == FRAME_TRANSFER && f->bytes > f->total))
        return error_set(err, HVD_PROTO, peer, "rank %d sent a frame of %u bytes", peer,
                         f->bytes);
    return HVD_OK;
}

#endif
