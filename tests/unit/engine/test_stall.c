/* test_stall.c: when a stall is asked about, reported and ends the job, and its words. */
#include "base/error.h"
#include "engine/stall.h"

#include "check.h"

#define S 1000000u

static struct stall_times times(double warn_s, double shutdown_s)
{
    struct stall_times t;

    stall_set_times(&t, warn_s, shutdown_s);
    return t;
}

TEST(asks_a_little_before_the_report)
{
    struct stall_times t = times(60, 0);
    uint64_t next;

    CHECK_EQ(stall_decide(&t, 100 * S, 101 * S, &next), STALL_NOTHING);
    CHECK_EQ(next, 160 * S - t.lead_us);
    CHECK_EQ(stall_decide(&t, 100 * S, next, &next), STALL_ASK);
    CHECK_EQ(next, 160ull * S);
    t.asked = true;
    CHECK_EQ(stall_decide(&t, 100 * S, 160ull * S - 1, &next), STALL_NOTHING);
    CHECK_EQ(next, 160ull * S);
}

TEST(reports_at_the_warning_time_and_once_per_period)
{
    struct stall_times t = times(60, 0);
    uint64_t next;

    t.asked = true;
    CHECK_EQ(stall_decide(&t, 100 * S, 160 * S, &next), STALL_REPORT);
    t.reported_us = 160 * S;
    t.asked = false;
    CHECK_EQ(next, 220 * S - t.lead_us);
    CHECK_EQ(stall_decide(&t, 100 * S, 161 * S, &next), STALL_NOTHING);
    CHECK_EQ(next, 220 * S - t.lead_us);
    CHECK_EQ(stall_decide(&t, 100 * S, next, &next), STALL_ASK);
    t.asked = true;
    CHECK_EQ(stall_decide(&t, 100 * S, 220 * S, &next), STALL_REPORT);
}

/* The thread that looks was not let run in time. */
TEST(a_late_look_asks_before_it_reports)
{
    struct stall_times t = times(60, 0);
    uint64_t next;

    CHECK_EQ(stall_decide(&t, 100 * S, 163 * S, &next), STALL_ASK);
    CHECK_EQ(next, 163 * S + t.lead_us);
    t.asked = true;
    t.asked_us = 163 * S;
    CHECK_EQ(stall_decide(&t, 100 * S, next - 1, &next), STALL_NOTHING);
    CHECK_EQ(next, 163 * S + t.lead_us);
    CHECK_EQ(stall_decide(&t, 100 * S, next, &next), STALL_REPORT);
}

TEST(a_younger_wait_has_its_own_time)
{
    struct stall_times t = times(60, 0);
    uint64_t next;

    /* The timer of an older wait, which is over, has run out. */
    CHECK_EQ(stall_decide(&t, 158 * S, 160 * S, &next), STALL_NOTHING);
    CHECK_EQ(next, 218 * S - t.lead_us);
}

TEST(the_limit_ends_the_job)
{
    struct stall_times t = times(2, 5);
    uint64_t next;

    t.asked = true;
    CHECK_EQ(stall_decide(&t, 10 * S, 12 * S, &next), STALL_REPORT);
    t.reported_us = 12 * S;
    CHECK_EQ(stall_decide(&t, 10 * S, 14 * S, &next), STALL_REPORT);
    t.reported_us = 14 * S;
    CHECK_EQ(next, 15ull * S);
    CHECK_EQ(stall_decide(&t, 10 * S, 15 * S - 1, &next), STALL_NOTHING);
    CHECK_EQ(stall_decide(&t, 10 * S, 15 * S, &next), STALL_SHUTDOWN);
}

TEST(a_limit_below_the_warning_time_is_ignored)
{
    struct stall_times t = times(60, 5);
    uint64_t next;

    CHECK_EQ(t.shutdown_us, 0);
    CHECK_EQ(stall_decide(&t, 10 * S, 20 * S, &next), STALL_NOTHING);
}

/* Whatever the times, the next look lies in the future and is never missed. */
TEST(looks_always_go_forward)
{
    for (double warn = 0.001; warn < 100; warn *= 3)
        for (double limit = 0; limit < 300; limit = limit * 3 + 1) {
            struct stall_times t = times(warn, limit);
            uint64_t now = 50 * S, next;
            int reports = 0;

            for (int i = 0; i < 100; i++) {
                enum stall_action action = stall_decide(&t, 50 * S, now, &next);

                CHECK(next > now);
                reports += action == STALL_REPORT;
                t.asked = action == STALL_ASK || (action == STALL_NOTHING && t.asked);
                if (action == STALL_REPORT)
                    t.reported_us = now;
                if (action == STALL_SHUTDOWN) {
                    CHECK_EQ(now, 50 * S + t.shutdown_us);
                    break;
                }
                now = next;
            }
            CHECK(reports > 0 || t.shutdown_us > 0);
        }
}

static void describe(struct strbuf *out, const struct stall_times *t,
                     const struct stall_wait *waits, int count, uint64_t now_us)
{
    const char *where[] = {NULL, "on b is in no operation\n", NULL, "on d sleeps"};

    strbuf_init(out);
    stall_describe(out, t, waits, count, 4, where, now_us);
}

