/* test_view.c: what a viewer concludes from the answers of a job. */
#include "check.h"

#include "launch/view.h"

static struct hvd_error err;

static struct look_rank rank_of(int rank, int size, uint64_t now_us)
{
    struct look_rank r = {.job = "abc123", .host = "node1", .rank = rank, .size = size,
                          .pid = 100 + (uint32_t)rank, .phase = LOOK_PHASE_RUNNING,
                          .now_us = now_us, .rss_bytes = 1000000, .kind_count = 1};

    return r;
}

/* Rank `late` is in its own code, all others wait for it in an allreduce. */
static void put_waiting(struct strbuf *out, int size, int late, uint64_t now_us,
                        uint64_t slept_us)
{
    for (int i = 0; i < size; i++) {
        struct look_rank r = rank_of(i, size, now_us);

        r.kinds[0] = (struct look_kind){.count = now_us / 1000, .bytes = now_us};
        r.cpu_us = now_us / 2;
        if (i == late) {
            snprintf(r.text, sizeof r.text, "File \"train.py\", line 8 in load");
        } else {
            r.open = 1;
            snprintf(r.name, sizeof r.name, "allreduce.grad");
            r.since_us = now_us - 500000;
            r.wait_count = 1;
            r.waits[0] = (struct look_wait){.since_us = now_us - 500000, .missing_count = 1,
                                            .missing = {late}, .name = "allreduce.grad"};
            r.peer_count = 1;
            r.peers[0] = (struct look_peer){.rank = late, .waits = 1, .wait_us = slept_us};
            r.slept_us = slept_us;
        }
        put_look_rank(out, &r);
    }
}

static void take(struct view *v, const struct view *before, const struct strbuf *frames)
{
    view_init(v, 0);
    CHECK_OK(view_add(v, frames->text, frames->length, &err), err);
    view_finish(v, before);
}

static void check_state(const struct view_job *j, int i, const char *expected)
{
    struct strbuf out;

    strbuf_init(&out);
    view_describe_rank(j, &j->ranks[i], &out);
    CHECK_STR(out.text, expected);
    strbuf_release(&out);
}

TEST(the_late_rank_is_named_with_its_line)
{
    struct strbuf first, second;
    struct view before, v;

    strbuf_init(&first);
    strbuf_init(&second);
    put_waiting(&first, 3, 1, 10000000, 1000000);
    put_waiting(&second, 3, 1, 11000000, 1500000);
    take(&before, NULL, &first);
    take(&v, &before, &second);
    CHECK_EQ(v.count, 1);
    CHECK_EQ(v.jobs[0].size, 3);
    CHECK_EQ(v.jobs[0].slowest, 1);
    CHECK(v.jobs[0].slowest_s > 0.9 && v.jobs[0].slowest_s < 1.1);
    CHECK(v.jobs[0].ranks[0].ops_s > 999 && v.jobs[0].ranks[0].ops_s < 1001);
    CHECK(v.jobs[0].ranks[0].cpu > 0.49 && v.jobs[0].ranks[0].cpu < 0.51);
    CHECK(v.jobs[0].ranks[0].waiting > 0.99);   /* half a second counted, and half now */
    CHECK(v.jobs[0].ranks[1].waiting < 0.01);
    CHECK_EQ(v.jobs[0].wait_count, 1);
    CHECK_EQ(v.jobs[0].waits[0].wait_count, 2);
    CHECK_EQ(v.jobs[0].waits[0].missing_count, 1);
    check_state(&v.jobs[0], 0, "in allreduce.grad, waits for rank 1");
    check_state(&v.jobs[0], 1, "File \"train.py\", line 8 in load");
    view_release(&v);
    view_release(&before);
    strbuf_release(&first);
    strbuf_release(&second);
}

