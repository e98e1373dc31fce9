/*
 * select.c: which algorithm runs, by operation and size, from rules in one language for
 * defaults and users:
 *
 *   rules := rule (',' rule)*
 *   rule  := [operation] low '-' high algorithm       sizes in bytes, kb, mb, gb; inf
 *
 * A rule without an operation belongs to that of the rule before.  The first rule counts
 * whose range has the size and whose algorithm can run on the team; the user's rules
 * stand before the defaults.  Sizes and teams are the same on all members, and so must be
 * the rules.
 */
#include "collective/collective_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define RULES_MAX 128
#define WORD_MAX 64

struct rule {
    enum coll_op op;
    uint64_t low, high;                 /* low <= size < high; UINT64_MAX: no limit */
    const struct coll_alg *alg;
};

static struct rule user_rules[RULES_MAX];
static int user_count;

/* ---- Parsing ----------------------------------------------------------------------- */

/* Next word up to blank, comma or the end; its length, 0 at a comma or the end. */
static size_t next_word(const char **at, char word[WORD_MAX])
{
    size_t n = 0;

    *at += strspn(*at, " \t\n");
    while (**at != 0 && strchr(" \t\n,", **at) == NULL) {
        if (n < WORD_MAX - 1)
            word[n++] = **at;
        (*at)++;
    }
    word[n] = 0;
    return n;
}

static bool parse_size(const char *text, size_t n, uint64_t *size_p)
{
    static const struct {
        const char *name;
        int shift;
    } units[] = {{"", 0}, {"b", 0}, {"kb", 10}, {"mb", 20}, {"gb", 30}};
    char copy[WORD_MAX], *end;

    snprintf(copy, sizeof copy, "%.*s", (int)n, text);
    if (strcasecmp(copy, "inf") == 0) {
        *size_p = UINT64_MAX;
        return true;
    }
    if (copy[0] < '0' || copy[0] > '9')
        return false;
    *size_p = strtoull(copy, &end, 10);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcasecmp(end, units[i].name) == 0) {
            *size_p <<= units[i].shift;
            return true;
        }
    return false;
}

static bool parse_range(const char *word, uint64_t *low_p, uint64_t *high_p)
{
    const char *dash = strchr(word, '-');

    return dash != NULL && parse_size(word, (size_t)(dash - word), low_p) &&
           parse_size(dash + 1, strlen(dash + 1), high_p) && *low_p < *high_p;
}

static int find_op(const char *word)
{
    for (int op = 0; op < COLL_OP_COUNT; op++)
        if (strcasecmp(word, catalog_op_names[op]) == 0)
            return op;
    return -1;
}

static const struct coll_alg *find_alg(int op, const char *word)
{
    for (int i = 0; i < catalog_alg_count; i++)
        if ((int)catalog_algs[i]->op == op && strcasecmp(word, catalog_algs[i]->name) == 0)
            return catalog_algs[i];
    return NULL;
}

static enum hvd_status parse_rule(const char **at, int *op, struct rule *rule,
                                  struct hvd_error *err)
{
    char word[WORD_MAX];

    next_word(at, word);
    if (find_op(word) >= 0) {
        *op = find_op(word);
        next_word(at, word);
    }
    if (*op < 0)
        return error_set(err, HVD_INVALID, -1, "algorithms: '%s' is no operation", word);
    if (!parse_range(word, &rule->low, &rule->high))
        return error_set(err, HVD_INVALID, -1,
                         "algorithms: '%s' is no range of sizes such as 0-16kb", word);
    next_word(at, word);
    rule->op = (enum coll_op)*op;
    rule->alg = find_alg(*op, word);
    if (rule->alg == NULL)
        return error_set(err, HVD_INVALID, -1, "algorithms: %s has no algorithm '%s'",
                         catalog_op_names[*op], word);
    return HVD_OK;
}

static enum hvd_status parse(const char *text, struct rule rules[RULES_MAX],
                             int *count_p, struct hvd_error *err)
{
    int op = -1, count = 0;

    text += strspn(text, " \t\n");
    while (*text != 0) {
        if (count == RULES_MAX)
            return error_set(err, HVD_INVALID, -1, "algorithms: more than %d rules",
                             RULES_MAX);
        TRY(parse_rule(&text, &op, &rules[count++], err));
        text += strspn(text, " \t\n");
        if (*text != 0 && *text != ',')
            return error_set(err, HVD_INVALID, -1,
                             "algorithms: a comma is missing before '%.20s'", text);
        text += strspn(text, ", \t\n");
    }
    *count_p = count;
    return HVD_OK;
}

