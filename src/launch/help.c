/*
 * help.c: --help and --print-config, both made from the rows of options.def and
 * base/config.def.
 */
#include "launch/help.h"

#include <stdio.h>
#include <string.h>

#define COLUMN 30                       /* where texts begin */
#define WIDTH 96

void help_add_usage(struct strbuf *out)
{
    strbuf_addf(out, "usage: horovodrun [-h] [-v] -np N [options] [NAME=VALUE ...] "
                     "command [arguments ...]\n");
}

static void add_blanks(struct strbuf *out, size_t count)
{
    while (count-- > 0)
        strbuf_add(out, " ", 1);
}

/* Breaks text at blanks; the first line continues at column `used`. */
static void add_wrapped(struct strbuf *out, const char *text, size_t used)
{
    if (used + 2 > COLUMN) {
        strbuf_add(out, "\n", 1);
        used = 0;
    }
    add_blanks(out, COLUMN - used);
    used = COLUMN;
    while (*text != '\0') {
        size_t word = strcspn(text, " ");

        if (used + word > WIDTH && used > COLUMN) {
            strbuf_add(out, "\n", 1);
            add_blanks(out, COLUMN);
            used = COLUMN;
        } else if (used > COLUMN) {
            strbuf_add(out, " ", 1);
        }
        strbuf_add(out, text, word);
        used += word + 1;
        text += word + strspn(text + word, " ");
    }
    strbuf_add(out, "\n", 1);
}

/* "  -np N, --num-proc N" */
static size_t add_names(struct strbuf *out, const struct option_row *row)
{
    size_t start = out->length;

    strbuf_add(out, "  ", 2);
    for (int i = 0; i < OPTION_NAMES_MAX && row->names[i] != NULL; i++)
        strbuf_addf(out, "%s%s%s%s", i > 0 ? ", " : "", row->names[i],
                    row->value[0] != '\0' ? " " : "", row->value);
    return out->length - start;
}

static void add_row(struct strbuf *out, const struct option_row *row,
                    const struct option_row *next)
{
    const struct config_row *c = row->row >= 0 ? &config_rows[row->row] : NULL;
    size_t used = add_names(out, row);
    char text[1024];

    if (c == NULL) {
        add_wrapped(out, row->text, used);
        return;
    }
    if (next != NULL && next->row == row->row) {
        strbuf_addf(out, ", %s", next->names[0]);
        used += strlen(next->names[0]) + 2;
    }
    snprintf(text, sizeof text, "%s [HOROVOD_%s, default: %s]", c->text, c->name,
             c->initial[0] != '\0' ? c->initial : "unset");
    add_wrapped(out, text, used);
}

static void add_section(struct strbuf *out, const char *section, const char *title)
{
    int count = option_row_count();

    strbuf_addf(out, "\n%s:\n", title);
    for (int i = 0; i < count; i++) {
        const struct option_row *row = &option_rows[i];

        /* The --no- form stands in the line of its positive form. */
        if (strcmp(row->section, section) == 0 && row->text[0] != '\0')
            add_row(out, row, i + 1 < count ? row + 1 : NULL);
    }
}

void help_add_page(struct strbuf *out)
{
    static const char *const sections[][2] = {
        {"", "general"}, {"hosts", "hosts"}, {"ssh", "ssh"}, {"network", "network"},
        {"controller", "how processes are started"},
        {"launch without ssh", "the same command on every node, without ssh"},
        {"elastic", "elastic jobs"}, {"tuning", "tuning"}, {"autotune", "autotune"},
        {"timeline", "timeline"}, {"stall check", "stall check"},
        {"library", "library"}, {"logging", "logging"}};

    option_row_count();
    help_add_usage(out);
    strbuf_addf(out, "\nStarts a job of N processes and waits for it. All options stand "
                     "before the command; an option\nthat is not given leaves the variable "
                     "behind it as it is. Every option may be shortened to\na prefix that "
                     "fits no other.\n");
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++)
        add_section(out, sections[i][0], sections[i][1]);
}

/* ---- --print-config --------------------------------------------------------------- */

static const char *source_name(const struct settings *s, int row,
                               const struct config *conf)
{
    if (s->options.config[row] != NULL)
        return s->options.config_names[row] != NULL ? s->options.config_names[row]
                                                    : "config file";
    return conf->source[row] == CONFIG_ENVIRONMENT ? "environment" : "default";
}

enum hvd_status help_add_config(const struct settings *s, struct strbuf *out,
                                struct hvd_error *err)
{
    enum hvd_status status = HVD_OK;
    struct config conf;

    TRY_OUT(config_read(&conf, err));
    strbuf_addf(out, "%-44s %-20s %-12s %s\n", "variable", "value", "default", "set by");
    for (int i = 0; i < config_row_count; i++) {
        const struct config_row *c = &config_rows[i];
        char name[96], value[256];
        const char *given;

        snprintf(name, sizeof name, "HOROVOD_%s", c->name);
        given = env_get(&s->knobs, name);
        if (c->flags & (CONFIG_HIDDEN | CONFIG_IDENTITY))
            continue;
        if (given != NULL)
            TRY_OUT(config_set(&conf, i, given, CONFIG_OPTION, err));
        config_format(&conf, i, value, sizeof value);
        strbuf_addf(out, "%-44s %-20s %-12s %s\n", name, value[0] != '\0' ? value : "-",
                    c->initial[0] != '\0' ? c->initial : "-", source_name(s, i, &conf));
    }
out:
    config_release(&conf);
    return status;
}
