/* test_agent_wire.c: frames between launcher and agent survive the way, and only whole
 * ones are taken. */
#include "launch/agent_wire.h"

#include "check.h"

#include <stdlib.h>

static struct hvd_error err;

static void get(const struct strbuf *buf, unsigned want, const char **body_p,
                size_t *bytes_p)
{
    unsigned type;
    size_t used;

    CHECK_OK(agent_get_frame(buf->text, buf->length, &type, body_p, bytes_p, &used, &err),
             err);
    CHECK_EQ(type, want);
    CHECK_EQ(used, buf->length);
}

TEST(a_start_arrives_byte_for_byte)
{
    const char *args[] = {"a b", "$(x)`;*", "", "\xff\xfe\n\t", "'\"\\"};
    const char *env[] = {"A=1", "B.C=\n=\xff"};
    struct agent_start in = {.rank = 3, .place = 1, .places = 2, .input = 1, .env = env,
                             .env_count = 2, .args = args, .arg_count = 5}, out;
    const char *body;
    struct strbuf buf;
    size_t bytes;

    strbuf_init(&buf);
    agent_put_start(&buf, &in);
    get(&buf, AGENT_START, &body, &bytes);
    CHECK_OK(agent_get_start(body, bytes, &out, &err), err);
    CHECK_EQ(out.rank, 3u);
    CHECK_EQ(out.places, 2u);
    CHECK_EQ(out.arg_count, 5u);
    for (int i = 0; i < 5; i++)
        CHECK_STR(out.args[i], args[i]);
    CHECK_STR(out.env[1], env[1]);
    CHECK(out.args[5] == NULL);
    agent_start_release(&out);
    strbuf_release(&buf);
}

TEST(a_job_arrives_byte_for_byte)
{
    const char *env[] = {"PATH=/bin", "X="};
    uint8_t key[HVD_KEY_BYTES];
    struct agent_job in = {.key = key, .directory = "/tmp/a b", .heartbeat_ms = 4000,
                           .leave_ms = 25000, .bind = 1,
                           .addrs = "10.0.0.1,fd00::1", .port = 77, .env = env,
                           .env_count = 2}, out;
    const char *body;
    struct strbuf buf;
    size_t bytes;

    for (int i = 0; i < HVD_KEY_BYTES; i++)
        key[i] = (uint8_t)(i * 7);
    strbuf_init(&buf);
    agent_put_job(&buf, &in);
    get(&buf, AGENT_JOB, &body, &bytes);
    CHECK_OK(agent_get_job(body, bytes, &out, &err), err);
    CHECK(memcmp(out.key, key, HVD_KEY_BYTES) == 0);
    CHECK_STR(out.directory, in.directory);
    CHECK_STR(out.addrs, in.addrs);
    CHECK_EQ(out.port, 77u);
    CHECK_EQ(out.leave_ms, 25000u);
    CHECK_STR(out.env[1], "X=");
    agent_job_release(&out);
    strbuf_release(&buf);
}

TEST(every_cut_of_a_frame_is_incomplete_or_refused)
{
    const char *args[] = {"true"};
    struct agent_start in = {.places = 1, .args = args, .arg_count = 1}, out;
    const char *body;
    struct strbuf buf;
    unsigned type;
    size_t bytes, used;

    strbuf_init(&buf);
    agent_put_start(&buf, &in);
    for (size_t n = 0; n < buf.length; n++)
        CHECK_EQ((int)agent_get_frame(buf.text, n, &type, &body, &bytes, &used, &err),
                 (int)HVD_AGAIN);
    for (size_t n = 0; n < buf.length - AGENT_HEADER; n++) {
        char *exact = malloc(n + 1);    /* so that a sanitizer sees a byte too far */

        memcpy(exact, buf.text + AGENT_HEADER, n);
        CHECK_EQ((int)agent_get_start(exact, n, &out, &err), (int)HVD_PROTO);
        agent_start_release(&out);
        free(exact);
    }
    strbuf_release(&buf);
}

TEST(lengths_and_types_are_bounded)
{
    const char *body;
    unsigned type;
    size_t bytes, used;

    CHECK_EQ((int)agent_get_frame("\xff\xff\xff\xff\x01", 5, &type, &body, &bytes, &used,
                                  &err), (int)HVD_PROTO);
    CHECK_EQ((int)agent_get_frame("\0\0\0\0\x01", 5, &type, &body, &bytes, &used, &err),
             (int)HVD_PROTO);
    CHECK_EQ((int)agent_get_frame("\1\0\0\0\x63", 5, &type, &body, &bytes, &used, &err),
             (int)HVD_PROTO);
    CHECK_EQ((int)agent_get_frame("\1\0\0\0\0", 5, &type, &body, &bytes, &used, &err),
             (int)HVD_PROTO);
}

TEST(a_list_cannot_claim_more_than_there_is)
{
    struct agent_start out;
    const char body[] = "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\xff\xff\xff\x0f";

    CHECK_EQ((int)agent_get_start(body, sizeof body - 1, &out, &err), (int)HVD_PROTO);
    agent_start_release(&out);
}
