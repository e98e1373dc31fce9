/*
 * test_scale.c: large jobs on a modelled network (support/model_net.h): real engines and
 * collectives in virtual time.  Results are right on layouts of all kinds, and what a step
 * costs grows as it should.
 */
#include "check.h"
#include "collective/collective.h"
#include "support/model_watch.h"

#include <stdlib.h>

static struct config conf;

static void read_config(void)
{
    struct hvd_error err;

    CHECK_OK(config_read(&conf, &err), err);
}

/* How large the jobs are: memory and time grow with the ranks; HVD_HOSTS gives more. */
static int most_hosts(void)
{
    const char *given = getenv("HVD_HOSTS");

    return given != NULL ? atoi(given) : 64;
}

/* The cost of the third allreduce of one name: cached. */
static struct model_cost cached_step(int size, int per_host, const char *net, enum hvd_op op,
                                     uint64_t bytes, bool phantom)
{
    struct model_options opt = {.kind = model_kind_of(net), .size = size,
                                .per_host = per_host, .phantom = phantom};
    struct model_step step = {.op = op, .bytes = bytes, .name = "step"};
    struct model_job *job = model_job_new(&opt, &conf);
    struct model_cost cost;

    for (int i = 0; i < 3; i++)
        model_job_step(job, &step, &cost);
    model_job_free(job);
    return cost;
}

TEST(sums_are_right_on_every_layout)
{
    static const struct { int size, per_host; } layouts[] = {
        {2, 1}, {3, 2}, {8, 8}, {12, 3}, {9, 1}, {23, 2}, {35, 3}, {33, 1},
    };
    static const uint64_t bytes[] = {4, 1200, 40000};

    read_config();
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        for (size_t k = 0; k < sizeof bytes / sizeof bytes[0]; k++)
            cached_step(layouts[i].size, layouts[i].per_host, "10gbe", HVD_ALLREDUCE, bytes[k],
                        false);
    config_release(&conf);
}

/* Small parts and large ones: other algorithms on more than 8 hosts. */
TEST(parts_are_right_on_every_layout, .limit_s = 120)
{
    static const struct { int size, per_host; } layouts[] = {{5, 2}, {9, 1}, {16, 1}, {23, 2},
                                                             {27, 3}, {40, 4}};
    static const uint64_t parts[] = {4, 240, 4400};

    read_config();
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) {
            int size = layouts[i].size, per_host = layouts[i].per_host;
            uint64_t bytes = parts[k] * (uint64_t)size;

            cached_step(size, per_host, "10gbe", HVD_ALLTOALL, bytes, false);
            cached_step(size, per_host, "10gbe", HVD_REDUCESCATTER, bytes + 4, false);
        }
    config_release(&conf);
}

/* Two hosts: one message up, one down; small ones meet half way. */
TEST(few_hosts_need_two_messages)
{
    struct model_cost cost;

    read_config();
    for (int hosts = 2; hosts <= 4; hosts += 2) {
        cost = cached_step(8 * hosts, 8, "10gbe", HVD_ALLREDUCE, 1 << 20, true);
        CHECK_EQ(cost.posts, 2 * (hosts - 1));
        cost = cached_step(8 * hosts, 8, "10gbe", HVD_ALLREDUCE, 4, true);
        CHECK_EQ(cost.messages, hosts * (hosts - 1));
    }
    config_release(&conf);
}

/* Up to the fan-out the coordinator talks to every leader; beyond, to so many and no more. */
TEST(the_tree_bounds_what_anybody_says)
{
    uint64_t before = 0;

    read_config();
    for (int hosts = 32; hosts <= most_hosts(); hosts *= 2) {
        struct model_cost cost = cached_step(2 * hosts, 2, "10gbe", HVD_ALLREDUCE, 1 << 20, true);

        CHECK(cost.posts <= 2 * 16 + 2);
        CHECK(before == 0 || cost.time_ns < before + before / 2);
        before = cost.time_ns;
    }
    conf.tree_fanout = 2;
    CHECK(cached_step(64, 2, "10gbe", HVD_ALLREDUCE, 1 << 20, true).posts <= 6);
    config_release(&conf);
}

/* Nobody meets more than the leaders of the tree and a partner for each round. */
TEST(messages_and_peers_grow_with_the_logarithm, .limit_s = 120)
{
    static const struct { enum hvd_op op; uint64_t bytes; } rows[] = {
        {HVD_ALLREDUCE, 4}, {HVD_ALLREDUCE, 1 << 20}, {HVD_BROADCAST, 1 << 10},
        {HVD_BARRIER, 0}, {HVD_ALLGATHER, 64}, {HVD_ALLTOALL, 1 << 10},
        {HVD_REDUCESCATTER, 1 << 10}, {HVD_REDUCESCATTER, 1 << 20},
    };

    read_config();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int hosts = 32; hosts <= most_hosts(); hosts *= 2) {
            int log = 31 - __builtin_clz((unsigned)hosts);
            struct model_cost cost = cached_step(2 * hosts, 2, "cloud", rows[i].op,
                                                 rows[i].bytes, true);

            CHECK(cost.busiest_messages <= (uint64_t)(2 * 17 + 4 * log + 4));
            CHECK(cost.peers <= 17 + 2 * log + 4);
        }
    config_release(&conf);
}

