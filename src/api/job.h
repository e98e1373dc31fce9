/* job.h: the job of this process, inside src/api. */
#ifndef HVD_API_JOB_H
#define HVD_API_JOB_H

#include "api/identity.h"
#include "base/config.h"
#include "base/hash.h"
#include "engine/engine.h"
#include "transport/transport.h"

struct job {
    struct config conf;
    struct identity identity;           /* what a foreign launcher has said */
    bool has_user_key;                  /* the key was derived from ~/.horovod/key */
    uint8_t *key;                       /* secret memory */
    struct hvd_server *server;          /* rank 0 of a job without a launcher */
    struct rdv_client *rdv;
    struct mesh *mesh;
    struct engine *engine;
    int forks;                          /* count of forks when it was made */
    bool has_reported;                  /* a failure, to whoever started the job */
    bool is_elastic;                    /* a driver gives the ranks */
    bool has_failed;                    /* a generation did not form ... */
    struct hvd_error failed;            /* ... because of this */
};

/* The job, kept alive until job_done; NULL (and no job_done): err says why. */
struct job *job_use(struct hvd_error *err);
void job_done(void);

#endif
