/*
 * look_message.c: see look_message.h.  All integers little endian; a text is u16 bytes and as
 * many bytes.
 *
 *   question   0 8 "HVDLOOK1" | 8 u32 what | 12 u32 recent_ms
 *   frame      0 u32 bytes that follow | 4 u8 kind | 5 body
 *
 * A body holds the fields of its struct in their order, lists after their count.
 */
#include "wire/look_message.h"

#include "wire/codec.h"

#include <stdlib.h>

static const char magic[8] = {'H', 'V', 'D', 'L', 'O', 'O', 'K', '1'};

/* ---- Question --------------------------------------------------------------------- */

void put_look_question(const struct look_question *q, uint8_t out[LOOK_QUESTION_BYTES])
{
    memcpy(out, magic, sizeof magic);
    for (int i = 0; i < 4; i++) {
        out[8 + i] = (uint8_t)(q->what >> 8 * i);
        out[12 + i] = (uint8_t)(q->recent_ms >> 8 * i);
    }
}

enum hvd_status get_look_question(struct look_question *q,
                                  const uint8_t bytes[LOOK_QUESTION_BYTES],
                                  struct hvd_error *err)
{
    struct wire_in in = wire_in_from(bytes + sizeof magic, LOOK_QUESTION_BYTES - sizeof magic);

    if (memcmp(bytes, magic, sizeof magic) != 0)
        return error_set(err, HVD_PROTO, -1, "not a question of this version");
    q->what = get_u32(&in);
    q->recent_ms = get_u32(&in);
    return HVD_OK;
}

/* ---- Texts and frames ------------------------------------------------------------- */

static void put_text(struct strbuf *out, const char *text)
{
    size_t n = strlen(text);

    put_u16(out, (unsigned)n);
    strbuf_add(out, text, n);
}

static void get_text(struct wire_in *in, char *out, size_t capacity)
{
    size_t n = get_u16(in);
    const uint8_t *bytes;

    if (n >= capacity)
        in->failed = true;
    bytes = get_bytes(in, n);
    out[0] = '\0';
    if (bytes == NULL)
        return;
    for (size_t i = 0; i < n; i++)
        out[i] = bytes[i] < 0x20 || bytes[i] == 0x7f ? '?' : (char)bytes[i];
    out[n] = '\0';
}

/* Where the body begins; end_frame fills in its size. */
static size_t begin_frame(struct strbuf *out, enum look_frame kind)
{
    put_u32(out, 0);
    put_u8(out, kind);
    return out->length;
}

static void end_frame(struct strbuf *out, size_t at)
{
    uint32_t n = (uint32_t)(out->length - at + 1);

    if (out->failed)
        return;
    for (int i = 0; i < 4; i++)
        out->text[at - LOOK_HEADER + (size_t)i] = (char)(n >> 8 * i);
}

static enum hvd_status end_body(const struct wire_in *in, const char *what,
                                struct hvd_error *err)
{
    if (in->failed || in->at != in->end)
        return error_set(err, HVD_PROTO, -1, "%s: not well formed", what);
    return HVD_OK;
}

enum hvd_status get_look_frame(const char *bytes, size_t n, enum look_frame *kind_p,
                               const char **body_p, size_t *body_n_p, size_t *used_p,
                               struct hvd_error *err)
{
    struct wire_in in = wire_in_from(bytes, n);
    uint32_t length = get_u32(&in);
    uint8_t kind = get_u8(&in);

    if (n < LOOK_HEADER)
        return HVD_AGAIN;
    if (length < 1 || length > LOOK_FRAME_MAX || kind == LOOK_NONE ||
        kind >= LOOK_FRAME_COUNT)
        return error_set(err, HVD_PROTO, -1, "frame of %u bytes, kind %u", length, kind);
    if (n - 4 < length)
        return HVD_AGAIN;
    *kind_p = kind;
    *body_p = bytes + LOOK_HEADER;
    *body_n_p = length - 1;
    *used_p = length + 4;
    return HVD_OK;
}

