/* test_options.c: the words of the command line. */
#include "launch/help.h"
#include "launch/options.h"

#include "check.h"

static struct hvd_error err;
static struct options opt;

#define PARSE(...)                                                                     \
    parse((char *[]){"horovodrun", __VA_ARGS__, NULL})

/* The words outlive the macro's array: the options point to them. */
static enum hvd_status parse(char **argv)
{
    static char *words[16];
    int argc = 0;

    for (; argv[argc] != NULL; argc++)
        words[argc] = argv[argc];
    options_release(&opt);
    err.text[0] = '\0';
    return options_parse(argc, words, &opt, &err);
}

static const char *config(const char *name)
{
    return opt.config[config_find(name)];
}

TEST(everything_after_the_first_word_is_the_command)
{
    CHECK_OK(PARSE("-np", "4", "python", "x.py", "-np", "5", "--verbose"), err);
    CHECK_STR(opt.values[OPTION_ID_NUM_PROC], "4");
    CHECK_EQ(opt.command_count, 5);
    CHECK_STR(opt.command[0], "python");
    CHECK_STR(opt.command[3], "5");
    CHECK(!options_has(&opt, OPTION_ID_VERBOSE));
}

TEST(two_dashes_end_the_options)
{
    CHECK_OK(PARSE("-np", "1", "--", "--version"), err);
    CHECK_EQ(opt.command_count, 1);
    CHECK_STR(opt.command[0], "--version");
}

TEST(values_may_be_glued_and_names_shortened)
{
    CHECK_OK(PARSE("-n", "4", "-p12345", "--slots", "2", "--verb", "-H=a:1", "x"), err);
    CHECK_STR(opt.values[OPTION_ID_NUM_PROC], "4");
    CHECK_STR(opt.values[OPTION_ID_SSH_PORT], "12345");
    CHECK_STR(opt.values[OPTION_ID_SLOTS_PER_HOST], "2");
    CHECK_STR(opt.values[OPTION_ID_HOSTS], "a:1");
    CHECK(options_has(&opt, OPTION_ID_VERBOSE));
    CHECK_OK(PARSE("--num-proc=3", "-Ha:3"), err);
    CHECK_STR(opt.values[OPTION_ID_HOSTS], "a:3");
    CHECK_OK(PARSE("-hostfile=f"), err);
}

TEST(ambiguous_and_unknown_names_are_usage_errors)
{
    CHECK_EQ((int)PARSE("--autotune-", "1"), (int)HVD_INVALID);
    CHECK_HAS(err.text, "ambiguous option: --autotune- could match");
    CHECK_EQ((int)PARSE("--nonsense"), (int)HVD_INVALID);
    CHECK_STR(err.text, "unrecognized arguments: --nonsense (horovodrun --help lists all)");
    CHECK_EQ((int)PARSE("-np"), (int)HVD_INVALID);
    CHECK_STR(err.text, "argument -np/--num-proc: expected one argument");
    CHECK_EQ((int)PARSE("-np", "two"), (int)HVD_INVALID);
    CHECK_STR(err.text, "argument -np/--num-proc: invalid int value: 'two'");
    CHECK_EQ((int)PARSE("-np", "--verbose"), (int)HVD_INVALID);
    CHECK_EQ((int)PARSE("--gloo=1"), (int)HVD_INVALID);
    CHECK_EQ((int)PARSE("--log-level", "info"), (int)HVD_OK);
    CHECK_EQ((int)PARSE("--log-level", "info,transport=debug"), (int)HVD_OK);
    CHECK_EQ((int)PARSE("--log-level", "info,=debug"), (int)HVD_INVALID);
    CHECK_EQ((int)PARSE("--log-level", "transport="), (int)HVD_INVALID);
    CHECK_EQ((int)PARSE("--log-level", ""), (int)HVD_INVALID);
    CHECK_HAS(err.text, "invalid choice: ''");
}

