/* test_hosts.c: host strings and hostfiles, which are hostile text. */
#include "base/clock.h"
#include "base/strbuf.h"
#include "launch/hosts.h"

#include "check.h"

#include <stdlib.h>
#include <unistd.h>

static struct hvd_error err;

static const char *refused(const char *text)
{
    struct host_list list;

    err.text[0] = '\0';
    CHECK_EQ((int)hosts_parse(text, &list, &err), (int)HVD_INVALID);
    hosts_release(&list);
    CHECK_HAS(err.text, "Invalid host input");
    return err.text;
}

static const char *refused_file(const char *text)
{
    struct host_list list;

    CHECK_EQ((int)hosts_parse_lines(text, strlen(text), "hosts.txt", &list, &err),
             (int)HVD_INVALID);
    hosts_release(&list);
    return err.text;
}

TEST(a_list_keeps_its_order)
{
    struct host_list list;

    CHECK_OK(hosts_parse("a:2, b-1.example_x:3 ,10.0.0.1:1", &list, &err), err);
    CHECK_EQ(list.count, 3);
    CHECK_STR(list.items[0].name, "a");
    CHECK_STR(list.items[1].name, "b-1.example_x");
    CHECK_EQ(list.items[1].slots, 3);
    CHECK_STR(list.items[2].name, "10.0.0.1");
    CHECK_EQ(hosts_slot_count(&list), 6);
    hosts_release(&list);
}

TEST(names_are_not_canonicalised)
{
    struct host_list list;

    CHECK_OK(hosts_parse("localhost:2,127.0.0.1:2", &list, &err), err);
    CHECK_EQ(list.count, 2);
    hosts_release(&list);
}

TEST(a_name_that_comes_again_adds_its_slots)
{
    struct host_list list;

    CHECK_OK(hosts_parse("a:2,b:1,a:3", &list, &err), err);
    CHECK_EQ(list.count, 2);
    CHECK_EQ(list.items[0].slots, 5);
    hosts_release(&list);
}

TEST(ipv6_addresses_stand_in_brackets)
{
    struct host_list list;

    CHECK_OK(hosts_parse("[::1]:2,[fd00::2%eth0]:1", &list, &err), err);
    CHECK_STR(list.items[0].name, "::1");
    CHECK_STR(list.items[1].name, "fd00::2%eth0");
    hosts_release(&list);
    refused("::1:2");
    refused("[::1]");
    refused("[::1:2");
}

TEST(what_is_no_host_is_refused)
{
    static const char *const bad[] = {
        "", "localhost", "a:", ":2", "a:0", "a:x", "a:-1", "a:99999999999", "a b:2",
        "a;touch x:1", "$(touch x):1", "-oProxyCommand=x:1", "-x:1", "a:1,", ",a:1",
        "a\nb:1", "a:1 2", "\x1b[2J:1", "a/b:1"};
    char name[400];

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refused(bad[i]);
    memset(name, 'a', sizeof name);
    snprintf(name + 300, 8, ":1");
    refused(name);
}

TEST(the_error_is_safe_in_a_terminal)
{
    CHECK(strchr(refused("\x1b]0;x\x07:1"), '\x1b') == NULL);
}

TEST(a_hostfile_has_comments_blanks_and_other_keys)
{
    const char *text = "# cluster\n\nnode1 slots=4\n  node2   slots = 2 max_slots=8 # x\r\n"
                       "node3\n[fd00::1] slots=2\nnode1 slots=1";
    struct host_list list;

    CHECK_OK(hosts_parse_lines(text, strlen(text), "f", &list, &err), err);
    CHECK_EQ(list.count, 4);
    CHECK_EQ(list.items[0].slots, 5);
    CHECK_EQ(list.items[1].slots, 2);
    CHECK_EQ(list.items[2].slots, 1);
    CHECK_STR(list.items[3].name, "fd00::1");
    hosts_release(&list);
}

TEST(a_line_may_be_written_as_in_a_host_string)
{
    const char *text = "localhost:2\n[fd00::1]:3 # x\nfd00::2\nnode1:1 max_slots=4\n";
    struct host_list list;

    CHECK_OK(hosts_parse_lines(text, strlen(text), "f", &list, &err), err);
    CHECK_EQ(list.count, 4);
    CHECK_STR(list.items[0].name, "localhost");
    CHECK_EQ(list.items[0].slots, 2);
    CHECK_STR(list.items[1].name, "fd00::1");
    CHECK_EQ(list.items[1].slots, 3);
    CHECK_STR(list.items[2].name, "fd00::2");
    CHECK_EQ(list.items[2].slots, 1);
    hosts_release(&list);
    CHECK_HAS(refused_file("localhost:x\n"), "slots must be a number");
    CHECK_HAS(refused_file("localhost:\n"), "slots must be a number");
    CHECK_HAS(refused_file("localhost:2 slots=3\n"), "given twice");
}

TEST(a_bad_line_is_named)
{
    CHECK_HAS(refused_file("a slots=1\nb slots=x\n"), "hosts.txt line 2");
    CHECK_HAS(refused_file("-oProxyCommand=touch_x slots=1\n"), "line 1");
    CHECK_HAS(refused_file("a b c\n"), "line 1");
    CHECK_HAS(refused_file("a;b slots=1\n"), "line 1");
    CHECK_HAS(refused_file("# nothing\n"), "names no host");
    CHECK_HAS(refused_file(""), "names no host");
}

TEST(a_million_hosts_are_refused_quickly)
{
    uint64_t start = clock_us();
    struct host_list list;
    struct strbuf text;

    strbuf_init(&text);
    for (int i = 0; i < 1000000; i++)
        strbuf_addf(&text, "h%d slots=1\n", i);
    CHECK_EQ((int)hosts_parse_lines(text.text, text.length, "f", &list, &err),
             (int)HVD_INVALID);
    CHECK_HAS(err.text, "65536");
    hosts_release(&list);
    strbuf_release(&text);
    CHECK(clock_us() - start < 20 * 1000 * 1000);
}

TEST(a_line_of_a_megabyte_is_refused)
{
    char *text = malloc(1 << 20);
    struct host_list list;

    memset(text, 'x', 1 << 20);
    CHECK_EQ((int)hosts_parse_lines(text, 1 << 20, "f", &list, &err), (int)HVD_INVALID);
    hosts_release(&list);
    free(text);
}

TEST(a_file_that_is_missing_or_none_is_refused)
{
    struct host_list list;

    CHECK_EQ((int)hosts_read_file("/nonexistent/hosts", &list, &err), (int)HVD_SYS);
    CHECK_HAS(err.text, "/nonexistent/hosts");
    CHECK_EQ((int)hosts_read_file("/dev/zero", &list, &err), (int)HVD_INVALID);
    hosts_release(&list);
}
