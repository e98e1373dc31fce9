/* test_membership.c: who belongs to an elastic job, with plain numbers for time. */
#include "check.h"

#include "elastic/membership.h"
#include "wire/elastic_message.h"

#include <stdlib.h>

#define SECOND 1000000u
#define WORKERS 64

/* What the machine has asked for, and what a worker does about it. */
static struct membership *m;
static uint64_t now = SECOND;
static struct {
    bool started, stopped, retired, ended;
    char host[64];
    int slot, rank, local_rank, size;   /* of the last assignment; rank -1: none */
    int guess;
    unsigned update;
    bool sync;
} workers[WORKERS];
static int started_count, assign_count, say_count;
static bool is_over, is_ok;
static int blamed;
static char last_text[1024], last_say[1024];
static uint32_t generation;

static void take(void)
{
    struct member_action a;

    while (membership_next(m, &a)) {
        CHECK(!is_over);
        switch (a.kind) {
        case MEMBER_START:
            workers[a.worker].started = true;
            workers[a.worker].rank = -1;
            workers[a.worker].slot = a.slot;
            workers[a.worker].guess = a.places[0].rank;
            snprintf(workers[a.worker].host, 64, "%s", a.host);
            started_count++;
            break;
        case MEMBER_STOP:
            workers[a.worker].stopped = true;
            break;
        case MEMBER_ASSIGN:
            CHECK_EQ(a.generation, generation + 1);
            generation = a.generation;
            assign_count++;
            for (int i = 0; i < WORKERS; i++)
                workers[i].rank = -1;
            for (int r = 0; r < a.count; r++) {
                CHECK_EQ(a.places[r].rank, r);
                workers[a.places[r].worker].rank = r;
                workers[a.places[r].worker].local_rank = a.places[r].local_rank;
                workers[a.places[r].worker].size = a.count;
                workers[a.places[r].worker].sync = a.sync;
                workers[a.places[r].worker].update = 0;
            }
            break;
        case MEMBER_RETIRE:
            workers[a.worker].retired = true;
            break;
        case MEMBER_UPDATE:
            workers[a.worker].update = a.update;
            break;
        case MEMBER_SAY:
            say_count++;
            snprintf(last_say, sizeof last_say, "%s", a.text);
            break;
        case MEMBER_END:
            is_over = true;
            is_ok = a.ok;
            blamed = a.worker;
            snprintf(last_text, sizeof last_text, "%s", a.text);
            break;
        }
    }
}

static struct membership_options defaults(int np, int min_np, int max_np)
{
    return (struct membership_options){.np = np, .min_np = min_np, .max_np = max_np,
                                       .reset_limit = -1,
                                       .elastic_timeout_us = 600 * SECOND,
                                       .grace_ms = 5000, .gone_ms = 1000, .seed = 1};
}

static void begin(struct membership_options opt)
{
    m = membership_new(&opt);
}

/* "a:2 b:1" */
static void hosts(const char *text)
{
    struct hvd_host list[16];
    int count = 0, used;

    memset(list, 0, sizeof list);
    while (sscanf(text, " %63[^:]:%d%n", list[count].name, &list[count].slots, &used) == 2) {
        text += used;
        count++;
    }
    membership_hosts(m, list, count, now);
    take();
}

static void connect_ready(int w)
{
    CHECK(membership_connected(m, w, now));
    CHECK(membership_ready(m, w, 0, false, 0, now));
    take();
}

/* `failed`: because the generation broke. */
static void ready(int w, bool failed, uint64_t commits)
{
    CHECK(membership_ready(m, w, generation, failed, commits, now));
    take();
}

static void formed(int first, int last)
{
    for (int w = first; w <= last; w++)
        membership_formed(m, w, generation, now);
    take();
}

static void die(int w, int signal)
{
    membership_disconnected(m, w, "closed", now);
    take();
    membership_ended(m, w, signal > 0 ? 128 + signal : 1, signal, "", now);
    workers[w].ended = true;
    take();
}

static void finish(int w)
{
    membership_disconnected(m, w, "closed", now);
    membership_ended(m, w, 0, 0, "", now);
    take();
}

static void pass(uint64_t us)
{
    uint64_t until = now + us;

    while (membership_deadline_us(m) <= until) {
        CHECK(membership_deadline_us(m) > now);
        now = membership_deadline_us(m);
        membership_tick(m, now);
        take();
    }
    now = until;
    membership_tick(m, now);
    take();
}