enum hvd_status coll_set_rules(const char *text, struct hvd_error *err)
{
    struct rule rules[RULES_MAX];
    int count;

    TRY(parse(text == NULL ? "" : text, rules, &count, err));
    memcpy(user_rules, rules, (size_t)count * sizeof rules[0]);
    user_count = count;
    return HVD_OK;
}

/* ---- Choosing ---------------------------------------------------------------------- */

static uint64_t rule_high(const struct rule *r, const struct coll_team *team)
{
    uint64_t limit = r->alg->limit != NULL ? r->alg->limit(team) : UINT64_MAX;

    return r->high < limit ? r->high : limit;
}

/* The first rule for `size`, and in *next_p where another one may begin. */
static const struct coll_alg *first_match(const struct rule *rules, int count,
                                          const struct coll_team *team, enum coll_op op,
                                          uint64_t size, uint64_t *next_p)
{
    const struct coll_alg *found = NULL;

    for (int i = 0; i < count; i++) {
        const struct rule *r = &rules[i];
        uint64_t high;

        if (r->op != op || !r->alg->can(team))
            continue;
        high = rule_high(r, team);
        if (r->low > size && r->low < *next_p)
            *next_p = r->low;
        if (high > size && high < *next_p)
            *next_p = high;
        if (found == NULL && r->low <= size && (size < high || high == UINT64_MAX))
            found = r->alg;
    }
    return found;
}

static enum hvd_status fill_lines(struct coll_team *team, enum coll_op op,
                                  const struct rule *rules, int count,
                                  struct hvd_error *err)
{
    struct select_line *lines = team->select[op];
    uint64_t size = 0;

    for (int n = 0; n < SELECT_LINES; n++) {
        uint64_t next = UINT64_MAX;

        lines[n].alg = first_match(rules, count, team, op, size, &next);
        lines[n].limit = next;
        if (lines[n].alg == NULL)
            return error_set(err, HVD_INVALID, -1, "no algorithm for %s of %llu bytes",
                             catalog_op_names[op], (unsigned long long)size);
        if (next == UINT64_MAX)
            return HVD_OK;
        if (n > 0 && lines[n].alg == lines[n - 1].alg)
            lines[--n].limit = next;
        size = next;
    }
    return error_set(err, HVD_INVALID, -1, "too many rules for %s", catalog_op_names[op]);
}

enum hvd_status select_apply(struct coll_team *team, struct hvd_error *err)
{
    struct rule rules[2 * RULES_MAX];
    int defaults;

    memcpy(rules, user_rules, (size_t)user_count * sizeof rules[0]);
    TRY(parse(catalog_default_rules, rules + user_count, &defaults, err));
    for (int op = 0; op < COLL_OP_COUNT; op++)
        TRY(fill_lines(team, (enum coll_op)op, rules, user_count + defaults, err));
    return HVD_OK;
}

const struct coll_alg *select_choose(const struct coll_team *team,
                                     const struct coll_call *call)
{
    const struct select_line *line = team->select[call->op];
    uint64_t size;

    if (line->limit == UINT64_MAX)
        return line->alg;
    size = task_size(team, call);
    while (size >= line->limit && line->limit != UINT64_MAX)
        line++;
    return line->alg;
}

/* ---- Describing -------------------------------------------------------------------- */

static size_t add_line(char *buffer, size_t capacity, size_t at, const char *line)
{
    size_t n = strlen(line);

    if (at < capacity) {
        size_t room = capacity - at - 1, part = n < room ? n : room;

        memcpy(buffer + at, line, part);
        buffer[at + part] = 0;
    }
    return at + n;
}

static size_t add_rules(char *buffer, size_t capacity, size_t at)
{
    char line[128];

    for (int i = 0; i < user_count; i++) {
        const struct rule *r = &user_rules[i];

        snprintf(line, sizeof line, "rule %s %llu-%llu %s\n", catalog_op_names[r->op],
                 (unsigned long long)r->low, (unsigned long long)r->high, r->alg->name);
        at = add_line(buffer, capacity, at, line);
    }
    at = add_line(buffer, capacity, at, "default ");
    at = add_line(buffer, capacity, at, catalog_default_rules);
    return add_line(buffer, capacity, at, "\n");
}

size_t coll_describe(char *buffer, size_t capacity)
{
    size_t at = 0;
    char line[256];

    for (int i = 0; i < catalog_alg_count; i++) {
        const struct coll_alg *a = catalog_algs[i];

        snprintf(line, sizeof line, "%-14s %-10s %s\n", catalog_op_names[a->op], a->name,
                 a->text);
        at = add_line(buffer, capacity, at, line);
    }
    return add_rules(buffer, capacity, at);
}
