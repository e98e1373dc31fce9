/* model_job.c: see model_job.h. */
#include "support/model_job.h"

#include "base/hash.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct model_rank {
    struct engine *engine;
    hvd_handle *handles;                /* of the step; 0: done */
    float **out;                        /* not phantom */
    int open;
    uint64_t end_ns;
};

struct model_job {
    struct model_options opt;
    struct config conf;
    struct model_net *net;
    struct model_rank *ranks;
    float *in, *out;                    /* phantom: of all ranks */
    uint64_t sum;                       /* of the results of this step */
    size_t room;
};

static void stop_program(const char *what, int rank, const char *why)
{
    fprintf(stderr, "model: rank %d: %s: %s\n", rank, what, why);
    abort();
}

struct model_job *model_job_new(const struct model_options *opt, const struct config *conf)
{
    struct model_job *job = calloc(1, sizeof *job);
    struct hvd_error err;

    BUG_ON(job == NULL);
    job->opt = *opt;
    job->conf = *conf;
    job->conf.cycle_time_ms = 0;        /* nothing waits for more of its kind */
    job->conf.stall_check_disable = true;
    job->net = model_new(opt);
    job->ranks = calloc((size_t)opt->size, sizeof *job->ranks);
    BUG_ON(job->ranks == NULL);
    for (int i = 0; i < opt->size; i++) {
        struct engine_options o = {.mesh = model_mesh(job->net, i), .conf = &job->conf,
                                   .dynamic_sets = true};

        if (engine_new(&o, &job->ranks[i].engine, &err) != HVD_OK)
            stop_program("engine", i, err.text);
    }
    return job;
}

static void drop_memory(struct model_job *job)
{
    if (job->in != NULL)
        munmap(job->in, job->room);
    if (job->out != NULL)
        munmap(job->out, job->room);
}

void model_job_free(struct model_job *job)
{
    struct hvd_error why;

    error_set(&why, HVD_SHUTDOWN, -1, "the model ends");
    mesh_fail(model_mesh(job->net, 0), &why);   /* nobody says goodbye to thousands */
    for (int i = 0; i < job->opt.size; i++) {
        engine_stop(job->ranks[i].engine);
        engine_free(job->ranks[i].engine);
        mesh_close(model_mesh(job->net, i), false);
        free(job->ranks[i].handles);
        free(job->ranks[i].out);
    }
    model_free(job->net);
    drop_memory(job);
    free(job->ranks);
    free(job);
}

/* ---- Buffers --------------------------------------------------------------------------- */

/* One vector in and one out for all: what it holds does not matter. */
static void take_memory(struct model_job *job, size_t bytes)
{
    if (bytes <= job->room)
        return;
    drop_memory(job);
    job->room = bytes;
    job->in = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    job->out = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    BUG_ON(job->in == MAP_FAILED || job->out == MAP_FAILED);
}

static float value_of(const struct model_job *job, int rank, size_t i)
{
    if (job->opt.rough) {
        uint32_t x = ((uint32_t)rank * 2654435761u) ^ ((uint32_t)i * 40503u + 7u);

        x ^= x >> 15;
        x *= 2246822519u;
        return (float)(int32_t)(x ^ x >> 13) * (x % 3 == 0 ? 1e-3f : 1.1f);
    }
    return (float)(rank % 16 + 1 + (int)(i % 5));
}

/* Of an allreduce: the same bits on all ranks. */
static void check_sum(struct model_job *job, int rank, const float *out, size_t count)
{
    uint64_t sum = hash_code((const char *)out, count * sizeof *out) + 1;

    if (job->sum != 0 && job->sum != sum)
        stop_program("other bits", rank, "allreduce");
    job->sum = sum;
}

/* Elements [first, first + count) of the sum. */
static void check_values(const struct model_job *job, int rank, const float *out, size_t first,
                         size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double sum = 0;

        for (int r = 0; r < job->opt.size; r++)
            sum += value_of(job, r, first + i);
        if ((double)out[i] != sum)
            stop_program("wrong value", rank, "of a sum");
    }
}

