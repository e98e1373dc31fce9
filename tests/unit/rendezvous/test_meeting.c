/* test_meeting.c: who of a generation has come, with plain numbers for time. */
#include "check.h"

#include "rendezvous/meeting.h"

#define SECOND 1000000u

static struct meeting m;
static struct hvd_error err;

static void open_meeting(int count)
{
    CHECK_OK(meeting_init(&m, 4, count, 30 * SECOND, &err), err);
}

static struct table_entry entry(int rank)
{
    struct table_entry e = {.rank = rank, .size = m.count, .pid = 100 + rank,
                            .generation = 4, .version = "1", .config_text = "a=1"};

    snprintf(e.host, sizeof e.host, "host%d", rank / 2);
    return e;
}

static enum meeting_result enter(int rank, uint64_t now_us)
{
    struct table_entry e = entry(rank);

    return meeting_enter(&m, &e, now_us, &err);
}

static void form(uint64_t now_us)
{
    struct table t;

    CHECK_OK(meeting_form(&m, now_us, &t, &err), err);
    CHECK_EQ(t.count, m.count);
    for (int i = 0; i < t.count; i++)
        CHECK_EQ(t.entries[i].pid, 100 + i);
    table_release(&t);
}

TEST(the_last_one_completes_it_in_any_order)
{
    open_meeting(3);
    CHECK_EQ(enter(2, 10), MEETING_WAITING);
    CHECK_EQ(enter(0, 11), MEETING_WAITING);
    CHECK_EQ(enter(1, 12), MEETING_COMPLETE);
    form(13);
    CHECK_EQ(m.waiting, 0);
    CHECK_EQ(m.seats[1].state, SEAT_RUNNING);
    meeting_leave(&m, 1, 14);
    CHECK_EQ(m.seats[1].state, SEAT_GONE);
    meeting_release(&m);
}

TEST(a_seat_is_taken_once_and_free_again_afterwards)
{
    open_meeting(2);
    CHECK_EQ(enter(1, 10), MEETING_WAITING);
    CHECK_EQ(enter(1, 11), MEETING_REFUSED);
    CHECK_HAS(err.text, "already taken by the process 101 on host host0");
    meeting_leave(&m, 1, 12);
    CHECK_EQ(m.seats[1].state, SEAT_EMPTY);
    CHECK_EQ(enter(1, 13), MEETING_WAITING);
    CHECK_EQ(enter(0, 14), MEETING_COMPLETE);
    form(15);
    CHECK_EQ(enter(1, 16), MEETING_REFUSED);    /* still running */
    meeting_leave(&m, 1, 17);
    CHECK_EQ(enter(1, 18), MEETING_WAITING);    /* the next round */
    meeting_leave(&m, 0, 19);
    CHECK_EQ(enter(0, 20), MEETING_COMPLETE);
    meeting_release(&m);
}

TEST(the_time_limit_counts_from_the_first_who_waits)
{
    open_meeting(2);
    CHECK_EQ(meeting_deadline_us(&m), UINT64_MAX);
    enter(0, 5 * SECOND);
    CHECK_EQ(meeting_deadline_us(&m), 35ull * SECOND);
    meeting_leave(&m, 0, 6 * SECOND);
    CHECK_EQ(meeting_deadline_us(&m), UINT64_MAX);
    enter(0, 7 * SECOND);
    CHECK_EQ(meeting_deadline_us(&m), 37ull * SECOND);
    enter(1, 8 * SECOND);
    form(8 * SECOND);
    CHECK_EQ(meeting_deadline_us(&m), UINT64_MAX);
    meeting_release(&m);
}

TEST(the_missing_are_named_with_those_who_came)
{
    open_meeting(8);
    enter(0, 1 * SECOND);
    enter(1, 2 * SECOND);
    enter(6, 3 * SECOND);
    CHECK_EQ(meeting_timed_out(&m, 31 * SECOND, &err), HVD_TIMEOUT);
    CHECK_STR(err.text,
              "5 of 8 ranks have not come within 30.0 s; missing: ranks 2-5, 7; here: host "
              "host0: ranks 0-1 (for 30.0 s); host host3: ranks 6 (for 28.0 s)");
    CHECK_EQ(err.rank, 2);
    meeting_release(&m);
}

