/*
 * note.h: what travels on a watch connection: heartbeats, and what the watch threads tell each
 * other.  A note is followed by its GMAC (SEAL_TAG bytes, handshake.h).
 */
#ifndef HVD_WIRE_NOTE_H
#define HVD_WIRE_NOTE_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

#define NOTE_HEAD 16
#define NOTE_TEXT_MAX (HVD_ERROR_TEXT - 1)
#define NOTE_URGENT 128                 /* least bytes of text of all but a beat */
#define NOTE_RANKS_MAX 240              /* of NOTE_LEFT */

enum note_kind { NOTE_BEAT = 1, NOTE_VERDICT, NOTE_GOODBYE, NOTE_NEWS, NOTE_LEFT };

struct note {
    enum note_kind kind;                /* others may come: they are skipped */
    uint32_t status;                    /* verdict; goodbye: 1 if it has a data connection to us */
    int32_t rank;                       /* verdict: at fault; goodbye: the sender; news: bytes */
    const void *text;
    size_t bytes;                       /* of text, at most NOTE_TEXT_MAX */
};

/* Bytes that put_note writes. */
size_t note_bytes(const struct note *n);
void put_note(uint8_t *out, const struct note *n);

/* The bytes of the whole note that begins with this head; 0: nonsense. */
size_t get_note_bytes(const uint8_t head[NOTE_HEAD]);
/* `in` has as many bytes as get_note_bytes says; n->text points into it. */
void get_note(struct note *n, const uint8_t *in);

struct note note_of_verdict(const struct hvd_error *verdict);
/* Errors: HVD_PROTO: a status that is none. */
enum hvd_status get_note_verdict(struct hvd_error *verdict, const struct note *n,
                                 struct hvd_error *err);

/* Ranks that have left, in `ranks`; what of it is the text of a NOTE_LEFT is copied. */
struct note note_of_left(const int *ranks, int count, uint8_t text[4 * NOTE_RANKS_MAX]);
/* The i-th of them; -1: no more. */
int get_note_left(const struct note *n, int i);

#endif
