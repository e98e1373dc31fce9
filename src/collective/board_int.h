/*
 * board_int.h: boards, the places in shared memory where the members of one host meet.
 * The rules stand at the top of board.c.
 */
#ifndef HVD_COLLECTIVE_BOARD_INT_H
#define HVD_COLLECTIVE_BOARD_INT_H

#include "collective/collective_int.h"

#define DIRECT_MAX 128                  /* members of a host that share a board */
#define LINE_INLINE 112                 /* payload beside the stamp */
#define CHUNK_WORDS 64                  /* claim words of a board */
#define CHUNK_ROUNDS 256                /* times they can be gone through in one turn */

/* How a member offers its buffer to the others. */
enum board_kind {
    BOARD_NONE,                         /* no bytes */
    BOARD_INLINE,                       /* in the line */
    BOARD_SLOT,                         /* in its slot */
    BOARD_MAPPED,                       /* in its arena, at an offset */
    BOARD_CMA,                          /* at an address of its own process */
    BOARD_RING,                         /* in its arena, chunk by chunk (rule 8) */
};

struct board_line {
    _Atomic uint64_t stamp;
    uint8_t in_kind, out_kind;          /* enum board_kind */
    uint16_t ring;                      /* chunks in the ring */
    uint16_t half;                      /* without those it reduces: staged.c, rule 4 */
    uint16_t inline_bytes;              /* allgather: of the part, if it is in the line */
    union {
        struct {
            uint64_t in, out;           /* offset or address, by kind */
            uint64_t bytes;             /* allgather: of the part, if it is elsewhere */
        } at;
        unsigned char bytes[LINE_INLINE];
    };
};

struct board_mark {
    _Atomic uint64_t left;              /* stamp of the last turn this member ended */
    _Atomic uint64_t ready;             /* stamp << 32 | pieces it has put in (rule 8) */
    unsigned char unused[48];
};

/* What this member remembers of one board; private memory. */
struct board_state {
    uint64_t last[2];                   /* stamps we published, by parity */
    uint64_t settled;                   /* all members have ended every turn before */
    uint32_t slot_taken[2];             /* bytes of our slots whose pages are ours */
    bool head_taken;
};

enum chunk_state { CHUNK_FREE, CHUNK_CLAIMED, CHUNK_DONE };

static inline char *board_head(const struct coll_task *t)
{
    return t->team->heads + t->call.board * t->team->head_bytes;
}

static inline struct board_line *board_line(const struct coll_task *t, int member)
{
    return (struct board_line *)board_head(t) +
           (t->parity * (unsigned)t->team->count + (unsigned)member);
}

static inline struct board_mark *board_mark(const struct coll_task *t, int member)
{
    size_t lines = 2 * (size_t)t->team->count * sizeof(struct board_line);

    return (struct board_mark *)(board_head(t) + lines) + member;
}

/* First words of chunks in lines of their own, so that members do not disturb each
 * other while each works on its share. */
static inline _Atomic uint64_t *board_word(const struct coll_task *t, unsigned chunk)
{
    unsigned i = chunk % CHUNK_WORDS;
    char *words = (char *)board_mark(t, t->team->count);

    return (_Atomic uint64_t *)(words + (i % 8) * 64) + i / 8;
}

/* Team area of the board memory for `slot`; false: it does not fit. */
bool board_attach(struct coll_team *team);

/* Sets the stamp and takes the pages of the board, `slot_bytes` of our slot among them.
 * Errors: HVD_NOMEM. */
enum hvd_status board_enter(struct coll_task *t, size_t slot_bytes, struct hvd_error *err);
/* Rule 4: our line and slot of this parity may be written. */
bool board_is_free(struct coll_task *t);
void *board_slot(const struct coll_task *t, int member);
/* After the line is filled: our part is visible, sleepers are woken. */
void board_publish(struct coll_task *t);
/* The turn is cancelled before all have come, and will not be committed (rule 4). */
void board_withdraw(struct coll_task *t);
bool board_has_come(const struct coll_task *t, int member);
bool board_all_came(struct coll_task *t);
/* We read nothing of the others any more. */
void board_leave(struct coll_task *t, bool notify);
bool board_all_left(struct coll_task *t);
/* Not published yet, or all have come and may wait until we have left. */
bool board_needs_us(const struct coll_task *t);

/* Pieces put in by a member in this turn (rule 8). */
void board_set_ready(struct coll_task *t, uint32_t pieces);
uint32_t board_ready(const struct coll_task *t, int member);

/* Claims the chunk; false: somebody else has it, or it cannot be claimed yet. */
bool chunk_claim(struct coll_task *t, unsigned chunk);
void chunk_set_done(struct coll_task *t, unsigned chunk);
bool chunk_is_done(const struct coll_task *t, unsigned chunk);
/* The first chunk from `low` on that is not done, or `chunks`. */
unsigned chunk_pass_done(const struct coll_task *t, unsigned low, unsigned chunks);
/* The same when all of them are claimed: waits a little. */
unsigned chunk_await(const struct coll_task *t, unsigned low, unsigned chunks);

/* direct.c: memory of members ------------------------------------------------------- */

/* Where the bytes of a member's buffer are for this process. */
struct direct_place {
    enum board_kind kind;
    char *at;                           /* NULL: address `remote` of process `pid` */
    uint64_t remote;
    pid_t pid;
    size_t all;                         /* bytes that all members read and write */
};

/* Puts `data` where the others can read it and says so in our line: inline, slot,
 * mapped, staged up to `stage_limit` bytes (*staged_p, to be put back), CMA. */
enum hvd_status direct_offer(struct coll_task *t, const void *data, size_t bytes,
                             size_t stage_limit, void **staged_p, struct hvd_error *err);
/* The same for data that goes neither into the line nor into the slot; if *staged_p is
 * not NULL afterwards, the caller copies there what others will read. */
enum hvd_status direct_offer_far(struct coll_task *t, const void *data, size_t bytes,
                                 size_t stage_limit, void **staged_p,
                                 struct hvd_error *err);
/* Bytes up to which a private buffer that others only read is staged. */
size_t direct_stage_limit(const struct coll_team *team);
/* Memory in our arena for others to read, and where they find it; NULL: none left. */
void *direct_stage(struct coll_task *t, size_t bytes, uint64_t *at_p);
/* The kind and place of memory of ours, without copying: mapped, CMA or none. */
enum board_kind direct_kind(const struct coll_task *t, const void *data, size_t bytes,
                            uint64_t *at_p);
enum hvd_status direct_place(const struct coll_task *t, int member, bool out,
                             size_t bytes, struct direct_place *place_p,
                             struct hvd_error *err);
enum hvd_status direct_read(const struct direct_place *place, size_t offset,
                            void *dst, size_t bytes, struct hvd_error *err);
enum hvd_status direct_write(const struct direct_place *place, size_t offset,
                             const void *src, size_t bytes, struct hvd_error *err);
/* Reduces elements [first, first + count) of all members' inputs into dst, which point
 * to where the first of them goes.  in: by member. */
enum hvd_status direct_reduce(struct coll_task *t, const struct direct_place *in,
                              void *const *dst, int ndst, size_t first, size_t count,
                              bool stream, struct hvd_error *err);
/* Elements that are read at once from private memory, so that all members' fit in L2. */
size_t direct_block(const struct coll_task *t);
/* Pages of slots that start would have to take before it can be published. */
size_t direct_slot_bytes(const struct coll_task *t, size_t bytes);
/* Others may read our memory until they have left. */
bool direct_is_exposed(const struct coll_task *t);

#endif