static void begin_job(struct membership_options opt, const char *list, int count)
{
    begin(opt);
    hosts(list);
    CHECK_EQ(started_count, count);
    for (int w = 1; w <= count; w++)
        connect_ready(w);
    CHECK_EQ(assign_count, 1);
    formed(1, count);
}

/* ---- The start ---------------------------------------------------------------------- */

TEST(a_job_starts_when_np_slots_are_there_and_takes_all_of_them)
{
    begin(defaults(2, 2, 0));
    hosts("");
    CHECK_EQ(started_count, 0);
    hosts("a:1");
    CHECK_EQ(started_count, 0);
    hosts("a:1 b:3");
    CHECK_EQ(started_count, 4);
    CHECK_STR(workers[1].host, "a");
    CHECK_EQ(workers[4].guess, 3);
    for (int w = 4; w > 1; w--)
        connect_ready(w);
    CHECK_EQ(assign_count, 0);
    connect_ready(1);
    CHECK_EQ(assign_count, 1);
    CHECK_EQ(workers[1].rank, 0);
    CHECK_EQ(workers[4].rank, 3);
    CHECK_EQ(workers[4].size, 4);
}

TEST(places_of_one_machine_are_local_to_each_other_and_fail_alone)
{
    begin_job(defaults(3, 1, 0), "a#1:1 b#2:1 a#3:1", 3);
    CHECK_EQ(workers[1].rank, 0);
    CHECK_EQ(workers[3].rank, 1);
    CHECK_EQ(workers[3].local_rank, 1);
    CHECK_EQ(workers[2].rank, 2);
    CHECK_EQ(workers[2].local_rank, 0);
    die(3, 9);
    ready(1, true, 1);
    ready(2, true, 1);
    CHECK_EQ(assign_count, 2);
    CHECK_EQ(workers[1].size, 2);
    hosts("a#1:1 b#2:1 a#4:1");
    CHECK_EQ(started_count, 4);
    CHECK_STR(workers[4].host, "a#4");
}

TEST(no_more_than_max_np_are_started)
{
    begin(defaults(2, 2, 3));
    hosts("a:2 b:4");
    CHECK_EQ(started_count, 3);
}

TEST(too_few_slots_for_too_long_end_the_job)
{
    begin(defaults(4, 4, 0));
    hosts("a:1");
    pass(601 * (uint64_t)SECOND);
    CHECK(is_over && !is_ok);
    CHECK(strstr(last_text, "a:1") != NULL);
}

TEST(a_program_that_fails_everywhere_is_not_started_again)
{
    begin(defaults(3, 2, 0));
    hosts("a:3");
    die(1, 0);
    CHECK(!is_over);
    die(2, 0);
    CHECK(is_over && !is_ok);
    CHECK_EQ(started_count, 3);
    CHECK_EQ(blamed, 1);
}

TEST(a_worker_that_is_killed_while_it_starts_is_started_again)
{
    begin(defaults(2, 2, 0));
    hosts("a:2");
    die(1, 9);
    CHECK_EQ(started_count, 3);
    connect_ready(2);
    connect_ready(3);
    CHECK_EQ(assign_count, 1);
    CHECK_EQ(workers[3].rank, 0);
}

TEST(workers_that_end_well_without_joining_are_a_success)
{
    begin(defaults(2, 1, 0));
    hosts("a:2");
    membership_ended(m, 1, 0, 0, "", now);
    membership_ended(m, 2, 0, 0, "", now);
    take();
    CHECK(is_over && is_ok);
}

/* ---- Deaths ------------------------------------------------------------------------- */

TEST(survivors_go_on_at_once_and_the_slot_is_filled_beside_them)
{
    begin_job(defaults(3, 2, 3), "a:3", 3);
    ready(1, true, 5);
    now += 1000;
    die(3, 9);
    CHECK_EQ(assign_count, 1);
    ready(2, true, 5);
    CHECK_EQ(assign_count, 2);
    CHECK_EQ(workers[1].rank, 0);
    CHECK_EQ(workers[2].size, 2);
    CHECK(workers[1].sync);
    CHECK(workers[4].started);
    formed(1, 2);
    CHECK(strstr(last_say, "a[2] was killed by SIGKILL; 2 workers train on") != NULL);
    CHECK_EQ(workers[1].update, 0u);
    connect_ready(4);
    CHECK_EQ(workers[1].update, (unsigned)ELASTIC_ADDED);
    CHECK_EQ(workers[2].update, (unsigned)ELASTIC_ADDED);
    ready(1, false, 9);
    ready(2, false, 9);
    CHECK_EQ(assign_count, 3);
    CHECK_EQ(workers[4].rank, 2);
    CHECK_EQ(workers[4].size, 3);
    CHECK(workers[1].sync);
}

