/*
 * test_simulation.c: the membership machine against a world that goes by a seed: hosts come
 * and go, workers get ready, die, hang, leave and finish in any order.
 *
 * What must hold, whatever happens:
 * 1. A generation is assigned once, to ready workers only, min-np of them at least, each
 *    with one rank; one of them was in the last one.
 * 2. A slot has one process at most, but for one that SIGKILL does not end; a number is
 *    never given twice.
 * 3. Nothing waits for ever: when the world is quiet and time passes, every worker that is
 *    ready is assigned, retired or told the end.
 * 4. Nothing is asked for after the end.
 */
#include "check.h"

#include "elastic/membership.h"
#include "wire/elastic_message.h"

#include <stdlib.h>

#define SEEDS 2000
#define EVENTS 120
#define WORKERS 4096
#define SECOND 1000000ull

enum life { NONE, STARTING, READY, MEMBER, DEAD };

struct person {
    enum life life;
    bool stopped, retired, was_member;
    int host, slot;
    unsigned update;
};

static struct person people[WORKERS];
static int person_count;
static struct membership *m;
static struct membership_options opt;
static uint64_t now, seed_state;
static uint32_t generation;
static bool is_over;

static unsigned pick(unsigned below)
{
    seed_state = seed_state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(seed_state >> 33) % below;
}

static void take_assign(const struct member_action *a)
{
    bool has_old = generation == 0;

    CHECK_EQ(a->generation, generation + 1);
    generation = a->generation;
    CHECK(a->count >= opt.min_np);
    for (int r = 0; r < a->count; r++) {
        struct person *p = &people[a->places[r].worker];

        CHECK_EQ(a->places[r].rank, r);
        CHECK_EQ(p->life, READY);
        has_old |= p->was_member;
        p->life = MEMBER;               /* a second rank would not be READY any more */
        p->update = 0;
    }
    CHECK(has_old);
    for (int i = 1; i <= person_count; i++)
        people[i].was_member = people[i].life == MEMBER;
}

static void take_start(const struct member_action *a)
{
    int host = a->host[0] - 'a';

    CHECK_EQ(a->worker, person_count + 1);
    for (int i = 1; i <= person_count; i++)
        CHECK(people[i].host != host || people[i].slot != a->slot ||
              people[i].life == DEAD || people[i].stopped);
    people[++person_count] = (struct person){.life = STARTING, .host = host,
                                             .slot = a->slot};
}

static void take(void)
{
    struct member_action a;

    while (membership_next(m, &a)) {
        CHECK(!is_over);
        if (a.kind == MEMBER_START)
            take_start(&a);
        else if (a.kind == MEMBER_ASSIGN)
            take_assign(&a);
        else if (a.kind == MEMBER_STOP)
            people[a.worker].stopped = true;
        else if (a.kind == MEMBER_RETIRE)
            people[a.worker].retired = true;
        else if (a.kind == MEMBER_UPDATE)
            people[a.worker].update = a.update;
        else if (a.kind == MEMBER_END)
            is_over = true;
    }
}

static void change_hosts(void)
{
    struct hvd_host hosts[4];
    int count = 0;

    memset(hosts, 0, sizeof hosts);
    for (int i = 0; i < 4; i++)
        if (pick(3) > 0) {
            hosts[count].name[0] = (char)('a' + i);
            hosts[count++].slots = 1 + (int)pick(3);
        }
    membership_hosts(m, hosts, count, now);
}

static void end_worker(int number, int code)
{
    struct person *p = &people[number];

    p->life = DEAD;
    if (pick(2) == 0)
        membership_disconnected(m, number, "closed", now);
    membership_ended(m, number, code, code > 128 ? code - 128 : 0, "", now);
}

/* What a living worker does next by itself. */
static void advance(int number)
{
    struct person *p = &people[number];

    if (p->stopped || p->retired) {
        end_worker(number, p->stopped ? 143 : 0);
    } else if (p->life == STARTING) {
        CHECK(membership_connected(m, number, now));
        p->life = READY;
        CHECK(membership_ready(m, number, 0, false, 0, now));
    } else if (p->life == MEMBER) {
        p->life = READY;
        CHECK(membership_ready(m, number, generation, pick(2) == 0, pick(9), now));
    }
}

