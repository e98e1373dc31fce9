/*
 * note.c: see note.h.  All integers little endian.
 *
 *   0   4  kind: 1 beat, 2 verdict, 3 goodbye, 4 news, 5 left
 *   4   4  status (verdict: a number of HVD_STATUS_MAP)
 *   8   4  rank, signed (news: bytes of them)
 *  12   4  bytes of the text n, below 1024
 *  16   n  text; left: ranks + 1, 4 bytes each
 *
 * A beat has no text.  That of all others is filled up with zeros to NOTE_URGENT bytes, so that
 * they wake a receiver who is not woken by beats.
 */
#include "wire/note.h"

#include "wire/bytes.h"

#include <string.h>

static size_t text_bytes(const struct note *n)
{
    return n->kind == NOTE_BEAT || n->bytes > NOTE_URGENT ? n->bytes : NOTE_URGENT;
}

size_t note_bytes(const struct note *n)
{
    return NOTE_HEAD + text_bytes(n);
}

void put_note(uint8_t *out, const struct note *n)
{
    size_t all = text_bytes(n);

    bytes_put_u32(out, (uint32_t)n->kind);
    bytes_put_u32(out + 4, n->status);
    bytes_put_u32(out + 8, (uint32_t)n->rank);
    bytes_put_u32(out + 12, (uint32_t)all);
    if (n->bytes > 0)
        memcpy(out + NOTE_HEAD, n->text, n->bytes);
    memset(out + NOTE_HEAD + n->bytes, 0, all - n->bytes);
}

size_t get_note_bytes(const uint8_t head[NOTE_HEAD])
{
    uint32_t text = bytes_get_u32(head + 12);

    return text > NOTE_TEXT_MAX ? 0 : NOTE_HEAD + text;
}

void get_note(struct note *n, const uint8_t *in)
{
    n->kind = (enum note_kind)bytes_get_u32(in);
    n->status = bytes_get_u32(in + 4);
    n->rank = (int32_t)bytes_get_u32(in + 8);
    n->text = in + NOTE_HEAD;
    n->bytes = get_note_bytes(in) - NOTE_HEAD;
    if (n->kind == NOTE_NEWS && (uint32_t)n->rank < n->bytes)
        n->bytes = (uint32_t)n->rank;   /* without what fills it up */
}

/* ---- Verdicts --------------------------------------------------------------------- */

struct note note_of_verdict(const struct hvd_error *verdict)
{
    return (struct note){NOTE_VERDICT, (uint32_t)verdict->status, verdict->rank, verdict->text,
                         strnlen(verdict->text, NOTE_TEXT_MAX)};
}

enum hvd_status get_note_verdict(struct hvd_error *verdict, const struct note *n,
                                 struct hvd_error *err)
{
    if (n->status <= HVD_AGAIN || n->status >= HVD_STATUS_COUNT || n->rank < -1)
        return error_set(err, HVD_PROTO, -1, "verdict: status %u, rank %d", n->status, n->rank);
    error_set(verdict, (enum hvd_status)n->status, n->rank, "%.*s", (int)n->bytes,
              (const char *)n->text);
    return HVD_OK;
}

/* ---- Departures ------------------------------------------------------------------- */

struct note note_of_left(const int *ranks, int count, uint8_t text[4 * NOTE_RANKS_MAX])
{
    count = count < NOTE_RANKS_MAX ? count : NOTE_RANKS_MAX;
    for (int i = 0; i < count; i++)
        bytes_put_u32(text + 4 * i, (uint32_t)ranks[i] + 1);
    return (struct note){.kind = NOTE_LEFT, .text = text, .bytes = 4 * (size_t)count};
}

/* 0: filled up. */
int get_note_left(const struct note *n, int i)
{
    size_t at = 4 * (size_t)i;

    return at + 4 > n->bytes ? -1 : (int)bytes_get_u32((const uint8_t *)n->text + at) - 1;
}
