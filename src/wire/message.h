/*
 * message.h: what the engines of the ranks say to each other (over mesh_post), and the
 * codec of it.  Formats stand at the top of message.c.
 */
#ifndef HVD_WIRE_MESSAGE_H
#define HVD_WIRE_MESSAGE_H

#include "base/error.h"
#include "wire/codec.h"
#include "wire/form.h"

#define NAME_LIMIT 4096                 /* bytes of a tensor name */
#define PROBLEM_LIMIT 1024              /* bytes of an error text */
#define TEXT_LIMIT 60000                /* bytes of a report */
#define LIST_LIMIT (1u << 20)           /* entries of any list */

enum message_kind {
    MESSAGE_REQUESTS = 1,               /* member -> leader or coordinator: tensors, in full */
    MESSAGE_HITS,                       /* member -> leader or coordinator: cached tensors */
    MESSAGE_RESPONSES,                  /* coordinator -> member, also through a leader; one
                                         * order for all; none in it: no more will come */
    MESSAGE_LEAVE,                      /* anybody: this rank shuts down */
    MESSAGE_STALL = 6,                  /* coordinator -> member: a report to print */
    MESSAGE_ASK,                        /* anybody: where are you? */
    MESSAGE_WHERE,                      /* the answer */
    MESSAGE_EAGER,                      /* cached tensors with their announcement; no items:
                                         * the last message of this kind of the sender */
    MESSAGE_RELAY,                      /* leader -> leader above or coordinator: hits of its
                                         * host and of those below */
    MESSAGE_FORWARD,                    /* the same way: REQUESTS of several members */
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
/* Completes the head that `out` begins with. */
void patch_message_count(struct strbuf *out, uint32_t count);
void patch_message_acked(struct strbuf *out, uint32_t acked);
enum hvd_status get_message_head(struct wire_in *in, struct message_head *head,
                                 struct hvd_error *err);

/* What one member says about one tensor.  Decoded: pointers into the message. */
struct wire_request {
    struct tensor_form form;
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

/* Lists of 64-bit numbers: splits, sizes, turns. */
static inline void put_split(struct strbuf *out, int64_t split)
{
    put_u64(out, (uint64_t)split);
}

static inline int64_t get_split(const uint8_t *splits, uint32_t i)
{
    struct wire_in in = wire_in_from(splits + 8 * (size_t)i, 8);

    return (int64_t)get_u64(&in);
}

/* EAGER: one tensor of one turn of a cached number: what a rank brings, what a host has
 * summed up, or the result; which of them follows from who sends it to whom. */
struct wire_eager {
    uint32_t number, seq, turn;         /* seq: of the response that gave the number */
    uint32_t bytes;
    const uint8_t *data;
};

void put_eager(struct strbuf *out, const struct wire_eager *w);
enum hvd_status get_eager(struct wire_in *in, struct wire_eager *w, struct hvd_error *err);

/* HITS: the sender has come to a cached tensor. */
struct wire_number {
    uint32_t number, seq;               /* seq: of the response that gave the number */
};

void put_number(struct strbuf *out, const struct wire_number *n);
enum hvd_status get_number(struct wire_in *in, struct wire_number *n,
                           struct hvd_error *err);

/* RELAY: who has come to a cached tensor. */
struct wire_hit {
    uint32_t number, seq;               /* seq: of the response that gave the number */
    int32_t member;                     /* it has come */
    uint8_t all;                        /* 0: only this member; d: as the last one of all that
                                         * are below its node at depth d (engine/tree.h) */
};

void put_hit(struct strbuf *out, const struct wire_hit *h);
enum hvd_status get_hit(struct wire_in *in, struct wire_hit *h, struct hvd_error *err);

/* FORWARD: a message as `member` has written it. */
struct wire_forward {
    int32_t member;
    uint32_t bytes;
    const uint8_t *data;
};

void put_forward(struct strbuf *out, const struct wire_forward *f);
enum hvd_status get_forward(struct wire_in *in, struct wire_forward *f, struct hvd_error *err);

/* STALL: what to print; WHERE: what the sender does.  Not terminated. */
struct wire_text {
    uint8_t level;                      /* STALL: enum log_level; WHERE: 0 */
    uint16_t bytes;
    const char *text;
};

void put_wire_text(struct strbuf *out, const struct wire_text *t);
enum hvd_status get_wire_text(struct wire_in *in, struct wire_text *t,
                              struct hvd_error *err);
#endif