enum hvd_status look_is_whole(const char *bytes, size_t n, struct hvd_error *err)
{
    enum look_frame kind = LOOK_NONE;
    size_t body_n, used = 0;
    const char *body;

    while (n > 0) {
        TRY(get_look_frame(bytes, n, &kind, &body, &body_n, &used, err));
        bytes += used;
        n -= used;
        if (kind == LOOK_END)
            return n == 0 ? HVD_OK
                          : error_set(err, HVD_PROTO, -1, "%zu bytes after the end", n);
    }
    return HVD_AGAIN;
}

void put_look_end(struct strbuf *out)
{
    end_frame(out, begin_frame(out, LOOK_END));
}

const char *look_phase_text(unsigned phase)
{
    static const char *const texts[] = {
#define LOOK_PHASE_TEXT(name, text) text,
        LOOK_PHASES(LOOK_PHASE_TEXT)
#undef LOOK_PHASE_TEXT
    };

    return phase < LOOK_PHASE_COUNT ? texts[phase] : "-";
}

/* ---- RANK ------------------------------------------------------------------------- */

static void put_waits(struct strbuf *out, const struct look_rank *r)
{
    put_u32(out, r->wait_count);
    for (uint32_t i = 0; i < r->wait_count; i++) {
        const struct look_wait *w = &r->waits[i];
        uint32_t listed = w->missing_count < LOOK_MISSING ? w->missing_count : LOOK_MISSING;

        put_u8(out, w->op);
        put_text(out, w->name);
        put_u64(out, w->since_us);
        put_u32(out, w->missing_count);
        for (uint32_t k = 0; k < listed; k++)
            put_u32(out, (uint32_t)w->missing[k]);
    }
}

static void get_waits(struct wire_in *in, struct look_rank *r)
{
    for (uint32_t i = 0; i < r->wait_count && !in->failed; i++) {
        struct look_wait *w = &r->waits[i];
        uint32_t listed;

        w->op = get_u8(in);
        get_text(in, w->name, sizeof w->name);
        w->since_us = get_u64(in);
        w->missing_count = get_u32(in);
        listed = w->missing_count < LOOK_MISSING ? w->missing_count : LOOK_MISSING;
        for (uint32_t k = 0; k < listed; k++)
            w->missing[k] = (int32_t)get_u32(in);
    }
}

static void put_lists(struct strbuf *out, const struct look_rank *r)
{
    put_u32(out, r->kind_count);
    for (uint32_t i = 0; i < r->kind_count; i++) {
        const struct look_kind *k = &r->kinds[i];

        put_u64(out, k->count);
        put_u64(out, k->bytes);
        put_u64(out, k->errors);
        put_u64(out, k->timed);
        put_u64(out, k->time_ns);
    }
    put_waits(out, r);
    put_u32(out, r->peer_count);
    for (uint32_t i = 0; i < r->peer_count; i++) {
        const struct look_peer *p = &r->peers[i];

        put_u32(out, (uint32_t)p->rank);
        put_u64(out, p->waits);
        put_u64(out, p->wait_us);
        put_u64(out, p->last);
        put_u64(out, p->late_us);
    }
    put_u32(out, r->warning_count);
    for (uint32_t i = 0; i < r->warning_count; i++) {
        put_u64(out, r->warnings[i].wall_us);
        put_u8(out, r->warnings[i].level);
        put_text(out, r->warnings[i].text);
    }
}

static uint32_t get_count(struct wire_in *in, uint32_t limit)
{
    uint32_t n = get_u32(in);

    if (n > limit)
        in->failed = true;
    return in->failed ? 0 : n;
}

