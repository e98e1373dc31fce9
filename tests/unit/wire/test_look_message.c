/* test_look_message.c: what a job tells a viewer, as bytes. */
#include "check.h"

#include "golden.h"
#include "wire/look_message.h"

#include <stdlib.h>

static struct hvd_error err;
static struct look_record records[2] = {
    {.us = 900, .bytes = 4000, .event = 0, .op = 0, .status = 0, .set = 0, .name = "grad"},
    {.us = 950, .bytes = 4000, .event = 2, .op = 0, .status = 0, .set = -1, .name = "grad"}};

static struct look_rank sample(void)
{
    struct look_rank r = {
        .job = "0123abcd", .host = "node1", .rank = 3, .size = 8, .local_rank = 1,
        .pid = 4711, .generation = 2, .phase = LOOK_PHASE_RUNNING, .now_us = 1000,
        .wall_us = 1763246883000000, .phase_us = 10, .open = 2, .op = HVD_ALLREDUCE,
        .name = "allreduce.grad", .since_us = 800, .text = "train.py:8 in load", .sent = 1,
        .received = 2, .cpu_us = 3, .rss_bytes = 4, .peak_bytes = 5, .stalls = 6,
        .cache_hits = 7, .cache_misses = 8, .slept_us = 9, .kind_count = 2, .wait_count = 1,
        .peer_count = 1, .warning_count = 1, .record_count = 2, .records = records};

    r.kinds[0] = (struct look_kind){10, 20, 0, 5, 5000};
    r.kinds[1] = (struct look_kind){1, 2, 3, 4, 5};
    r.waits[0] = (struct look_wait){.op = HVD_ALLREDUCE, .name = "allreduce.grad",
                                    .since_us = 800, .missing_count = 2, .missing = {1, 5}};
    r.peers[0] = (struct look_peer){1, 2, 3, 4, 5};
    r.warnings[0] = (struct look_warning){.wall_us = 7, .level = 3, .text = "late"};
    return r;
}

static const char *body_of(const struct strbuf *out, enum look_frame expected, size_t *n_p)
{
    enum look_frame kind;
    const char *body;
    size_t used;

    CHECK_OK(get_look_frame(out->text, out->length, &kind, &body, n_p, &used, &err), err);
    CHECK_EQ(kind, expected);
    return body;
}

TEST(a_question_comes_back_as_it_was)
{
    struct look_question q = {LOOK_WITH_RECORDS | LOOK_WITH_PLACE, 5000}, back;
    uint8_t bytes[LOOK_QUESTION_BYTES];

    put_look_question(&q, bytes);
    check_golden("look_question.1.bin", bytes, sizeof bytes);
    CHECK_OK(get_look_question(&back, bytes, &err), err);
    CHECK_EQ(back.what, q.what);
    CHECK_EQ(back.recent_ms, 5000u);
    bytes[7]++;
    CHECK_EQ(get_look_question(&back, bytes, &err), HVD_PROTO);
}

TEST(golden_answer)
{
    struct look_rank r = sample(), back;
    struct strbuf out;
    const char *body;
    size_t n;

    strbuf_init(&out);
    put_look_rank(&out, &r);
    body = body_of(&out, LOOK_RANK, &n);
    CHECK_OK(get_look_rank(&back, body, n, &err), err);
    CHECK_STR(back.job, "0123abcd");
    CHECK_EQ(back.rank, 3);
    CHECK_EQ(back.waits[0].missing[1], 5);
    CHECK_EQ(back.peers[0].late_us, 5u);
    CHECK_EQ(back.kinds[1].time_ns, 5u);
    CHECK_STR(back.warnings[0].text, "late");
    CHECK_EQ(back.record_count, 2u);
    CHECK_EQ(back.records[1].set, -1);
    CHECK_STR(back.records[1].name, "grad");
    look_rank_release(&back);
    put_look_process(&out, &(struct look_process){.rank = 1, .pid = 5, .is_started = 1,
                                                  .is_ended = 1, .state = 'Z', .code = 137,
                                                  .signal = 9, .rss_bytes = 6, .host = "a",
                                                  .text = "killed"});
    put_look_host(&out, &(struct look_host){"node1", "ready", -250, 1});
    put_look_job(&out, &(struct look_job){"0123abcd", "running", "python train.py", "node1",
                                          1, 8, 2, 0, 3, 4, 5});
    CHECK_EQ(look_is_whole(out.text, out.length, &err), HVD_AGAIN);
    put_look_end(&out);
    CHECK_OK(look_is_whole(out.text, out.length, &err), err);
    check_golden("look_answer.1.bin", (const uint8_t *)out.text, out.length);
    strbuf_release(&out);
}

TEST(every_cut_is_noticed)
{
    struct look_rank r = sample(), back;
    struct strbuf out;
    const char *body;
    size_t n;

    strbuf_init(&out);
    put_look_rank(&out, &r);
    body = body_of(&out, LOOK_RANK, &n);
    for (size_t i = 0; i < n; i++) {
        char *copy = malloc(i + 1);     /* so that ASan sees a byte too much */

        memcpy(copy, body, i);
        CHECK_EQ(get_look_rank(&back, copy, i, &err), HVD_PROTO);
        free(copy);
        CHECK_EQ(look_is_whole(out.text, i + LOOK_HEADER - 1, &err), HVD_AGAIN);
    }
    strbuf_release(&out);
}

TEST(texts_are_safe_in_a_terminal)
{
    struct look_host h = {.name = "a\033[2Jb\n", .state = ""}, back;
    struct strbuf out;
    const char *body;
    size_t n;

    strbuf_init(&out);
    put_look_host(&out, &h);
    body = body_of(&out, LOOK_HOST, &n);
    CHECK_OK(get_look_host(&back, body, n, &err), err);
    CHECK_STR(back.name, "a?[2Jb?");
    strbuf_release(&out);
}
