/*
 * options.c: the parser of the command line.
 *
 * 1. Options come first; the first word that is none, or what follows "--", begins the
 *    command.
 * 2. "--name value", "--name=value"; a one-letter option may be glued to its value.
 * 3. Any prefix of a name that fits one row only stands for it; an exact name always wins.
 * 4. A word that looks like an option is no value, unless it is a negative number or
 *    holds a blank.
 * 5. Two options of one exclusion group are a usage error.
 */
#include "launch/options.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct option_row *all_rows(void);
const struct option_row *option_rows;

#define ROWS_MAX (OPTION_ID_COUNT + 96)
#define NAMES_BYTES 8192

struct row_names {
    char text[NAMES_BYTES];
    size_t used;
};

static struct option_row rows[ROWS_MAX];
static int row_count;
static struct row_names names;          /* where names that are made here live */

static const char *keep_name(const char *prefix, const char *name, size_t bytes)
{
    size_t left = sizeof names.text - names.used;
    char *at = names.text + names.used;
    int n = snprintf(at, left, "%s%.*s", prefix, (int)bytes, name);

    BUG_ON(n < 0 || (size_t)n >= left);
    names.used += (size_t)n + 1;
    return at;
}

static struct option_row *new_row(enum option_kind kind, int group, const char *section,
                                  const char *value, const char *text)
{
    struct option_row *row = &rows[row_count++];

    BUG_ON(row_count > ROWS_MAX);
    *row = (struct option_row){.kind = kind, .group = group, .section = section,
                               .value = value, .text = text, .row = -1};
    return row;
}

/* "-np --num-proc" */
static void split_names(struct option_row *row, const char *text)
{
    for (int i = 0; i < OPTION_NAMES_MAX && *text != '\0'; i++) {
        size_t bytes = strcspn(text, " ");

        row->names[i] = keep_name("", text, bytes);
        text += bytes + (text[bytes] == ' ');
    }
}

static const char *section_of(const struct config_row *c)
{
    static const struct {
        const char *prefix, *section;
    } sections[] = {{"AUTOTUNE", "autotune"}, {"TIMELINE", "timeline"},
                    {"STALL", "stall check"}, {"LOG", "logging"}};

    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++)
        if (strncmp(c->name, sections[i].prefix, strlen(sections[i].prefix)) == 0)
            return sections[i].section;
    return c->flags & CONFIG_TUNABLE || c->flags & CONFIG_IGNORED ? "tuning" : "library";
}

/* Text rows with "1: ..., 0: ..." are switches with a third state. */
static bool is_switch(const struct config_row *c)
{
    return c->type == CONFIG_BOOLEAN ||
           (c->type == CONFIG_TEXT && c->high == 8 && c->initial[0] == '\0');
}

static void add_switch(const struct config_row *c, int index, int group)
{
    bool is_negative = strncmp(c->option, "no-", 3) == 0;
    struct option_row *on = new_row(OPTION_FLAG, group, section_of(c), "", c->text);
    struct option_row *off;

    on->names[0] = keep_name("--", c->option, strlen(c->option));
    on->row = index;
    on->constant = "1";
    if (is_negative || strncmp(c->option, "log-", 4) == 0)
        return;                         /* its counterpart is in options.def */
    off = new_row(OPTION_FLAG, group, section_of(c), "", "");
    off->names[0] = keep_name("--no-", c->option, strlen(c->option));
    off->row = index;
    off->constant = "0";
}

