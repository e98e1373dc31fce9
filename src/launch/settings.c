/*
 * settings.c: from words to settings.  Command line over config file over environment
 * over defaults; an option that is not given sets no variable.
 */
#include "launch/settings.h"

#include "base/secret.h"
#include "base/strbuf.h"
#include "launch/config_file.h"
#include "launch/node.h"
#include "launch/worker_env.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define START_TIMEOUT_S 30
#define GRACE_S 5                       /* contract 1.11 */
#define LEAVE_MS 25000                  /* without --grace-period; Kubernetes waits 30 s */
#define ELASTIC_TIMEOUT_S 600
#define KUBEXEC "/etc/mpi/kubexec.sh"

static const char *value_of(const struct settings *s, enum option_id id)
{
    return s->options.values[id];
}

static bool has(const struct settings *s, enum option_id id)
{
    return s->options.values[id] != NULL;
}

/* "fusion-threshold-mb" -> "fusion_threshold_mb" */
static void destination(const char *option, char *name, size_t capacity)
{
    while (*option == '-')
        option++;
    snprintf(name, capacity, "%s", option);
    for (char *p = name; *p != '\0'; p++)
        if (*p == '-')
            *p = '_';
}

static enum hvd_status read_integer(const struct settings *s, enum option_id id,
                                    const char *name, int low, int *value_p,
                                    struct hvd_error *err)
{
    const char *text = value_of(s, id);
    long value;

    if (text == NULL)
        return HVD_OK;
    errno = 0;
    value = strtol(text, NULL, 10);
    if (errno != 0 || value < low || value > INT32_MAX)
        return error_set(err, HVD_INVALID, -1, "%s=%.64s must be >= %d", name, text, low);
    *value_p = (int)value;
    return HVD_OK;
}

/* ---- knobs ------------------------------------------------------------------------ */

/* As Python writes a float: the fewest digits that give the same value, 20 as 20.0. */
static void format_float(const char *text, char *buffer, size_t capacity)
{
    double value = strtod(text, NULL), size = fabs(value);
    int digits = 1;

    for (; digits <= 17; digits++) {
        snprintf(buffer, capacity, "%.*g", digits, value);
        if (strtod(buffer, NULL) == value)
            break;
    }
    if (strchr(buffer, 'e') != NULL && size >= 1e-4 && size < 1e16) {
        int decimals = digits - 1 - (int)floor(log10(size));

        snprintf(buffer, capacity, "%.*f", decimals > 0 ? decimals : 0, value);
    }
    if (strpbrk(buffer, ".en") == NULL)
        snprintf(buffer + strlen(buffer), capacity - strlen(buffer), ".0");
}

static bool is_float(const struct config_row *c)
{
    return strcmp(c->name, "CYCLE_TIME") == 0 ||
           strcmp(c->name, "AUTOTUNE_GAUSSIAN_PROCESS_NOISE") == 0;
}

static enum hvd_status check_knob(const struct config_row *c, const char *text,
                                  struct hvd_error *err)
{
    double value = strtod(text, NULL), high = c->high;
    char name[80];

    destination(c->option, name, sizeof name);
    if (c->type == CONFIG_TEXT && strcmp(c->name, "THREAD_AFFINITY") != 0)
        return HVD_OK;
    if (c->type == CONFIG_BOOLEAN)
        return HVD_OK;
    if (strcmp(c->name, "AUTOTUNE_GAUSSIAN_PROCESS_NOISE") == 0 &&
        !(value >= 0 && value <= 1))
        return error_set(err, HVD_INVALID, -1, "%s=%.64s must be in range [0, 1]", name,
                         text);
    if (!(value >= 0))
        return error_set(err, HVD_INVALID, -1, "%s=%.64s must be >= 0", name, text);
    if (c->flags & CONFIG_MB)
        high /= 1 << 20;
    if (c->type != CONFIG_TEXT && value > high)
        return error_set(err, HVD_INVALID, -1, "%s=%.64s must be <= %.12g", name, text,
                         high);
    return HVD_OK;
}

static void export_knob(struct settings *s, const struct config_row *c, const char *text)
{
    char name[96], number[64];

    snprintf(name, sizeof name, "HOROVOD_%s", c->name);
    if (c->flags & CONFIG_MB)
        env_set(&s->knobs, name, "%lld", strtoll(text, NULL, 10) << 20);
    else if (is_float(c)) {
        format_float(text, number, sizeof number);
        env_set(&s->knobs, name, "%s", number);
    } else
        env_set(&s->knobs, name, "%s", text);
}