TEST(a_failure_takes_its_host_off_when_the_others_are_enough)
{
    begin_job(defaults(4, 2, 4), "a:2 b:2", 4);
    ready(3, true, 1);
    ready(4, true, 1);
    die(1, 9);
    CHECK(workers[2].stopped);
    CHECK_EQ(assign_count, 2);
    CHECK_EQ(workers[3].rank, 0);
    CHECK_EQ(workers[3].size, 2);
    membership_ended(m, 2, 143, 15, "", now);
    take();
    CHECK_EQ(started_count, 4);
    finish(3);
    finish(4);
    CHECK(is_over && is_ok);
}

TEST(the_host_comes_back_after_its_cooldown_at_the_end)
{
    struct membership_options opt = defaults(2, 1, 2);

    opt.cooldown_lo_s = 10;
    opt.cooldown_hi_s = 100;
    begin_job(opt, "a:1 b:1", 2);
    ready(2, true, 1);
    die(1, 9);
    CHECK_EQ(assign_count, 2);
    pass(19 * SECOND);
    CHECK_EQ(started_count, 2);
    pass(12 * SECOND);
    CHECK_EQ(started_count, 3);
    CHECK_STR(workers[3].host, "a");
    connect_ready(3);
    CHECK_EQ(workers[2].update, (unsigned)ELASTIC_ADDED);
    ready(2, false, 2);
    CHECK_EQ(workers[2].rank, 0);
    CHECK_EQ(workers[3].rank, 1);
}

TEST(a_slot_with_restarts_left_is_repaired)
{
    struct membership_options opt = defaults(2, 1, 2);

    opt.restarts_per_slot = 1;
    begin_job(opt, "a:1 b:1", 2);
    ready(2, true, 1);
    die(1, 9);
    CHECK_EQ(assign_count, 2);
    CHECK_EQ(started_count, 3);
    CHECK_STR(workers[3].host, "a");
    die(3, 9);
    CHECK_EQ(started_count, 3);
    CHECK(strstr(last_say, "a is not used any more") != NULL);
}

TEST(below_min_np_the_slot_is_repaired_but_not_for_ever)
{
    begin_job(defaults(2, 2, 2), "a:1 b:1", 2);
    ready(2, true, 1);
    die(1, 9);
    CHECK_EQ(started_count, 3);
    CHECK_EQ(assign_count, 1);
    for (int w = 3; w <= 5; w++) {
        die(w, 9);
        pass(5 * SECOND);
    }
    CHECK_EQ(started_count, 5);
    CHECK(!is_over);
    pass(700 * (uint64_t)SECOND);
    CHECK(is_over && !is_ok);
    CHECK(strstr(last_text, "a[0] was killed by SIGKILL") != NULL);
    CHECK(strstr(last_text, "a:1 b:1") != NULL);
}

TEST(when_all_members_die_the_job_has_failed)
{
    begin_job(defaults(2, 1, 2), "a:2", 2);
    die(1, 9);
    CHECK(!is_over);
    die(2, 9);
    CHECK(is_over && !is_ok);
    CHECK_EQ(blamed, 1);
}

TEST(a_lost_connection_without_an_end_of_the_process_is_a_failure)
{
    begin_job(defaults(3, 2, 3), "a:3", 3);
    membership_disconnected(m, 3, "closed", now);
    ready(1, true, 1);
    ready(2, true, 1);
    take();
    CHECK_EQ(assign_count, 1);
    pass(2 * SECOND);
    CHECK_EQ(assign_count, 2);
    CHECK(workers[3].stopped);
}

TEST(how_long_the_end_of_a_process_is_awaited_is_the_owners_choice)
{
    struct membership_options opt = defaults(2, 1, 2);

    opt.gone_ms = 200;
    begin_job(opt, "a:2", 2);
    membership_disconnected(m, 2, "closed", now);
    ready(1, true, 1);
    pass(SECOND / 5 - 1);
    CHECK_EQ(assign_count, 1);
    pass(1);
    CHECK_EQ(assign_count, 2);
}

