/* launch_int.h: the state of a launch, shared by launch*.c, tether.c, input.c and
 * failure.c. */
#ifndef HVD_LAUNCH_LAUNCH_INT_H
#define HVD_LAUNCH_LAUNCH_INT_H

#include "launch/assign.h"
#include "launch/duplex.h"
#include "launch/output.h"
#include "launch/settings.h"

/* What is true in each state of a job.  A generation goes through STARTING and RUNNING;
 * elastic membership will begin the next one from RUNNING. */
#define JOB_STATES(X)                                                                  \
    X(CONNECTING, "agents are being reached, none has got the job")                    \
    X(PROBING, "agents have the job and try the rendezvous addresses")                 \
    X(RUNNING, "workers of the generation were started")                               \
    X(ENDING, "agents were told to stop")                                              \
    X(DONE, "no agent is left")

enum job_state {
#define JOB_STATE_ENUM(name, text) JOB_##name,
    JOB_STATES(JOB_STATE_ENUM)
#undef JOB_STATE_ENUM
};

#define TETHER_STATES(X)                                                                 \
    X(CLOSED, "no process")                                                            \
    X(CONNECTING, "the process runs, the agent has not answered")                      \
    X(READY, "the agent has said hello")                                               \
    X(REACHED, "the agent has the job and a rendezvous address")                       \
    X(DONE, "the agent has finished")                                                  \
    X(LOST, "the connection broke before the agent had finished")

enum tether_state {
#define TETHER_STATE_ENUM(name, text) TETHER_##name,
    TETHER_STATES(TETHER_STATE_ENUM)
#undef TETHER_STATE_ENUM
};

struct launch;

/* The connection to the agent of one host; all names of this machine share one. */
struct tether {
    struct launch *job;
    const char *host;                   /* name as given; of the first local one */
    bool is_local;
    enum tether_state state;
    struct duplex channel;
    bool has_channel;
    pid_t pid;                          /* agent or ssh; 0: reaped */
    int tries;
    int handles;                        /* of libuv, not closed yet */
    bool is_retrying;                   /* to be opened again when they are */
    uv_poll_t error_poll;               /* stderr of ssh */
    int error_fd;                       /* -1: none */
    struct strbuf errors;
    uint64_t heard_ms;
    uint32_t cpus;
    int threads;                        /* OMP_NUM_THREADS of its workers, 0: leave it */
    int rank_count, started;            /* ranks it is to run, and has got */
    char addr[HVD_HOST_MAX];            /* rendezvous address this host reaches */
};

struct rank_state {
    struct tether *tether;
    uint32_t pid;
    bool is_started, is_ended;
    int code, signal;
    char text[512];                     /* why, when the code does not tell */
};

struct launch {
    const struct settings *settings;
    uv_loop_t loop;
    uv_signal_t signals[6];
    uv_timer_t limit, tick;
    enum job_state state;
    uint32_t generation;
    struct output *output;
    struct tether *tethers;
    int tether_count;
    struct slot *slots;                 /* settings->np */
    struct rank_state *ranks;
    int mine;                           /* ranks this launcher starts; all but with nodes */
    int ended;                          /* of them */
    int port;                           /* of the rendezvous */
    int first_failed;                   /* rank, -1: none */
    int signal;                         /* that ends the job, 0: none */
    int signal_count;
    bool has_remote;
    uint64_t since_ms;                  /* when the present state was entered */
    uint64_t told_ms;                   /* wait after which a status line was printed */
    uint8_t key[HVD_KEY_BYTES];
    char job_id[33];
    struct hvd_server *server;
    struct strbuf addrs;                /* of the server, for remote hosts */
    char *nics;                         /* comma-separated, for workers; "" none */
    struct hvd_error error;             /* what went wrong before the workers ran */
    bool has_error;
    struct input *input;
    struct duplex result;              /* to horovod.run */
    bool has_result;
};

/* tether.c */
enum hvd_status tether_open_local(struct tether *tether, struct hvd_error *err);
enum hvd_status tether_open_remote(struct tether *tether, struct hvd_error *err);
void tether_send_job(struct tether *tether);
void tether_send_payload(struct tether *tether);
void tether_start_rank(struct tether *tether, int rank);
void tether_stop(struct tether *tether, uint32_t grace_ms);
void tether_reaped(struct tether *tether, int status);
void tether_close(struct tether *tether);
void tether_retry(struct tether *tether);       /* closes, and connects again */

/* launch.c: what a tether has learned */
void launch_tether_ready(struct launch *job);
void launch_tether_reached(struct launch *job);
void launch_tether_lost(struct launch *job, struct tether *tether, const char *why);
void launch_tether_done(struct launch *job);
void launch_rank_ended(struct launch *job, int rank, int code, int signal, const char *text);
void launch_rank_result(struct launch *job, int rank, const char *bytes, size_t count);
void launch_fail(struct launch *job, const struct hvd_error *err);
void launch_begin_end(struct launch *job, uint32_t grace_ms);
const char *launch_rank_host(const struct launch *job, int rank);
void launch_say(struct launch *job, const char *text);  /* with --verbose */

/* launch_prepare.c */
enum hvd_status launch_prepare(struct launch *job, struct hvd_error *err);

/* launch_watch.c */
void launch_watch_signals(struct launch *job);
void launch_watch_time(struct launch *job);

/* input.c: the launcher's stdin, for a rank 0 that runs elsewhere */
void input_start(struct launch *job, struct tether *tether);
void input_taken(struct launch *job);
void input_stop(struct launch *job);

/* failure.c */
void failure_print(struct launch *job);

#endif
