/* test_node.c: --rendezvous and its key file. */
#include "launch/node.h"

#include "check.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static struct hvd_error err;

TEST(places)
{
    char host[HVD_HOST_MAX];
    int port;

    CHECK_OK(node_parse_place("node1:29400", host, &port, &err), err);
    CHECK_STR(host, "node1");
    CHECK_EQ(port, 29400);
    CHECK_OK(node_parse_place("[fd00::1]:1", host, &port, &err), err);
    CHECK_STR(host, "fd00::1");
    CHECK_EQ((int)node_parse_place("node1", host, &port, &err), (int)HVD_INVALID);
    CHECK_EQ((int)node_parse_place("node1:0", host, &port, &err), (int)HVD_INVALID);
    CHECK_EQ((int)node_parse_place("node1:65536", host, &port, &err), (int)HVD_INVALID);
    CHECK_EQ((int)node_parse_place(":1", host, &port, &err), (int)HVD_INVALID);
    CHECK_EQ((int)node_parse_place("-x:1", host, &port, &err), (int)HVD_INVALID);
    CHECK_EQ((int)node_parse_place("a:1x", host, &port, &err), (int)HVD_INVALID);
}

static enum hvd_status read_key(const char *text, mode_t mode, uint8_t *key)
{
    char path[] = "/tmp/test-key-XXXXXX";
    int fd = mkstemp(path);
    enum hvd_status status;

    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text) && fchmod(fd, mode) == 0);
    close(fd);
    status = node_read_key(path, key, &err);
    unlink(path);
    return status;
}

TEST(keys)
{
    const char *hex = "000102030405060708090a0b0c0d0e0fF0F1F2F3F4F5F6F7F8F9FAFBFCFDFEFF\n";
    uint8_t key[HVD_KEY_BYTES];

    CHECK_OK(read_key(hex, 0600, key), err);
    CHECK_EQ((int)key[1], 1);
    CHECK_EQ((int)key[31], 255);
    CHECK_EQ((int)read_key(hex, 0640, key), (int)HVD_INVALID);
    CHECK_HAS(err.text, "chmod 600");
    CHECK_EQ((int)read_key("0001", 0600, key), (int)HVD_INVALID);
    CHECK_EQ((int)read_key("", 0600, key), (int)HVD_INVALID);
    CHECK_EQ((int)node_read_key("/nonexistent", key, &err), (int)HVD_SYS);
}
