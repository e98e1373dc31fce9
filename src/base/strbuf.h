/* strbuf.h: a growing string.  `text` is never NULL after strbuf_init and always ends
 * with 0.  Out of memory sets `failed` and drops what did not fit. */
#ifndef HVD_BASE_STRBUF_H
#define HVD_BASE_STRBUF_H

#include <stdbool.h>
#include <stddef.h>

struct strbuf {
    char *text;
    size_t length, capacity;
    bool failed;
    bool is_secret;                     /* set after strbuf_init: memory that is given up
                                         * is wiped */
};

void strbuf_init(struct strbuf *buf);
void strbuf_release(struct strbuf *buf);
void strbuf_clear(struct strbuf *buf);
void strbuf_add(struct strbuf *buf, const void *bytes, size_t count);
void strbuf_addf(struct strbuf *buf, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* "0, 2-5, 7": the ranks i < count with member[i] set. */
void strbuf_add_ranks(struct strbuf *buf, const bool *member, int count);
/* A JSON string with its quotes; every byte that needs it is escaped. */
void strbuf_add_json(struct strbuf *buf, const char *text);

#endif