static bool is_on(const char *text)
{
    return text != NULL && strcmp(text, "1") == 0;
}

/* Variables of autotune only when it is on, marks of cycles only with a timeline. */
static bool is_exported(const struct settings *s, const struct config_row *c)
{
    bool is_autotune = strncmp(c->name, "AUTOTUNE", 8) == 0;

    if (is_autotune)
        return is_on(s->options.config[config_find("AUTOTUNE")]);
    if (strcmp(c->name, "TIMELINE_MARK_CYCLES") == 0)
        return s->options.config[config_find("TIMELINE")] != NULL;
    return true;
}

static enum hvd_status export_knobs(struct settings *s, struct hvd_error *err)
{
    for (int i = 0; i < config_row_count; i++) {
        const char *text = s->options.config[i];

        if (text == NULL)
            continue;
        TRY(check_knob(&config_rows[i], text, err));
        if (is_exported(s, &config_rows[i]))
            export_knob(s, &config_rows[i], text);
    }
    if (has(s, OPTION_ID_TCP))
        env_set(&s->knobs, "NCCL_IB_DISABLE", "1");
    return HVD_OK;
}

/* Options of options.def that are the other half of a config row. */
static void merge_aliases(struct settings *s)
{
    static const struct {
        enum option_id id;
        const char *row, *value;
        bool is_deprecated;
    } aliases[] = {{OPTION_ID_LOG_WITH_TIME, "LOG_HIDE_TIME", "0", false},
                   {OPTION_ID_LOG_HIDE_TIME, "LOG_HIDE_TIME", "1", true},
                   {OPTION_ID_NO_LOG_HIDE_TIME, "LOG_HIDE_TIME", "0", true},
                   {OPTION_ID_STALL_CHECK, "STALL_CHECK_DISABLE", "0", false}};

    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
        if (!has(s, aliases[i].id))
            continue;
        s->options.config[config_find(aliases[i].row)] = aliases[i].value;
        s->options.config_names[config_find(aliases[i].row)] =
            option_rows[aliases[i].id].names[0];
        if (aliases[i].is_deprecated)
            fprintf(stderr, "horovodrun: warning: %s is deprecated; use %s\n",
                    option_rows[aliases[i].id].names[0],
                    aliases[i].value[0] == '1' ? "--log-without-timestamp"
                                               : "--log-with-timestamp");
    }
}

/* ---- hosts, network, command ------------------------------------------------------ */

static enum hvd_status read_hosts(struct settings *s, struct hvd_error *err)
{
    char text[64];

    if (has(s, OPTION_ID_HOSTS))
        return hosts_parse(value_of(s, OPTION_ID_HOSTS), &s->hosts, err);
    if (has(s, OPTION_ID_HOSTFILE))
        return hosts_read_file(value_of(s, OPTION_ID_HOSTFILE), &s->hosts, err);
    if (s->hosts.count > 0)
        return HVD_OK;                  /* LSF has told them */
    if (has(s, OPTION_ID_DISCOVERY))
        return HVD_OK;
    snprintf(text, sizeof text, "localhost:%d", s->np);
    return hosts_parse(text, &s->hosts, err);
}

static enum hvd_status add_nics(struct settings *s, const char *text,
                                struct hvd_error *err)
{
    char *copy = strdup(text), *rest = NULL;
    char **nics;

    for (char *nic = copy == NULL ? NULL : strtok_r(copy, ", ", &rest); nic != NULL;
         nic = strtok_r(NULL, ", ", &rest)) {
        bool is_known = false;

        for (int i = 0; i < s->nic_count; i++)
            is_known |= strcmp(s->nics[i], nic) == 0;
        if (is_known)
            continue;
        nics = realloc(s->nics, ((size_t)s->nic_count + 2) * sizeof *nics);
        if (nics == NULL)
            break;
        s->nics = nics;
        s->nics[s->nic_count++] = strdup(nic);
        s->nics[s->nic_count] = NULL;
    }
    free(copy);
    return s->nics == NULL && *text != '\0'
               ? error_set(err, HVD_INVALID, -1, "'%.64s' names no network interface", text)
               : HVD_OK;
}

