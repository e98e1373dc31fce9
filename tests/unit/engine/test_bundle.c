/* test_bundle.c: what a leader makes of the hits of its host, and whom responses reach. */
#include "check.h"
#include "engine/engine_int.h"
#include "support/sim_transport.h"

#include "base/clock.h"

#include <stdlib.h>

#define SIZE 6

/* Ranks 0, 2 | 1, 3, 4 | 5: rank 1 leads the second host. */
static const int host_of[SIZE] = {0, 1, 0, 1, 1, 2};
static const int ranks[SIZE] = {0, 1, 2, 3, 4, 5};

struct side {
    struct engine engine;
    struct pset set;
    struct strbuf heard;                /* messages that came, one after the other */
    int messages;
};

static struct sim *sim;
static struct side sides[SIZE];
static uint64_t now_ns;
static struct hvd_error err;

static void hear(void *context, int peer, const uint8_t *bytes, size_t n)
{
    struct side *s = context;

    (void)peer;
    strbuf_add(&s->heard, (const char *)bytes, n);
    s->messages++;
}

static void start(void)
{
    struct sim_options opt = {.size = SIZE, .hosts = 3, .host_of = host_of, .seed = 1};

    now_ns = 1000000000;
    clock_simulated_ns = &now_ns;
    sim = sim_new(&opt);
    CHECK(sim != NULL);
    for (int r = 0; r < SIZE; r++) {
        struct side *s = &sides[r];

        *s = (struct side){0};
        s->engine.mesh = sim_mesh(sim, r);
        s->engine.topo = mesh_topology(s->engine.mesh);
        s->set = (struct pset){.id = 3, .epoch = 4, .ranks = (int *)ranks, .count = SIZE,
                               .self = r};
        strbuf_init(&s->heard);
        mesh_on_message(s->engine.mesh, hear, s);
        CHECK_OK(bundle_new(&s->engine, &s->set, &s->set.bundle, &err), err);
    }
}

static void end(void)
{
    for (int r = 0; r < SIZE; r++) {
        bundle_free(sides[r].set.bundle);
        strbuf_release(&sides[r].heard);
        mesh_close(sides[r].engine.mesh, true);
    }
    sim_free(sim);
    clock_simulated_ns = NULL;
}

static void deliver(void)
{
    for (int i = 0; i < 200; i++)
        mesh_progress(sides[i % SIZE].engine.mesh);
}

/* A hit of `member` comes to rank 1, its leader. */
static enum hvd_status hit(int member, uint32_t number, uint32_t seq)
{
    struct pset *s = &sides[1].set;
    struct strbuf bytes;
    struct wire_in in;
    enum hvd_status status;

    if (member == 1) {
        bundle_add(s, number, seq, clock_us());
        return HVD_OK;
    }
    strbuf_init(&bytes);
    put_u32(&bytes, number);
    put_u32(&bytes, seq);
    in = wire_in_from(bytes.text, bytes.length);
    status = bundle_on_hits(s, member, &in, 1, &err);
    strbuf_release(&bytes);
    return status;
}

/* Sends what there is, and compares it with "number/seq/member", a + behind it: all. */
static void check_sent(const char *expected)
{
    struct side *to = &sides[0];
    struct message_head head;
    struct strbuf text;
    struct wire_in in;
    struct wire_hit h;

    CHECK_EQ(bundle_flush(&sides[1].engine, &sides[1].set), *expected != '\0');
    deliver();
    CHECK_EQ(to->messages, *expected != '\0');
    strbuf_init(&text);
    in = wire_in_from(to->heard.text, to->heard.length);
    if (*expected != '\0') {
        CHECK_OK(get_message_head(&in, &head, &err), err);
        CHECK(head.kind == MESSAGE_BUNDLE && head.set == 3 && head.epoch == 4);
    }
    while (wire_left(&in) > 0) {
        CHECK_OK(get_hit(&in, &h, &err), err);
        strbuf_addf(&text, "%s%u/%u/%d%s", text.length > 0 ? " " : "", h.number, h.seq,
                    h.member, h.all ? "+" : "");
    }
    CHECK(strcmp(text.length > 0 ? text.text : "", expected) == 0);
    strbuf_release(&text);
    strbuf_clear(&to->heard);
    to->messages = 0;
}