static void disturb(void)
{
    int number = person_count > 0 ? 1 + (int)pick((unsigned)person_count) : 0;
    unsigned what = pick(20);

    if (what < 2)
        change_hosts();
    else if (what == 2)
        membership_discovery_failed(m, "it does not work", now);
    else if (what == 3)
        membership_host_notice(m, pick(2) != 0 ? "a" : "c", now);
    else if (what == 9 && pick(40) == 0)
        membership_leave(m, now);
    else if (number == 0 || people[number].life == DEAD)
        return;
    else if (what == 4)
        membership_notice(m, number, now);
    else if (what < 7)
        end_worker(number, 137);
    else if (what == 7)
        end_worker(number, 1);
    else if (what == 8 && pick(8) == 0)
        end_worker(number, 0);
    else
        advance(number);
}

static void pass(uint64_t us)
{
    uint64_t until = now + us, due;
    int turns = 0;

    while (!is_over && (due = membership_deadline_us(m)) <= until) {
        CHECK(due > now && ++turns < 10000);
        now = due;
        membership_tick(m, now);
        take();
    }
    now = until;
}

/* Rule 3. */
static void settle_down(void)
{
    for (int round = 0; round < 400 && !is_over; round++) {
        bool is_quiet = true;

        for (int i = 1; i <= person_count && !is_over; i++) {
            struct person *p = &people[i];

            if (p->life != DEAD && (p->life == STARTING || p->stopped || p->retired ||
                                    (p->life == MEMBER && p->update != 0))) {
                advance(i);
                take();
                is_quiet = false;
            }
        }
        /* A member cannot go on without the others of its generation. */
        for (int i = 1; i <= person_count && !is_over; i++)
            if (people[i].life == READY && people[i].was_member)
                for (int k = 1; k <= person_count && people[i].life == READY; k++)
                    if (people[k].life == MEMBER && !is_over) {
                        advance(k);
                        take();
                        is_quiet = false;
                    }
        if (is_quiet)
            pass(700 * SECOND);
    }
    for (int i = 1; i <= person_count && !is_over; i++)
        if (people[i].life == READY && people[i].was_member) {
            struct strbuf text;

            strbuf_init(&text);
            membership_describe(m, now, &text);
            fprintf(stderr, "np %d min-np %d max-np %d\n%s", opt.np, opt.min_np, opt.max_np,
                    text.text);
            check_fail(__FILE__, __LINE__, "worker %d of %d waits for ever", i,
                       person_count);
        }
}

static void live(unsigned seed)
{
    seed_state = seed * 2654435761ull + 1;
    memset(people, 0, sizeof people);
    person_count = 0;
    now = SECOND;
    generation = 0;
    is_over = false;
    opt = (struct membership_options){
        .np = 1 + (int)pick(4), .reset_limit = pick(8) == 0 ? (int)pick(4) : -1,
        .restarts_per_slot = (int)pick(3), .elastic_timeout_us = 600 * SECOND,
        .grace_ms = 5000, .gone_ms = 1000, .seed = seed};
    opt.min_np = 1 + (int)pick((unsigned)opt.np);
    opt.max_np = pick(2) == 0 ? 0 : opt.np + (int)pick(4);
    if (pick(2) == 0) {
        opt.cooldown_lo_s = 1;
        opt.cooldown_hi_s = 30;
    }
    m = membership_new(&opt);
    change_hosts();
    take();
    for (int i = 0; i < EVENTS && !is_over; i++) {
        disturb();
        take();
        pass(pick(3) == 0 ? pick(3) * SECOND : pick(1000));
    }
    settle_down();
    membership_free(m);
}

TEST(every_seed_keeps_the_rules, .limit_s = 240)
{
    unsigned first = getenv("SEED") != NULL ? (unsigned)atoi(getenv("SEED")) : 0;
    unsigned count = getenv("SEED") != NULL ? 1 : SEEDS;

    for (unsigned seed = first; seed < first + count; seed++) {
        if (getenv("SHOW_SEED") != NULL)
            fprintf(stderr, "SEED=%u\n", seed);
        live(seed);
    }
}
