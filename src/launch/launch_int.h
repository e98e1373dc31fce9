/* launch_int.h: the state of a launch, shared by launch*.c, agent_link.c, input.c and
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

#define AGENT_LINK_STATES(X)                                                           \
    X(CLOSED, "no process")                                                            \
    X(CONNECTING, "the process runs, the agent has not answered")                      \
    X(READY, "the agent has said hello")                                               \
    X(REACHED, "the agent has the job and a rendezvous address")                       \
    X(DONE, "the agent has finished")                                                  \
    X(LOST, "the connection broke before the agent had finished")

enum agent_link_state {
#define AGENT_LINK_STATE_ENUM(name, text) AGENT_LINK_##name,
    AGENT_LINK_STATES(AGENT_LINK_STATE_ENUM)
#undef AGENT_LINK_STATE_ENUM
};

struct launch;

/* The connection to the agent of one host; all names of this machine share one. */
struct agent_link {
    struct launch *job;
    const char *host;                   /* name as given; of the first local one */
    bool is_local;
    bool is_joined;                     /* it came by itself; `slots` of it are given */
    bool is_leaving;                    /* ... and is about to go */
    int slots;
    enum agent_link_state state;
    struct duplex channel;
    bool has_channel;
    pid_t pid;                          /* guard of the agent, or ssh; 0: reaped */
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
    bool has_job, has_payload;          /* elastic: was sent them */
    char addr[HVD_HOST_MAX];            /* rendezvous address this host reaches */
};

struct rank_state {
    struct agent_link *link;
    uint32_t pid;
    bool is_started, is_ended;
    int code, signal;
    char text[512];                     /* why, when the code does not tell */
    int label;                          /* rank that the output shows */
    char name[HVD_HOST_MAX + 16];       /* of an elastic worker: "node1[0]" */
};

/* Between the first failure and the end of all others. */
enum verdict_wait {
    WAIT_NOTHING,
    WAIT_REPORT,                        /* what the failed rank has told the server */
    WAIT_SUSPECT,                       /* the rank at fault is about to end */
};

struct launch {
    const struct settings *settings;
    uv_loop_t loop;
    uv_signal_t signals[7];
    uv_timer_t limit, tick;
    uv_async_t heard;                   /* the server has, from a worker */
    enum job_state state;
    uint32_t generation;
    struct output *output;
    struct agent_link *links;
    int link_count;
    struct slot *slots;                 /* rank_count of them */
    struct rank_state *ranks;
    int rank_count;                     /* settings->np; elastic: workers so far */
    struct elastic *elastic;            /* NULL: ranks and hosts are fixed */
    int mine;                           /* ranks this launcher starts; all but with nodes */
    int ended;                          /* of them */
    int port;                           /* of the rendezvous */
    int first_failed;                   /* rank, -1: none */
    int suspect;                        /* rank that the others name or miss, -1: none */
    bool is_convicted;                  /* they name it */
    enum verdict_wait wait;             /* what the end of the others waits for */
    int signal;                         /* that ends the job, 0: none */
    int signal_count;
    bool has_remote;
    uint64_t since_ms;                  /* when the present state was entered */
    uint64_t told_ms;                   /* wait after which a status line was printed */
    uint8_t *key;                       /* HVD_KEY_BYTES of secret memory */
    char job_id[33];
    struct hvd_server *server;
    struct strbuf addrs;                /* of the server, for remote hosts */
    char *nics;                         /* comma-separated, for workers; "" none */
    struct hvd_error error;             /* what went wrong before the workers ran */
    bool has_error;
    struct input *input;
    struct duplex result;              /* to horovod.run */
    bool has_result;
    struct look_desk *look_desk;        /* where viewers ask; NULL: nowhere */
    pid_t dashboard;                    /* 0: none */
    int dashboard_fd;                   /* to it */
};

/* agent_link.c */
enum hvd_status agent_link_open_local(struct agent_link *link, struct hvd_error *err);
enum hvd_status agent_link_open_remote(struct agent_link *link, struct hvd_error *err);
/* One that has come by itself: what it says comes from fd, which is taken in any case. */
enum hvd_status agent_link_open_joined(struct agent_link *link, int fd,
                                       struct hvd_error *err);
void agent_link_send_job(struct agent_link *link);
void agent_link_send_payload(struct agent_link *link);
void agent_link_start_rank(struct agent_link *link, int rank);
/* The same with another environment; place: among the CPUs of the host. */
void agent_link_start(struct agent_link *link, int rank, const struct env *env, int place);
void agent_link_end_rank(struct agent_link *link, int rank, uint32_t grace_ms);
void agent_link_stop(struct agent_link *link, uint32_t grace_ms);
void agent_link_reaped(struct agent_link *link, int status);
void agent_link_close(struct agent_link *link);
void agent_link_retry(struct agent_link *link);       /* closes, and connects again */

/* launch.c: what a link has learned */
void launch_agent_ready(struct launch *job);
void launch_agent_reached(struct launch *job);
void launch_agent_lost(struct launch *job, struct agent_link *link, const char *why);
void launch_agent_done(struct launch *job, struct agent_link *link);
void launch_rank_ended(struct launch *job, int rank, int code, int signal, const char *text);
void launch_server_heard(void *context);        /* of hvd_server_options */
void launch_rank_result(struct launch *job, int rank, const char *bytes, size_t count);
void launch_fail(struct launch *job, const struct hvd_error *err);
void launch_begin_end(struct launch *job, uint32_t grace_ms);
const char *launch_rank_host(const struct launch *job, int rank);
void launch_say(struct launch *job, const char *text);  /* with --verbose */
void launch_say_start(struct launch *job, int rank);    /* likewise */
void launch_tell_end(struct launch *job, int rank);     /* horovod.run: who has ended */
void launch_enter_running(struct launch *job);

/* launch_elastic.c: the same events, when a driver decides */
#define ELASTIC_HOSTS 4096              /* different names in one job */
enum hvd_status elastic_new(struct launch *job, struct hvd_error *err);
enum hvd_status elastic_listen(struct launch *job, const char *const *addrs, int count,
                               struct hvd_error *err);
enum hvd_status elastic_begin(struct launch *job, struct hvd_error *err);
void elastic_free(struct launch *job);
void elastic_agents_changed(struct launch *job);        /* one is ready, or reached */
void elastic_agent_lost(struct launch *job, struct agent_link *link, const char *why);
void elastic_agent_done(struct launch *job, struct agent_link *link);
void elastic_agent_notice(struct launch *job, struct agent_link *link);
/* Gives notice to all workers; a limit ends them.  False: the job has to be ended instead. */
bool elastic_leave(struct launch *job);
void elastic_rank_ended(struct launch *job, int rank);
bool elastic_reaped(struct launch *job, pid_t pid, int status);

/* launch_prepare.c */
struct agent_link *launch_add_link(struct launch *job, const char *host, bool is_local);
enum hvd_status launch_prepare(struct launch *job, struct hvd_error *err);

/* launch_watch.c */
void launch_watch_signals(struct launch *job);
void launch_watch_time(struct launch *job);

/* input.c: the launcher's stdin, for a rank 0 that runs elsewhere */
void input_start(struct launch *job, struct agent_link *link);
void input_taken(struct launch *job);
void input_stop(struct launch *job);

/* failure.c */
void failure_print(struct launch *job);

#endif
