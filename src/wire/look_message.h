/*
 * look_message.h: what a running job tells a viewer of its own user (horovodrun --status, the
 * dashboard), as bytes.  Encode and decode only.
 *
 * A question has a fixed size.  An answer is a list of frames that ends with END: a worker
 * sends its RANK; the agent of a host passes on those of its workers, with a PROCESS for each;
 * the launcher sends JOB, then for every host HOST and what its agent has collected.  Who
 * passes frames on does not look into them.
 */
#ifndef HVD_WIRE_LOOK_MESSAGE_H
#define HVD_WIRE_LOOK_MESSAGE_H

#include "base/error.h"
#include "base/strbuf.h"

#include <stdint.h>

#define LOOK_QUESTION_BYTES 16
#define LOOK_ANSWER_MAX (64u << 20)     /* of a whole job */
#define LOOK_FRAME_MAX (1u << 20)       /* of one */
#define LOOK_HEADER 5                   /* u32 bytes that follow, u8 kind */

#define LOOK_WITH_RECORDS 1u            /* the flight recorder, too */
#define LOOK_WITH_PLACE 2u              /* where in the user's code, if in no operation */

struct look_question {
    uint32_t what;                      /* LOOK_WITH_* */
    uint32_t recent_ms;                 /* records not older than this; 0: all */
};

#define LOOK_FRAMES(X)                                                                 \
    X(END, "nothing follows")                                                          \
    X(RANK, "a process that has called hvd_init")                                      \
    X(PROCESS, "a process as those who have started it know it")                       \
    X(HOST, "the frames that follow are of this host")                                 \
    X(JOB, "the launcher")

enum look_frame {
    LOOK_NONE,
#define LOOK_ENUM(name, text) LOOK_##name,
    LOOK_FRAMES(LOOK_ENUM)
#undef LOOK_ENUM
    LOOK_FRAME_COUNT
};

#define LOOK_PHASES(X)                                                                 \
    X(FORMING, "in hvd.init")                                                          \
    X(RUNNING, "running")                                                              \
    X(LEFT, "a rank has shut down")                                                    \
    X(FAILED, "failed")                                                                \
    X(ENDING, "in hvd.shutdown")

enum look_phase {
#define LOOK_PHASE_ENUM(name, text) LOOK_PHASE_##name,
    LOOK_PHASES(LOOK_PHASE_ENUM)
#undef LOOK_PHASE_ENUM
    LOOK_PHASE_COUNT
};

#define LOOK_JOB_ID 65
#define LOOK_HOST_NAME 256
#define LOOK_TENSOR 128
#define LOOK_TEXT 512
#define LOOK_WAITS 4
#define LOOK_MISSING 16
#define LOOK_PEERS 8
#define LOOK_WARNINGS 8
#define LOOK_KINDS 16                   /* of operations */
#define LOOK_RECORDS 1024
#define LOOK_RECORD_NAME 56

struct look_wait {                      /* an operation that waits for ranks */
    uint8_t op;
    char name[LOOK_TENSOR];
    uint64_t since_us;
    uint32_t missing_count;             /* all of them; the first are in the list */
    int32_t missing[LOOK_MISSING];
};

struct look_peer {                      /* as `peers` of hvd.stats() */
    int32_t rank;
    uint64_t waits, wait_us, last, late_us;
};

struct look_warning {
    uint64_t wall_us;
    uint8_t level;                      /* enum log_level */
    char text[LOOK_TEXT];
};

struct look_kind {
    uint64_t count, bytes, errors, timed, time_ns;
};

struct look_record {
    uint64_t us;
    uint64_t bytes;
    uint8_t event, op, status;
    int16_t set;
    char name[LOOK_RECORD_NAME];
};