/* Forming: the neighbours of the overlay.  A death: a message's time for each step of it. */
TEST(init_and_deaths_grow_with_the_logarithm, .limit_s = 120)
{
    for (int hosts = 2; hosts <= 2048; hosts *= 4) {
        struct model_options opt = {.kind = model_kind_of("10gbe"), .size = 2 * hosts,
                                    .per_host = 2};
        uint64_t hop_ns = opt.kind->latency_ns + 2 * opt.kind->message_ns;
        int log = 31 - __builtin_clz((unsigned)hosts);
        struct model_cost cost;

        model_init_cost(&opt, &cost);
        CHECK(cost.peers <= log + 1);
        CHECK(cost.busiest_messages <= (uint64_t)(3 * (log + 2) + 2));
        model_death_cost(&opt, &cost);
        CHECK(cost.time_ns <= (uint64_t)(log + 1) * hop_ns);
    }
}

/* Twice the hosts: a step more, not twice the time; and never far from what the model allows. */
TEST(time_grows_with_the_logarithm, .limit_s = 120)
{
    static const uint64_t bytes[] = {4, 1 << 20, 16 << 20};
    static const double most[] = {10, 4, 3};

    read_config();
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++)
        for (int hosts = 8; hosts <= most_hosts(); hosts *= 4) {
            struct model_options opt = {.kind = model_kind_of("10gbe"), .size = 2 * hosts,
                                        .per_host = 2, .phantom = true};
            struct model_cost cost = cached_step(2 * hosts, 2, "10gbe", HVD_ALLREDUCE, bytes[i],
                                                 true);
            double bound = (double)model_allreduce_bound_ns(&opt, bytes[i]);

            if ((double)cost.time_ns > most[i] * bound)
                check_fail(__FILE__, __LINE__, "%d hosts, %llu bytes: %.1f us, bound %.1f us",
                           hosts, (unsigned long long)bytes[i], (double)cost.time_ns / 1e3,
                           bound / 1e3);
        }
    config_release(&conf);
}

/* Whatever algorithm, the same bits: sums that depend on their order tell. */
static void compare_rules(const char *const *rules, size_t count, enum hvd_op op, uint64_t bytes,
                          int size, int per_host)
{
    uint64_t first = 0;
    struct hvd_error err;

    for (size_t k = 0; k < count; k++) {
        struct model_options opt = {.kind = model_kind_of("10gbe"), .size = size,
                                    .per_host = per_host, .rough = true};
        struct model_step step = {.op = op, .bytes = bytes, .name = "x"};
        struct model_cost cost;
        struct model_job *job;

        CHECK_OK(coll_set_rules(rules[k], &err), err);
        job = model_job_new(&opt, &conf);
        for (int turn = 0; turn < 3; turn++)    /* in full, and cached: small ones eager */
            model_job_step(job, &step, &cost);
        model_job_free(job);
        CHECK(first == 0 || cost.sum == first);
        first = cost.sum;
    }
    CHECK_OK(coll_set_rules("", &err), err);
}

TEST(every_algorithm_adds_in_the_same_order, .limit_s = 120)
{
    static const char *const scatters[] = {"reducescatter 0-inf whole",
                                           "reducescatter 0-inf pairwise"};
    static const char *const rules[] = {"allreduce 0-inf hier, 0-inf gather",
                                        "allreduce 0-inf hier, 0-inf pairwise",
                                        "allreduce 0-inf hier, 0-inf doubling",
                                        "allreduce 0-inf hier, 0-inf halving",
                                        "allreduce 0-inf gather", "allreduce 0-inf pairwise"};
    static const struct { int size, per_host; } layouts[] = {{9, 1}, {16, 1}, {23, 1}, {27, 3},
                                                             {38, 3}};

    read_config();
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        for (uint64_t bytes = 4; bytes <= 70000; bytes = bytes * 20 + 4) {
            compare_rules(rules, sizeof rules / sizeof rules[0], HVD_ALLREDUCE, bytes,
                          layouts[i].size, layouts[i].per_host);
            compare_rules(scatters, 2, HVD_REDUCESCATTER, bytes * 20, layouts[i].size,
                          layouts[i].per_host);
        }
    config_release(&conf);
}

/* The same job twice: the same costs, to the nanosecond. */
TEST(virtual_time_is_deterministic)
{
    struct model_cost a, b;

    read_config();
    a = cached_step(72, 8, "cloud", HVD_ALLREDUCE, 100000, true);
    b = cached_step(72, 8, "cloud", HVD_ALLREDUCE, 100000, true);
    CHECK_EQ(a.time_ns, b.time_ns);
    CHECK_EQ(a.messages, b.messages);
    config_release(&conf);
}
