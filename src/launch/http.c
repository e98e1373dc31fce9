/* http.c: see http.h. */
#include "launch/http.h"

#include <string.h>
#include <strings.h>

static enum hvd_status bad(struct hvd_error *err, const char *what)
{
    return error_set(err, HVD_PROTO, -1, "not a request: %s", what);
}

/* Visible characters only: no header can hold a line of its own. */
static bool copy(char *out, size_t capacity, const char *from, size_t n)
{
    if (n >= capacity)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)from[i] < 0x20 || (unsigned char)from[i] >= 0x7f)
            return false;
    memcpy(out, from, n);
    out[n] = '\0';
    return true;
}

/* "GET /path?query HTTP/1.1" */
static enum hvd_status parse_line(const char *line, size_t n, struct http_request *out,
                                  struct hvd_error *err)
{
    const char *end = line + n, *target, *query, *space;

    if (n < 4 || memchr(line, ' ', n) == NULL)
        return bad(err, "its first line");
    target = (const char *)memchr(line, ' ', n) + 1;
    space = memchr(target, ' ', (size_t)(end - target));
    if (space == NULL || end - space != 9 || memcmp(space, " HTTP/1.", 8) != 0 ||
        target[0] != '/')
        return bad(err, "its first line");
    if (memcmp(line, "GET ", 4) != 0)
        return error_set(err, HVD_INVALID, -1, "only GET");
    query = memchr(target, '?', (size_t)(space - target));
    if (!copy(out->path, sizeof out->path, target,
              (size_t)((query != NULL ? query : space) - target)) ||
        (query != NULL &&
         !copy(out->query, sizeof out->query, query + 1, (size_t)(space - query - 1))))
        return bad(err, "its path");
    return HVD_OK;
}

static enum hvd_status parse_header(const char *line, size_t n, struct http_request *out,
                                    struct hvd_error *err)
{
    const struct {
        const char *name;
        char *to;
        size_t capacity;
    } known[] = {{"host", out->host, sizeof out->host},
                 {"origin", out->origin, sizeof out->origin},
                 {"sec-fetch-site", out->site, sizeof out->site},
                 {"cookie", out->cookie, sizeof out->cookie},
                 {"authorization", out->authorization, sizeof out->authorization}};
    const char *colon = memchr(line, ':', n);
    size_t name = colon != NULL ? (size_t)(colon - line) : 0;
    const char *value, *end = line + n;

    if (name == 0)
        return bad(err, "a header");
    value = colon + 1;
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strlen(known[i].name) != name || strncasecmp(known[i].name, line, name) != 0)
            continue;
        if (known[i].to[0] != '\0' ||
            !copy(known[i].to, known[i].capacity, value, (size_t)(end - value)))
            return bad(err, known[i].name);
    }
    return HVD_OK;
}

enum hvd_status http_parse(const char *bytes, size_t n, struct http_request *out,
                           struct hvd_error *err)
{
    bool is_first = true;

    memset(out, 0, sizeof *out);
    if (n > HTTP_HEAD_MAX)
        return bad(err, "too long");
    if (memmem(bytes, n, "\r\n\r\n", 4) == NULL)
        return n == HTTP_HEAD_MAX ? bad(err, "too long") : HVD_AGAIN;
    for (;;) {
        const char *end = memmem(bytes, n, "\r\n", 2);
        size_t length = (size_t)(end - bytes);

        if (length == 0)
            return is_first ? bad(err, "its first line") : HVD_OK;
        TRY(is_first ? parse_line(bytes, length, out, err)
                     : parse_header(bytes, length, out, err));
        is_first = false;
        bytes += length + 2;
        n -= length + 2;
    }
}

bool http_find(const char *list, char separator, const char *name, char *out,
               size_t capacity)
{
    const char stop[2] = {separator, '\0'};
    size_t n = strlen(name);

    while (*list != '\0') {
        size_t length = strcspn(list, stop);

        while (length > 0 && *list == ' ') {
            list++;
            length--;
        }
        if (length > n && memcmp(list, name, n) == 0 && list[n] == '=')
            return copy(out, capacity, list + n + 1, length - n - 1);
        list += length + (list[length] == separator);
    }
    return false;
}

bool http_same_secret(const char *secret, const char *given)
{
    size_t length = strlen(secret), n = strlen(given);
    volatile unsigned char difference = length != n || n == 0;

    for (size_t i = 0; i < n; i++)
        difference |= (unsigned char)(secret[length > 0 ? i % length : 0] ^ given[i]);
    return difference == 0;
}