static enum hvd_status read_nics(struct settings *s, struct hvd_error *err)
{
    static const enum option_id ids[] = {OPTION_ID_NETWORK_INTERFACE,
                                         OPTION_ID_NETWORK_INTERFACES};
    const char *own = config_foreign("HOROVOD_GLOO_IFACE");

    for (int k = 0; k < 2; k++)
        for (int i = 0; i < s->options.list_counts[ids[k]]; i++) {
            const char *text = s->options.lists[ids[k]][i];

            if (k == 0 && strchr(text, ',') != NULL)
                fprintf(stderr, "horovodrun: warning: a list for --network-interface is "
                                "deprecated; use --network-interfaces\n");
            TRY(add_nics(s, text, err));
        }
    if (own == NULL || *own == '\0')
        return HVD_OK;
    if (s->nic_count == 0)
        return add_nics(s, own, err);
    fprintf(stderr, "horovodrun: warning: HOROVOD_GLOO_IFACE=%s is overridden by "
                    "--network-interface\n", own);
    return HVD_OK;
}

static bool is_assignment(const char *word)
{
    const char *equals = strchr(word, '=');
    const char *slash = strchr(word, '/');

    return equals != NULL && equals != word && (slash == NULL || slash > equals);
}

static enum hvd_status read_command(struct settings *s, struct hvd_error *err)
{
    const char *const *word = s->options.command;
    int left = s->options.command_count;

    for (int i = 0; i < s->options.list_counts[OPTION_ID_ENV]; i++)
        env_put(&s->assigned, s->options.lists[OPTION_ID_ENV][i]);
    s->forward = s->options.lists[OPTION_ID_ENV];
    s->forward_count = s->options.list_counts[OPTION_ID_ENV];
    for (; left > 0 && is_assignment(*word); word++, left--)
        env_put(&s->assigned, *word);
    if (left > 0 && strcmp(*word, "--") == 0)
        word++, left--;
    s->command = word;
    if (left == 0)
        return error_set(err, HVD_INVALID, -1, "the command to run is missing");
    return HVD_OK;
}

/* ---- limits and the rest ---------------------------------------------------------- */

static int positive_variable(const char *name, int otherwise)
{
    const char *text = config_foreign(name);
    int value = text == NULL ? 0 : atoi(text);

    return value > 0 ? value : otherwise;
}

static enum hvd_status read_limits(struct settings *s, const struct config *conf,
                                   struct hvd_error *err)
{
    int grace_s = GRACE_S, start_s = 0;

    TRY(read_integer(s, OPTION_ID_START_TIMEOUT, "start_timeout", 0, &start_s, err));
    TRY(read_integer(s, OPTION_ID_GRACE, "grace_period", 0, &grace_s, err));
    TRY(read_integer(s, OPTION_ID_SSH_PORT, "ssh_port", 1, &s->ssh_port, err));
    if (s->ssh_port > 65535)
        return error_set(err, HVD_INVALID, -1, "ssh_port=%d must be <= 65535",
                         s->ssh_port);
    if (grace_s > 86400)
        return error_set(err, HVD_INVALID, -1, "grace_period=%d must be <= 86400",
                         grace_s);
    s->grace_ms = grace_s * 1000;
    s->leave_ms = has(s, OPTION_ID_GRACE) ? s->grace_ms : LEAVE_MS;
    s->start_timeout_s = start_s > 0 ? start_s
                                     : positive_variable("HOROVOD_START_TIMEOUT",
                                                         START_TIMEOUT_S);
    s->timeout_s = conf->timeout_s;
    s->discovery_s = conf->discovery_s;
    s->heartbeat_s = conf->heartbeat_s;
    s->payload_fd = s->result_fd = -1;
    TRY(read_integer(s, OPTION_ID_PAYLOAD_FD, "payload_fd", 3, &s->payload_fd, err));
    return read_integer(s, OPTION_ID_RESULT_FD, "result_fd", 3, &s->result_fd, err);
}