TEST(a_member_that_does_not_come_is_stopped)
{
    begin_job(defaults(3, 2, 3), "a:3", 3);
    ready(1, true, 1);
    ready(2, true, 1);
    pass(599 * (uint64_t)SECOND);
    CHECK_EQ(assign_count, 1);
    pass(2 * SECOND);
    CHECK(workers[3].stopped);
    CHECK_EQ(assign_count, 2);
}

TEST(rank_0_is_who_has_committed_most_and_lived_longest)
{
    begin_job(defaults(3, 2, 3), "a:3", 3);
    ready(2, true, 4);
    ready(3, true, 5);
    die(1, 9);
    CHECK_EQ(assign_count, 2);
    CHECK_EQ(workers[3].rank, 0);
    CHECK_EQ(workers[2].rank, 1);
    connect_ready(4);
    ready(2, false, 6);
    ready(3, false, 6);
    CHECK_EQ(workers[2].rank, 0);       /* the newcomer of slot 0 has no state */
    CHECK_EQ(workers[4].rank, 1);
}

TEST(the_reset_limit_ends_the_job)
{
    struct membership_options opt = defaults(2, 1, 2);

    opt.reset_limit = 0;
    begin_job(opt, "a:2", 2);
    die(2, 9);
    ready(1, true, 1);
    CHECK(is_over && !is_ok);
    CHECK_STR(last_text, "Horovod was shutdown because number of resets during elastic job "
                         "exceeded limit: 0");
}

/* ---- Hosts that come and go --------------------------------------------------------- */

TEST(a_host_is_added_and_the_first_removed)
{
    begin_job(defaults(2, 2, 4), "a:2", 2);
    hosts("a:2 b:2");
    CHECK_EQ(started_count, 4);
    CHECK_EQ(workers[3].guess, 2);
    connect_ready(3);
    CHECK_EQ(workers[1].update, 0u);    /* its neighbour is still starting */
    connect_ready(4);
    CHECK_EQ(workers[1].update, (unsigned)ELASTIC_ADDED);
    ready(1, false, 1);
    ready(2, false, 1);
    CHECK_EQ(workers[1].rank, 0);
    CHECK_EQ(workers[4].rank, 3);
    CHECK(workers[1].sync);
    formed(1, 4);
    hosts("b:2");
    CHECK_EQ(workers[1].update, (unsigned)ELASTIC_REMOVED);
    CHECK_EQ(workers[4].update, (unsigned)ELASTIC_REMOVED);
    for (int w = 1; w <= 4; w++)
        ready(w, false, 2);
    CHECK(workers[1].retired && workers[2].retired);
    CHECK_EQ(workers[3].rank, 0);
    CHECK_EQ(workers[3].size, 2);
    CHECK(!workers[3].sync);
    finish(1);
    CHECK(!is_over);
    finish(2);
    finish(3);
    finish(4);
    CHECK(is_over && is_ok);
}

TEST(a_change_that_is_undone_is_withdrawn)
{
    begin_job(defaults(2, 1, 2), "a:1 b:1", 2);
    hosts("a:1");
    CHECK_EQ(workers[1].update, (unsigned)ELASTIC_REMOVED);
    hosts("a:1 b:1");
    CHECK_EQ(workers[1].update, 0u);
    CHECK_EQ(started_count, 2);
}

TEST(hosts_beyond_max_np_change_nothing)
{
    begin_job(defaults(2, 1, 2), "a:1 b:1", 2);
    hosts("a:1 b:1 c:4");
    CHECK_EQ(started_count, 2);
    CHECK_EQ(workers[1].update, 0u);
}

TEST(a_host_that_shrinks_loses_its_last_slots)
{
    begin_job(defaults(2, 1, 0), "a:3", 3);
    hosts("a:1");
    for (int w = 1; w <= 3; w++)
        ready(w, false, 1);
    CHECK_EQ(workers[1].size, 1);
    CHECK(workers[2].retired && workers[3].retired);
}