/* All times are of the monotonic clock of its host, in microseconds. */
struct look_rank {
    char job[LOOK_JOB_ID], host[LOOK_HOST_NAME];
    int32_t rank, size, local_rank;
    uint32_t pid, generation;
    uint8_t phase;                      /* enum look_phase */
    uint64_t now_us, wall_us, phase_us;         /* phase_us: since when */
    uint32_t open;                      /* operations under way; the oldest is: */
    uint8_t op;
    char name[LOOK_TENSOR];
    uint64_t since_us;
    char text[LOOK_TEXT];               /* where the main thread is; why the job failed */
    uint64_t sent, received, cpu_us, rss_bytes, peak_bytes, stalls;
    uint64_t cache_hits, cache_misses;
    uint64_t slept_us;                  /* in which its threads slept for peers */
    uint32_t kind_count, wait_count, peer_count, warning_count, record_count;
    struct look_kind kinds[LOOK_KINDS];         /* by enum hvd_op */
    struct look_wait waits[LOOK_WAITS];         /* oldest first */
    struct look_peer peers[LOOK_PEERS];         /* those waited for longest */
    struct look_warning warnings[LOOK_WARNINGS];        /* oldest first */
    struct look_record *records;        /* oldest first; owned, look_rank_release */
};

struct look_process {
    int32_t rank;                       /* -1: not known here */
    uint32_t pid;
    uint8_t is_started, is_ended;
    char state;                         /* of /proc/PID/stat: R S D T Z; 0: not known */
    uint32_t code, signal;              /* when it has ended */
    uint64_t rss_bytes;
    char host[LOOK_HOST_NAME], text[LOOK_TEXT];
};

struct look_host {
    char name[LOOK_HOST_NAME], state[LOOK_TEXT];
    int64_t offset_us;                  /* its clock less that of the launcher */
    uint8_t has_answered;
};

struct look_job {
    char job[LOOK_JOB_ID], state[LOOK_TEXT], command[LOOK_TEXT], host[LOOK_HOST_NAME];
    uint32_t pid, np, generation;
    uint8_t is_elastic;
    uint64_t now_us, since_us, wall_us;         /* since_us: of the state */
};

void put_look_question(const struct look_question *q, uint8_t out[LOOK_QUESTION_BYTES]);
/* Errors: HVD_PROTO. */
enum hvd_status get_look_question(struct look_question *q,
                                  const uint8_t bytes[LOOK_QUESTION_BYTES],
                                  struct hvd_error *err);

/* Appends a whole frame. */
void put_look_end(struct strbuf *out);
void put_look_rank(struct strbuf *out, const struct look_rank *r);
void put_look_process(struct strbuf *out, const struct look_process *p);
void put_look_host(struct strbuf *out, const struct look_host *h);
void put_look_job(struct strbuf *out, const struct look_job *j);

/* The first frame of n bytes.  HVD_AGAIN: more is needed; HVD_PROTO: not a frame. */
enum hvd_status get_look_frame(const char *bytes, size_t n, enum look_frame *kind_p,
                               const char **body_p, size_t *body_n_p, size_t *used_p,
                               struct hvd_error *err);
/* Bodies.  Errors: HVD_PROTO, HVD_NOMEM.  Texts end with 0 and hold no control bytes. */
enum hvd_status get_look_rank(struct look_rank *r, const char *body, size_t n,
                              struct hvd_error *err);
enum hvd_status get_look_process(struct look_process *p, const char *body, size_t n,
                                 struct hvd_error *err);
enum hvd_status get_look_host(struct look_host *h, const char *body, size_t n,
                              struct hvd_error *err);
enum hvd_status get_look_job(struct look_job *j, const char *body, size_t n,
                             struct hvd_error *err);
void look_rank_release(struct look_rank *r);

/* Whether the bytes are whole frames up to and with END, and nothing more; HVD_AGAIN: so far
 * they are. */
enum hvd_status look_is_whole(const char *bytes, size_t n, struct hvd_error *err);

const char *look_phase_text(unsigned phase);

#endif
