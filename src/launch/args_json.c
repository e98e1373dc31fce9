/*
 * args_json.c: the options given, as JSON, for horovod.runner.launch.parse_args: Python
 * has no second parser.  {"num_proc": 2, "command": ["python", "x.py"], ...}
 */
#include "launch/help.h"

#include <stdio.h>
#include <string.h>

/* The longest name without its dashes, '-' as '_'. */
static void add_name(struct strbuf *out, const struct option_row *row)
{
    const char *name = row->names[0];
    char text[80];

    for (int i = 1; i < OPTION_NAMES_MAX && row->names[i] != NULL; i++)
        if (strlen(row->names[i]) > strlen(name))
            name = row->names[i];
    name += strspn(name, "-");
    snprintf(text, sizeof text, "%s", name);
    for (char *p = text; *p != '\0'; p++)
        if (*p == '-')
            *p = '_';
    strbuf_add_json(out, text);
}

static void add_value(struct strbuf *out, const struct option_row *row,
                      const char *value)
{
    if (value == NULL)
        strbuf_addf(out, "null");
    else if (row->kind == OPTION_FLAG)
        strbuf_addf(out, "%s", strcmp(value, "1") == 0 ? "true" : "false");
    else if (row->kind == OPTION_INT || row->kind == OPTION_NUMBER)
        strbuf_addf(out, "%s", value + (value[0] == '+'));
    else
        strbuf_add_json(out, value);
}

static void add_texts(struct strbuf *out, const char *const *texts, int count)
{
    strbuf_addf(out, "[");
    for (int i = 0; i < count; i++) {
        if (i > 0)
            strbuf_addf(out, ", ");
        strbuf_add_json(out, texts[i]);
    }
    strbuf_addf(out, "]");
}

static void add_own(struct strbuf *out, const struct options *opt, int id)
{
    const struct option_row *row = &option_rows[id];

    if (row->kind == OPTION_LIST)
        add_texts(out, opt->lists[id], opt->list_counts[id]);
    else if (row->kind == OPTION_PAIR && opt->values[id] != NULL)
        strbuf_addf(out, "[%s, %s]", opt->values[id], opt->second[id]);
    else
        add_value(out, row, opt->values[id]);
}

void help_add_args(const struct options *opt, struct strbuf *out)
{
    int count = option_row_count();

    strbuf_addf(out, "{");
    for (int i = 0; i < count; i++) {
        const struct option_row *row = &option_rows[i];

        /* The --no- form of a switch is the false of its row. */
        if (i >= OPTION_ID_COUNT && row->row == option_rows[i - 1].row)
            continue;
        add_name(out, row);
        strbuf_addf(out, ": ");
        if (i < OPTION_ID_COUNT)
            add_own(out, opt, i);
        else
            add_value(out, row, opt->config[row->row]);
        strbuf_addf(out, ", ");
    }
    strbuf_addf(out, "\"command\": ");
    add_texts(out, opt->command, opt->command_count);
    strbuf_addf(out, "}\n");
}
