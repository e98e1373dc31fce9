/* fault.c: parses fault rules and decides at each armed point. */
#include "base/fault.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RULES_MAX 16

enum action { FAIL, KILL, STOP, DELAY };

struct rule {
    char name[48];
    enum action action;
    int code;                           /* errno of FAIL, milliseconds of DELAY */
    long after, times;                  /* passes before the first hit, hits left */
    long passed;
};

atomic_int fault_armed;
static struct rule rules[RULES_MAX];    /* guarded by lock */
static int rule_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const struct {
    const char *word;
    enum action action;
    int code;
} actions[] = {
    {"reset", FAIL, ECONNRESET}, {"nomem", FAIL, ENOMEM}, {"nospc", FAIL, ENOSPC},
    {"mfile", FAIL, EMFILE},     {"refused", FAIL, ECONNREFUSED},
    {"kill", KILL, 0},           {"stop", STOP, 0},
};

static bool set_action(struct rule *r, const char *word)
{
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++)
        if (strcmp(word, actions[i].word) == 0) {
            r->action = actions[i].action;
            r->code = actions[i].code;
            return true;
        }
    return false;
}

/* False: not understood.  A rule for another rank leaves *for_us_p false. */
static bool parse_word(struct rule *r, const char *word, int rank, bool *for_us_p)
{
    long value;

    if (sscanf(word, "rank=%ld", &value) == 1)
        *for_us_p = value == rank;
    else if (sscanf(word, "after=%ld", &value) == 1)
        r->after = value;
    else if (sscanf(word, "times=%ld", &value) == 1)
        r->times = value;
    else if (sscanf(word, "delay=%ld", &value) == 1)
        r->action = DELAY, r->code = (int)value;
    else
        return set_action(r, word);
    return true;
}

static bool parse_rule(char *text, int rank)
{
    struct rule r = {.action = FAIL, .code = ECONNRESET, .times = 1};
    bool for_us = true;
    char *save, *word = strtok_r(text, " ", &save);

    if (word == NULL)
        return true;
    if (strlen(word) >= sizeof r.name || rule_count == RULES_MAX)
        return false;
    strcpy(r.name, word);
    while ((word = strtok_r(NULL, " ", &save)) != NULL)
        if (!parse_word(&r, word, rank, &for_us))
            return false;
    if (for_us)
        rules[rule_count++] = r;
    return true;
}

bool fault_setup(const char *spec, int rank)
{
    char *copy = spec != NULL ? strdup(spec) : NULL;
    char *save, *part;
    bool understood = true;

    pthread_mutex_lock(&lock);
    rule_count = 0;
    for (part = copy != NULL ? strtok_r(copy, ";", &save) : NULL; part != NULL;
         part = strtok_r(NULL, ";", &save))
        understood &= parse_rule(part, rank);
    atomic_store(&fault_armed, rule_count > 0);
    pthread_mutex_unlock(&lock);
    free(copy);
    return understood;
}

static void wait_ms(int ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};

    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

static bool act(enum action action, int code)
{
    switch (action) {
    case KILL:
        raise(SIGKILL);
        break;
    case STOP:
        raise(SIGSTOP);
        break;
    case DELAY:
        wait_ms(code);
        break;
    case FAIL:
        errno = code;
        return true;
    }
    return false;
}

bool fault_hits(const char *name)
{
    enum action action = FAIL;
    bool hit = false;
    int code = 0;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < rule_count; i++) {
        struct rule *r = &rules[i];

        if (strcmp(r->name, name) != 0)
            continue;
        if (r->passed++ < r->after || r->times == 0)
            continue;
        r->times -= r->times > 0;
        action = r->action;
        code = r->code;
        hit = true;
        break;
    }
    pthread_mutex_unlock(&lock);
    return hit && act(action, code);
}

long fault_count(const char *name)
{
    long passed = -1;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < rule_count; i++)
        if (strcmp(rules[i].name, name) == 0)
            passed = rules[i].passed;
    pthread_mutex_unlock(&lock);
    return passed;
}
