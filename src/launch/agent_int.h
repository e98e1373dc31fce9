/* agent_int.h: the state of an agent, shared by agent.c and agent_worker.c. */
#ifndef HVD_LAUNCH_AGENT_INT_H
#define HVD_LAUNCH_AGENT_INT_H

#include "base/list.h"
#include "launch/duplex.h"
#include "launch/env.h"
#include "launch/key_desk.h"
#include "launch/spawn.h"

/* What is true in each phase of an agent. */
#define AGENT_PHASES(X)                                                                \
    X(IDLE, "no job yet")                                                              \
    X(RUNNING, "workers may be started and run")                                       \
    X(STOPPING, "workers have got SIGTERM, the grace is running")                      \
    X(KILLING, "everything has got SIGKILL")                                           \
    X(SWEEPING, "workers are gone, what they have left has got SIGTERM")               \
    X(DONE, "nothing is left, or it cannot be killed")

enum agent_phase {
#define AGENT_PHASE_ENUM(name, text) PHASE_##name,
    AGENT_PHASES(AGENT_PHASE_ENUM)
#undef AGENT_PHASE_ENUM
};

enum { STREAM_OUT, STREAM_ERR, STREAM_RESULT, STREAM_COUNT };

struct agent;
struct worker;

struct stream {                         /* what a worker writes */
    struct worker *worker;
    uv_poll_t poll;
    int fd;                             /* -1: at its end */
    int kind;
    bool is_watched;
    uint64_t dropped_bytes;             /* since the last marker */
};

struct worker {
    struct list node;                   /* in agent.workers */
    struct agent *agent;
    uint32_t rank;
    pid_t pid;
    bool is_alive;
    struct stream streams[STREAM_COUNT];
    uv_poll_t input_poll;
    int input_fd;                       /* -1: not fed by INPUT frames */
    struct strbuf input;
    size_t input_at;
    bool input_ends;                    /* after `input` is written */
    uv_timer_t limit;                   /* until it is killed, after END */
};

struct agent {
    uv_loop_t loop;
    struct duplex channel;
    uv_signal_t child, term, hup;
    uv_timer_t limit;                   /* of the present phase */
    uv_timer_t stall;                   /* the launcher takes no output */
    uv_timer_t beat;
    enum agent_phase phase;
    long oom_kills;                     /* of this machine when the agent began, -1: unknown */
    struct list workers;
    int alive;
    struct env common;                  /* of all workers */
    int key_fd;                         /* holds the job key, which is nowhere else here;
                                         * -1: before the job */
    int desk_fd;                        /* where workers ask for it, -1: nowhere */
    uv_poll_t desk;
    char desk_name[KEY_DESK_NAME];
    int stdin_fd;
    int payload_fd;                     /* memory that holds PAYLOAD; -1: none */
    bool bind;
    bool is_elastic;                    /* one worker's end is not the job's */
    bool is_leaving;                    /* the host was told to go, and the launcher, too */
    bool is_lost;                       /* the launcher has gone */
    bool is_blocked;                    /* streams are not read: too much is unsent */
    bool is_dropping;                   /* ... for too long: output is thrown away */
    bool is_paused;                     /* the launcher said it would be silent */
    uint64_t heard_ms;
    uint32_t heartbeat_ms;
    uint32_t leave_ms;                  /* from notice to the end of the workers */
    struct reach *reach;                /* probe of the rendezvous, NULL: none */
    struct {
        struct survey *survey;          /* of the workers, for LOOK; NULL: none */
        uint32_t id;                    /* of the question */
        uint64_t asked_us;              /* when it came */
    } look;
};

enum hvd_status worker_start(struct agent *agent, const struct agent_start *start,
                             struct hvd_error *err);
/* Tells that the worker ended; its last output goes first. */
void worker_ended(struct worker *worker, int code, int signal, const char *text);
struct worker *worker_find(struct agent *agent, uint32_t rank);
struct worker *worker_find_pid(struct agent *agent, pid_t pid);
void worker_feed(struct worker *worker, const char *bytes, size_t count);
void worker_watch_all(struct agent *agent, bool on);
void worker_close(struct worker *worker);       /* its descriptors */
void worker_stop(struct worker *worker, uint32_t grace_ms);     /* this one only */

/* Stops reading output when the launcher falls behind. */
void agent_check_pressure(struct agent *agent);

#endif