TEST(the_report_names_missing_ranks_and_tensors)
{
    struct stall_times t = times(60, 0);
    bool one[4] = {false, true}, two[4] = {false, true, true}, young[4] = {true};
    struct stall_wait waits[] = {
        {"grad/1", 10 * S, two, false, 0, 0}, {"gra\nd/2", 12 * S, one, false, 0, 0},
        {"new", 80 * S, young, false, 0, 0}};
    struct strbuf out;

    describe(&out, &t, waits, 3, 90 * S);
    CHECK_HAS(out.text, "for more than 60 seconds (the oldest for 80.0)");
    CHECK_HAS(out.text, "\nMissing ranks:\n1: [grad/1, gra?d/2]\n2: [grad/1]\n");
    CHECK_HAS(out.text, "\nRank 1 on b is in no operation?");
    CHECK(strstr(out.text, "new") == NULL);
    CHECK(strstr(out.text, "Rank 3") == NULL);
    strbuf_release(&out);
}

TEST(six_names_are_shown)
{
    struct stall_times t = times(1, 0);
    bool missing[4] = {true};
    struct stall_wait waits[7];
    struct strbuf out;

    for (int i = 0; i < 7; i++)
        waits[i] = (struct stall_wait){&"abcdefg"[i], 1 * S, missing, false, 0, 0};
    describe(&out, &t, waits, 6, 10 * S);
    CHECK_HAS(out.text, "\n0: [abcdefg, bcdefg, cdefg, defg, efg, fg]");
    strbuf_release(&out);
    describe(&out, &t, waits, 7, 10 * S);
    CHECK_HAS(out.text, "\n0: [abcdefg, bcdefg, cdefg, defg, efg, fg ...]");
    strbuf_release(&out);
}

TEST(ranks_beyond_the_limit_are_marked)
{
    struct stall_times t = times(2, 5);
    bool early[4] = {false, true}, late[4] = {false, false, true};
    struct stall_wait waits[] = {{"x", 10 * S, early, false, 0, 0},
                                 {"y", 13 * S, late, false, 0, 0}};
    bool missing[4];
    struct strbuf out;

    describe(&out, &t, waits, 2, 16 * S);
    CHECK_HAS(out.text, "\n1!: [x]\n2: [y]");
    strbuf_release(&out);
    CHECK(stall_missing(waits, 2, 4, 5 * S, 16 * S, missing));
    CHECK(missing[1] && !missing[0] && !missing[2] && !missing[3]);
    CHECK(!stall_missing(waits, 2, 4, 7 * S, 16 * S, missing));
}

/* ---- One name for different kinds ---------------------------------------------------------- */

static bool has_kinds(const struct stall_times *t, const struct stall_wait *waits, int count,
                      uint64_t now_us)
{
    return stall_find_kinds(waits, count, 4, t->warn_us, now_us) != NULL;
}

TEST(one_name_for_two_kinds_is_said)
{
    struct stall_times t = times(60, 0);
    bool not_odd[4] = {true, false, true, false}, not_even[4] = {false, true, false, true};
    struct stall_wait waits[] = {{"allreduce.x", 10 * S, not_even, false, HVD_ALLREDUCE, 0},
                                 {"allgather.x", 11 * S, not_odd, false, HVD_ALLGATHER, 0}};
    struct strbuf out;

    CHECK(!has_kinds(&t, waits, 2, 69 * S));    /* they may come yet */
    describe(&out, &t, waits, 2, 70 * S);
    CHECK_HAS(out.text, "\nThe cause: the name x is used for different kinds of operation: "
                        "allreduce by ranks 0, 2; allgather by ranks 1, 3.");
    strbuf_release(&out);
}

TEST(kinds_are_not_blamed_for_a_rank_that_is_late)
{
    struct stall_times t = times(60, 0);
    bool one[4] = {false, true}, two[4] = {true, true}, both[4] = {false, true};
    struct stall_wait late[] = {{"allreduce.x", 10 * S, one, false, HVD_ALLREDUCE, 0},
                                {"allgather.x", 10 * S, two, false, HVD_ALLGATHER, 0}};
    struct stall_wait behind[] = {{"allreduce.x", 10 * S, one, false, HVD_ALLREDUCE, 0},
                                  {"allgather.x", 10 * S, both, false, HVD_ALLGATHER, 0}};
    bool zero[4] = {true};
    struct stall_wait names[] = {{"allreduce.x", 10 * S, one, false, HVD_ALLREDUCE, 0},
                                 {"allgather.y", 10 * S, zero, false, HVD_ALLGATHER, 0}};
    struct stall_wait sets[] = {{"allreduce.x", 10 * S, one, false, HVD_ALLREDUCE, 0},
                                {"allgather.x", 10 * S, zero, false, HVD_ALLGATHER, 1}};

    CHECK(!has_kinds(&t, late, 2, 90 * S));
    CHECK(!has_kinds(&t, behind, 2, 90 * S));
    CHECK(!has_kinds(&t, names, 2, 90 * S));
    CHECK(!has_kinds(&t, sets, 2, 90 * S));
}
