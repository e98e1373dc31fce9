/* test_strbuf.c: growth, lists of ranks, and JSON that every parser accepts. */
#include "base/strbuf.h"

#include "check.h"

TEST(starts_empty_and_can_be_released_twice)
{
    struct strbuf buf;

    strbuf_init(&buf);
    CHECK_STR(buf.text, "");
    strbuf_clear(&buf);
    strbuf_release(&buf);
    strbuf_release(&buf);
    CHECK_STR(buf.text, "");
}

TEST(grows_and_ends_with_zero)
{
    struct strbuf buf;

    strbuf_init(&buf);
    for (int i = 0; i < 1000; i++)
        strbuf_addf(&buf, "%03d ", i);
    CHECK_EQ(buf.length, (size_t)4000);
    CHECK_EQ(strlen(buf.text), buf.length);
    CHECK(strncmp(buf.text + 4 * 567, "567 ", 4) == 0);
    CHECK(!buf.failed);
    strbuf_clear(&buf);
    CHECK_STR(buf.text, "");
    strbuf_add(&buf, "abc", 2);
    CHECK_STR(buf.text, "ab");
    strbuf_release(&buf);
}

static void check_ranks(const char *members, const char *expected)
{
    bool member[32] = {false};
    struct strbuf buf;
    int count = (int)strlen(members);

    for (int i = 0; i < count; i++)
        member[i] = members[i] == 'x';
    strbuf_init(&buf);
    strbuf_add_ranks(&buf, member, count);
    CHECK_STR(buf.text, expected);
    strbuf_release(&buf);
}

TEST(ranks_are_joined_to_ranges)
{
    check_ranks("x.xxxx.x", "0, 2-5, 7");
    check_ranks("xxxx", "0-3");
    check_ranks("....", "");
    check_ranks("", "");
    check_ranks("...x", "3");
    check_ranks("xx.", "0-1");
}

static void check_json(const char *text, const char *expected)
{
    struct strbuf buf;

    strbuf_init(&buf);
    strbuf_add_json(&buf, text);
    CHECK_STR(buf.text, expected);
    strbuf_release(&buf);
}

TEST(json_escapes_what_json_demands)
{
    check_json("grad/7", "\"grad/7\"");
    check_json("", "\"\"");
    check_json("a\"b\\c", "\"a\\\"b\\\\c\"");
    check_json("a\nb\tc\x01\x7f", "\"a\\u000ab\\u0009c\\u0001\\u007f\"");
}

TEST(json_keeps_whole_utf8)
{
    check_json("gr\xc3\xb6\xc3\x9f" "e", "\"gr\xc3\xb6\xc3\x9f" "e\"");
    check_json("\xe2\x82\xac \xf0\x9f\x90\xb4", "\"\xe2\x82\xac \xf0\x9f\x90\xb4\"");
}

/* Stray bytes, cut sequences, overlong forms, surrogates, beyond U+10FFFF. */
TEST(json_escapes_bytes_that_are_not_utf8)
{
    check_json("\xff", "\"\\u00ff\"");
    check_json("a\xc3", "\"a\\u00c3\"");
    check_json("\xe2\x82", "\"\\u00e2\\u0082\"");
    check_json("\xc0\xaf", "\"\\u00c0\\u00af\"");
    check_json("\xe0\x80\x80", "\"\\u00e0\\u0080\\u0080\"");
    check_json("\xed\xa0\x80", "\"\\u00ed\\u00a0\\u0080\"");
    check_json("\xf4\x90\x80\x80", "\"\\u00f4\\u0090\\u0080\\u0080\"");
}
