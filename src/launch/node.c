/*
 * node.c: the same command on every node.
 *
 * 1. -np counts all ranks.  Host i of -H (or of node0, node1, ... with equal slots) is node
 *    i; each launcher starts the ranks of its own node.
 * 2. The launcher of node 0 runs the rendezvous server at HOST:PORT.
 * 3. The number of this node: --node-rank, else NODE_RANK, SLURM_NODEID or
 *    JOB_COMPLETION_INDEX, else 0 where HOST is this machine, else 1 of 2.
 * 4. All launchers have the same key, so that nobody else can take part: that of
 *    --key-file, else one derived from the user's own key, which a shared home gives to all.
 */
#include "launch/node.h"

#include "base/secret.h"
#include "launch/nic.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum hvd_status node_parse_place(const char *text, char host[HVD_HOST_MAX], int *port_p,
                                 struct hvd_error *err)
{
    const char *colon = strrchr(text, ':');
    size_t bytes = colon != NULL ? (size_t)(colon - text) : 0;
    char *end = NULL;
    long port = colon != NULL ? strtol(colon + 1, &end, 10) : 0;

    if (bytes > 2 && text[0] == '[' && text[bytes - 1] == ']') {
        text++;
        bytes -= 2;
    }
    if (!host_name_is_valid(text, bytes) || end == NULL || *end != '\0' || port < 1 ||
        port > 65535)
        return error_set(err, HVD_INVALID, -1, "write HOST:PORT, such as node1:29400 or "
                         "[fd00::1]:29400");
    memcpy(host, text, bytes);
    host[bytes] = '\0';
    *port_p = (int)port;
    return HVD_OK;
}

static int digit_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool node_parse_key(const char *text, size_t bytes, uint8_t key[HVD_KEY_BYTES])
{
    while (bytes > 0 && strchr(" \t\r\n", text[bytes - 1]) != NULL)
        bytes--;
    if (bytes != 2 * HVD_KEY_BYTES)
        return false;
    for (int i = 0; i < HVD_KEY_BYTES; i++) {
        int high = digit_value(text[2 * i]), low = digit_value(text[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        key[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

enum hvd_status node_read_key(const char *path, uint8_t key[HVD_KEY_BYTES],
                              struct hvd_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    enum hvd_status status = HVD_OK;
    struct stat info;
    char text[128];
    ssize_t n = -1;

    if (fd < 0 || fstat(fd, &info) != 0) {
        status = error_sys(err, -1, "key file %s", path);
    } else if (!S_ISREG(info.st_mode) || (info.st_mode & 077) != 0 ||
               info.st_uid != geteuid()) {
        status = error_set(err, HVD_INVALID, -1, "key file %s must be a file of yours that "
                           "only you can read (chmod 600)", path);
    } else {
        n = read(fd, text, sizeof text);
        if (n < 0 || !node_parse_key(text, (size_t)n, key))
            status = error_set(err, HVD_INVALID, -1, "key file %s does not hold 64 "
                               "hexadecimal digits (openssl rand -hex 32)", path);
    }
    explicit_bzero(text, sizeof text);
    if (fd >= 0)
        close(fd);
    return status;
}

static int number_of(const char *text)
{
    char *end;
    long value = text != NULL ? strtol(text, &end, 10) : -1;

    return text != NULL && *text != '\0' && *end == '\0' && value >= 0 && value < HOSTS_MAX
               ? (int)value : -1;
}

static int find_rank(const struct settings *s)
{
    static const char *const names[] = {"NODE_RANK", "SLURM_NODEID",
                                        "JOB_COMPLETION_INDEX"};
    int rank = number_of(s->options.values[OPTION_ID_NODE_RANK]);

    for (size_t i = 0; i < 3 && rank < 0; i++)
        rank = number_of(config_foreign(names[i]));
    if (rank < 0 && nic_is_local_host(s->node.host))
        rank = 0;
    return rank < 0 && s->node.count == 2 ? 1 : rank;
}

static enum hvd_status make_hosts(struct settings *s, struct hvd_error *err)
{
    struct strbuf text;
    enum hvd_status status;

    if (s->np % s->node.count != 0)
        return error_set(err, HVD_INVALID, -1, "-np %d is not a multiple of --nnodes %d; "
                         "give the slots of each node with -H", s->np, s->node.count);
    strbuf_init(&text);
    for (int i = 0; i < s->node.count; i++)
        strbuf_addf(&text, "%snode%d:%d", i > 0 ? "," : "", i, s->np / s->node.count);
    status = hosts_parse(text.text, &s->hosts, err);
    strbuf_release(&text);
    return status;
}

/* What the command says on every node. */
static enum hvd_status derive_key(struct settings *s, struct hvd_error *err)
{
    char job[64];

    snprintf(job, sizeof job, "horovodrun %d %d %d", s->node.port, s->node.count, s->np);
    TRY(hvd_key_of_user(job, s->node.count == 1, s->node.key, err));
    return HVD_OK;
}

enum hvd_status node_read(struct settings *s, struct hvd_error *err)
{
    const char *const *given = s->options.values;

    if (given[OPTION_ID_RENDEZVOUS] == NULL)
        return HVD_OK;
    TRY(node_parse_place(given[OPTION_ID_RENDEZVOUS], s->node.host, &s->node.port, err));
    s->node.count = number_of(given[OPTION_ID_NNODES]);
    if (s->node.count < 1)
        return error_set(err, HVD_INVALID, -1, "--rendezvous needs --nnodes N");
    s->node.rank = find_rank(s);
    if (s->node.rank < 0 || s->node.rank >= s->node.count)
        return error_set(err, HVD_INVALID, -1, "this node has no number from 0 to %d: give "
                         "--node-rank", s->node.count - 1);
    if (given[OPTION_ID_HOSTS] == NULL && given[OPTION_ID_HOSTFILE] == NULL) {
        hosts_release(&s->hosts);
        TRY(make_hosts(s, err));
    }
    if (s->hosts.count != s->node.count)
        return error_set(err, HVD_INVALID, -1, "%d hosts, but --nnodes is %d",
                         s->hosts.count, s->node.count);
    s->node.key = secret_new(HVD_KEY_BYTES);
    if (s->node.key == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the job key");
    if (given[OPTION_ID_KEY_FILE] == NULL)
        return derive_key(s, err);
    return node_read_key(given[OPTION_ID_KEY_FILE], s->node.key, err);
}
