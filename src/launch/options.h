/*
 * options.h: the words of the command line, sorted out but not yet understood.  The rows
 * are those of options.def and those of base/config.def that name an option.
 */
#ifndef HVD_LAUNCH_OPTIONS_H
#define HVD_LAUNCH_OPTIONS_H

#include "base/config.h"

enum option_kind { OPTION_FLAG, OPTION_INT, OPTION_TEXT, OPTION_LIST, OPTION_PAIR,
                   OPTION_NUMBER, OPTION_CHOICE, OPTION_MAYBE };

enum option_group { GROUP_NONE, GROUP_HOSTS, GROUP_CONTROLLER, GROUP_LOG_TIME,
                    GROUP_STALL, GROUP_ROW };       /* GROUP_ROW + n: config row n */

enum option_id {
#define OPTION(id, ...) OPTION_ID_##id,
#include "launch/options.def"
#undef OPTION
    OPTION_ID_COUNT,
};

#define OPTION_NAMES_MAX 4
#define OPTION_VALUES_MAX 256           /* of a LIST */

struct option_row {
    const char *names[OPTION_NAMES_MAX];    /* with dashes; NULL-terminated if fewer */
    enum option_kind kind;
    int group;
    const char *section, *value, *text;
    int row;                            /* config row, -1: of options.def */
    const char *constant;               /* a FLAG of a config row stores this */
};

/* All rows: options.def first (index = option_id), then those of config.def. */
extern const struct option_row *option_rows;
int option_row_count(void);

struct options {
    const char *values[OPTION_ID_COUNT];        /* last one given; NULL: not given */
    const char *second[OPTION_ID_COUNT];        /* of a PAIR */
    const char *lists[OPTION_ID_COUNT][OPTION_VALUES_MAX];
    int list_counts[OPTION_ID_COUNT];
    const char **config;                /* by config row; NULL: not given */
    const char **config_names;          /* the option that set it */
    const char *const *command;         /* the words after the options, in argv */
    int command_count;
};

/* Sorts argv[1..].  Owns: the caller, options_release; texts point into argv.
 * Errors: HVD_INVALID: a usage error, text without program name. */
enum hvd_status options_parse(int argc, char *const *argv, struct options *opt,
                              struct hvd_error *err);
void options_release(struct options *opt);

static inline bool options_has(const struct options *opt, enum option_id id)
{
    return opt->values[id] != NULL;
}


#endif
