/*
 * neg.h: drives a negotiator without sockets: announcements in, responses out, as a list of
 * readable lines ("EXECUTE ALLREDUCE a b", "ERROR a [0 1] MISMATCH ...").
 */
#ifndef TESTS_ENGINE_NEG_H
#define TESTS_ENGINE_NEG_H

#include "check.h"
#include "engine/negotiate.h"

#include <stdlib.h>

#define RESPONSES 512

struct answer {
    enum response_kind kind;
    char text[2048];                    /* EXECUTE: names; ERROR: the text */
    char name[64];
    int targets[8], target_count;       /* ERROR */
    enum hvd_status status;
    int rank;
    struct wire_batch batch;
    uint32_t numbers[128];              /* CACHED, EXECUTE (number + 1, 0: none) */
    int count;                          /* of names or numbers */
    uint32_t number, seq;               /* REVOKE; SET_ADDED: id and epoch */
    int member;                         /* REVOKE: promising; JOINED; JOIN_DONE: last */
    int64_t counters[OP_KIND_COUNT];
    uint64_t sizes[64];
    uint32_t size_count;
};

static struct answer answers[RESPONSES];
static int answer_count;
static uint64_t neg_clock = 1000000;

static inline struct negotiator *neg_make(int members, struct neg_options opt)
{
    static const int ranks[] = {10, 11, 12, 13, 14, 15, 16, 17};

    opt.member_count = members;
    if (opt.ranks == NULL)
        opt.ranks = ranks;
    return neg_new(&opt);
}

static inline struct wire_request request_for(const char *name, enum hvd_op op)
{
    return (struct wire_request){.form = {.op = (uint8_t)op, .dtype = HVD_F32,
                                          .reduce = HVD_SUM, .ndim = 1, .shape = {4},
                                          .prescale = 1, .postscale = 1},
                                 .name = name, .name_bytes = (uint16_t)strlen(name),
                                 .problem = "", .splits = NULL};
}

static inline void announce(struct negotiator *n, int member, struct wire_request r)
{
    struct hvd_error err;

    CHECK_OK(neg_on_request(n, member, &r, neg_clock, &err), err);
}

static inline void announce_named(struct negotiator *n, int member, const char *name)
{
    announce(n, member, request_for(name, HVD_ALLREDUCE));
}

static inline void read_batch(struct wire_in *in, struct answer *a)
{
    struct wire_tensor t;
    struct hvd_error err;

    CHECK_OK(get_batch(in, &a->batch, &err), err);
    for (uint32_t i = 0; i < a->batch.tensor_count; i++) {
        size_t used = strlen(a->text);

        CHECK_OK(get_tensor(in, &t, &err), err);
        snprintf(a->text + used, sizeof a->text - used, "%s%.*s", i > 0 ? " " : "",
                 t.name_bytes, t.name);
        a->numbers[a->count++] = t.cached;
        a->size_count = t.size_count;
        for (uint32_t k = 0; k < t.size_count && k < 64; k++)
            a->sizes[k] = (uint64_t)get_split(t.sizes, k);
    }
}

static inline void read_error(struct wire_in *in, struct answer *a)
{
    struct wire_failure f;
    struct hvd_error err;

    CHECK_OK(get_failure(in, &f, &err), err);
    snprintf(a->name, sizeof a->name, "%.*s", f.name_bytes, f.name);
    snprintf(a->text, sizeof a->text, "%.*s", f.text_bytes, f.text);
    a->status = f.status;
    a->rank = f.rank;
    a->target_count = (int)f.target_count;
    for (uint32_t i = 0; i < f.target_count; i++) {
        struct wire_in at = wire_in_from(f.targets + 4 * (size_t)i, 4);

        a->targets[i] = (int)get_u32(&at);
    }
}

static inline void read_set(struct wire_in *in, struct answer *a)
{
    a->number = get_u32(in);
    if (a->kind == RESPONSE_SET_ADDED) {
        get_u32(in);                    /* slot */
        a->seq = get_u32(in);
    }
    get_bytes(in, get_u16(in));
    a->count = a->kind == RESPONSE_SET_ADDED ? (int)get_u32(in) : 0;
    for (int i = 0; i < a->count; i++)
        a->numbers[i] = get_u32(in);
}

static inline void read_answer(struct wire_in *in, struct answer *a)
{
    a->kind = (enum response_kind)get_u8(in);
    switch (a->kind) {
    case RESPONSE_EXECUTE:
        read_batch(in, a);
        break;
    case RESPONSE_CACHED:
        a->count = (int)get_u32(in);
        for (int i = 0; i < a->count; i++)
            a->numbers[i] = get_u32(in);
        break;
    case RESPONSE_ERROR:
        read_error(in, a);
        break;
    case RESPONSE_REVOKE:
        a->number = get_u32(in);
        a->seq = get_u32(in);
        a->member = (int)get_u32(in);
        get_u32(in);                    /* turn */
        break;
    case RESPONSE_JOINED:
        a->member = (int)get_u32(in);
        get_bytes(in, 8 * (size_t)get_u32(in));
        break;
    case RESPONSE_JOIN_DONE:
        a->member = (int)get_u32(in);
        a->count = (int)get_u32(in);
        for (int i = 0; i < a->count; i++)
            a->counters[i] = (int64_t)get_u64(in);
        break;
    case RESPONSE_SET_ADDED:
    case RESPONSE_SET_REMOVED:
        read_set(in, a);
        break;
    case RESPONSE_TUNE:
        get_f64(in);
        get_u64(in);
        break;
    default:
        check_fail(__FILE__, __LINE__, "response of kind %d", a->kind);
    }
    CHECK(!in->failed);
}

/* The responses that are due now, in answers[]; their number. */
static inline int emit(struct negotiator *n)
{
    struct strbuf out;
    struct hvd_error err;
    struct wire_in in;
    uint32_t count = 0;

    strbuf_init(&out);
    CHECK_OK(neg_emit(n, neg_clock, &out, &count, &err), err);
    in = wire_in_from(out.text, out.length);
    CHECK(count <= RESPONSES);
    memset(answers, 0, sizeof answers);
    for (uint32_t i = 0; i < count; i++)
        read_answer(&in, &answers[i]);
    CHECK_EQ(wire_left(&in), 0);
    strbuf_release(&out);
    answer_count = (int)count;
    return answer_count;
}

/* All members announce; one EXECUTE comes; the cache number + 1. */
static inline uint32_t run_once(struct negotiator *n, int members, struct wire_request r)
{
    for (int m = 0; m < members; m++)
        announce(n, m, r);
    CHECK_EQ(emit(n), 1);
    CHECK_EQ(answers[0].kind, RESPONSE_EXECUTE);
    return answers[0].numbers[0];
}

#endif
