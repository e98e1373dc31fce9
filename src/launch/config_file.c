/*
 * config_file.c: --config-file.
 *
 * 1. Two levels: "section:" with "key: value" below, and "controller: gloo" at the top.
 * 2. Keys are those of base/config.def; unknown ones warn and do nothing.
 * 3. What the command line says stays, wherever it stands.
 * 4. The text is hostile: size, depth and number of keys are bounded, aliases refused.
 */
#include "launch/config_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#define FILE_LIMIT (1 << 20)
#define KEYS_MAX 1024
#define KEY_BYTES 128

struct reader {
    yaml_parser_t parser;
    const char *origin;
    config_file_fn take;
    void *owner;
    struct hvd_error *err;
    int keys;
};

static enum hvd_status refuse(struct reader *r, size_t line, const char *why)
{
    return error_set(r->err, HVD_INVALID, -1, "config file %s line %zu: %s", r->origin,
                     line + 1, why);
}

static enum hvd_status next(struct reader *r, yaml_event_t *event)
{
    if (yaml_parser_parse(&r->parser, event))
        return HVD_OK;
    return refuse(r, r->parser.problem_mark.line,
                  r->parser.problem != NULL ? r->parser.problem : "not YAML");
}

/* "section.key" */
static enum hvd_status make_key(struct reader *r, const char *section,
                                const yaml_event_t *event, char key[KEY_BYTES])
{
    int n = snprintf(key, KEY_BYTES, "%s%s%s", section, section[0] != '\0' ? "." : "",
                     (const char *)event->data.scalar.value);

    if (n < 0 || n >= KEY_BYTES || ++r->keys > KEYS_MAX)
        return refuse(r, event->start_mark.line, "too long or too many keys");
    return HVD_OK;
}

static enum hvd_status read_mapping(struct reader *r, const char *section, int depth);

/* Skips a sequence, which no known key has. */
static enum hvd_status skip_sequence(struct reader *r)
{
    for (int depth = 1; depth > 0;) {
        yaml_event_t event;

        TRY(next(r, &event));
        if (event.type == YAML_SEQUENCE_START_EVENT ||
            event.type == YAML_MAPPING_START_EVENT)
            depth++;
        if (event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT)
            depth--;
        yaml_event_delete(&event);
    }
    return HVD_OK;
}

static enum hvd_status read_value(struct reader *r, const char *key, int depth)
{
    enum hvd_status status = HVD_OK;
    yaml_event_t event;

    TRY(next(r, &event));
    if (event.type == YAML_SCALAR_EVENT)
        status = r->take(r->owner, key, (const char *)event.data.scalar.value, r->err);
    else if (event.type == YAML_MAPPING_START_EVENT && depth < 8)
        status = read_mapping(r, key, depth + 1);
    else if (event.type == YAML_SEQUENCE_START_EVENT)
        status = skip_sequence(r);
    else
        status = refuse(r, event.start_mark.line, "an alias or too many levels");
    yaml_event_delete(&event);
    return status;
}

static enum hvd_status read_mapping(struct reader *r, const char *section, int depth)
{
    enum hvd_status status = HVD_OK;
    bool is_end = false;

    while (status == HVD_OK && !is_end) {
        yaml_event_t event;
        char key[KEY_BYTES];

        TRY(next(r, &event));
        if (event.type == YAML_MAPPING_END_EVENT) {
            is_end = true;
        } else if (event.type != YAML_SCALAR_EVENT) {
            status = refuse(r, event.start_mark.line, "a key must be a word");
        } else {
            status = make_key(r, section, &event, key);
            if (status == HVD_OK)
                status = read_value(r, key, depth);
        }
        yaml_event_delete(&event);
    }
    return status;
}

static enum hvd_status read_document(struct reader *r)
{
    for (;;) {
        enum hvd_status status = HVD_OK;
        yaml_event_t event;
        yaml_event_type_t type;

        TRY(next(r, &event));
        type = event.type;
        if (type == YAML_MAPPING_START_EVENT)
            status = read_mapping(r, "", 0);
        else if ((type == YAML_SCALAR_EVENT && event.data.scalar.length > 0) ||
                 type == YAML_SEQUENCE_START_EVENT)
            status = refuse(r, event.start_mark.line, "expected 'section:' and keys");
        yaml_event_delete(&event);
        TRY(status);
        if (type == YAML_STREAM_END_EVENT)
            return HVD_OK;
    }
}

enum hvd_status config_file_parse(const char *text, size_t bytes, const char *origin,
                                  config_file_fn take, void *owner,
                                  struct hvd_error *err)
{
    struct reader r = {.origin = origin, .take = take, .owner = owner, .err = err};
    enum hvd_status status;

    if (!yaml_parser_initialize(&r.parser))
        return error_set(err, HVD_NOMEM, -1, "no memory to read %s", origin);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, bytes);
    status = read_document(&r);
    yaml_parser_delete(&r.parser);
    return status;
}

/* ---- merging ---------------------------------------------------------------------- */

static bool is_true(const char *value)
{
    static const char *const words[] = {"1", "true", "yes", "on"};

    for (int i = 0; i < 4; i++)
        if (strcasecmp(value, words[i]) == 0)
            return true;
    return false;
}

