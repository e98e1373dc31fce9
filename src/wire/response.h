/*
 * response.h: what a coordinator tells the members of its process set to do, one after the
 * other; the items of a RESPONSES message.  Formats stand at the top of response.c.
 */
#ifndef HVD_WIRE_RESPONSE_H
#define HVD_WIRE_RESPONSE_H

#include "wire/message.h"

enum response_kind {
    RESPONSE_EXECUTE = 1,               /* run these tensors as one batch */
    RESPONSE_CACHED,                    /* run these cached tensors as one batch */
    RESPONSE_ERROR,                     /* this tensor fails on these members */
    RESPONSE_REVOKE,                    /* this cache number is taken back */
    RESPONSE_JOINED,                    /* a member has joined; the cache is empty */
    RESPONSE_JOIN_DONE,                 /* all have */
    RESPONSE_SET_ADDED,
    RESPONSE_SET_REMOVED,
    RESPONSE_TUNE,
    RESPONSE_KIND_COUNT
};

void put_response_kind(struct strbuf *out, enum response_kind kind);
enum hvd_status get_response_kind(struct wire_in *in, enum response_kind *kind_p,
                                  struct hvd_error *err);

/* Lists of 32-bit numbers: members, ranks, cache numbers. */
static inline void put_member(struct strbuf *out, int member)
{
    put_u32(out, (uint32_t)member);
}

static inline int get_member(const uint8_t *members, uint32_t i)
{
    struct wire_in in = wire_in_from(members + 4 * (size_t)i, 4);

    return (int)get_u32(&in);
}

/* REVOKE: a cache number is taken back. */
struct wire_revoke {
    uint32_t number, seq;               /* seq: of the response that gave it */
    int32_t promising;                  /* the member that does not come any more */
    uint32_t turn;                      /* the last turn it has come to */
};

void put_revoke(struct strbuf *out, const struct wire_revoke *r);
enum hvd_status get_revoke(struct wire_in *in, struct wire_revoke *r,
                           struct hvd_error *err);

/* JOINED: takes all cache numbers back. */
struct wire_joined {
    int32_t member;
    uint32_t turn_count;                /* the last turns the member has come to, if any */
    const uint8_t *turns;               /* number in the high half, turn in the low one */
};

void put_joined(struct strbuf *out, const struct wire_joined *j);
enum hvd_status get_joined(struct wire_in *in, struct wire_joined *j,
                           struct hvd_error *err);

/* EXECUTE: the head of a batch; tensors follow. */
struct wire_batch {
    struct tensor_form form;            /* without shape */
    uint32_t tensor_count;
};

struct wire_tensor {
    uint16_t name_bytes;
    const char *name;
    uint64_t count;                     /* elements; a member that has joined needs it */
    uint32_t cached;                    /* cache number + 1, 0: not cached */
    uint32_t turn;                      /* last turn used on its board so far */
    uint32_t size_count;                /* allgather: first dimension by member; alltoall:
                                         * rows by sender and receiver, or one: all equal */
    const uint8_t *sizes;               /* size_count little-endian int64 */
};

struct wire_failure {
    uint8_t status;
    int32_t rank;
    uint16_t name_bytes, text_bytes;
    const char *name, *text;
    uint32_t target_count;              /* 0: all members */
    const uint8_t *targets;             /* set ranks, see get_member */
};

/* CACHED: a batch of cached tensors. */
struct wire_cached {
    uint32_t count;
    const uint8_t *numbers;             /* see get_member */
};

/* JOIN_DONE */
struct wire_join_done {
    int32_t last;                       /* the rank that joined last */
    int64_t counters[OP_KIND_COUNT];    /* of unnamed operations, for all from now on */
};

/* SET_ADDED */
struct wire_set_added {
    uint32_t id, slot, epoch;
    uint16_t name_bytes;                /* of the operation that made it */
    const char *name;
    uint32_t rank_count;
    const uint8_t *ranks;               /* see get_member */
};

/* SET_REMOVED */
struct wire_set_removed {
    uint32_t id;
    uint16_t name_bytes;
    const char *name;
};

/* TUNE: values that autotune tries, or has found. */
struct wire_tune {
    double cycle_ms;
    uint64_t fusion_bytes;
};

void put_batch(struct strbuf *out, const struct wire_batch *b);
enum hvd_status get_batch(struct wire_in *in, struct wire_batch *b, struct hvd_error *err);
void put_tensor(struct strbuf *out, const struct wire_tensor *t);
enum hvd_status get_tensor(struct wire_in *in, struct wire_tensor *t,
                           struct hvd_error *err);
void put_failure(struct strbuf *out, const struct wire_failure *f);
enum hvd_status get_failure(struct wire_in *in, struct wire_failure *f,
                            struct hvd_error *err);
void put_cached(struct strbuf *out, uint32_t count);     /* put_member for each follows */
enum hvd_status get_cached(struct wire_in *in, struct wire_cached *c,
                           struct hvd_error *err);
void put_join_done(struct strbuf *out, const struct wire_join_done *j);
enum hvd_status get_join_done(struct wire_in *in, struct wire_join_done *j,
                              struct hvd_error *err);
void put_set_added(struct strbuf *out, const struct wire_set_added *a);
enum hvd_status get_set_added(struct wire_in *in, struct wire_set_added *a,
                              struct hvd_error *err);
void put_set_removed(struct strbuf *out, const struct wire_set_removed *r);
enum hvd_status get_set_removed(struct wire_in *in, struct wire_set_removed *r,
                                struct hvd_error *err);
void put_tune(struct strbuf *out, const struct wire_tune *t);
enum hvd_status get_tune(struct wire_in *in, struct wire_tune *t, struct hvd_error *err);

#endif
