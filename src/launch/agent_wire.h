/*
 * agent_wire.h: what the launcher and the agent of a host say to each other over a pair of
 * pipes (a socket pair locally, stdin and stdout of ssh remotely).  Encode and decode
 * only.  The channel is private by construction: whoever can write to it already runs as
 * the user; all the same, every length is checked before it is used.
 */
#ifndef HVD_LAUNCH_AGENT_WIRE_H
#define HVD_LAUNCH_AGENT_WIRE_H

#include "base/error.h"
#include "base/strbuf.h"
#include "horovod/driver.h"

#define AGENT_PROTOCOL 2
/* The agent's first bytes; text of login scripts before them is skipped. */
#define AGENT_MAGIC "\001HVDAGENT1\n"
#define AGENT_MAGIC_BYTES 11
#define AGENT_NOISE_MAX 65536
#define AGENT_FRAME_MAX (16u << 20)
#define AGENT_CHUNK 65536u              /* most bytes of output in one frame */
#define AGENT_HEADER 5                  /* u32 length of type and body, u8 type */

/* name, sender (L launcher, A agent), body */
#define AGENT_FRAMES(X)                                                                \
    X(HELLO, "A: protocol, version, host name, CPUs, CPU groups")                      \
    X(JOB, "L: key, directory, environment of all workers, limits, rendezvous")        \
    X(PAYLOAD, "L: bytes that every worker of the job may read")                       \
    X(START, "L: one worker: rank, arguments, its own environment")                    \
    X(STOP, "L: end all workers, u32 grace in ms")                                     \
    X(INPUT, "L: u32 rank, bytes for stdin; none: end of file")                        \
    X(PING, "both: nothing; proves that the sender lives")                             \
    X(PAUSE, "L: u8 1: the launcher is about to stop, do not expect PING; 0: again")   \
    X(REACHED, "A: rendezvous addresses this host can reach, best first")              \
    X(STARTED, "A: u32 rank, u32 pid")                                                 \
    X(OUTPUT, "A: u32 rank, u8 stream (1 stdout, 2 stderr), bytes; none: end of file") \
    X(TAKEN, "A: u32 rank; the worker has taken the last INPUT")                       \
    X(RESULT, "A: u32 rank, bytes the worker wrote to its result descriptor")          \
    X(EXIT, "A: u32 rank, u32 code, u32 signal, text")                                 \
    X(TEXT, "A: u8 kind (log level), a line for the user")                             \
    X(DONE, "A: nothing is left on this host; to horovod.run: u32 rank at fault")      \
    X(SIGNAL, "L: u32 number of a signal for all workers, SIGUSR1 or SIGUSR2")         \
    X(END, "L: u32 rank, u32 grace in ms: end this worker")                            \
    X(NOTICE, "A: this host was told to go, its workers are to leave")                 \
    X(LOOK, "L: u32 number, u32 what, u32 recent ms: how are the workers?")            \
    X(SEEN, "A: u32 number, u64 us of LOOK, u64 us now, frames of look_message.h")

enum agent_frame {
    AGENT_NONE,
#define AGENT_ENUM(name, text) AGENT_##name,
    AGENT_FRAMES(AGENT_ENUM)
#undef AGENT_ENUM
    AGENT_FRAME_COUNT
};

const char *agent_frame_name(unsigned type);

struct agent_hello {
    uint32_t protocol;
    const char *version, *host;
    uint32_t cpus;                      /* that this host's workers may use */
};

struct agent_job {
    const uint8_t *key;                 /* HVD_KEY_BYTES; decoded: within the body */
    const char *directory;
    uint32_t keep_environment;          /* 1: the agent's own environment lies below */
    uint32_t heartbeat_ms;              /* 0: the end of the channel is enough */
    uint32_t leave_ms;                  /* what workers have when this host is to go */
    uint32_t has_payload;               /* 1: PAYLOAD frames follow */
    uint32_t bind;                      /* 1: bind ranks to CPUs when it helps */
    const char *addrs;                  /* rendezvous addresses, comma-separated */
    uint32_t port;
    uint32_t env_count;
    const char **env;                   /* NAME=VALUE */
};

struct agent_start {
    uint32_t rank;
    uint32_t place, places;             /* among the job's workers on this machine */
    uint32_t input;                     /* 1: gets the job's stdin */
    uint32_t env_count, arg_count;
    const char **env, **args;
};

/* Encoding: appends one whole frame to out. */
void agent_put_frame(struct strbuf *out, enum agent_frame type, const void *body,
                     size_t bytes);
void agent_put_hello(struct strbuf *out, const struct agent_hello *hello);
void agent_put_job(struct strbuf *out, const struct agent_job *job);
void agent_put_start(struct strbuf *out, const struct agent_start *start);
/* u32 words, then bytes */
void agent_put_words(struct strbuf *out, enum agent_frame type, const uint32_t *words,
                     int count, const void *bytes, size_t byte_count);

/* Looks at the first frame of `bytes` bytes.  HVD_AGAIN: incomplete.  On HVD_OK *body_p
 * points into data, and *used_p bytes can be dropped. */
enum hvd_status agent_get_frame(const char *data, size_t bytes, unsigned *type_p,
                                const char **body_p, size_t *body_bytes_p,
                                size_t *used_p, struct hvd_error *err);

/* Decoding of a body.  Strings point into the body, which therefore has to outlive them;
 * the arrays of strings are the caller's, agent_*_release. */
enum hvd_status agent_get_hello(const char *body, size_t bytes,
                                struct agent_hello *hello, struct hvd_error *err);
enum hvd_status agent_get_job(const char *body, size_t bytes, struct agent_job *job,
                              struct hvd_error *err);
enum hvd_status agent_get_start(const char *body, size_t bytes,
                                struct agent_start *start, struct hvd_error *err);
void agent_job_release(struct agent_job *job);
void agent_start_release(struct agent_start *start);
/* count u32 words; the rest of the body is left in *rest_p, *rest_bytes_p. */
enum hvd_status agent_get_words(const char *body, size_t bytes, uint32_t *words,
                                int count, const char **rest_p, size_t *rest_bytes_p,
                                struct hvd_error *err);

#endif