TEST(when_all_hosts_are_exchanged_the_state_is_handed_over)
{
    begin_job(defaults(1, 1, 2), "a:1", 1);
    hosts("b:1");
    connect_ready(2);
    ready(1, false, 3);
    CHECK_EQ(assign_count, 2);
    CHECK_EQ(workers[1].rank, 0);
    CHECK_EQ(workers[2].rank, 1);
    CHECK(workers[2].sync);
    CHECK_EQ(workers[1].update, (unsigned)ELASTIC_REMOVED);
    ready(1, false, 4);
    ready(2, false, 4);
    CHECK(workers[1].retired);
    CHECK_EQ(workers[2].rank, 0);
    CHECK_EQ(workers[2].size, 1);
}

TEST(below_min_np_everybody_waits_for_slots)
{
    begin_job(defaults(2, 2, 2), "a:1 b:1", 2);
    hosts("a:1");
    ready(1, false, 1);
    ready(2, false, 1);
    CHECK_EQ(assign_count, 1);
    hosts("a:1 c:1");
    connect_ready(3);
    CHECK_EQ(assign_count, 2);
    CHECK_EQ(workers[3].rank, 1);
    CHECK(workers[2].retired);
}

/* ---- Leaving with notice ------------------------------------------------------------- */

TEST(a_worker_with_notice_leaves_at_the_next_commit)
{
    begin_job(defaults(3, 1, 3), "a:3", 3);
    membership_notice(m, 2, now);
    take();
    CHECK_EQ(workers[1].update, (unsigned)ELASTIC_REMOVED);
    CHECK_EQ(workers[2].update, (unsigned)(ELASTIC_REMOVED | ELASTIC_LEAVE));
    for (int w = 1; w <= 3; w++)
        ready(w, false, 1);
    CHECK(workers[2].retired);
    CHECK_EQ(workers[3].rank, 1);
    CHECK(!workers[3].sync);
    membership_ended(m, 2, 0, 0, "", now);
    take();
    CHECK_EQ(started_count, 3);
    CHECK(!is_over);
}

TEST(a_host_with_notice_is_not_used_until_it_comes_back)
{
    begin_job(defaults(2, 1, 2), "a:1 b:1", 2);
    membership_host_notice(m, "b", now);
    take();
    ready(1, false, 1);
    ready(2, false, 1);
    CHECK(workers[2].retired);
    membership_ended(m, 2, 0, 0, "", now);
    hosts("a:1 b:1");
    CHECK_EQ(started_count, 2);
    hosts("a:1");
    hosts("a:1 b:1");
    CHECK_EQ(started_count, 3);
}

TEST(a_retired_worker_that_stays_is_stopped)
{
    begin_job(defaults(2, 1, 2), "a:1 b:1", 2);
    hosts("a:1");
    ready(1, false, 1);
    ready(2, false, 1);
    CHECK(workers[2].retired && !workers[2].stopped);
    pass(6 * SECOND);
    CHECK(workers[2].stopped);
}

TEST(a_job_that_is_told_to_leave_ends_after_a_commit)
{
    begin_job(defaults(3, 2, 3), "a:2 b:1", 3);
    die(3, 9);
    ready(1, true, 1);
    ready(2, true, 1);
    CHECK_EQ(assign_count, 2);
    membership_leave(m, now);
    take();
    CHECK_EQ(workers[1].update, (unsigned)(ELASTIC_REMOVED | ELASTIC_LEAVE));
    CHECK_EQ(workers[2].update, (unsigned)(ELASTIC_REMOVED | ELASTIC_LEAVE));
    ready(1, false, 2);
    CHECK(!workers[1].retired && !is_over);     /* the other one has its commit to complete */
    ready(2, false, 2);
    CHECK(workers[1].retired && workers[2].retired && !is_over);
    finish(1);
    finish(2);
    CHECK(is_over && is_ok);
    CHECK_EQ(assign_count, 2);
}

TEST(a_job_that_leaves_starts_and_takes_in_nobody)
{
    begin_job(defaults(2, 1, 3), "a:2", 2);
    hosts("a:3");
    CHECK_EQ(started_count, 3);
    membership_leave(m, now);
    take();
    CHECK(workers[3].stopped);
    hosts("a:3 b:1");
    CHECK_EQ(started_count, 3);
    ready(1, false, 1);
    ready(2, false, 1);
    finish(1);
    finish(2);
    CHECK(!is_over);
    die(3, 15);
    CHECK(is_over && is_ok);
}