static void read_flags(struct settings *s)
{
    const char *agent = config_foreign("OMPI_MCA_plm_rsh_agent");

    s->verbose = has(s, OPTION_ID_VERBOSE);
    s->timestamps = has(s, OPTION_ID_PREFIX_TIMESTAMP);
    s->no_bind = has(s, OPTION_ID_NO_BIND);
    s->skip_host_keys = has(s, OPTION_ID_NO_HOST_KEY_CHECK);
    s->output_dir = value_of(s, OPTION_ID_OUTPUT_FILENAME);
    s->key_file = value_of(s, OPTION_ID_KEY_FILE);
    s->ssh_identity = value_of(s, OPTION_ID_SSH_IDENTITY_FILE);
    s->remote_shell = agent != NULL && strcmp(agent, KUBEXEC) == 0 ? KUBEXEC : NULL;
    if (has(s, OPTION_ID_MPI))
        s->controller = CONTROLLER_MPI;
    if (has(s, OPTION_ID_JSRUN))
        s->controller = CONTROLLER_JSRUN;
    s->is_elastic = has(s, OPTION_ID_DISCOVERY) || has(s, OPTION_ID_MIN_NP);
}

static void read_environment(struct settings *s)
{
    struct env own;

    env_init(&own);
    env_add_own(&own);
    for (int i = 0; i < own.count; i++)
        if (!worker_env_is_private(own.items[i]))
            env_put(&s->base, own.items[i]);
    env_release(&own);
}

/* LSF tells its hosts: LSB_MCPU_HOSTS="hostA 4 hostB 4". */
static enum hvd_status read_lsf_hosts(struct settings *s, struct hvd_error *err)
{
    const char *at = config_foreign("LSB_MCPU_HOSTS");
    struct strbuf text;
    enum hvd_status status;

    strbuf_init(&text);
    while (at != NULL && *at != '\0') {
        size_t name = strcspn(at, " "), gap = strspn(at + name, " ");
        size_t count = strcspn(at + name + gap, " ");

        strbuf_addf(&text, "%s%.*s:%.*s", text.length > 0 ? "," : "", (int)name, at,
                    (int)count, at + name + gap);
        at += name + gap + count;
        at += strspn(at, " ");
    }
    status = hosts_parse(text.text, &s->hosts, err);
    strbuf_release(&text);
    if (status == HVD_OK)
        s->np = hosts_slot_count(&s->hosts);
    return status;
}

static enum hvd_status read_np(struct settings *s, bool *usage_p, struct hvd_error *err)
{
    if (!has(s, OPTION_ID_NUM_PROC) && config_foreign("LSB_JOBID") != NULL &&
        config_foreign("LSB_MCPU_HOSTS") != NULL)
        return read_lsf_hosts(s, err);
    if (!has(s, OPTION_ID_NUM_PROC)) {
        *usage_p = true;
        return error_set(err, HVD_INVALID, -1,
                         "the following arguments are required: -np/--num-proc");
    }
    TRY(read_integer(s, OPTION_ID_NUM_PROC, "num_proc", 1, &s->np, err));
    if (s->np > 1 << 20)
        return error_set(err, HVD_INVALID, -1, "num_proc=%d must be <= %d", s->np,
                         1 << 20);
    return HVD_OK;
}

static enum hvd_status read_cooldown(struct settings *s, struct hvd_error *err)
{
    const char *low = value_of(s, OPTION_ID_COOLDOWN);

    if (low == NULL)
        return HVD_OK;
    s->cooldown_lo_s = atoi(low);
    s->cooldown_hi_s = atoi(s->options.second[OPTION_ID_COOLDOWN]);
    if (s->cooldown_lo_s < 1 || s->cooldown_hi_s < s->cooldown_lo_s ||
        s->cooldown_hi_s > 3600)
        return error_set(err, HVD_INVALID, -1,
                         "blacklist_cooldown_range=%d %d must not decrease, and lie within 1 "
                         "to 3600", s->cooldown_lo_s, s->cooldown_hi_s);
    return HVD_OK;
}

/* min <= np <= max and the rest of what an elastic job is given. */
static enum hvd_status read_elastic(struct settings *s, bool *usage_p,
                                    struct hvd_error *err)
{
    int max = INT32_MAX;

