/* test_select.c: rules that choose algorithms. */
#include "check.h"
#include "collective/collective_int.h"

static struct coll_team team_of(int count, bool direct)
{
    return (struct coll_team){.count = count, .direct = direct, .slot_bytes = 8192};
}

static const char *chosen(const struct coll_team *team, enum coll_op op, size_t bytes)
{
    return select_choose(team, &(struct coll_call){.op = op, .dtype = HVD_U8,
                                                   .count = bytes})->name;
}

static struct coll_team with_rules(const char *rules, int count, bool direct)
{
    struct coll_team team = team_of(count, direct);
    struct hvd_error err;

    CHECK_OK(coll_set_rules(rules, &err), err);
    CHECK_OK(select_apply(&team, &err), err);
    return team;
}

TEST(defaults_follow_size_and_layout)
{
    struct coll_team one = with_rules("", 1, false);
    struct coll_team host = with_rules("", 4, true);
    struct coll_team far = with_rules(NULL, 4, false);
    struct coll_team two = with_rules(NULL, 2, false);

    CHECK_STR(chosen(&one, COLL_ALLREDUCE, 100), "alone");
    CHECK_STR(chosen(&host, COLL_ALLREDUCE, 0), "slot");
    CHECK_STR(chosen(&host, COLL_ALLREDUCE, 8191), "slot");
    CHECK_STR(chosen(&host, COLL_ALLREDUCE, 8192), "shared");
    CHECK_STR(chosen(&far, COLL_ALLREDUCE, 20479), "gather");
    CHECK_STR(chosen(&far, COLL_ALLREDUCE, 20480), "pairwise");
    CHECK_STR(chosen(&far, COLL_ALLREDUCE, (size_t)1 << 40), "pairwise");
    CHECK_STR(chosen(&far, COLL_BARRIER, 0), "rounds");
    CHECK_STR(chosen(&two, COLL_ALLREDUCE, 524287), "pair");
    CHECK_STR(chosen(&two, COLL_ALLREDUCE, 524288), "pairwise");
}

TEST(rules_of_the_user_come_first)
{
    struct coll_team t = with_rules("allreduce 1kb-2kb pairwise, 4kb-inf gather,\n"
                                    " broadcast 0-inf tree", 4, true);

    CHECK_STR(chosen(&t, COLL_ALLREDUCE, 1023), "slot");
    CHECK_STR(chosen(&t, COLL_ALLREDUCE, 1024), "pairwise");
    CHECK_STR(chosen(&t, COLL_ALLREDUCE, 2048), "slot");
    CHECK_STR(chosen(&t, COLL_ALLREDUCE, 4096), "gather");
    CHECK_STR(chosen(&t, COLL_ALLREDUCE, 1 << 30), "gather");
    CHECK_STR(chosen(&t, COLL_BROADCAST, 5), "tree");
    CHECK_STR(chosen(&t, COLL_BARRIER, 0), "board");
}

TEST(an_algorithm_keeps_its_own_limit)
{
    struct coll_team t = with_rules("allreduce 0-inf slot", 4, true);

    CHECK_STR(chosen(&t, COLL_ALLREDUCE, 8192), "slot");
    CHECK_STR(chosen(&t, COLL_ALLREDUCE, 8193), "shared");
}

TEST(an_algorithm_that_cannot_run_is_passed_over)
{
    struct coll_team t = with_rules("allreduce 0-inf slot, 0-inf hier", 4, false);

    CHECK_STR(chosen(&t, COLL_ALLREDUCE, 10), "gather");
}

TEST(wrong_rules_are_named)
{
    static const struct {
        const char *rules, *part;
    } wrong[] = {
        {"allreduce 0-16kb fast", "no algorithm 'fast'"},
        {"allreduce 16kb gather", "'16kb' is no range"},
        {"allreduce 5-1 gather", "'5-1' is no range"},
        {"allreduce 0-7xb gather", "'0-7xb' is no range"},
        {"allsum 0-inf gather", "'allsum' is no operation"},
        {"0-inf gather", "'0-inf' is no operation"},
        {"allreduce 0-inf gather pairwise", "comma is missing before 'pairwise'"},
        {"broadcast 0-inf gather", "broadcast has no algorithm 'gather'"},
        {"allreduce", "'' is no range"},
    };
    struct hvd_error err;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_EQ(coll_set_rules(wrong[i].rules, &err), HVD_INVALID);
        CHECK_HAS(err.text, wrong[i].part);
    }
}

TEST(the_description_names_everything)
{
    char text[8192], small[20];
    size_t n = coll_describe(text, sizeof text);
    struct hvd_error err;

    CHECK_EQ(n, strlen(text));
    CHECK_HAS(text, "allreduce      pairwise");
    CHECK_HAS(text, "default allreduce 0-inf alone");
    CHECK_EQ(coll_describe(small, sizeof small), n);
    CHECK_EQ(strlen(small), 19ul);
    CHECK_EQ(coll_describe(NULL, 0), n);
    CHECK_OK(coll_set_rules("allgather 0-1mb bruck", &err), err);
    coll_describe(text, sizeof text);
    CHECK_HAS(text, "rule allgather 0-1048576 bruck");
}