TEST(an_exact_name_wins_over_longer_ones)
{
    CHECK_OK(PARSE("--autotune", "--network-interface", "lo", "-h"), err);
    CHECK_STR(config("AUTOTUNE"), "1");
    CHECK_EQ(opt.list_counts[OPTION_ID_NETWORK_INTERFACE], 1);
}

TEST(negative_numbers_and_texts_with_blanks_are_values)
{
    CHECK_OK(PARSE("--fusion-threshold-mb", "-1", "--mpi-args", "-x A", "c"), err);
    CHECK_STR(config("FUSION_THRESHOLD"), "-1");
    CHECK_STR(opt.values[OPTION_ID_MPI_ARGS], "-x A");
}

TEST(groups_exclude_each_other)
{
    static char *pairs[][2] = {
        {"-H=a:1", "--hostfile=f"}, {"--hosts=a:1", "--host-discovery-script=s"},
        {"--gloo", "--mpi"}, {"--mpi", "--jsrun"}, {"--autotune", "--no-autotune"},
        {"--hierarchical-allreduce", "--no-hierarchical-allreduce"},
        {"--hierarchical-allgather", "--no-hierarchical-allgather"},
        {"--torus-allreduce", "--no-torus-allreduce"},
        {"--timeline-mark-cycles", "--no-timeline-mark-cycles"},
        {"--no-stall-check", "--stall-check"},
        {"--mpi-threads-disable", "--no-mpi-threads-disable"},
        {"--log-with-timestamp", "--log-without-timestamp"},
        {"--log-hide-timestamp", "--no-log-hide-timestamp"}};

    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        CHECK_OK(PARSE(pairs[i][0]), err);
        CHECK_OK(PARSE(pairs[i][0], pairs[i][0]), err);
        CHECK_EQ((int)PARSE(pairs[i][0], pairs[i][1]), (int)HVD_INVALID);
        CHECK_HAS(err.text, "not allowed with argument");
    }
    CHECK_OK(PARSE("--prefix-output-with-timestamp", "--log-without-timestamp"), err);
}

TEST(lists_and_pairs)
{
    CHECK_OK(PARSE("--env", "A=1", "--env", "B", "--blacklist-cooldown-range", "1", "2"),
             err);
    CHECK_EQ(opt.list_counts[OPTION_ID_ENV], 2);
    CHECK_STR(opt.lists[OPTION_ID_ENV][1], "B");
    CHECK_STR(opt.second[OPTION_ID_COOLDOWN], "2");
    CHECK_EQ((int)PARSE("--blacklist-cooldown-range", "1"), (int)HVD_INVALID);
}

/* Every row of config.def with an option can be given, and appears in the help with its
 * variable and its default. */
TEST(every_option_is_in_the_help)
{
    struct strbuf page;

    strbuf_init(&page);
    help_add_page(&page);
    for (int i = 0; i < option_row_count(); i++)
        if (strcmp(option_rows[i].section, "hidden") != 0)
            CHECK_HAS(page.text, option_rows[i].names[0]);
    for (int i = 0; i < config_row_count; i++)
        if (config_rows[i].option[0] != '\0')
            CHECK_HAS(page.text, config_rows[i].name);
    strbuf_release(&page);
}

TEST(arguments_as_json)
{
    struct strbuf out;

    CHECK_OK(PARSE("-np", "2", "--no-autotune", "--cycle-time-ms=3.5", "a", "b\"c"), err);
    strbuf_init(&out);
    help_add_args(&opt, &out);
    CHECK_HAS(out.text, "\"num_proc\": 2");
    CHECK_HAS(out.text, "\"autotune\": false");
    CHECK_HAS(out.text, "\"cycle_time_ms\": 3.5");
    CHECK_HAS(out.text, "\"hosts\": null");
    CHECK_HAS(out.text, "\"command\": [\"a\", \"b\\\"c\"]");
    strbuf_release(&out);
}
