/*
 * view.h: what a viewer makes of the answers of all jobs: which process is which rank, how
 * fast it goes, who waits for whom.  Pure: no socket, no clock; two views, one after the
 * other, give the rates.
 */
#ifndef HVD_LAUNCH_VIEW_H
#define HVD_LAUNCH_VIEW_H

#include "base/strbuf.h"
#include "wire/look_message.h"

struct view_rank {
    int rank;                           /* -1: not known yet */
    uint32_t pid;
    char host[LOOK_HOST_NAME];
    bool has_look;                      /* it has answered; else look is empty */
    struct look_rank look;
    bool has_process;                   /* its launcher knows it */
    struct look_process process;
    int64_t offset_us;                  /* its clock less that of the viewer's launcher */
    /* Since the view before, if that had it; else since init, or 0: */
    double seconds;                     /* between the two */
    double ops_s, bytes_s, cpu;         /* cpu: of one CPU */
    double waiting;                     /* share of the time in which it slept for others */
    double blamed_s;                    /* others slept for it, summed over them */
};

struct view_wait {                      /* an operation that some have come to */
    uint8_t op;
    const char *name;                   /* in a look */
    double age_s;
    bool *waits, *missing;              /* by rank of the job */
    int wait_count, missing_count;
};

struct view_job {
    char id[LOOK_JOB_ID];
    bool has_launcher;
    struct look_job job;
    struct look_host *hosts;
    int host_count;
    struct view_rank *ranks;            /* by rank, then by pid */
    int rank_count;
    int size;                           /* of the job, as far as known */
    struct view_wait *waits;            /* oldest first */
    int wait_count;
    int slowest;                        /* rank, -1: none stands out */
    double slowest_s;                   /* others slept for it */
    double ops_s, bytes_s;              /* bytes_s: of the tensors, summed over ranks */
};

struct view {
    struct view_job *jobs;
    int count;
    uint64_t now_us;                    /* when it was taken */
};

void view_init(struct view *v, uint64_t now_us);
void view_release(struct view *v);

/* Adds the answer of a launcher (JOB comes first) or of workers; workers that a job has
 * already are left out.  Errors: HVD_PROTO, HVD_NOMEM; what came before it stays. */
enum hvd_status view_add(struct view *v, const char *frames, size_t n,
                         struct hvd_error *err);

/* Sorts, and draws the conclusions.  before: NULL or the view taken before. */
void view_finish(struct view *v, const struct view *before);

/* Keeps only jobs whose id begins with `text`, or one of whose processes has that number. */
void view_keep(struct view *v, const char *text);

/* "waits in allreduce grad/7 for rank 1", "train.py:88 in load", "stopped": what it does. */
void view_describe_rank(const struct view_job *j, const struct view_rank *r,
                        struct strbuf *out);
/* "allreduce.grad" or "allreduce grad": names that users have not given begin with the kind. */
void view_add_operation(struct strbuf *out, uint8_t op, const char *name);
const char *view_op_text(uint8_t op);
/* Seconds it has been doing so; below 0: not known. */
double view_rank_age(const struct view_rank *r);

/* view_text.c, view_json.c: the whole view.  width: of the terminal, 0: no limit. */
void view_add_text(const struct view *v, int width, struct strbuf *out);
void view_add_json(const struct view *v, struct strbuf *out);
/* view_trace.c: the records of the first job, as a Chrome trace.  view_metrics.c: for
 * Prometheus. */
void view_add_trace(const struct view *v, struct strbuf *out);
void view_add_metrics(const struct view *v, struct strbuf *out);

#endif
