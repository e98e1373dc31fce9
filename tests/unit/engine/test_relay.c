/* test_relay.c: what a leader makes of the hits of its host, and whom responses reach. */
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
    struct layout layout;
    struct way *relay;                  /* NULL: it neither leads nor coordinates */
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

static int fanout = 16;

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
        s->set.neg = r == 0 ? (struct negotiator *)s : NULL;   /* it is only asked for */
        CHECK_OK(layout_make(&s->layout, host_of, 3, SIZE, r, &err), err);
        s->set.layout = &s->layout;
        s->set.fanout = fanout;
        pset_find_tree(&s->set);
        CHECK_OK(way_relay.open(&s->engine, &s->set, &s->relay, &err), err);
        if (s->relay != NULL)
            s->relay->set = &s->set;
    }
}

static void end(void)
{
    for (int r = 0; r < SIZE; r++) {
        if (sides[r].relay != NULL)
            way_relay.close(sides[r].relay);
        layout_release(&sides[r].layout);
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
    struct side *s = &sides[1];
    struct message_head head = {.kind = MESSAGE_HITS, .count = 1};
    struct cached c = {.number = number, .seq = seq, .way = s->relay};
    struct entry t = {.set = &s->set, .submit_us = clock_us()};
    struct strbuf bytes;
    struct wire_in in;
    enum hvd_status status;

    if (member == 1) {
        way_relay.start(s->relay, &s->engine, &t, &c);
        return HVD_OK;
    }
    strbuf_init(&bytes);
    put_number(&bytes, &(struct wire_number){number, seq});
    in = wire_in_from(bytes.text, bytes.length);
    status = way_relay.on_message(s->relay, &s->engine, member, &head, &in, &err);
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

    CHECK_EQ(way_relay.flush(sides[1].relay, &sides[1].engine, true), *expected != '\0');
    deliver();
    CHECK_EQ(to->messages, *expected != '\0');
    strbuf_init(&text);
    in = wire_in_from(to->heard.text, to->heard.length);
    if (*expected != '\0') {
        CHECK_OK(get_message_head(&in, &head, &err), err);
        CHECK(head.kind == MESSAGE_RELAY && head.set == 3 && head.epoch == 4);
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
    struct way *none = NULL;
    struct layout l;

    start();
    for (int r = 0; r < SIZE; r++) {
        CHECK_EQ(pset_source(&sides[r].set), source[r]);
        CHECK_EQ(sides[r].relay != NULL, r <= 1);      /* the coordinator hears of it */
    }
    CHECK_OK(layout_make(&l, host_of, 3, 2, 0, &err), err);
    few.layout = &l;
    few.fanout = 16;
    pset_find_tree(&few);
    CHECK_OK(way_relay.open(&sides[0].engine, &few, &none, &err), err);
    CHECK(none == NULL);                /* one member on each host: nothing to relay */
    layout_release(&l);
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
    CHECK_EQ(way_relay.pending(sides[1].relay), 2);
    check_sent("7/1/4+ 8/2/1+");
    CHECK_EQ(way_relay.due_us(sides[1].relay), UINT64_MAX);
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
    due_us = way_relay.due_us(sides[1].relay);
    CHECK(due_us > clock_us() && due_us < clock_us() + 1000000);
    check_sent("");
    now_ns = due_us * 1000;
    check_sent("9/5/1 9/5/4");
    CHECK_EQ(way_relay.due_us(sides[1].relay), UINT64_MAX);
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
    way_relay.forget(sides[1].relay, &(struct cached){.number = 7});
    CHECK_EQ(way_relay.due_us(sides[1].relay), UINT64_MAX);
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

/* A RELAY of `leader` comes to rank 1. */
static enum hvd_status relayed(int leader, struct wire_hit h)
{
    struct side *s = &sides[1];
    struct message_head head = {.kind = MESSAGE_RELAY, .count = 1};
    struct strbuf bytes;
    struct wire_in in;
    enum hvd_status status;

    strbuf_init(&bytes);
    put_hit(&bytes, &h);
    in = wire_in_from(bytes.text, bytes.length);
    status = way_relay.on_message(s->relay, &s->engine, leader, &head, &in, &err);
    strbuf_release(&bytes);
    return status;
}

/* A chain: rank 5 says it to rank 1, and rank 1 to the coordinator. */
TEST(in_a_chain_a_leader_counts_those_below)
{
    static const int source[SIZE] = {0, 0, 0, 1, 1, 1};

    fanout = 1;
    start();
    for (int r = 0; r < SIZE; r++) {
        CHECK_EQ(pset_source(&sides[r].set), source[r]);
        CHECK_EQ(sides[r].relay != NULL, r <= 1 || r == 5);
    }
    hit(1, 7, 1);
    hit(3, 7, 1);
    hit(4, 7, 1);
    check_sent("");                     /* the host below is missing */
    CHECK_EQ(relayed(5, (struct wire_hit){7, 1, 5, 2}), HVD_OK);
    check_sent("7/1/5+");
    relayed(5, (struct wire_hit){7, 1, 5, 2});  /* its next turn comes first */
    hit(3, 7, 1);
    hit(4, 7, 1);
    check_sent("");
    hit(1, 7, 1);
    check_sent("7/1/1+");
    CHECK_EQ(relayed(5, (struct wire_hit){7, 1, 3, 2}), HVD_PROTO);     /* not below 5 */
    CHECK_EQ(relayed(5, (struct wire_hit){7, 1, 5, 1}), HVD_PROTO);     /* not its depth */
    CHECK_EQ(relayed(3, (struct wire_hit){7, 1, 5, 2}), HVD_PROTO);     /* not a leader */
    end();
    fanout = 16;
}

TEST(in_a_chain_what_is_late_goes_on_as_it_comes)
{
    fanout = 1;
    start();
    relayed(5, (struct wire_hit){9, 5, 5, 2});
    hit(4, 9, 5);
    now_ns = way_relay.due_us(sides[1].relay) * 1000;
    check_sent("9/5/4 9/5/5+");         /* all of the node below, as it said */
    hit(3, 9, 5);
    check_sent("9/5/3");
    hit(1, 9, 5);
    check_sent("9/5/1");
    hit(3, 9, 5);                       /* told by the one below: at once, and all the rest */
    relayed(5, (struct wire_hit){9, 5, 5, 0});
    check_sent("9/5/3 9/5/5");
    hit(4, 9, 5);
    hit(1, 9, 5);
    check_sent("9/5/4 9/5/1");
    CHECK_EQ(way_relay.due_us(sides[1].relay), UINT64_MAX);
    end();
    fanout = 16;
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
    pset_hand_on(&sides[0].engine, &sides[0].set, "x", 1);
    check_heard((int[]){0, 1, 1, 0, 0, 1});
    pset_hand_on(&sides[1].engine, &sides[1].set, "x", 1);
    check_heard((int[]){0, 0, 0, 1, 1, 0});
    for (int r = 2; r < SIZE; r++)
        pset_hand_on(&sides[r].engine, &sides[r].set, "x", 1);
    check_heard((int[]){0, 0, 0, 0, 0, 0});
    pset_say_end(&sides[0].engine, &sides[0].set);
    pset_say_end(&sides[0].engine, &sides[0].set);
    check_heard((int[]){0, 1, 1, 0, 0, 1});
    CHECK(pset_has_ended(&sides[0].engine, &sides[0].set));
    CHECK(!pset_has_ended(&sides[3].engine, &sides[3].set));
    end();
}

TEST(in_a_chain_responses_are_handed_down)
{
    fanout = 1;
    start();
    pset_hand_on(&sides[0].engine, &sides[0].set, "x", 1);
    check_heard((int[]){0, 1, 1, 0, 0, 0});
    pset_hand_on(&sides[1].engine, &sides[1].set, "x", 1);
    check_heard((int[]){0, 0, 0, 1, 1, 1});
    pset_hand_on(&sides[5].engine, &sides[5].set, "x", 1);
    check_heard((int[]){0, 0, 0, 0, 0, 0});
    end();
    fanout = 16;
}

/* Announcements in full go up in bundles; those of other nodes are refused. */
TEST(in_a_chain_announcements_are_bundled)
{
    struct pset *s;

    fanout = 1;
    start();
    s = &sides[1].set;
    strbuf_init(&s->upward);
    CHECK_EQ(upward_to(&sides[5].set), 1);
    CHECK_EQ(upward_to(&sides[2].set), 0);
    CHECK_OK(upward_take(&sides[1].engine, s, 3, (const uint8_t *)"abc", 3, &err), err);
    CHECK_OK(upward_take(&sides[1].engine, s, 5, (const uint8_t *)"de", 2, &err), err);
    CHECK_EQ(upward_take(&sides[1].engine, s, 2, (const uint8_t *)"f", 1, &err), HVD_PROTO);
    CHECK(upward_flush(&sides[1].engine, s));
    CHECK(!upward_flush(&sides[1].engine, s));
    deliver();
    CHECK_EQ(sides[0].messages, 1);
    CHECK_EQ(sides[0].heard.length, 17 + 8 + 3 + 8 + 2);
    strbuf_release(&s->upward);
    end();
    fanout = 16;
}
