/* operations.c: horovod.h but its life cycle: finds the job and hands over. */
#include "api/job.h"

#include "base/strbuf.h"
#include "gpu/gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum hvd_status status_of(const struct hvd_error *err)
{
    return err->status;
}

/* Runs `call` with the job in `job`, or returns why there is none. */
#define WITH_JOB(call)                                                                 \
    do {                                                                               \
        struct hvd_error local_;                                                       \
        struct job *job = job_use(err != NULL ? err : &local_);                        \
        enum hvd_status status_;                                                       \
        if (job == NULL)                                                               \
            return status_of(err != NULL ? err : &local_);                             \
        status_ = (call);                                                              \
        job_done();                                                                    \
        return status_;                                                                \
    } while (0)

static enum hvd_status check(const struct hvd_request *req, int count,
                             struct hvd_error *err)
{
    if (count < 1)
        return error_set(err, HVD_INVALID, -1, "a group needs at least one tensor");
    for (int i = 0; i < count; i++) {
        const struct hvd_request *r = &req[i];

        if (r->size != sizeof *r)
            return error_set(err, HVD_INVALID, -1, "hvd_request.size is %u, not %zu",
                             r->size, sizeof *r);
        if ((unsigned)r->op >= HVD_OP_COUNT || (unsigned)r->dtype >= HVD_DTYPE_COUNT ||
            (unsigned)r->reduce > HVD_PRODUCT)
            return error_set(err, HVD_INVALID, -1, "unknown operation, type or reduction");
    }
    return HVD_OK;
}

enum hvd_status hvd_submit(const struct hvd_request *req, int count,
                           hvd_handle *handle_p, struct hvd_error *err)
{
    TRY(check(req, count, err));
    WITH_JOB(engine_submit(job->engine, req, count, handle_p, err));
}

enum hvd_status hvd_submit_then(const struct hvd_request *req, int count, hvd_done_fn done,
                                void *context, hvd_handle *handle_p,
                                struct hvd_error *err)
{
    TRY(check(req, count, err));
    if (done == NULL)
        return error_set(err, HVD_INVALID, -1, "hvd_submit_then needs a function");
    WITH_JOB(engine_submit_then(job->engine, req, count, done, context, handle_p, err));
}

enum hvd_status hvd_run(const struct hvd_request *req, struct hvd_error *err)
{
    TRY(check(req, 1, err));
    WITH_JOB(engine_run(job->engine, req, err));
}

enum hvd_status hvd_run_start(const struct hvd_request *req, hvd_handle *handle_p,
                              struct hvd_error *err)
{
    TRY(check(req, 1, err));
    WITH_JOB(engine_run_start(job->engine, req, handle_p, err));
}

enum hvd_status hvd_run_take(const struct hvd_request *req, struct hvd_output *out,
                             int64_t *splits, int room, hvd_handle *handle_p,
                             struct hvd_error *err)
{
    TRY(check(req, 1, err));
    if (req->output != NULL || req->op == HVD_BARRIER || req->op == HVD_JOIN)
        return error_set(err, HVD_INVALID, -1, "hvd_run_take is for requests without output");
    WITH_JOB(engine_run_take(job->engine, req, out, splits, room, handle_p, err));
}

enum hvd_status hvd_poll(hvd_handle handle, struct hvd_error *err)
{
    WITH_JOB(engine_poll(job->engine, handle, err));
}

enum hvd_status hvd_wait(hvd_handle handle, int64_t timeout_us, struct hvd_error *err)
{
    WITH_JOB(engine_wait(job->engine, handle, timeout_us, err));
}

void hvd_release(hvd_handle handle)
{
    struct job *job = job_use(NULL);

    if (job == NULL)
        return;
    engine_release(job->engine, handle);
    job_done();
}

enum hvd_status hvd_output(hvd_handle handle, int index, struct hvd_output *out,
                           struct hvd_error *err)
{
    WITH_JOB(engine_output(job->engine, handle, index, false, out, err));
}

