/*
 * agent_wire.c: frames between launcher and agent.  All integers little endian.
 *
 *   frame   0 u32 length n of what follows, 1..AGENT_FRAME_MAX | 4 u8 type | 5 n - 1 bytes
 *   string  u32 length, bytes, one 0 byte (counted in no length, so that it can be used
 *           in place)
 *   list    u32 count, strings
 */
#include "launch/agent_wire.h"

#include <stdlib.h>
#include <string.h>

struct cursor {
    const char *at;
    size_t left;
    struct hvd_error *err;
};

static const char *const names[] = {
    "NONE",
#define AGENT_NAME(name, text) #name,
    AGENT_FRAMES(AGENT_NAME)
#undef AGENT_NAME
};

const char *agent_frame_name(unsigned type)
{
    return type < AGENT_FRAME_COUNT ? names[type] : "unknown";
}

static void put_u32(struct strbuf *out, uint32_t value)
{
    unsigned char bytes[4] = {(unsigned char)value, (unsigned char)(value >> 8),
                              (unsigned char)(value >> 16),
                              (unsigned char)(value >> 24)};

    strbuf_add(out, bytes, 4);
}

static uint32_t load_u32(const char *at)
{
    const unsigned char *p = (const unsigned char *)at;

    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
           (uint32_t)p[3] << 24;
}

static void put_string(struct strbuf *out, const char *text)
{
    size_t bytes = strlen(text);

    put_u32(out, (uint32_t)bytes);
    strbuf_add(out, text, bytes + 1);
}

static void put_list(struct strbuf *out, const char **list, uint32_t count)
{
    put_u32(out, count);
    for (uint32_t i = 0; i < count; i++)
        put_string(out, list[i]);
}

/* Starts a frame whose length is filled in by put_end. */
static size_t put_begin(struct strbuf *out, enum agent_frame type)
{
    size_t place = out->length;
    unsigned char code = (unsigned char)type;

    put_u32(out, 0);
    strbuf_add(out, &code, 1);
    return place;
}

static void put_end(struct strbuf *out, size_t place)
{
    uint32_t length = (uint32_t)(out->length - place - 4);

    if (out->failed)
        return;
    for (int i = 0; i < 4; i++)
        out->text[place + (size_t)i] = (char)(length >> (8 * i));
}

void agent_put_frame(struct strbuf *out, enum agent_frame type, const void *body,
                     size_t bytes)
{
    size_t place = put_begin(out, type);

    if (bytes > 0)
        strbuf_add(out, body, bytes);
    put_end(out, place);
}

void agent_put_words(struct strbuf *out, enum agent_frame type, const uint32_t *words,
                     int count, const void *bytes, size_t byte_count)
{
    size_t place = put_begin(out, type);

    for (int i = 0; i < count; i++)
        put_u32(out, words[i]);
    if (byte_count > 0)
        strbuf_add(out, bytes, byte_count);
    put_end(out, place);
}

void agent_put_hello(struct strbuf *out, const struct agent_hello *hello)
{
    size_t place = put_begin(out, AGENT_HELLO);

    put_u32(out, hello->protocol);
    put_string(out, hello->version);
    put_string(out, hello->host);
    put_u32(out, hello->cpus);
    put_end(out, place);
}

void agent_put_job(struct strbuf *out, const struct agent_job *job)
{
    size_t place = put_begin(out, AGENT_JOB);

    strbuf_add(out, job->key, HVD_KEY_BYTES);
    put_string(out, job->directory);
    put_u32(out, job->keep_environment);
    put_u32(out, job->heartbeat_ms);
    put_u32(out, job->leave_ms);
    put_u32(out, job->has_payload);
    put_u32(out, job->bind);
    put_string(out, job->addrs);
    put_u32(out, job->port);
    put_list(out, job->env, job->env_count);
    put_end(out, place);
}

void agent_put_start(struct strbuf *out, const struct agent_start *start)
{
    size_t place = put_begin(out, AGENT_START);

    put_u32(out, start->rank);
    put_u32(out, start->place);
    put_u32(out, start->places);
    put_u32(out, start->input);
    put_list(out, start->env, start->env_count);
    put_list(out, start->args, start->arg_count);
    put_end(out, place);
}

enum hvd_status agent_get_frame(const char *data, size_t bytes, unsigned *type_p,
                                const char **body_p, size_t *body_bytes_p,
                                size_t *used_p, struct hvd_error *err)
{
    uint32_t length;

    if (bytes < AGENT_HEADER)
        return HVD_AGAIN;
    length = load_u32(data);
    if (length == 0 || length > AGENT_FRAME_MAX)
        return error_set(err, HVD_PROTO, -1, "agent frame of %u bytes", length);
    *type_p = (unsigned char)data[4];
    if (*type_p == AGENT_NONE || *type_p >= AGENT_FRAME_COUNT)
        return error_set(err, HVD_PROTO, -1, "agent frame of type %u", *type_p);
    if (bytes - 4 < length)
        return HVD_AGAIN;
    *body_p = data + AGENT_HEADER;
    *body_bytes_p = length - 1;
    *used_p = 4 + (size_t)length;
    return HVD_OK;
}