static void get_lists(struct wire_in *in, struct look_rank *r)
{
    r->kind_count = get_count(in, LOOK_KINDS);
    for (uint32_t i = 0; i < r->kind_count; i++) {
        struct look_kind *k = &r->kinds[i];

        k->count = get_u64(in);
        k->bytes = get_u64(in);
        k->errors = get_u64(in);
        k->timed = get_u64(in);
        k->time_ns = get_u64(in);
    }
    r->wait_count = get_count(in, LOOK_WAITS);
    get_waits(in, r);
    r->peer_count = get_count(in, LOOK_PEERS);
    for (uint32_t i = 0; i < r->peer_count; i++) {
        struct look_peer *p = &r->peers[i];

        p->rank = (int32_t)get_u32(in);
        p->waits = get_u64(in);
        p->wait_us = get_u64(in);
        p->last = get_u64(in);
        p->late_us = get_u64(in);
    }
    r->warning_count = get_count(in, LOOK_WARNINGS);
    for (uint32_t i = 0; i < r->warning_count; i++) {
        r->warnings[i].wall_us = get_u64(in);
        r->warnings[i].level = get_u8(in);
        get_text(in, r->warnings[i].text, sizeof r->warnings[i].text);
    }
}

static void put_records(struct strbuf *out, const struct look_rank *r)
{
    put_u32(out, r->record_count);
    for (uint32_t i = 0; i < r->record_count; i++) {
        const struct look_record *c = &r->records[i];

        put_u64(out, c->us);
        put_u64(out, c->bytes);
        put_u8(out, c->event);
        put_u8(out, c->op);
        put_u8(out, c->status);
        put_u16(out, (uint16_t)c->set);
        put_text(out, c->name);
    }
}

static enum hvd_status get_records(struct wire_in *in, struct look_rank *r,
                                   struct hvd_error *err)
{
    r->record_count = get_count(in, LOOK_RECORDS);
    if (r->record_count == 0)
        return HVD_OK;
    r->records = calloc(r->record_count, sizeof *r->records);
    if (r->records == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for records");
    for (uint32_t i = 0; i < r->record_count && !in->failed; i++) {
        struct look_record *c = &r->records[i];

        c->us = get_u64(in);
        c->bytes = get_u64(in);
        c->event = get_u8(in);
        c->op = get_u8(in);
        c->status = get_u8(in);
        c->set = (int16_t)get_u16(in);
        get_text(in, c->name, sizeof c->name);
    }
    return HVD_OK;
}

void put_look_rank(struct strbuf *out, const struct look_rank *r)
{
    size_t at = begin_frame(out, LOOK_RANK);
    const uint64_t words[] = {r->sent, r->received, r->cpu_us, r->rss_bytes, r->peak_bytes,
                              r->stalls, r->cache_hits, r->cache_misses, r->slept_us};

    put_text(out, r->job);
    put_text(out, r->host);
    put_u32(out, (uint32_t)r->rank);
    put_u32(out, (uint32_t)r->size);
    put_u32(out, (uint32_t)r->local_rank);
    put_u32(out, r->pid);
    put_u32(out, r->generation);
    put_u8(out, r->phase);
    put_u64(out, r->now_us);
    put_u64(out, r->wall_us);
    put_u64(out, r->phase_us);
    put_u32(out, r->open);
    put_u8(out, r->op);
    put_text(out, r->name);
    put_u64(out, r->since_us);
    put_text(out, r->text);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        put_u64(out, words[i]);
    put_lists(out, r);
    put_records(out, r);
    end_frame(out, at);
}

enum hvd_status get_look_rank(struct look_rank *r, const char *body, size_t n,
                              struct hvd_error *err)
{
    struct wire_in in = wire_in_from(body, n);
    enum hvd_status status;