enum hvd_status hvd_take_output(hvd_handle handle, int index, struct hvd_output *out,
                                struct hvd_error *err)
{
    WITH_JOB(engine_output(job->engine, handle, index, true, out, err));
}

enum hvd_status hvd_stream_wait(hvd_handle handle, uint64_t stream, struct hvd_error *err)
{
    WITH_JOB(engine_stream_wait(job->engine, handle, stream, err));
}

/* ---- GPUs ---------------------------------------------------------------------------- */

void hvd_gpu_info(struct hvd_gpu *info)
{
    gpu_find(info);
}

int hvd_nccl_version(void)
{
    return gpu_nccl_version();
}

void hvd_gpu_search(const char *directories)
{
    gpu_search(directories);
}

/* ---- Memory -------------------------------------------------------------------------- */

void *hvd_alloc(size_t bytes)
{
    return arena_alloc(bytes);
}

void hvd_free(void *p)
{
    if (p != NULL && arena_owns(p))
        arena_free(p);
    else if (gpu_owns(p))
        gpu_free(p);
    else
        free(p);
}

/* ---- Who is who ---------------------------------------------------------------------- */

bool hvd_is_initialized(void)
{
    struct job *job = job_use(NULL);

    if (job != NULL)
        job_done();
    return job != NULL;
}

#define TOPOLOGY_QUERY(name, field)                                                    \
    int name(void)                                                                     \
    {                                                                                  \
        struct job *job = job_use(NULL);                                               \
        int value = -1;                                                                \
                                                                                       \
        if (job != NULL) {                                                             \
            value = mesh_topology(job->mesh)->field;                                   \
            job_done();                                                                \
        }                                                                              \
        return value;                                                                  \
    }

TOPOLOGY_QUERY(hvd_rank, rank)
TOPOLOGY_QUERY(hvd_size, size)
TOPOLOGY_QUERY(hvd_local_rank, local_rank)
TOPOLOGY_QUERY(hvd_local_size, local_size)
TOPOLOGY_QUERY(hvd_cross_rank, cross_rank)
TOPOLOGY_QUERY(hvd_cross_size, cross_size)
TOPOLOGY_QUERY(hvd_is_homogeneous, homogeneous)

void hvd_abort(const char *why)
{
    struct job *job = job_use(NULL);
    struct hvd_error err;

    if (job == NULL)
        return;
    error_set(&err, HVD_ABORTED, mesh_topology(job->mesh)->rank,
              "rank %d on %s aborted the job: %.700s", mesh_topology(job->mesh)->rank,
              mesh_topology(job->mesh)->hosts[mesh_topology(job->mesh)->rank],
              why != NULL ? why : "no reason given");
    mesh_fail(job->mesh, &err);
    mesh_kick(job->mesh);
    job_done();
}

/* ---- Process sets -------------------------------------------------------------------- */

static enum hvd_status finish_set_op(struct engine *e, hvd_handle handle, int *value_p,
                                     struct hvd_error *err)
{
    struct hvd_output out = {.size = sizeof out};
    enum hvd_status status = engine_wait(e, handle, -1, err);

    if (status == HVD_OK)
        status = engine_output(e, handle, 0, false, &out, err);
    if (status == HVD_OK && value_p != NULL)
        *value_p = (int)out.value;
    engine_release(e, handle);
    return status;
}

static enum hvd_status add_set(struct engine *e, const int *ranks, int count, int *id_p,
                               struct hvd_error *err)
{
    hvd_handle handle;

    TRY(engine_submit_add_set(e, ranks, count, &handle, err));
    return finish_set_op(e, handle, id_p, err);
}

static enum hvd_status remove_set(struct engine *e, int id, struct hvd_error *err)
{
    hvd_handle handle;

    TRY(engine_submit_remove_set(e, id, &handle, err));
    return finish_set_op(e, handle, NULL, err);
}

