/* strbuf.c: see strbuf.h. */
#include "base/strbuf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char nothing[1];

void strbuf_init(struct strbuf *buf)
{
    *buf = (struct strbuf){.text = nothing};
}

void strbuf_release(struct strbuf *buf)
{
    if (buf->capacity > 0 && buf->is_secret)
        explicit_bzero(buf->text, buf->capacity);
    if (buf->capacity > 0)
        free(buf->text);
    strbuf_init(buf);
}

void strbuf_clear(struct strbuf *buf)
{
    buf->length = 0;
    buf->failed = false;
    if (buf->capacity > 0)
        buf->text[0] = '\0';
}

/* As realloc, which may leave a copy behind. */
static char *move_secret(const struct strbuf *buf, size_t capacity)
{
    char *text = malloc(capacity);

    if (text == NULL || buf->capacity == 0)
        return text;
    memcpy(text, buf->text, buf->length + 1);
    explicit_bzero(buf->text, buf->capacity);
    free(buf->text);
    return text;
}

static bool reserve(struct strbuf *buf, size_t more)
{
    size_t need = buf->length + more + 1;
    size_t capacity = buf->capacity < 64 ? 64 : buf->capacity;
    char *text;

    if (need <= buf->capacity)
        return true;
    while (capacity < need)
        capacity *= 2;
    text = buf->is_secret ? move_secret(buf, capacity)
                          : realloc(buf->capacity > 0 ? buf->text : NULL, capacity);
    if (text == NULL) {
        buf->failed = true;
        return false;
    }
    buf->text = text;
    buf->capacity = capacity;
    return true;
}

void strbuf_add(struct strbuf *buf, const void *bytes, size_t count)
{
    if (count == 0 || !reserve(buf, count))
        return;
    memcpy(buf->text + buf->length, bytes, count);
    buf->length += count;
    buf->text[buf->length] = '\0';
}

void strbuf_addf(struct strbuf *buf, const char *format, ...)
{
    va_list args, again;
    int need;

    va_start(args, format);
    va_copy(again, args);
    need = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (need >= 0 && reserve(buf, (size_t)need)) {
        vsnprintf(buf->text + buf->length, (size_t)need + 1, format, again);
        buf->length += (size_t)need;
    }
    va_end(again);
}

void strbuf_add_ranks(struct strbuf *buf, const bool *member, int count)
{
    const char *comma = "";

    for (int i = 0; i < count; i++) {
        int first = i;

        if (!member[i])
            continue;
        while (i + 1 < count && member[i + 1])
            i++;
        strbuf_addf(buf, i > first ? "%s%d-%d" : "%s%d", comma, first, i);
        comma = ", ";
    }
}

/* UTF-8 passes as it is when whole; a stray byte becomes its Latin-1 escape, so that
 * the result is valid JSON for any input. */
static size_t utf8_length(const unsigned char *p)
{
    size_t n = p[0] >= 0xf0 && p[0] <= 0xf4 ? 4 : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
               : p[0] >= 0xc2 && p[0] < 0xe0 ? 2 : 1;

    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 1;
    if (n == 3 && ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] >= 0xa0)))
        return 1;
    if (n == 4 && ((p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] >= 0x90)))
        return 1;
    return n;
}

void strbuf_add_json(struct strbuf *buf, const char *text)
{
    const unsigned char *p = (const unsigned char *)text;

    strbuf_add(buf, "\"", 1);
    while (*p != '\0') {
        size_t n = utf8_length(p);

        if (*p == '"' || *p == '\\')
            strbuf_addf(buf, "\\%c", *p);
        else if (*p < 0x20 || *p == 0x7f || (n == 1 && *p >= 0x80))
            strbuf_addf(buf, "\\u%04x", *p);
        else
            strbuf_add(buf, p, n);
        p += n;
    }
    strbuf_add(buf, "\"", 1);
}
