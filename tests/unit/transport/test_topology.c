/* test_topology.c: who is where, from a table alone; and which addresses are offered. */
#include "check.h"
#include "transport/transport_int.h"

#include <arpa/inet.h>
#include <netinet/in.h>

static struct table_entry entries[8];

static struct table make(const char *layout)
{
    int n = (int)strlen(layout);

    for (int i = 0; i < n; i++) {
        entries[i] = (struct table_entry){.rank = i, .size = n, .local_rank = -1,
                                          .local_size = -1, .cross_rank = -1,
                                          .cross_size = -1};
        entries[i].machine[15] = (uint8_t)layout[i];
        snprintf(entries[i].host, sizeof entries[i].host, "node-%c", layout[i]);
    }
    return (struct table){1, n, entries};
}

TEST(hosts_are_counted_by_their_lowest_rank)
{
    struct table table = make("babcab");
    struct mesh_topology t;
    struct hvd_error err;

    CHECK_OK(topology_build(&t, &table, 5, &err), err);
    CHECK_EQ(t.host_count, 3);
    CHECK_EQ(t.host_of[0], 0);
    CHECK_EQ(t.host_of[1], 1);
    CHECK_EQ(t.host_of[3], 2);
    CHECK_EQ(t.local_rank, 2);
    CHECK_EQ(t.local_size, 3);
    CHECK_EQ(t.local_ranks[0], 0);
    CHECK_EQ(t.local_ranks[1], 2);
    CHECK_EQ(t.local_ranks[2], 5);
    CHECK_EQ(t.cross_rank, 0);
    CHECK_EQ(t.cross_size, 1);
    CHECK(!t.homogeneous);
    topology_release(&t);
    CHECK_OK(topology_build(&t, &table, 4, &err), err);
    CHECK_EQ(t.local_rank, 1);
    CHECK_EQ(t.cross_rank, 1);
    CHECK_EQ(t.cross_size, 2);
    topology_release(&t);
}

TEST(what_the_launcher_said_must_be_true)
{
    struct table table = make("aabb");
    struct mesh_topology t;
    struct hvd_error err;

    entries[2].local_rank = 0;
    entries[2].local_size = 2;
    entries[2].cross_rank = 1;
    entries[2].cross_size = 2;
    CHECK_OK(topology_build(&t, &table, 2, &err), err);
    CHECK(t.homogeneous);
    topology_release(&t);
    entries[2].local_size = 4;
    CHECK_EQ((int)topology_build(&t, &table, 2, &err), HVD_MISMATCH);
    CHECK_HAS(err.text, "rank 2 on node-b was started with HOROVOD_LOCAL_SIZE 4");
    CHECK_HAS(err.text, "make it 2");
    topology_release(&t);
}

TEST(addresses_can_be_chosen_by_interface)
{
    struct address found[TABLE_ADDRS];
    struct hvd_error err;
    int count;

    CHECK_OK(addresses_find("lo", found, &count, &err), err);
    CHECK(count >= 1);
    CHECK_STR(found[0].text, "127.0.0.1");
    CHECK_EQ((int)addresses_find("none0,none1", found, &count, &err), HVD_INVALID);
    CHECK_HAS(err.text, "HOROVOD_GLOO_IFACE is none0,none1, but this host has");
    CHECK_OK(addresses_find("", found, &count, &err), err);
    for (int i = 0; i < count && count > 1; i++)
        CHECK(strcmp(found[i].text, "127.0.0.1") != 0);
}

TEST(only_numbers_are_dialled)
{
    struct sockaddr_storage to[4];

    CHECK_EQ(addresses_resolve("192.0.2.7", 80, to, 4), 1);
    CHECK_EQ(ntohs(((struct sockaddr_in *)to)->sin_port), 80);
    CHECK_EQ(addresses_resolve("2001:db8::1", 80, to, 4), 1);
    CHECK(addresses_resolve("fe80::1", 80, to, 4) >= 1);
    CHECK(((struct sockaddr_in6 *)to)->sin6_scope_id != 0);
    CHECK_EQ(addresses_resolve("localhost", 80, to, 4), 0);
    CHECK_EQ(addresses_resolve("", 80, to, 4), 0);
    CHECK_EQ(addresses_resolve("1.2.3.4;reboot", 80, to, 4), 0);
}

TEST(a_forced_host_name_makes_another_machine)
{
    struct config a = {.hostname = ""}, b = {.hostname = "one"}, c = {.hostname = "two"};
    uint8_t x[16], y[16], z[16];
    char host[254];

    machine_identify(&a, x, host);
    CHECK(host[0] != 0);
    machine_identify(&b, y, host);
    CHECK_STR(host, "one");
    machine_identify(&c, z, host);
    CHECK(memcmp(x, y, 16) != 0 && memcmp(y, z, 16) != 0);
    CHECK(machine_is_same_kernel(x, z));
    machine_identify(&b, z, host);
    CHECK(memcmp(y, z, 16) == 0);
}
