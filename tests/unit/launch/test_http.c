/* test_http.c: what the dashboard takes for a request, and what it does not. */
#include "check.h"

#include "launch/http.h"

static struct http_request q;
static struct hvd_error err;

static enum hvd_status parse(const char *text)
{
    return http_parse(text, strlen(text), &q, &err);
}

TEST(a_request_of_a_browser)
{
    CHECK_OK(parse("GET /api/status?a=1&token=xyz HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n"
                   "User-Agent: x\r\ncookie:  a=b; horovod-8080=s3 \r\n"
                   "Sec-Fetch-Site: same-origin\r\nAuthorization: Bearer t\r\n"
                   "Origin: http://127.0.0.1:8080\r\n\r\n"), err);
    CHECK_STR(q.path, "/api/status");
    CHECK_STR(q.query, "a=1&token=xyz");
    CHECK_STR(q.host, "127.0.0.1:8080");
    CHECK_STR(q.cookie, "a=b; horovod-8080=s3");
    CHECK_STR(q.site, "same-origin");
    CHECK_STR(q.origin, "http://127.0.0.1:8080");
    CHECK_STR(q.authorization, "Bearer t");
}

TEST(it_may_come_in_pieces)
{
    const char *text = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

    for (size_t n = 0; n < strlen(text); n++)
        CHECK_EQ(http_parse(text, n, &q, &err), HVD_AGAIN);
    CHECK_OK(parse(text), err);
}

TEST(what_is_refused)
{
    static char large[HTTP_HEAD_MAX];

    CHECK_EQ(parse("POST / HTTP/1.1\r\n\r\n"), HVD_INVALID);
    CHECK_EQ(parse("GETS / HTTP/1.1\r\n\r\n"), HVD_INVALID);
    CHECK_EQ(parse("\r\n\r\n"), HVD_PROTO);
    CHECK_EQ(parse("GET\r\n\r\n"), HVD_PROTO);
    CHECK_EQ(parse("GET http://a/ HTTP/1.1\r\n\r\n"), HVD_PROTO);
    CHECK_EQ(parse("GET / HTTP/2.0\r\n\r\n"), HVD_PROTO);
    CHECK_EQ(parse("GET / HTTP/1.1\r\nno colon\r\n\r\n"), HVD_PROTO);
    CHECK_EQ(parse("GET / HTTP/1.1\r\n: x\r\n\r\n"), HVD_PROTO);
    CHECK_EQ(parse("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), HVD_PROTO);
    CHECK_EQ(parse("GET / HTTP/1.1\r\nCookie: a\x01" "b\r\n\r\n"), HVD_PROTO);
    CHECK_EQ(parse("GET /\x1b[2J HTTP/1.1\r\n\r\n"), HVD_PROTO);
    memset(large, 'a', sizeof large);
    CHECK_EQ(http_parse(large, sizeof large - 1, &q, &err), HVD_AGAIN);
    CHECK_EQ(http_parse(large, sizeof large, &q, &err), HVD_PROTO);
}

TEST(values_in_lists)
{
    char out[8];

    CHECK(http_find("a=1&token=xyz", '&', "token", out, sizeof out));
    CHECK_STR(out, "xyz");
    CHECK(http_find("a=1; b=2", ';', "b", out, sizeof out));
    CHECK_STR(out, "2");
    CHECK(!http_find("ab=1", '&', "b", out, sizeof out));
    CHECK(!http_find("b", '&', "b", out, sizeof out));
    CHECK(!http_find("", '&', "b", out, sizeof out));
    CHECK(!http_find("b=123456789", '&', "b", out, sizeof out));
}

TEST(secrets)
{
    CHECK(http_same_secret("abc", "abc"));
    CHECK(!http_same_secret("abc", "abd"));
    CHECK(!http_same_secret("abc", "ab"));
    CHECK(!http_same_secret("abc", "abca"));
    CHECK(!http_same_secret("abc", "abcabc"));
    CHECK(!http_same_secret("abc", ""));
    CHECK(!http_same_secret("", ""));
    CHECK(!http_same_secret("", "a"));
}
