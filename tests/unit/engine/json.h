/* json.h: is this text one valid JSON value?  For tests of what we write. */
#ifndef TESTS_ENGINE_JSON_H
#define TESTS_ENGINE_JSON_H

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

static inline const char *json_space(const char *p)
{
    while (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')
        p++;
    return p;
}

/* Behind the string at p, NULL if it is none. */
static inline const char *json_string(const char *p)
{
    if (*p++ != '"')
        return NULL;
    for (; *p != '"'; p++) {
        if ((unsigned char)*p < 0x20)
            return NULL;
        if (*p != '\\')
            continue;
        p++;
        if (*p == 'u') {
            for (int i = 1; i <= 4; i++)
                if (!isxdigit((unsigned char)p[i]))
                    return NULL;
            p += 4;
        } else if (*p == '\0' || strchr("\"\\/bfnrt", *p) == NULL) {
            return NULL;
        }
    }
    return p + 1;
}

static inline const char *json_number(const char *p)
{
    const char *start = p;

    while (*p == '-' || *p == '+' || *p == '.' || *p == 'e' || *p == 'E' ||
           isdigit((unsigned char)*p))
        p++;
    return p > start && (isdigit((unsigned char)*start) || *start == '-') ? p : NULL;
}

static inline const char *json_value(const char *p);

static inline const char *json_items(const char *p, char close, bool keyed)
{
    p = json_space(p + 1);
    if (*p == close)
        return p + 1;
    for (;;) {
        if (keyed) {
            p = json_string(json_space(p));
            if (p == NULL || *(p = json_space(p)) != ':')
                return NULL;
            p++;
        }
        p = json_value(p);
        if (p == NULL)
            return NULL;
        p = json_space(p);
        if (*p == close)
            return p + 1;
        if (*p++ != ',')
            return NULL;
    }
}

static inline const char *json_value(const char *p)
{
    p = json_space(p);
    if (*p == '{')
        return json_items(p, '}', true);
    if (*p == '[')
        return json_items(p, ']', false);
    if (*p == '"')
        return json_string(p);
    if (strncmp(p, "true", 4) == 0 || strncmp(p, "null", 4) == 0)
        return p + 4;
    if (strncmp(p, "false", 5) == 0)
        return p + 5;
    return json_number(p);
}

static inline bool json_is_valid(const char *text)
{
    const char *end = json_value(text);

    return end != NULL && *json_space(end) == '\0';
}

#endif