static enum hvd_status short_body(struct cursor *c, const char *what)
{
    return error_set(c->err, HVD_PROTO, -1, "agent frame ends within %s", what);
}

static enum hvd_status get_u32(struct cursor *c, uint32_t *value_p)
{
    if (c->left < 4)
        return short_body(c, "a number");
    *value_p = load_u32(c->at);
    c->at += 4;
    c->left -= 4;
    return HVD_OK;
}

static enum hvd_status get_string(struct cursor *c, const char **text_p)
{
    uint32_t bytes = 0;

    TRY(get_u32(c, &bytes));
    if (c->left == 0 || bytes > c->left - 1)
        return short_body(c, "a string");
    if (c->at[bytes] != '\0' || memchr(c->at, '\0', bytes) != NULL)
        return error_set(c->err, HVD_PROTO, -1, "agent frame: a string with a 0 byte");
    *text_p = c->at;
    c->at += (size_t)bytes + 1;
    c->left -= (size_t)bytes + 1;
    return HVD_OK;
}

static enum hvd_status get_list(struct cursor *c, const char ***list_p,
                                uint32_t *count_p)
{
    uint32_t count = 0;
    const char **list;

    TRY(get_u32(c, &count));
    /* The shortest string takes 5 bytes, which bounds the allocation. */
    if (count > c->left / 5)
        return short_body(c, "a list");
    list = calloc((size_t)count + 1, sizeof *list);
    if (list == NULL)
        return error_set(c->err, HVD_NOMEM, -1, "no memory for %u strings", count);
    *list_p = list;
    *count_p = count;
    for (uint32_t i = 0; i < count; i++)
        TRY(get_string(c, &list[i]));
    return HVD_OK;
}

static enum hvd_status get_nothing_more(struct cursor *c)
{
    if (c->left != 0)
        return error_set(c->err, HVD_PROTO, -1, "agent frame: %zu bytes too many",
                         c->left);
    return HVD_OK;
}

enum hvd_status agent_get_hello(const char *body, size_t bytes,
                                struct agent_hello *hello, struct hvd_error *err)
{
    struct cursor c = {body, bytes, err};

    memset(hello, 0, sizeof *hello);
    TRY(get_u32(&c, &hello->protocol));
    TRY(get_string(&c, &hello->version));
    TRY(get_string(&c, &hello->host));
    TRY(get_u32(&c, &hello->cpus));
    return get_nothing_more(&c);
}

enum hvd_status agent_get_job(const char *body, size_t bytes, struct agent_job *job,
                              struct hvd_error *err)
{
    struct cursor c = {body, bytes, err};

    memset(job, 0, sizeof *job);
    if (bytes < HVD_KEY_BYTES)
        return short_body(&c, "the key");
    job->key = (const uint8_t *)body;
    c.at += HVD_KEY_BYTES;
    c.left -= HVD_KEY_BYTES;
    TRY(get_string(&c, &job->directory));
    TRY(get_u32(&c, &job->keep_environment));
    TRY(get_u32(&c, &job->heartbeat_ms));
    TRY(get_u32(&c, &job->leave_ms));
    TRY(get_u32(&c, &job->has_payload));
    TRY(get_u32(&c, &job->bind));
    TRY(get_string(&c, &job->addrs));
    TRY(get_u32(&c, &job->port));
    TRY(get_list(&c, &job->env, &job->env_count));
    return get_nothing_more(&c);
}

enum hvd_status agent_get_start(const char *body, size_t bytes,
                                struct agent_start *start, struct hvd_error *err)
{
    struct cursor c = {body, bytes, err};

    memset(start, 0, sizeof *start);
    TRY(get_u32(&c, &start->rank));
    TRY(get_u32(&c, &start->place));
    TRY(get_u32(&c, &start->places));
    TRY(get_u32(&c, &start->input));
    TRY(get_list(&c, &start->env, &start->env_count));
    TRY(get_list(&c, &start->args, &start->arg_count));
    if (start->arg_count == 0 || start->place >= start->places)
        return error_set(err, HVD_PROTO, -1, "agent frame: a worker without command "
                                             "or place");
    return get_nothing_more(&c);
}

void agent_job_release(struct agent_job *job)
{
    free(job->env);
    job->env = NULL;
}

void agent_start_release(struct agent_start *start)
{
    free(start->env);
    free(start->args);
    start->env = start->args = NULL;
}

enum hvd_status agent_get_words(const char *body, size_t bytes, uint32_t *words,
                                int count, const char **rest_p, size_t *rest_bytes_p,
                                struct hvd_error *err)
{
    struct cursor c = {body, bytes, err};

    for (int i = 0; i < count; i++)
        TRY(get_u32(&c, &words[i]));
    *rest_p = c.at;
    *rest_bytes_p = c.left;
    return HVD_OK;
}