TEST(a_worker_that_dies_while_the_job_leaves_is_reported)
{
    begin_job(defaults(2, 1, 2), "a:1 b:1", 2);
    membership_leave(m, now);
    take();
    die(2, 9);
    ready(1, true, 1);
    CHECK(workers[1].retired);
    finish(1);
    CHECK(is_over && !is_ok);
    CHECK_EQ(blamed, 2);
}

TEST(a_job_that_is_told_to_leave_before_it_has_begun_is_over)
{
    begin(defaults(2, 1, 2));
    hosts("a:2");
    membership_leave(m, now);
    take();
    CHECK(is_over && !is_ok);
}

/* ---- The end ------------------------------------------------------------------------- */

TEST(who_is_left_goes_on_when_one_has_finished)
{
    begin_job(defaults(3, 2, 3), "a:3", 3);
    finish(1);
    ready(2, true, 1);
    ready(3, true, 1);
    CHECK_EQ(assign_count, 2);
    finish(2);
    finish(3);
    CHECK(is_over && is_ok);
    CHECK_EQ(started_count, 3);
}

TEST(newcomers_do_not_need_members_that_have_finished)
{
    begin_job(defaults(3, 1, 3), "a:3", 3);
    die(2, 9);
    die(3, 9);
    ready(1, true, 1);
    CHECK(workers[4].started && workers[5].started);
    formed(1, 1);
    connect_ready(4);                   /* it waits beside the job, the other one imports */
    finish(1);
    CHECK(workers[4].retired && workers[5].stopped && !is_over);
    finish(4);
    die(5, 15);
    CHECK(is_over && is_ok);
}

TEST(it_is_an_error_if_those_who_are_left_are_too_few)
{
    begin_job(defaults(2, 2, 2), "a:2", 2);
    finish(1);
    ready(2, true, 1);
    CHECK(is_over && !is_ok);
    CHECK(strstr(last_text, "still needed it") != NULL);
}

TEST(a_failure_that_no_generation_dealt_with_is_the_result)
{
    begin_job(defaults(2, 1, 2), "a:2", 2);
    finish(1);
    die(2, 0);
    CHECK(is_over && !is_ok);
    CHECK_EQ(blamed, 2);
}

/* ---- Strangers ----------------------------------------------------------------------- */

TEST(a_number_is_good_for_one_connection)
{
    begin_job(defaults(2, 1, 2), "a:2", 2);
    CHECK(!membership_connected(m, 1, now));
    CHECK(!membership_connected(m, 99, now));
    CHECK(!membership_connected(m, 0, now));
    die(2, 9);
    CHECK(!membership_connected(m, 2, now));
    CHECK(!membership_ready(m, 2, generation, false, 0, now));
}

TEST(what_does_not_fit_is_refused)
{
    begin_job(defaults(2, 1, 2), "a:2", 2);
    CHECK(!membership_ready(m, 1, generation + 1, false, 0, now));
    CHECK(!membership_ready(m, 1, 0, false, 0, now));
}

static void accuse_each_other(void)
{
    membership_accuse(m, 1, generation, workers[2].rank);
    ready(1, true, 3);
    membership_accuse(m, 2, generation, workers[1].rank);
    ready(2, true, 3);
}

/* Rule 10. */
TEST(a_cut_between_two_hosts_is_no_endless_series_of_resets)
{
    begin(defaults(2, 1, 2));
    hosts("a:1 b:1");
    connect_ready(1);
    connect_ready(2);
    formed(1, 2);
    accuse_each_other();                /* they trained, and lost each other */
    CHECK_EQ(assign_count, 2);
    CHECK(!workers[1].stopped && !workers[2].stopped);
    accuse_each_other();                /* and could not meet again */
    CHECK(workers[2].stopped && !workers[1].stopped);
    CHECK_EQ(assign_count, 3);
    CHECK_EQ(workers[1].size, 1);
    CHECK_EQ(workers[1].rank, 0);
    membership_free(m);
}

TEST(who_meets_again_is_not_accused_any_more)
{
    begin(defaults(2, 1, 2));
    hosts("a:1 b:1");
    connect_ready(1);
    connect_ready(2);
    for (int i = 0; i < 5; i++) {
        formed(1, 2);
        accuse_each_other();            /* a network that is bad now and then */
    }
    CHECK_EQ(assign_count, 6);
    CHECK(!workers[1].stopped && !workers[2].stopped);
    membership_free(m);
}
