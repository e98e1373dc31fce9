/*
 * http.h: the head of an HTTP request, as far as the dashboard needs it.  Pure; bounded: a
 * request is a GET without a body, of HTTP_HEAD_MAX bytes at most.
 */
#ifndef HVD_LAUNCH_HTTP_H
#define HVD_LAUNCH_HTTP_H

#include "base/error.h"

#define HTTP_HEAD_MAX 8192
#define HTTP_VALUE_MAX 1024

struct http_request {
    char path[256];                     /* "/api/status"; without the query */
    char query[512];                    /* what follows '?', "" none */
    char host[256], origin[256], site[32];      /* Host, Origin, Sec-Fetch-Site; "" none */
    char cookie[HTTP_VALUE_MAX], authorization[256];
};

/* HVD_AGAIN: the head has not come whole.  HVD_PROTO: not a request; HVD_INVALID: not a GET.
 * A header that is known and comes twice, or does not fit, is HVD_PROTO. */
enum hvd_status http_parse(const char *bytes, size_t n, struct http_request *out,
                           struct hvd_error *err);

/* The value of a name in "a=1&b=2" (separator '&') or "a=1; b=2" (';'); false: none, or it
 * does not fit. */
bool http_find(const char *list, char separator, const char *name, char *out,
               size_t capacity);

/* Whether two texts are equal; the time tells nothing but the length of `given`. */
bool http_same_secret(const char *secret, const char *given);

#endif