    memset(r, 0, sizeof *r);
    get_text(&in, r->job, sizeof r->job);
    get_text(&in, r->host, sizeof r->host);
    r->rank = (int32_t)get_u32(&in);
    r->size = (int32_t)get_u32(&in);
    r->local_rank = (int32_t)get_u32(&in);
    r->pid = get_u32(&in);
    r->generation = get_u32(&in);
    r->phase = get_u8(&in);
    r->now_us = get_u64(&in);
    r->wall_us = get_u64(&in);
    r->phase_us = get_u64(&in);
    r->open = get_u32(&in);
    r->op = get_u8(&in);
    get_text(&in, r->name, sizeof r->name);
    r->since_us = get_u64(&in);
    get_text(&in, r->text, sizeof r->text);
    r->sent = get_u64(&in);
    r->received = get_u64(&in);
    r->cpu_us = get_u64(&in);
    r->rss_bytes = get_u64(&in);
    r->peak_bytes = get_u64(&in);
    r->stalls = get_u64(&in);
    r->cache_hits = get_u64(&in);
    r->cache_misses = get_u64(&in);
    r->slept_us = get_u64(&in);
    get_lists(&in, r);
    status = get_records(&in, r, err);
    if (status == HVD_OK && r->phase >= LOOK_PHASE_COUNT)
        in.failed = true;
    if (status == HVD_OK)
        status = end_body(&in, "rank", err);
    if (status != HVD_OK)
        look_rank_release(r);
    return status;
}

void look_rank_release(struct look_rank *r)
{
    free(r->records);
    r->records = NULL;
    r->record_count = 0;
}

/* ---- PROCESS, HOST, JOB ----------------------------------------------------------- */

void put_look_process(struct strbuf *out, const struct look_process *p)
{
    size_t at = begin_frame(out, LOOK_PROCESS);

    put_u32(out, (uint32_t)p->rank);
    put_u32(out, p->pid);
    put_u8(out, p->is_started);
    put_u8(out, p->is_ended);
    put_u8(out, (unsigned char)p->state);
    put_u32(out, p->code);
    put_u32(out, p->signal);
    put_u64(out, p->rss_bytes);
    put_text(out, p->host);
    put_text(out, p->text);
    end_frame(out, at);
}

enum hvd_status get_look_process(struct look_process *p, const char *body, size_t n,
                                 struct hvd_error *err)
{
    struct wire_in in = wire_in_from(body, n);

    p->rank = (int32_t)get_u32(&in);
    p->pid = get_u32(&in);
    p->is_started = get_u8(&in);
    p->is_ended = get_u8(&in);
    p->state = (char)get_u8(&in);
    if (p->state != 0 && (p->state < '!' || p->state > '~'))
        in.failed = true;
    p->code = get_u32(&in);
    p->signal = get_u32(&in);
    p->rss_bytes = get_u64(&in);
    get_text(&in, p->host, sizeof p->host);
    get_text(&in, p->text, sizeof p->text);
    return end_body(&in, "process", err);
}

void put_look_host(struct strbuf *out, const struct look_host *h)
{
    size_t at = begin_frame(out, LOOK_HOST);

    put_text(out, h->name);
    put_text(out, h->state);
    put_u64(out, (uint64_t)h->offset_us);
    put_u8(out, h->has_answered);
    end_frame(out, at);
}

enum hvd_status get_look_host(struct look_host *h, const char *body, size_t n,
                              struct hvd_error *err)
{
    struct wire_in in = wire_in_from(body, n);

    get_text(&in, h->name, sizeof h->name);
    get_text(&in, h->state, sizeof h->state);
    h->offset_us = (int64_t)get_u64(&in);
    h->has_answered = get_u8(&in);
    return end_body(&in, "host", err);
}

void put_look_job(struct strbuf *out, const struct look_job *j)
{
    size_t at = begin_frame(out, LOOK_JOB);

    put_text(out, j->job);
    put_text(out, j->state);
    put_text(out, j->command);
    put_text(out, j->host);
    put_u32(out, j->pid);
    put_u32(out, j->np);
    put_u32(out, j->generation);
    put_u8(out, j->is_elastic);
    put_u64(out, j->now_us);
    put_u64(out, j->since_us);
    put_u64(out, j->wall_us);
    end_frame(out, at);
}

enum hvd_status get_look_job(struct look_job *j, const char *body, size_t n,
                             struct hvd_error *err)
{
    struct wire_in in = wire_in_from(body, n);

    get_text(&in, j->job, sizeof j->job);
    get_text(&in, j->state, sizeof j->state);
    get_text(&in, j->command, sizeof j->command);
    get_text(&in, j->host, sizeof j->host);
    j->pid = get_u32(&in);
    j->np = get_u32(&in);
    j->generation = get_u32(&in);
    j->is_elastic = get_u8(&in);
    j->now_us = get_u64(&in);
    j->since_us = get_u64(&in);
    j->wall_us = get_u64(&in);
    return end_body(&in, "job", err);
}