static bool is_boolean(const char *value)
{
    static const char *const words[] = {"0", "false", "no", "off"};

    for (int i = 0; i < 4; i++)
        if (strcasecmp(value, words[i]) == 0)
            return true;
    return is_true(value);
}

static bool is_null(const char *value)
{
    return value[0] == '\0' || strcmp(value, "~") == 0 || strcasecmp(value, "null") == 0;
}

static enum hvd_status take_controller(struct settings *s, const char *value,
                                       struct hvd_error *err)
{
    if (options_has(&s->options, OPTION_ID_GLOO) ||
        options_has(&s->options, OPTION_ID_MPI) ||
        options_has(&s->options, OPTION_ID_JSRUN))
        return HVD_OK;
    if (strcasecmp(value, "mpi") == 0)
        s->controller = CONTROLLER_MPI;
    else if (strcasecmp(value, "gloo") != 0)
        return error_set(err, HVD_INVALID, -1,
                         "config file: controller '%.64s' is neither gloo nor mpi", value);
    return HVD_OK;
}

static int find_row(const char *key)
{
    for (int i = 0; i < config_row_count; i++)
        if (strcmp(config_rows[i].key, key) == 0)
            return i;
    return -1;
}

/* Keys that say the opposite of their variable. */
static bool is_inverted(const struct config_row *c)
{
    return strcmp(c->key, "stall_check.enabled") == 0 ||
           strcmp(c->key, "logging.with_timestamp") == 0;
}

static enum hvd_status check_type(const struct config_row *c, const char *key,
                                  const char *value, struct hvd_error *err)
{
    bool is_switch = c->type == CONFIG_BOOLEAN || (c->type == CONFIG_TEXT && c->high == 8);
    char *end;

    if (is_switch && !is_boolean(value))
        return error_set(err, HVD_INVALID, -1, "config file: %s: '%.64s' is not true or "
                         "false", key, value);
    if (c->type == CONFIG_TEXT || is_switch)
        return HVD_OK;
    strtod(value, &end);
    if (end == value || *end != '\0')
        return error_set(err, HVD_INVALID, -1, "config file: %s: '%.64s' is not a number",
                         key, value);
    return HVD_OK;
}

static enum hvd_status keep(struct settings *s, int row, const char *value,
                            struct hvd_error *err)
{
    char **kept = realloc(s->file_values, ((size_t)s->file_value_count + 1) * sizeof *kept);
    char *copy = strdup(value);

    if (kept != NULL)
        s->file_values = kept;
    if (kept == NULL || copy == NULL) {
        free(copy);
        return error_set(err, HVD_NOMEM, -1, "no memory for the config file");
    }
    s->file_values[s->file_value_count++] = copy;
    s->options.config[row] = copy;
    s->options.config_names[row] = NULL;
    return HVD_OK;
}

static enum hvd_status take(void *owner, const char *key, const char *value,
                            struct hvd_error *err)
{
    struct settings *s = owner;
    const struct config_row *c;
    int row;

    if (strcmp(key, "controller") == 0)
        return take_controller(s, value, err);
    row = find_row(key);
    if (row < 0) {
        fprintf(stderr, "horovodrun: warning: config file: '%.100s' is not known and has "
                        "no effect\n", key);
        return HVD_OK;
    }
    c = &config_rows[row];
    /* The section alone says that the check is wanted. */
    if (strncmp(key, "stall_check.", 12) == 0) {
        int disable = find_row("stall_check.enabled");

        if (disable != row && s->options.config[disable] == NULL)
            s->options.config[disable] = "0";
        else if (disable == row && s->options.config_names[row] == NULL &&
                 s->options.config[row] != NULL)
            s->options.config[row] = NULL;
    }
    if (s->options.config[row] != NULL || is_null(value))
        return HVD_OK;
    TRY(check_type(c, key, value, err));
    if (c->type == CONFIG_BOOLEAN || (c->type == CONFIG_TEXT && c->high == 8))
        value = is_true(value) != is_inverted(c) ? "1" : "0";
    return keep(s, row, value, err);
}

static enum hvd_status read_file(const char *path, char **text_p, size_t *bytes_p,
                                 struct hvd_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    ssize_t n = -1;

    *text_p = NULL;
    if (fd < 0)
        return error_sys(err, -1, "config file %s", path);
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size <= FILE_LIMIT)
        *text_p = malloc((size_t)info.st_size + 1);
    if (*text_p != NULL)
        n = read(fd, *text_p, (size_t)info.st_size);
    close(fd);
    if (n < 0)
        return error_set(err, HVD_INVALID, -1,
                         "config file %s is not a readable file of at most 1 MB", path);
    *bytes_p = (size_t)n;
    return HVD_OK;
}

enum hvd_status config_file_merge(struct settings *s, struct hvd_error *err)
{
    const char *path = s->options.values[OPTION_ID_CONFIG_FILE];
    enum hvd_status status;
    size_t bytes = 0;
    char *text;

    if (path == NULL)
        return HVD_OK;
    status = read_file(path, &text, &bytes, err);
    if (status == HVD_OK)
        status = config_file_parse(text, bytes, path, take, s, err);
    free(text);
    return status;
}

void config_file_release(struct settings *s)
{
    for (int i = 0; i < s->file_value_count; i++)
        free(s->file_values[i]);
    free(s->file_values);
}