    s->min_np = s->np;
    s->reset_limit = -1;
    s->elastic_timeout_s = positive_variable("HOROVOD_ELASTIC_TIMEOUT", ELASTIC_TIMEOUT_S);
    s->discovery = value_of(s, OPTION_ID_DISCOVERY);
    TRY(read_integer(s, OPTION_ID_MIN_NP, "min_num_proc", 1, &s->min_np, err));
    TRY(read_integer(s, OPTION_ID_MAX_NP, "max_num_proc", 1, &max, err));
    TRY(read_integer(s, OPTION_ID_SLOTS_PER_HOST, "slots_per_host", 1, &s->slots_per_host,
                     err));
    TRY(read_integer(s, OPTION_ID_ELASTIC_TIMEOUT, "elastic_timeout", 1,
                     &s->elastic_timeout_s, err));
    TRY(read_integer(s, OPTION_ID_RESET_LIMIT, "reset_limit", 0, &s->reset_limit, err));
    TRY(read_integer(s, OPTION_ID_RESTARTS, "restarts_per_slot", 0, &s->restarts_per_slot,
                     err));
    TRY(read_integer(s, OPTION_ID_JOIN_PORT, "join_port", 1, &s->join_port, err));
    if (s->join_port > 65535)
        return error_set(err, HVD_INVALID, -1, "join_port=%d must be <= 65535", s->join_port);
    TRY(read_cooldown(s, err));
    s->max_np = max == INT32_MAX ? 0 : max;
    if (!s->is_elastic)
        return HVD_OK;
    if (s->min_np > s->np || s->np > max) {
        *usage_p = true;
        return s->min_np > s->np
                   ? error_set(err, HVD_INVALID, -1, "--min-np %d is more than -np %d",
                               s->min_np, s->np)
                   : error_set(err, HVD_INVALID, -1, "-np %d is more than --max-np %d", s->np,
                               max);
    }
    if (s->controller != CONTROLLER_NATIVE || s->node.count > 0)
        return error_set(err, HVD_INVALID, -1, "elastic jobs are started with our own agents "
                         "(--gloo), not with --mpi, --jsrun or --rendezvous");
    return HVD_OK;
}

static enum hvd_status read_join(struct settings *s, bool *usage_p, struct hvd_error *err)
{
    TRY(node_parse_place(value_of(s, OPTION_ID_JOIN), s->join.host, &s->join.port, err));
    s->join.slots = 1;
    TRY(read_integer(s, OPTION_ID_NUM_PROC, "num_proc", 1, &s->join.slots, err));
    TRY(read_integer(s, OPTION_ID_START_TIMEOUT, "start_timeout", 0, &s->start_timeout_s,
                     err));
    if (s->join.slots > 4096)
        return error_set(err, HVD_INVALID, -1, "num_proc=%d must be <= 4096", s->join.slots);
    *usage_p = s->options.command_count > 0;
    return *usage_p ? error_set(err, HVD_INVALID, -1, "--join takes no command: the job has "
                                "one") : HVD_OK;
}

/* Options that only ask need nothing else. */
static bool is_question(const struct settings *s)
{
    return has(s, OPTION_ID_HELP) || has(s, OPTION_ID_VERSION) ||
           has(s, OPTION_ID_CHECK_BUILD) || has(s, OPTION_ID_LIST_ALGORITHMS) ||
           has(s, OPTION_ID_PRINT_ARGS) || has(s, OPTION_ID_STATUS);
}

enum hvd_status settings_read(int argc, char **argv, struct settings *s, bool *usage_p,
                              struct hvd_error *err)
{
    struct config conf;
    enum hvd_status status;

    memset(s, 0, sizeof *s);
    env_init(&s->base);
    env_init(&s->knobs);
    env_init(&s->assigned);
    *usage_p = true;
    TRY(options_parse(argc, argv, &s->options, err));
    *usage_p = false;
    read_flags(s);
    if (is_question(s))
        return HVD_OK;
    merge_aliases(s);
    TRY(config_file_merge(s, err));
    TRY(export_knobs(s, err));
    if (has(s, OPTION_ID_PRINT_CONFIG))
        return HVD_OK;
    if (has(s, OPTION_ID_JOIN))
        return read_join(s, usage_p, err);
    TRY(read_np(s, usage_p, err));
    read_environment(s);
    *usage_p = true;
    TRY(read_command(s, err));
    *usage_p = false;
    TRY(read_hosts(s, err));
    TRY(read_nics(s, err));
    TRY(node_read(s, err));
    TRY(read_elastic(s, usage_p, err));
    status = config_read(&conf, err);
    if (status == HVD_OK)
        status = read_limits(s, &conf, err);
    config_release(&conf);
    return status;
}

void settings_release(struct settings *s)
{
    secret_free(s->node.key, HVD_KEY_BYTES);
    options_release(&s->options);
    hosts_release(&s->hosts);
    env_release(&s->base);
    env_release(&s->knobs);
    env_release(&s->assigned);
    for (int i = 0; i < s->nic_count; i++)
        free(s->nics[i]);
    free(s->nics);
    config_file_release(s);
}