TEST(nobody_is_slow_where_nobody_waits)
{
    struct strbuf out;
    struct view before, v;

    strbuf_init(&out);
    for (int i = 0; i < 2; i++) {
        struct look_rank r = rank_of(i, 2, 5000000);

        put_look_rank(&out, &r);
    }
    take(&before, NULL, &out);
    take(&v, &before, &out);
    CHECK_EQ(v.jobs[0].slowest, -1);
    CHECK_EQ(v.jobs[0].wait_count, 0);
    check_state(&v.jobs[0], 0, "in no operation");
    view_release(&v);
    view_release(&before);
    strbuf_release(&out);
}

static void put_launcher(struct strbuf *out)
{
    put_look_job(out, &(struct look_job){.job = "abc123", .state = "running", .pid = 50,
                                         .np = 3, .command = "python train.py",
                                         .now_us = 2000000, .since_us = 1000000});
    for (int i = 0; i < 3; i++) {
        struct look_process p = {.rank = i, .pid = 100 + (uint32_t)i, .is_started = 1,
                                 .host = "localhost"};

        if (i == 2) {
            p.is_ended = 1;
            p.code = 137;
            p.signal = 9;
        }
        put_look_process(out, &p);
    }
    put_look_host(out, &(struct look_host){"localhost", "ready", 0, 1});
    put_look_process(out, &(struct look_process){.rank = 1, .pid = 101, .is_started = 1,
                                                 .state = 'T', .rss_bytes = 77});
}

TEST(a_launcher_knows_the_dead_and_the_stopped)
{
    struct look_rank r = rank_of(0, 3, 1000);
    struct strbuf out;
    struct view v;

    strbuf_init(&out);
    put_launcher(&out);
    put_look_rank(&out, &r);
    take(&v, NULL, &out);
    CHECK_EQ(v.count, 1);
    CHECK_EQ(v.jobs[0].rank_count, 3);
    CHECK(v.jobs[0].ranks[0].has_look);
    CHECK_STR(v.jobs[0].ranks[0].host, "localhost");
    check_state(&v.jobs[0], 1, "stopped (SIGSTOP or a debugger)");
    CHECK_EQ(v.jobs[0].ranks[1].process.rss_bytes, 77u);
    check_state(&v.jobs[0], 2, "ended by SIGKILL");
    view_release(&v);
    strbuf_release(&out);
}

TEST(a_worker_is_not_shown_twice)
{
    struct look_rank r = rank_of(0, 3, 1000), other = rank_of(0, 1, 1000);
    struct strbuf out, direct;
    struct view v;

    strbuf_init(&out);
    strbuf_init(&direct);
    put_launcher(&out);
    put_look_rank(&out, &r);
    snprintf(other.job, sizeof other.job, "torchrun");
    put_look_rank(&direct, &r);
    put_look_rank(&direct, &other);
    view_init(&v, 0);
    CHECK_OK(view_add(&v, out.text, out.length, &err), err);
    CHECK_OK(view_add(&v, direct.text, direct.length, &err), err);
    view_finish(&v, NULL);
    CHECK_EQ(v.count, 2);
    CHECK_EQ(v.jobs[0].rank_count, 3);
    CHECK_EQ(v.jobs[1].rank_count, 1);
    CHECK(!v.jobs[1].has_launcher);
    view_keep(&v, "torch");
    CHECK_EQ(v.count, 1);
    CHECK_STR(v.jobs[0].id, "torchrun");
    view_keep(&v, "50");
    CHECK_EQ(v.count, 0);
    view_release(&v);
    strbuf_release(&out);
    strbuf_release(&direct);
}

TEST(an_answer_that_is_cut_off_is_an_error)
{
    struct strbuf out;
    struct view v;

    strbuf_init(&out);
    put_launcher(&out);
    view_init(&v, 0);
    CHECK_EQ(view_add(&v, out.text, out.length - 1, &err), HVD_PROTO);
    view_finish(&v, NULL);
    view_release(&v);
    strbuf_release(&out);
}
