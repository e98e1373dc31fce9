/*
 * message.h: what the engines of the ranks say to each other (over mesh_post), and the
 * codec of it.  Formats stand at the top of message.c.
 */
#ifndef HVD_WIRE_MESSAGE_H
#define HVD_WIRE_MESSAGE_H

#include "base/error.h"
#include "wire/codec.h"

#define NAME_LIMIT 4096                 /* bytes of a tensor name */
#define PROBLEM_LIMIT 1024              /* bytes of an error text */
#define TEXT_LIMIT 60000                /* bytes of a report */
#define LIST_LIMIT (1u << 20)           /* entries of any list */

enum message_kind {
    MESSAGE_REQUESTS = 1,               /* member -> coordinator: tensors, in full */
    MESSAGE_HITS,                       /* member -> leader or coordinator: cached tensors */
    MESSAGE_RESPONSES,                  /* coordinator -> member, also through a leader; one
                                         * order for all; none in it: no more will come */
    MESSAGE_LEAVE,                      /* anybody: this rank shuts down */
    MESSAGE_ACK,                        /* member -> coordinator: responses done so far */
    MESSAGE_STALL,                      /* coordinator -> member: a report to print */
    MESSAGE_ASK,                        /* anybody: where are you? */
    MESSAGE_WHERE,                      /* the answer */
    MESSAGE_SWAP,                       /* cached tensors with their announcement; no items:
                                         * the last message of this kind of the sender */
    MESSAGE_BUNDLE,                     /* leader -> coordinator: hits of its host */
    MESSAGE_KIND_COUNT
};

/* Operations beyond enum hvd_op that only the engine knows. */
enum { OP_SET_ADD = HVD_OP_COUNT, OP_SET_REMOVE, OP_KIND_COUNT };

struct message_head {
    enum message_kind kind;
    uint32_t set, epoch;                /* the process set and its incarnation */
    uint32_t acked;                     /* responses the sender has done with */
    uint32_t count;                     /* items that follow */
};

void put_message_head(struct strbuf *out, const struct message_head *head);
/* Writes the count into a head that starts at `at`. */
void patch_message_count(struct strbuf *out, size_t at, uint32_t count);
enum hvd_status get_message_head(struct wire_in *in, struct message_head *head,
                                 struct hvd_error *err);

/* What one member says about one tensor.  Decoded: pointers into the message. */
struct wire_request {
    uint8_t op, dtype, reduce, device;  /* device: 0 CPU, 1 GPU */
    uint8_t ndim;
    int32_t root;                       /* set rank */
    int64_t shape[HVD_DIMS_MAX];
    double prescale, postscale;
    uint16_t group_count;               /* 0: not in a group */
    uint32_t group_key;                 /* equal for the tensors of one group */
    uint32_t revoked;                   /* cache number + 1 this request takes back, or 0 */
    uint32_t revoked_seq;               /* the response that gave that number */
    uint32_t revoked_turn;              /* last turn of it that the sender has ended */
    uint16_t name_bytes, problem_bytes;
    uint32_t split_count;
    const char *name;                   /* not terminated */
    const char *problem;
    const uint8_t *splits;              /* split_count little-endian int64 */
};

void put_request(struct strbuf *out, const struct wire_request *r);
enum hvd_status get_request(struct wire_in *in, struct wire_request *r,
                            struct hvd_error *err);
static inline int64_t get_split(const uint8_t *splits, uint32_t i)
{
    struct wire_in in = wire_in_from(splits + 8 * (size_t)i, 8);

    return (int64_t)get_u64(&in);
}

/* SWAP: one tensor of one turn of a cached number: what a rank brings, what a host has
 * summed up, or the result; which of them follows from who sends it to whom. */
struct wire_swap {
    uint32_t number, seq, turn;         /* seq: of the response that gave the number */
    uint32_t bytes;
    const uint8_t *data;
};

void put_swap(struct strbuf *out, const struct wire_swap *w);
enum hvd_status get_swap(struct wire_in *in, struct wire_swap *w, struct hvd_error *err);

/* BUNDLE: who has come to a cached tensor. */
struct wire_hit {
    uint32_t number, seq;               /* seq: of the response that gave the number */
    int32_t member;                     /* it has come */
    bool all;                           /* as the last one of the sender's host */
};

void put_hit(struct strbuf *out, const struct wire_hit *h);
enum hvd_status get_hit(struct wire_in *in, struct wire_hit *h, struct hvd_error *err);

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

/* EXECUTE: the head of a batch; tensors follow. */
struct wire_batch {
    uint8_t op, dtype, reduce;
    int32_t root;
    double prescale, postscale;
    uint32_t tensor_count;
};

struct wire_tensor {
    uint16_t name_bytes;
    const char *name;
    uint64_t count;                     /* elements; a member that has joined needs it */
    uint32_t cached;                    /* cache number + 1, 0: not cached */
    uint32_t turn;                      /* last turn used on its board so far */
    uint32_t size_count;                /* allgather: first dimension by member; alltoall:
                                         * rows by sender and receiver */
    const uint8_t *sizes;               /* size_count little-endian int64 */
};

struct wire_failure {
    uint8_t status;
    int32_t rank;
    uint16_t name_bytes, text_bytes;
    const char *name, *text;
    uint32_t target_count;              /* 0: all members */
    const uint8_t *targets;             /* set ranks, u32 */
};

void put_batch(struct strbuf *out, const struct wire_batch *b);
enum hvd_status get_batch(struct wire_in *in, struct wire_batch *b, struct hvd_error *err);
void put_tensor(struct strbuf *out, const struct wire_tensor *t);
enum hvd_status get_tensor(struct wire_in *in, struct wire_tensor *t,
                           struct hvd_error *err);
/* STALL: what to print; WHERE: what the sender does.  Not terminated. */
struct wire_text {
    uint8_t level;                      /* STALL: enum log_level; WHERE: 0 */
    uint16_t bytes;
    const char *text;
};

void put_wire_text(struct strbuf *out, const struct wire_text *t);
enum hvd_status get_wire_text(struct wire_in *in, struct wire_text *t,
                              struct hvd_error *err);
void put_failure(struct strbuf *out, const struct wire_failure *f);
enum hvd_status get_failure(struct wire_in *in, struct wire_failure *f,
                            struct hvd_error *err);

#endif