TEST(only_hosts_of_several_members_have_a_leader)
{
    static const int source[SIZE] = {0, 0, 0, 1, 1, 0};
    struct pset few = {.ranks = (int *)ranks, .count = 2};

    start();
    for (int r = 0; r < SIZE; r++) {
        CHECK_EQ(bundle_source(&sides[r].set), source[r]);
        CHECK_EQ(bundle_leads(&sides[r].set), r == 1);
    }
    CHECK_OK(bundle_new(&sides[0].engine, &few, &few.bundle, &err), err);
    CHECK(few.bundle == NULL);          /* one member on each host: nothing to bundle */
    end();
}

TEST(what_all_have_come_to_goes_once)
{
    start();
    hit(3, 7, 1);
    hit(1, 7, 1);
    hit(3, 8, 2);
    check_sent("");
    hit(4, 8, 2);
    hit(4, 7, 1);
    hit(1, 8, 2);
    CHECK_EQ(bundle_pending(&sides[1].set), 2);
    check_sent("7/1/4+ 8/2/1+");
    CHECK_EQ(bundle_due_us(&sides[1].set), UINT64_MAX);
    hit(1, 7, 1);                       /* its next turn */
    hit(3, 7, 1);
    hit(4, 7, 1);
    check_sent("7/1/4+");
    end();
}

TEST(who_is_late_is_told_after_a_while)
{
    uint64_t due_us;

    start();
    hit(4, 9, 5);
    hit(1, 9, 5);
    due_us = bundle_due_us(&sides[1].set);
    CHECK(due_us > clock_us() && due_us < clock_us() + 1000000);
    check_sent("");
    now_ns = due_us * 1000;
    check_sent("9/5/1 9/5/4");
    CHECK_EQ(bundle_due_us(&sides[1].set), UINT64_MAX);
    now_ns *= 2;
    check_sent("");
    hit(3, 9, 5);
    check_sent("9/5/3");                /* not "all" of them again */
    hit(1, 9, 5);
    hit(3, 9, 5);
    hit(4, 9, 5);
    check_sent("9/5/4+");
    end();
}

TEST(hits_of_a_number_that_was_given_again_do_not_mix)
{
    start();
    hit(3, 7, 1);
    hit(4, 7, 1);
    hit(4, 7, 6);                       /* begins anew */
    hit(1, 7, 1);                       /* comes too late */
    hit(3, 7, 6);
    check_sent("");
    hit(1, 7, 6);
    check_sent("7/6/1+");
    hit(3, 7, 6);
    bundle_forget(&sides[1].set, 7);
    CHECK_EQ(bundle_due_us(&sides[1].set), UINT64_MAX);
    hit(3, 7, 8);
    hit(4, 7, 8);
    hit(1, 7, 8);
    check_sent("7/8/1+");
    end();
}

TEST(hits_of_others_are_refused)
{
    start();
    CHECK_EQ(hit(5, 7, 1), HVD_PROTO);
    CHECK_EQ(hit(2, 7, 1), HVD_PROTO);
    CHECK_EQ(hit(3, CACHE_NUMBERS, 1), HVD_PROTO);
    end();
}

static void check_heard(const int expected[SIZE])
{
    deliver();
    for (int r = 0; r < SIZE; r++) {
        CHECK_EQ(sides[r].messages, expected[r]);
        sides[r].messages = 0;
    }
}

TEST(responses_reach_each_member_once)
{
    start();
    bundle_hand_on(&sides[0].engine, &sides[0].set, "x", 1);
    check_heard((int[]){0, 1, 1, 0, 0, 1});
    bundle_hand_on(&sides[1].engine, &sides[1].set, "x", 1);
    check_heard((int[]){0, 0, 0, 1, 1, 0});
    for (int r = 2; r < SIZE; r++)
        bundle_hand_on(&sides[r].engine, &sides[r].set, "x", 1);
    check_heard((int[]){0, 0, 0, 0, 0, 0});
    bundle_say_end(&sides[0].engine, &sides[0].set);
    bundle_say_end(&sides[0].engine, &sides[0].set);
    check_heard((int[]){0, 1, 1, 0, 0, 1});
    CHECK(bundle_has_ended(&sides[0].engine, &sides[0].set));
    CHECK(!bundle_has_ended(&sides[3].engine, &sides[3].set));
    end();
}