TEST(many_hosts_do_not_hide_who_is_missing)
{
    open_meeting(4000);
    for (int i = 0; i < 4000; i++)
        if (i != 1234)
            enter(i, SECOND);
    meeting_timed_out(&m, 31 * SECOND, &err);
    CHECK_HAS(err.text, "missing: ranks 1234; here:");
    CHECK_HAS(err.text, "and others");
    CHECK_EQ(err.rank, 1234);
    meeting_release(&m);
}

TEST(who_is_still_in_the_round_before_is_named)
{
    open_meeting(2);
    enter(0, 1);
    enter(1, 2);
    form(3);
    meeting_leave(&m, 0, 4);
    enter(0, 5);
    meeting_timed_out(&m, 31 * SECOND, &err);
    CHECK_HAS(err.text, "rank 1 (host host0, pid 101) has not left the round before");
    meeting_release(&m);
}

TEST(a_verdict_is_heard_once_by_each)
{
    struct hvd_error verdict;

    open_meeting(3);
    error_set(&verdict, HVD_MISMATCH, 1, "they disagree");
    enter(0, 1);
    meeting_fail(&m, &verdict, 1, false);       /* 0 waited, 1 came and caused it */
    CHECK_EQ(m.waiting, 0);
    CHECK_EQ(enter(2, 2), MEETING_REFUSED);
    CHECK_STR(err.text, "they disagree");
    CHECK_EQ(enter(1, 3), MEETING_WAITING);     /* has heard it: a new round */
    CHECK_EQ(enter(2, 4), MEETING_WAITING);
    CHECK_EQ(enter(0, 5), MEETING_COMPLETE);
    meeting_release(&m);
}

TEST(the_end_is_heard_by_all_who_still_come)
{
    struct hvd_error verdict;

    open_meeting(2);
    error_set(&verdict, HVD_ABORTED, -1, "over");
    meeting_fail(&m, &verdict, -1, true);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(enter(i % 2, 2), MEETING_REFUSED);
        CHECK_EQ(err.status, HVD_ABORTED);
    }
    meeting_release(&m);
}

TEST(what_ranks_must_agree_on)
{
    struct table_entry e;

    open_meeting(3);
    enter(1, 1);
    e = entry(0), e.generation = 3;
    CHECK_EQ(meeting_enter(&m, &e, 2, &err), MEETING_REFUSED);
    e = entry(0), e.size = 4;
    CHECK_EQ(meeting_enter(&m, &e, 2, &err), MEETING_FAILED);
    CHECK_EQ(err.status, HVD_MISMATCH);
    e = entry(0), e.rank = 70, e.size = 71;     /* no seat at all */
    CHECK_EQ(meeting_enter(&m, &e, 2, &err), MEETING_FAILED);
    e = entry(0), strcpy(e.version, "2");
    CHECK_EQ(meeting_enter(&m, &e, 2, &err), MEETING_FAILED);
    CHECK_EQ(err.status, HVD_VERSION);
    e = entry(0), e.config_hash[15] = 1;
    CHECK_EQ(meeting_enter(&m, &e, 2, &err), MEETING_FAILED);
    CHECK_EQ(err.rank, 0);
    meeting_release(&m);
}

TEST(every_rank_has_a_line)
{
    struct strbuf text;

    open_meeting(3);
    enter(0, SECOND);
    enter(2, 2 * SECOND);
    meeting_leave(&m, 2, 3 * SECOND);
    strbuf_init(&text);
    meeting_describe(&m, 4 * SECOND, &text);
    CHECK_STR(text.text, "rank 0 host host0 pid 100 waiting since 3.0 s\n"
                         "rank 1 missing\n"
                         "rank 2 host host1 pid 102 missing since 1.0 s\n");
    strbuf_release(&text);
    meeting_release(&m);
}

TEST(impossible_sizes_are_refused)
{
    CHECK_EQ(meeting_init(&m, 0, 0, 0, &err), HVD_INVALID);
    CHECK_EQ(meeting_init(&m, 0, TABLE_RANKS + 1, 0, &err), HVD_INVALID);
}