static void add_config_row(const struct config_row *c, int index)
{
    static const char *const metavars[] = {"", "N", "N", "SIZE", "TEXT"};
    int group = GROUP_ROW + index;
    struct option_row *row;
    enum option_kind kind = OPTION_TEXT;

    if (strcmp(c->name, "STALL_CHECK_DISABLE") == 0)
        group = GROUP_STALL;
    if (strcmp(c->name, "LOG_HIDE_TIME") == 0)
        group = GROUP_LOG_TIME;
    if (is_switch(c)) {
        add_switch(c, index, group);
        return;
    }
    if (c->type == CONFIG_INTEGER || c->flags & CONFIG_MB)
        kind = OPTION_INT;
    else if (c->type == CONFIG_NUMBER)
        kind = OPTION_NUMBER;
    else if (strcmp(c->name, "LOG_LEVEL") == 0)
        kind = OPTION_CHOICE;
    row = new_row(kind, GROUP_NONE, section_of(c),
                  kind == OPTION_CHOICE ? "LEVEL"
                  : c->flags & CONFIG_MB ? "MB" : metavars[c->type], c->text);
    row->names[0] = keep_name("--", c->option, strlen(c->option));
    row->row = index;
}

static const struct option_row *all_rows(void)
{
    static const struct {
        enum option_kind kind;
        int group;
        const char *section, *names, *value, *text;
    } own[] = {
#define OPTION(id, kind, group, section, names, value, text)                           \
    {OPTION_##kind, GROUP_##group, section, names, value, text},
#include "launch/options.def"
#undef OPTION
    };

    if (row_count > 0)
        return rows;
    for (int i = 0; i < OPTION_ID_COUNT; i++)
        split_names(new_row(own[i].kind, own[i].group, own[i].section, own[i].value,
                            own[i].text), own[i].names);
    for (int i = 0; i < config_row_count; i++)
        if (config_rows[i].option[0] != '\0')
            add_config_row(&config_rows[i], i);
    option_rows = rows;
    return rows;
}

int option_row_count(void)
{
    all_rows();
    return row_count;
}

/* "-np/--num-proc" */
static void option_title(const struct option_row *row, char *buffer, size_t capacity)
{
    size_t used = 0;

    for (int i = 0; i < OPTION_NAMES_MAX && row->names[i] != NULL; i++)
        used += (size_t)snprintf(buffer + used, capacity - used, "%s%s",
                                 i > 0 ? "/" : "", row->names[i]);
}

/* ---- finding ---------------------------------------------------------------------- */

struct match {
    const struct option_row *row;
    const char *value;                  /* given in the same word, or NULL */
};

static enum hvd_status ambiguous(const char *word, size_t bytes, struct hvd_error *err)
{
    char list[512];
    size_t used = 0;

    for (int r = 0; r < row_count; r++)
        for (int i = 0; i < OPTION_NAMES_MAX && rows[r].names[i] != NULL; i++)
            if (strncmp(rows[r].names[i], word, bytes) == 0 && used < sizeof list - 80)
                used += (size_t)snprintf(list + used, sizeof list - used, "%s%s",
                                         used > 0 ? ", " : "", rows[r].names[i]);
    return error_set(err, HVD_INVALID, -1, "ambiguous option: %.*s could match %s",
                     (int)bytes, word, list);
}

static const struct option_row *find_exact(const char *word, size_t bytes)
{
    for (int r = 0; r < row_count; r++)
        for (int i = 0; i < OPTION_NAMES_MAX && rows[r].names[i] != NULL; i++)
            if (strlen(rows[r].names[i]) == bytes &&
                memcmp(rows[r].names[i], word, bytes) == 0)
                return &rows[r];
    return NULL;
}

/* "-p12345", "-np4": a short name with its value. */
static const struct option_row *find_glued(const char *word, const char **value_p)
{
    const struct option_row *found = NULL;
    size_t longest = 0;

    for (int r = 0; r < row_count; r++)
        for (int i = 0; i < OPTION_NAMES_MAX && rows[r].names[i] != NULL; i++) {
            const char *name = rows[r].names[i];
            size_t bytes = strlen(name);

            if (name[1] == '-' || bytes > 3 || rows[r].kind == OPTION_FLAG ||
                bytes <= longest || strncmp(word, name, bytes) != 0)
                continue;
            found = &rows[r];
            longest = bytes;
            *value_p = word + bytes;
        }
    return found;
}

static enum hvd_status find_prefix(const char *word, size_t bytes,
                                   const struct option_row **row_p,
                                   struct hvd_error *err)
{
    const struct option_row *found = NULL;

    for (int r = 0; r < row_count; r++)
        for (int i = 0; i < OPTION_NAMES_MAX && rows[r].names[i] != NULL; i++) {
            if (strncmp(rows[r].names[i], word, bytes) != 0 ||
                strcmp(rows[r].section, "hidden") == 0)
                continue;
            if (found != NULL && found != &rows[r])
                return ambiguous(word, bytes, err);
            found = &rows[r];
        }
    *row_p = found;
    return HVD_OK;
}

/* An option is near if a quarter of its letters is wrong at most. */
static enum hvd_status unknown(const char *word, size_t bytes, struct hvd_error *err)
{
    char given[64];
    const char *best = NULL;
    int best_distance = (int)bytes / 4 + 1;

    snprintf(given, sizeof given, "%.*s", (int)bytes, word);
    for (int r = 0; r < row_count; r++)
        for (int i = 0; i < OPTION_NAMES_MAX && rows[r].names[i] != NULL; i++) {
            const char *name = rows[r].names[i];
            int d = config_distance(given, name);

            if (d < best_distance && name[1] == '-' &&
                strcmp(rows[r].section, "hidden") != 0)
                best = name, best_distance = d;
        }
    if (best != NULL)
        return error_set(err, HVD_INVALID, -1,
                         "unrecognized arguments: %.200s (did you mean %s?)", word, best);
    return error_set(err, HVD_INVALID, -1,
                     "unrecognized arguments: %.200s (horovodrun --help lists all)", word);
}

static enum hvd_status find(const char *word, struct match *m, struct hvd_error *err)
{
    const char *equals = strchr(word, '=');
    size_t bytes = equals != NULL ? (size_t)(equals - word) : strlen(word);

    m->value = equals != NULL ? equals + 1 : NULL;
    m->row = find_exact(word, bytes);
    if (m->row == NULL && word[1] != '-' && strlen(word) > 2)
        m->row = find_glued(word, &m->value);
    if (m->row == NULL)
        TRY(find_prefix(word, bytes, &m->row, err));
    if (m->row == NULL)
        return unknown(word, bytes, err);
    return HVD_OK;
}

/* ---- values ----------------------------------------------------------------------- */

static bool is_number(const char *word, bool is_integer)
{
    char *end;

    if (is_integer)
        strtoll(word, &end, 10);
    else
        strtod(word, &end);
    return end != word && *end == '\0';
}

static bool is_value(const char *word)
{
    return word[0] != '-' || word[1] == '\0' || is_number(word, false) ||
           strchr(word, ' ') != NULL;
}

static enum hvd_status check_value(const struct option_row *row, const char *value,
                                   struct hvd_error *err)
{
    char title[128];

    option_title(row, title, sizeof title);
    if ((row->kind == OPTION_INT || row->kind == OPTION_PAIR || row->kind == OPTION_MAYBE) &&
        !is_number(value, true))
        return error_set(err, HVD_INVALID, -1, "argument %s: invalid int value: '%.100s'",
                         title, value);
    if (row->kind == OPTION_NUMBER && !is_number(value, false))
        return error_set(err, HVD_INVALID, -1,
                         "argument %s: invalid float value: '%.100s'", title, value);
    if (row->kind != OPTION_CHOICE || (value[0] != '\0' && log_understands(value)))
        return HVD_OK;
    return error_set(err, HVD_INVALID, -1,
                     "argument %s: invalid choice: '%.100s' (choose from 'trace', 'debug', "
                     "'info', 'warning', 'error', 'fatal', or by component, such as "
                     "'info,transport=debug')", title, value);
}

static enum hvd_status store(struct options *opt, const struct option_row *row,
                             const char *value, const char *second,
                             struct hvd_error *err)
{
    int id = (int)(row - rows);

    if (row->row >= 0) {
        opt->config[row->row] = row->kind == OPTION_FLAG ? row->constant : value;
        opt->config_names[row->row] = row->names[0];
        return HVD_OK;
    }
    opt->values[id] = value;
    opt->second[id] = second;
    if (row->kind != OPTION_LIST)
        return HVD_OK;
    if (opt->list_counts[id] == OPTION_VALUES_MAX)
        return error_set(err, HVD_INVALID, -1, "%s: given more than %d times",
                         row->names[0], OPTION_VALUES_MAX);
    opt->lists[id][opt->list_counts[id]++] = value;
    return HVD_OK;
}

/* ---- exclusion -------------------------------------------------------------------- */

struct exclusion {
    const struct option_row *first[GROUP_ROW + 256];
};

static enum hvd_status check_group(struct exclusion *ex, const struct option_row *row,
                                   struct hvd_error *err)
{
    const struct option_row *other;
    char title[128], other_title[128];

    BUG_ON(row->group >= GROUP_ROW + 256);
    if (row->group == GROUP_NONE)
        return HVD_OK;
    other = ex->first[row->group];
    ex->first[row->group] = row;
    if (other == NULL || other == row)
        return HVD_OK;
    option_title(row, title, sizeof title);
    option_title(other, other_title, sizeof other_title);
    return error_set(err, HVD_INVALID, -1, "argument %s: not allowed with argument %s",
                     title, other_title);
}

/* ---- the whole line --------------------------------------------------------------- */

struct words {
    char *const *at, *const *end;
};

static enum hvd_status next_value(struct words *w, const struct option_row *row,
                                  const char **value_p, struct hvd_error *err)
{
    char title[128];

    if (w->at < w->end && is_value(*w->at)) {
        *value_p = *w->at++;
        return check_value(row, *value_p, err);
    }
    option_title(row, title, sizeof title);
    return error_set(err, HVD_INVALID, -1, "argument %s: expected %s", title,
                     row->kind == OPTION_PAIR ? "2 arguments" : "one argument");
}

static enum hvd_status take_option(struct words *w, struct options *opt,
                                   struct exclusion *ex, struct hvd_error *err)
{
    const char *second = NULL;
    struct match m;

    TRY(find(*w->at++, &m, err));
    TRY(check_group(ex, m.row, err));
    if (m.row->kind == OPTION_FLAG) {
        if (m.value != NULL)
            return error_set(err, HVD_INVALID, -1,
                             "argument %s: ignored explicit argument '%.100s'",
                             m.row->names[0], m.value);
        return store(opt, m.row, "1", NULL, err);
    }
    if (m.row->kind == OPTION_MAYBE && m.value == NULL) {
        m.value = w->at < w->end && is_number(*w->at, true) ? *w->at++ : "0";
        return store(opt, m.row, m.value, NULL, err);
    }
    if (m.value == NULL)
        TRY(next_value(w, m.row, &m.value, err));
    else
        TRY(check_value(m.row, m.value, err));
    if (m.row->kind == OPTION_PAIR)
        TRY(next_value(w, m.row, &second, err));
    return store(opt, m.row, m.value, second, err);
}

enum hvd_status options_parse(int argc, char *const *argv, struct options *opt,
                              struct hvd_error *err)
{
    struct words w = {argv + (argc > 0), argv + argc};
    struct exclusion ex = {{NULL}};

    memset(opt, 0, sizeof *opt);
    all_rows();
    opt->config = calloc((size_t)config_row_count, sizeof *opt->config);
    opt->config_names = calloc((size_t)config_row_count, sizeof *opt->config_names);
    if (opt->config == NULL || opt->config_names == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the options");
    while (w.at < w.end) {
        if (strcmp(*w.at, "--") == 0) {
            w.at++;
            break;
        }
        if ((*w.at)[0] != '-' || (*w.at)[1] == '\0')
            break;
        TRY(take_option(&w, opt, &ex, err));
        /* These answer at once, whatever follows. */
        if (options_has(opt, OPTION_ID_HELP) || options_has(opt, OPTION_ID_VERSION))
            break;
    }
    opt->command = (const char *const *)w.at;
    opt->command_count = (int)(w.end - w.at);
    return HVD_OK;
}

void options_release(struct options *opt)
{
    free(opt->config);
    free(opt->config_names);
    opt->config = opt->config_names = NULL;
}