enum hvd_status hvd_add_process_set(const int *ranks, int rank_count, int *id_p,
                                    struct hvd_error *err)
{
    WITH_JOB(add_set(job->engine, ranks, rank_count, id_p, err));
}

enum hvd_status hvd_remove_process_set(int id, struct hvd_error *err)
{
    WITH_JOB(remove_set(job->engine, id, err));
}

void hvd_warm_process_set(int id)
{
    struct job *job = job_use(NULL);

    if (job == NULL)
        return;
    engine_warm_set(job->engine, id);
    job_done();
}

int hvd_process_set_ids(int *ids, int capacity)
{
    struct job *job = job_use(NULL);
    int count;

    if (job == NULL)
        return -1;
    count = engine_set_ids(job->engine, ids, capacity);
    job_done();
    return count;
}

int hvd_process_set_count(void)
{
    return hvd_process_set_ids(NULL, 0);
}

static int set_ranks(int id, int *ranks, int capacity, int *self_p)
{
    struct job *job = job_use(NULL);
    int count;

    if (job == NULL)
        return -1;
    count = engine_set_ranks(job->engine, id, ranks, capacity, self_p);
    job_done();
    return count;
}

int hvd_process_set_size(int id)
{
    int self;

    return set_ranks(id, NULL, 0, &self);
}

int hvd_process_set_rank(int id)
{
    int self = -1;

    if (set_ranks(id, NULL, 0, &self) < 0)
        return -1;
    return self >= 0 ? self : -2;
}

int hvd_process_set_ranks(int id, int *ranks, int capacity)
{
    int self;

    return set_ranks(id, ranks, capacity, &self);
}

/* ---- Diagnostics --------------------------------------------------------------------- */

enum hvd_status hvd_timeline_start(const char *path, bool mark_cycles,
                                   struct hvd_error *err)
{
    if (path == NULL || path[0] == '\0')
        return error_set(err, HVD_INVALID, -1, "the timeline needs the path of a file");
    WITH_JOB(engine_timeline_start(job->engine, path, mark_cycles, err));
}

enum hvd_status hvd_timeline_stop(struct hvd_error *err)
{
    WITH_JOB(engine_timeline_stop(job->engine, err));
}

void hvd_set_where(hvd_where_fn where)
{
    engine_set_where(where);
}

size_t hvd_stats_json(char *buffer, size_t capacity)
{
    struct job *job = job_use(NULL);
    size_t n;

    if (job == NULL) {
        if (capacity > 0)
            buffer[0] = '\0';
        return 0;
    }
    n = engine_stats_json(job->engine, buffer, capacity);
    job_done();
    return n;
}

static enum hvd_status dump(struct engine *e, const char *path, struct hvd_error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    int written;

    if (fd < 0)
        return error_sys(err, -1, "open %.200s", path);
    written = engine_recorder_write(e, fd);
    close(fd);
    return written < 0 ? error_sys(err, -1, "write %.200s", path) : HVD_OK;
}

enum hvd_status hvd_recorder_dump(const char *path, struct hvd_error *err)
{
    WITH_JOB(dump(job->engine, path, err));
}

size_t hvd_config_text(char *buffer, size_t capacity)
{
    static const char *const sources[] = {"default", "environment", "autotune", "file",
                                          "option"};
    struct job *job = job_use(NULL);
    struct strbuf out;
    char value[256];
    size_t n;

    strbuf_init(&out);
    for (int i = 0; job != NULL && i < config_row_count; i++) {
        config_format(&job->conf, i, value, sizeof value);
        strbuf_addf(&out, "HOROVOD_%s=%s (default %s, from %s)\n", config_rows[i].name,
                    value, config_rows[i].initial, sources[job->conf.source[i]]);
    }
    if (job != NULL)
        job_done();
    n = out.length;
    if (capacity > 0) {
        size_t copied = n < capacity ? n : capacity - 1;

        memcpy(buffer, out.text, copied);
        buffer[copied] = '\0';
    }
    strbuf_release(&out);
    return n;
}