/* Equal parts of `share` elements. */
static void check_parts(const struct model_job *job, int rank, const float *out, size_t share)
{
    for (int from = 0; from < job->opt.size; from++)
        for (size_t i = 0; i < share; i++)
            if (out[(size_t)from * share + i] != value_of(job, from, (size_t)rank * share + i))
                stop_program("wrong value", rank, "of an alltoall");
}

/* The first ranks have an element more. */
static void check_slice(struct model_job *job, int rank, const float *out, size_t count)
{
    size_t size = (size_t)job->opt.size, me = (size_t)rank, more = count % size;
    size_t first = count / size * me + (me < more ? me : more);
    size_t mine = count / size + (me < more);

    if (job->opt.rough)
        job->sum += hash_code((const char *)out, mine * sizeof *out) * (me + 1);
    else
        check_values(job, rank, out, first, mine);
}

static void check_output(struct model_job *job, int rank, const struct model_step *s, int k)
{
    struct model_rank *r = &job->ranks[rank];
    size_t count = s->bytes / sizeof(float);
    struct hvd_output out = {.size = sizeof out};
    struct hvd_error err;

    if (engine_output(r->engine, r->handles[k], 0, false, &out, &err) != HVD_OK)
        stop_program("output", rank, err.text);
    if (s->op == HVD_ALLTOALL)
        check_parts(job, rank, out.data, count / (size_t)job->opt.size);
    else if (s->op == HVD_REDUCESCATTER)
        check_slice(job, rank, out.data, count);
    else if (job->opt.rough)
        check_sum(job, rank, out.data, count);
    else
        check_values(job, rank, out.data, 0, count);
    free(r->out[k]);
    r->out[k] = NULL;
}

static bool is_checked(const struct model_job *job, enum hvd_op op)
{
    return !job->opt.phantom && (op == HVD_ALLREDUCE || op == HVD_ALLTOALL ||
                                 op == HVD_REDUCESCATTER);
}

/* ---- A step ---------------------------------------------------------------------------- */

static void submit(struct model_job *job, int rank, const struct model_step *s, int k)
{
    struct model_rank *r = &job->ranks[rank];
    size_t count = s->bytes / sizeof(float);
    char name[64];
    struct hvd_request req = {.size = sizeof req, .op = s->op, .dtype = HVD_F32,
                              .reduce = HVD_SUM, .device = -1, .name = name, .ndim = 1,
                              .shape = {(int64_t)count}, .input = job->in,
                              .output = job->out};
    struct hvd_error err;

    snprintf(name, sizeof name, "%s.%d", s->name, k);
    if (s->op == HVD_BARRIER)
        req.ndim = 0;
    if (s->op == HVD_JOIN)
        req = (struct hvd_request){.size = sizeof req, .op = HVD_JOIN, .device = -1};
    if (s->op == HVD_ALLGATHER || s->op == HVD_ALLTOALL || s->op == HVD_REDUCESCATTER)
        req.output = NULL;
    if (is_checked(job, s->op)) {
        float *both = malloc(2 * s->bytes);

        BUG_ON(both == NULL);
        for (size_t i = 0; i < count; i++)
            both[i] = value_of(job, rank, i);
        req.input = both;
        req.output = s->op == HVD_ALLREDUCE ? both + count : NULL;
        r->out[k] = both;
    }
    if (engine_submit(r->engine, &req, 1, &r->handles[k], &err) != HVD_OK)
        stop_program("submit", rank, err.text);
}

static void collect(struct model_job *job, int rank, const struct model_step *s, int tensors)
{
    struct model_rank *r = &job->ranks[rank];
    struct hvd_error err;

    for (int k = 0; k < tensors && r->open > 0; k++) {
        enum hvd_status status;

        if (r->handles[k] == 0)
            continue;
        status = engine_poll(r->engine, r->handles[k], &err);
        if (status == HVD_AGAIN)
            continue;
        if (status != HVD_OK)
            stop_program("operation", rank, err.text);
        r->end_ns = model_now(job->net);
        if (r->out[k] != NULL)
            check_output(job, rank, s, k);
        engine_release(r->engine, r->handles[k]);
        r->handles[k] = 0;
        r->open--;
    }
}

static void act(struct model_job *job, int rank, const struct model_step *s, int tensors)
{
    while (engine_crank(job->ranks[rank].engine))
        ;
    collect(job, rank, s, tensors);
    model_end(job->net);
}

