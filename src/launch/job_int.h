/* job_int.h: the state of a launch, shared by job.c, link.c, input.c and verdict.c. */
#ifndef HVD_LAUNCH_JOB_INT_H
#define HVD_LAUNCH_JOB_INT_H

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

#define LINK_STATES(X)                                                                 \
    X(CLOSED, "no process")                                                            \
    X(CONNECTING, "the process runs, the agent has not answered")                      \
    X(READY, "the agent has said hello")                                               \
    X(REACHED, "the agent has the job and a rendezvous address")                       \
    X(DONE, "the agent has finished")                                                  \
    X(LOST, "the connection broke before the agent had finished")

enum link_state {
#define LINK_STATE_ENUM(name, text) LINK_##name,
    LINK_STATES(LINK_STATE_ENUM)
#undef LINK_STATE_ENUM
};

struct job;

/* The connection to the agent of one host; all names of this machine share one. */
struct link {
    struct job *job;
    const char *host;                   /* name as given; of the first local one */
    bool is_local;
    enum link_state state;
    struct duplex channel;
    bool has_channel;
    pid_t pid;                          /* agent or ssh; 0: reaped */
    int tries;
    uv_poll_t error_poll;               /* stderr of ssh */
    int error_fd;                       /* -1: none */
    struct strbuf errors;
    uint64_t heard_ms;
    uint32_t cpus;
    int threads;                        /* OMP_NUM_THREADS of its workers, 0: leave it */
    int rank_count, started;            /* ranks it is to run, and has got */
    char addr[HVD_ADDR_MAX];            /* rendezvous address this host reaches */
};

struct rank_state {
    struct link *link;
    uint32_t pid;
    bool is_started, is_ended;
    int code, signal;
    char text[512];                     /* why, when the code does not tell */
};

struct job {
    const struct settings *settings;
    uv_loop_t loop;
    uv_signal_t signals[6];
    uv_timer_t limit, tick;
    enum job_state state;
    uint32_t generation;
    struct output *output;
    struct link *links;
    int link_count;
    struct slot *slots;                 /* settings->np */
    struct rank_state *ranks;
    int ended;
    int first_failed;                   /* rank, -1: none */
    int signal;                         /* that ends the job, 0: none */
    int signal_count;
    bool has_remote;
    uint64_t since_ms;                  /* when the present state was entered */
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

/* link.c */
enum hvd_status link_open_local(struct link *link, struct hvd_error *err);
enum hvd_status link_open_remote(struct link *link, struct hvd_error *err);
void link_send_job(struct link *link);
void link_send_payload(struct link *link);
void link_start_rank(struct link *link, int rank);
void link_stop(struct link *link, uint32_t grace_ms);
void link_reaped(struct link *link, int status);
void link_close(struct link *link);

/* job.c: what a link has learned */
void job_link_ready(struct job *job);
void job_link_reached(struct job *job);
void job_link_lost(struct job *job, struct link *link, const char *why);
void job_link_done(struct job *job);
void job_rank_ended(struct job *job, int rank, int code, int signal, const char *text);
void job_rank_result(struct job *job, int rank, const char *bytes, size_t count);
void job_fail(struct job *job, const struct hvd_error *err);

/* input.c: the launcher's stdin, for a rank 0 that runs elsewhere */
void input_start(struct job *job, struct link *link);
void input_taken(struct job *job);
void input_stop(struct job *job);

/* verdict.c */
void verdict_print(struct job *job);

#endif
