/*
 * fuzz_rdv_session.c: bytes as a program of workers that come, leave, disagree and time
 * out, against the state of a meeting of five.
 *
 *   each step: u8 what (modulo 8), u8 argument
 *     0-3 rank argument % 6 comes; bits 4-6 of the argument change what it says
 *     4   rank argument % 5 leaves      5   argument seconds pass
 *     6   the round fails               7   a whole entry in bytes: u16 n, n bytes
 */
#include "rendezvous/meeting.h"
#include "wire/bytes.h"

#include <stdlib.h>
#include <string.h>

#define RANKS 5

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct meeting m;
static uint64_t now_us;

static void check_invariants(void)
{
    int waiting = 0;

    for (int i = 0; i < RANKS; i++) {
        waiting += m.seats[i].state == SEAT_WAITING;
        BUG_ON(m.seats[i].state != SEAT_EMPTY && m.seats[i].entry == NULL);
    }
    BUG_ON(waiting != m.waiting || (waiting == 0) != (m.first_us == 0));
    BUG_ON((waiting == 0) != (meeting_deadline_us(&m) == UINT64_MAX));
}

static void check_texts(void)
{
    struct hvd_error err;
    struct strbuf text;

    strbuf_init(&text);
    meeting_describe(&m, now_us, &text);
    BUG_ON(text.length == 0);
    strbuf_release(&text);
    if (m.waiting > 0)
        BUG_ON(meeting_timed_out(&m, now_us, &err) != HVD_TIMEOUT);
}

static void form(void)
{
    struct hvd_error err;
    struct table t;

    BUG_ON(meeting_form(&m, now_us, &t, &err) != HVD_OK);
    for (int i = 0; i < RANKS; i++)
        BUG_ON(t.entries[i].rank != i ||
               memcmp(t.entries[i].config_hash, t.entries[0].config_hash, 16) != 0);
    table_release(&t);
}

static void enter(const struct table_entry *e)
{
    struct hvd_error err;

    switch (meeting_enter(&m, e, now_us, &err)) {
    case MEETING_WAITING:
        break;
    case MEETING_COMPLETE:
        form();
        break;
    case MEETING_REFUSED:
        BUG_ON(err.status <= HVD_AGAIN || err.text[0] == '\0');
        break;
    case MEETING_FAILED:
        meeting_fail(&m, &err, e->rank, false);
        break;
    }
}

static void come(unsigned argument)
{
    struct table_entry e = {.rank = (int)(argument & 15) % 6, .size = RANKS,
                            .generation = argument >> 4 & 1, .version = "1"};

    if (e.rank == RANKS)
        e.size = RANKS + 1;
    e.config_hash[0] = argument >> 5 & 1;
    e.version[0] = (char)('1' + (argument >> 6 & 1));
    enter(&e);
}

static void come_in_bytes(struct reader *r)
{
    struct table_entry e;
    struct hvd_error err;
    size_t n = reader_u16(r);
    const uint8_t *bytes = reader_take(r, n);

    if (bytes != NULL && get_entry(&e, bytes, n, &err) == HVD_OK)
        enter(&e);
}

static void step(struct reader *r)
{
    unsigned what = reader_u8(r) % 8, argument = reader_u8(r);
    struct hvd_error err;

    if (what <= 3) {
        come(argument);
    } else if (what == 4) {
        meeting_leave(&m, (int)(argument % RANKS), now_us);
    } else if (what == 5) {
        now_us += argument * 1000000u;
    } else if (what == 6) {
        error_set(&err, HVD_ABORTED, -1, "failed");
        meeting_fail(&m, &err, (int)argument % 7 - 1, argument >= 250);
    } else {
        come_in_bytes(r);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hvd_error err;
    struct reader r;

    now_us = 1;
    BUG_ON(meeting_init(&m, 0, RANKS, 30000000, &err) != HVD_OK);
    reader_init(&r, data, size);
    while (reader_left(&r) > 0 && !r.failed) {
        step(&r);
        check_invariants();
    }
    check_texts();
    meeting_release(&m);
    return 0;
}