static void start(struct model_job *job, int rank, const struct model_step *s, int tensors,
                  uint64_t at_ns)
{
    struct model_rank *r = &job->ranks[rank];

    r->handles = realloc(r->handles, (size_t)tensors * sizeof *r->handles);
    r->out = realloc(r->out, (size_t)tensors * sizeof *r->out);
    BUG_ON(r->handles == NULL || r->out == NULL);
    memset(r->out, 0, (size_t)tensors * sizeof *r->out);
    r->open = tensors;
    model_begin(job->net, rank, at_ns);
    for (int k = 0; k < tensors; k++)
        submit(job, rank, s, k);
    act(job, rank, s, tensors);
}

static void sum_up(struct model_job *job, uint64_t begin_ns, struct model_cost *cost)
{
    *cost = (struct model_cost){.sum = job->sum};
    for (int i = 0; i < job->opt.size; i++) {
        const struct model_counts *c = model_count(job->net, i);
        uint64_t mine = c->posts_out + c->posts_in + c->sends_out + c->sends_in;
        uint64_t bytes = c->bytes_out > c->bytes_in ? c->bytes_out : c->bytes_in;
        uint64_t posts = c->posts_out + c->posts_in;
        int peers = model_peers(job->net, i);

        cost->messages += c->posts_out + c->sends_out;
        cost->bytes += c->bytes_out;
        if (mine > cost->busiest_messages) {
            cost->busiest_messages = mine;
            cost->busiest = i;
        }
        cost->busiest_bytes = bytes > cost->busiest_bytes ? bytes : cost->busiest_bytes;
        cost->posts = posts > cost->posts ? posts : cost->posts;
        cost->peers = peers > cost->peers ? peers : cost->peers;
        if (job->ranks[i].end_ns - begin_ns > cost->time_ns)
            cost->time_ns = job->ranks[i].end_ns - begin_ns;
    }
}

static bool all_done(const struct model_job *job)
{
    for (int i = 0; i < job->opt.size; i++)
        if (job->ranks[i].open > 0)
            return false;
    return true;
}

void model_job_step(struct model_job *job, const struct model_step *step,
                    struct model_cost *cost)
{
    int tensors = step->tensors > 0 ? step->tensors : 1, rank;
    uint64_t begin_ns = model_now(job->net) + 1000000;

    take_memory(job, step->bytes > 4096 ? step->bytes : 4096);
    model_reset(job->net);
    job->sum = 0;
    for (int i = 0; i < job->opt.size; i++)
        start(job, i, step, tensors, begin_ns);
    while ((rank = model_next(job->net)) >= 0)
        act(job, rank, step, tensors);
    if (!all_done(job))
        stop_program("step", -1, "some ranks wait for ever");
    sum_up(job, begin_ns, cost);
}

void model_job_join(struct model_job *job, struct model_cost *cost)
{
    model_job_step(job, &(struct model_step){.op = HVD_JOIN, .name = "join"}, cost);
}

/* In g ns each host that knows sends one message more (one of its ranks does), and it is known
 * on the other side after `far`. */
static double spread_ns(const struct model_options *opt, double hosts)
{
    double g = (double)opt->kind->message_ns / opt->per_host;
    size_t far = (size_t)((double)(opt->kind->latency_ns + 2 * opt->kind->message_ns) / g);
    double *known = calloc(far + 1, sizeof *known);     /* a ring: the last far + 1 times */
    size_t k = 0;

    BUG_ON(known == NULL);
    known[0] = 1;
    while (known[k % (far + 1)] < hosts) {
        double now = known[k % (far + 1)];

        k++;
        known[k % (far + 1)] = now + (k >= far ? known[(k - far) % (far + 1)] : 0);
    }
    free(known);
    return (double)k * g;
}

uint64_t model_allreduce_bound_ns(const struct model_options *opt, uint64_t bytes)
{
    double hosts = ceil((double)opt->size / opt->per_host);
    double hops = spread_ns(opt, hosts);
    double wire = 2.0 * (double)bytes * (hosts - 1) / hosts / opt->kind->rate;

    return (uint64_t)(hops > wire ? hops : wire);
}
