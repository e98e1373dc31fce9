/*
 * scalebench.c: what a step of a large job costs, on a modelled network: real engines, real
 * collectives, virtual time (tests/support/model_net.h).  A line of JSON for every row.
 *
 *   scalebench [--net 10gbe,ib100,cloud] [--ranks 2,16,...] [--per-host 8] [--sizes 4,1048576,...]
 *              [--ops init,death,allreduce,...]
 *
 * init and death are those of tests/support/model_watch.h.
 */
#include "base/config.h"
#include "support/model_watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const struct { const char *name; enum hvd_op op; } ops[] = {
    {"allreduce", HVD_ALLREDUCE}, {"allgather", HVD_ALLGATHER},
    {"broadcast", HVD_BROADCAST}, {"alltoall", HVD_ALLTOALL},
    {"reducescatter", HVD_REDUCESCATTER}, {"barrier", HVD_BARRIER}, {"join", HVD_JOIN},
};

static enum hvd_op op_of(const char *name)
{
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (strcmp(ops[i].name, name) == 0)
            return ops[i].op;
    fprintf(stderr, "scalebench: no operation %s\n", name);
    exit(2);
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void print(const struct model_options *opt, const char *op, const char *kind,
                  uint64_t bytes, const struct model_cost *c, double took)
{
    printf("{\"net\": \"%s\", \"ranks\": %d, \"hosts\": %d, \"op\": \"%s\", \"step\": \"%s\", "
           "\"bytes\": %llu, \"time_us\": %.1f, \"bound_us\": %.1f, \"messages\": %llu, "
           "\"net_bytes\": %llu, \"busiest_messages\": %llu, \"busiest_rank\": %d, "
           "\"busiest_bytes\": %llu, \"posts\": %llu, \"peers\": %d, \"real_s\": %.2f}\n",
           opt->kind->name, opt->size, (opt->size + opt->per_host - 1) / opt->per_host, op,
           kind, (unsigned long long)bytes, (double)c->time_ns / 1e3,
           c->time_ns == 0 ? 0.0 : (double)model_allreduce_bound_ns(
               opt, strcmp(op, "allreduce") == 0 ? bytes : 0) / 1e3,
           (unsigned long long)c->messages, (unsigned long long)c->bytes,
           (unsigned long long)c->busiest_messages, c->busiest,
           (unsigned long long)c->busiest_bytes, (unsigned long long)c->posts, c->peers, took);
    fflush(stdout);
}

/* Each size: announced in full, then cached. */
static void run_op(struct model_job *job, const struct model_options *opt, const char *op,
                   uint64_t bytes)
{
    struct model_step step = {.op = op_of(op), .bytes = bytes, .name = op};
    struct model_cost cost;
    char name[64];
    double begin = seconds();

    snprintf(name, sizeof name, "%s-%llu", op, (unsigned long long)bytes);
    step.name = name;
    model_job_step(job, &step, &cost);
    print(opt, op, "new", bytes, &cost, seconds() - begin);
    if (step.op == HVD_JOIN)
        return;
    begin = seconds();
    model_job_step(job, &step, &cost);
    model_job_step(job, &step, &cost);
    print(opt, op, "cached", bytes, &cost, seconds() - begin);
}

static char *next(char **list)
{
    return strsep(list, ",");
}

static const char *option(int argc, char **argv, const char *name, const char *otherwise)
{
    for (int i = 1; i + 1 < argc; i += 2)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    return otherwise;
}

/* What needs no engines.  False: it does. */
static bool run_watch(const struct model_options *opt, const char *op)
{
    struct model_cost cost;
    double begin = seconds();
    bool dies = strcmp(op, "death") == 0;

    if (!dies && strcmp(op, "init") != 0)
        return false;
    if (dies)
        model_death_cost(opt, &cost);
    else
        model_init_cost(opt, &cost);
    print(opt, op, dies ? "kill" : "form", 0, &cost, seconds() - begin);
    return true;
}

/* An engine has about 240 kB, and 66 bytes for each rank of its job (measured). */
static bool fits(const struct model_options *opt)
{
    double need = opt->size * (240e3 + 66.0 * opt->size);
    double room = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);

    if (need <= room / 2)
        return true;
    fprintf(stderr, "scalebench: %d engines are left out: they need %.1f GB\n", opt->size,
            need / 1e9);
    return false;
}

static void run_job(const struct model_options *opt, const struct config *conf,
                    const char *op_list, const char *size_list)
{
    struct model_job *job = NULL;
    char *op_text = strdup(op_list), *op_at = op_text, *op;

    while ((op = next(&op_at)) != NULL) {
        char *text = strdup(size_list), *at = text, *size;

        if (job == NULL && !run_watch(opt, op) && fits(opt))
            job = model_job_new(opt, conf);
        if (job != NULL && (op_of(op) == HVD_BARRIER || op_of(op) == HVD_JOIN))
            run_op(job, opt, op, 0);
        else
            while (job != NULL && (size = next(&at)) != NULL)
                run_op(job, opt, op, strtoull(size, NULL, 10));
        free(text);
    }
    free(op_text);
    if (job != NULL)
        model_job_free(job);
}

int main(int argc, char **argv)
{
    char *nets = strdup(option(argc, argv, "--net", "10gbe,ib100,cloud")), *net_at = nets, *net;
    const char *sizes = option(argc, argv, "--sizes", "4,1048576,104857600");
    const char *op_list = option(argc, argv, "--ops", "init,death,allreduce");
    struct config conf;
    struct hvd_error err;

    if (config_read(&conf, &err) != HVD_OK) {
        fprintf(stderr, "scalebench: %s\n", err.text);
        return 2;
    }
    while ((net = next(&net_at)) != NULL) {
        char *text = strdup(option(argc, argv, "--ranks", "16,32,128,512,2048")), *at = text;
        char *ranks;

        while ((ranks = next(&at)) != NULL) {
            struct model_options opt = {.kind = model_kind_of(net), .size = atoi(ranks),
                                        .per_host = atoi(option(argc, argv, "--per-host", "8")),
                                        .phantom = true};

            if (opt.kind == NULL || opt.size < 1 || opt.per_host < 1) {
                fprintf(stderr, "scalebench: --net %s --ranks %s\n", net, ranks);
                return 2;
            }
            run_job(&opt, &conf, op_list, sizes);
        }
        free(text);
    }
    free(nets);
    config_release(&conf);
    return 0;
}
