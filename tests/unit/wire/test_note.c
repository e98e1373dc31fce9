/*
 * test_note.c: what watch threads tell each other survives its way, and nonsense does not.
 * tests/wire/ holds the bytes as released.
 */
#include "check.h"
#include "golden.h"

#include "wire/note.h"

static struct hvd_error err;
static uint8_t bytes[NOTE_HEAD + NOTE_TEXT_MAX];

/* Written and read again. */
static struct note pass(const struct note *n)
{
    struct note back;

    put_note(bytes, n);
    CHECK_EQ(get_note_bytes(bytes), note_bytes(n));
    get_note(&back, bytes);
    CHECK_EQ(back.kind, n->kind);
    return back;
}

TEST(a_beat_is_short_and_all_else_wakes)
{
    struct note beat = {.kind = NOTE_BEAT}, bye = {.kind = NOTE_GOODBYE, .status = 1, .rank = 7};
    struct note back = pass(&beat);

    CHECK_EQ(note_bytes(&beat), NOTE_HEAD);
    CHECK_EQ(back.bytes, 0);
    back = pass(&bye);
    CHECK_EQ(note_bytes(&bye), NOTE_HEAD + NOTE_URGENT);
    CHECK_EQ(back.status, 1);
    CHECK_EQ(back.rank, 7);
}

TEST(a_verdict_comes_with_its_text)
{
    struct hvd_error verdict, back;
    struct note n;

    error_set(&verdict, HVD_PEER_LOST, 3, "rank 3 on b: process ended");
    n = note_of_verdict(&verdict);
    n = pass(&n);
    CHECK_OK(get_note_verdict(&back, &n, &err), err);
    CHECK_EQ(back.status, HVD_PEER_LOST);
    CHECK_EQ(back.rank, 3);
    CHECK_STR(back.text, verdict.text);
    memset(verdict.text, 'x', sizeof verdict.text - 1);
    n = note_of_verdict(&verdict);
    n = pass(&n);
    CHECK_EQ(n.bytes, NOTE_TEXT_MAX);
    CHECK_OK(get_note_verdict(&back, &n, &err), err);
}

TEST(a_verdict_without_a_status_is_none)
{
    struct note n = {.kind = NOTE_VERDICT, .status = HVD_OK, .text = "", .rank = 1};
    struct hvd_error back;

    CHECK_EQ(get_note_verdict(&back, &n, &err), HVD_PROTO);
    n.status = HVD_STATUS_COUNT;
    CHECK_EQ(get_note_verdict(&back, &n, &err), HVD_PROTO);
    n.status = HVD_PEER_LOST;
    n.rank = -2;
    CHECK_EQ(get_note_verdict(&back, &n, &err), HVD_PROTO);
}

TEST(news_come_without_what_fills_them_up)
{
    struct note n = {.kind = NOTE_NEWS, .rank = 5, .text = "leave", .bytes = 5};

    n = pass(&n);
    CHECK_EQ(n.bytes, 5);
    CHECK(memcmp(n.text, "leave", 5) == 0);
}

TEST(departures_come_in_notes_of_many)
{
    uint8_t text[4 * NOTE_RANKS_MAX];
    int ranks[300];
    struct note n;

    for (int i = 0; i < 300; i++)
        ranks[i] = 2 * i;
    n = note_of_left(ranks, 300, text);
    CHECK_EQ(n.bytes, 4 * NOTE_RANKS_MAX);
    n = pass(&n);
    for (int i = 0; i < NOTE_RANKS_MAX; i++)
        CHECK_EQ(get_note_left(&n, i), 2 * i);
    CHECK_EQ(get_note_left(&n, NOTE_RANKS_MAX), -1);
    n = note_of_left(ranks, 2, text);
    n = pass(&n);
    CHECK_EQ(get_note_left(&n, 1), 2);
    CHECK_EQ(get_note_left(&n, 2), -1);         /* zeros fill it up */
}

TEST(a_head_with_too_much_text_is_nonsense)
{
    struct note n = {.kind = NOTE_BEAT};

    put_note(bytes, &n);
    bytes[13] = NOTE_TEXT_MAX >> 8;
    bytes[12] = NOTE_TEXT_MAX & 255;
    CHECK_EQ(get_note_bytes(bytes), NOTE_HEAD + NOTE_TEXT_MAX);
    bytes[13] += 1;
    bytes[12] = 0;
    CHECK_EQ(get_note_bytes(bytes), 0);
}

TEST(the_bytes_are_those_of_the_release)
{
    static const int ranks[] = {0, 5, 65535};
    uint8_t text[4 * NOTE_RANKS_MAX];
    struct hvd_error verdict;
    struct note n[3];

    error_set(&verdict, HVD_PEER_LOST, 0x01020304, "rank 9 on b: process ended");
    n[0] = (struct note){.kind = NOTE_BEAT};
    n[1] = note_of_verdict(&verdict);
    n[2] = note_of_left(ranks, 3, text);
    put_note(bytes, &n[0]);
    check_golden("note_beat.1.bin", bytes, note_bytes(&n[0]));
    put_note(bytes, &n[1]);
    check_golden("note_verdict.1.bin", bytes, note_bytes(&n[1]));
    put_note(bytes, &n[2]);
    check_golden("note_left.1.bin", bytes, note_bytes(&n[2]));
}
