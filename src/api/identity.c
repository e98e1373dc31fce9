/*
 * identity.c: who this process is when horovodrun has not started it.
 *
 * 1. HOROVOD_RANK and HOROVOD_SIZE win.  Else the first of the table whose pair is set:
 *    the launcher that is nearest to the process comes first (torchrun under srun).
 * 2. Slurm counts only inside a step (SLURM_STEP_NUM_TASKS): a batch script also has
 *    SLURM_PROCID, but no peers.
 * 3. The rendezvous, where HOROVOD_GLOO_RENDEZVOUS_ADDR does not give it: torchrun:
 *    MASTER_ADDR and the port after MASTER_PORT (which torchrun uses itself); Slurm: the
 *    first node of the step, a port made of job and step; all ranks on one host: the
 *    loopback, a port made of the job's name.
 * 4. Rank 0 serves it, unless HOROVOD_RENDEZVOUS_SERVE says no.
 * 5. The job's name (HOROVOD_JOB_ID) is made of what the launcher calls it, equal on all
 *    ranks; a key that nobody gives is derived from it (rendezvous/user_key.c).
 */
#include "api/identity.h"

#include "base/hash.h"
#include "base/strbuf.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum source { TORCHRUN, OPEN_MPI, PMI, SLURM, SOURCE_COUNT };

static const struct {
    const char *launcher, *rank, *size, *local_rank, *local_size;
    const char *needed;                 /* must be set, too; NULL: nothing */
} sources[SOURCE_COUNT] = {
    [TORCHRUN] = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                  "MASTER_ADDR"},
    [OPEN_MPI] = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                  "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
    [PMI] = {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL},
    [SLURM] = {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL,
               "SLURM_STEP_NUM_TASKS"},
};

static const char *variable(const char *name)
{
    const char *value = name != NULL ? config_foreign(name) : NULL;

    return value != NULL && *value != '\0' ? value : NULL;
}

static bool is_default(const struct config *conf, const char *row)
{
    return conf->source[config_find(row)] == CONFIG_DEFAULT;
}

static enum hvd_status set(struct config *conf, const char *row, const char *value,
                           struct hvd_error *err)
{
    return config_set(conf, config_find(row), value, CONFIG_ENVIRONMENT, err);
}

static enum hvd_status take(struct config *conf, const char *row, const char *name,
                            struct hvd_error *err)
{
    const char *value = variable(name);

    if (value == NULL || set(conf, row, value, err) == HVD_OK)
        return HVD_OK;
    return error_set(err, HVD_INVALID, -1, "%s: '%.64s' is not a number", name, value);
}

/* ---- rendezvous ------------------------------------------------------------------- */

/* "node[01-04,07],x1" -> "node01"; "a,b" -> "a" */
void identity_first_node(const char *list, char *name, size_t capacity)
{
    size_t prefix = strcspn(list, "[,");
    const char *bracket = list[prefix] == '[' ? list + prefix + 1 : "";

    snprintf(name, capacity, "%.*s%.*s", (int)prefix, list,
             (int)strcspn(bracket, "-,]"), bracket);
}

/* Ports below the range from which the kernel takes those of clients. */
static int port_of(const char *text)
{
    return 20000 + (int)(hash_code(text, strlen(text)) % 10000);
}

/* The number of a job of Open MPI; MPICH names its job nowhere. */
static const char *mpi_job(void)
{
    const char *job = variable("OMPI_MCA_ess_base_jobid");

    return job != NULL ? job : variable("PMIX_NAMESPACE");
}

static void find_place(enum source source, const struct config *conf, char *addr,
                       size_t capacity, int *port_p)
{
    const char *nodes = variable("SLURM_STEP_NODELIST");
    char text[160];

    *port_p = -1;
    addr[0] = '\0';
    if (source == TORCHRUN) {
        const char *port = variable("MASTER_PORT"), *name = variable("MASTER_ADDR");

        snprintf(addr, capacity, "%s", name != NULL ? name : "");
        *port_p = port != NULL && atoi(port) > 0 && atoi(port) < 65535 ? atoi(port) + 1
                                                                       : 29501;
    } else if (source == SLURM && (nodes != NULL || variable("SLURM_JOB_NODELIST"))) {
        const char *id = variable("SLURM_JOB_ID"), *step = variable("SLURM_STEP_ID");

        identity_first_node(nodes != NULL ? nodes : variable("SLURM_JOB_NODELIST"), addr,
                            capacity);
        snprintf(text, sizeof text, "slurm %s.%s", id != NULL ? id : "",
                 step != NULL ? step : "");
        *port_p = port_of(text);
    } else if (conf->local_size == conf->size) {
        const char *job = mpi_job();

        snprintf(addr, capacity, "127.0.0.1");
        /* Without a number: ranks of one host have one parent. */
        snprintf(text, sizeof text, "%u %s %d", (unsigned)getuid(), job != NULL ? job : "",
                 job != NULL ? 0 : (int)getppid());
        *port_p = port_of(text);
    }
}

static enum hvd_status complete_place(struct config *conf, enum source source,
                                      struct hvd_error *err)
{
    char addr[256], port[16];
    int number;

    find_place(source, conf, addr, sizeof addr, &number);
    if (is_default(conf, "GLOO_RENDEZVOUS_ADDR") && addr[0] != '\0')
        TRY(set(conf, "GLOO_RENDEZVOUS_ADDR", addr, err));
    if (is_default(conf, "GLOO_RENDEZVOUS_PORT") && number > 0) {
        snprintf(port, sizeof port, "%d", number);
        TRY(set(conf, "GLOO_RENDEZVOUS_PORT", port, err));
    }
    if (is_default(conf, "RENDEZVOUS_SERVE"))
        TRY(set(conf, "RENDEZVOUS_SERVE", "1", err));
    return HVD_OK;
}

/* ---- rank 0 listens at addresses, not at names ------------------------------------ */

static bool is_numeric(const char *addr)
{
    unsigned char bytes[16];

    return inet_pton(AF_INET, addr, bytes) == 1 || inet_pton(AF_INET6, addr, bytes) == 1;
}

static bool is_in_list(const char *list, const char *item)
{
    size_t bytes = strlen(item);

    for (const char *at = strstr(list, item); at != NULL; at = strstr(at + 1, item))
        if ((at == list || at[-1] == ',') && (at[bytes] == ',' || at[bytes] == '\0'))
            return true;
    return false;
}

static void add_item(struct strbuf *list, const struct sockaddr *sa, socklen_t bytes)
{
    char text[NI_MAXHOST];

    if (getnameinfo(sa, bytes, text, sizeof text, NULL, 0, NI_NUMERICHOST) == 0 &&
        strchr(text, '%') == NULL && !is_in_list(list->text, text))
        strbuf_addf(list, "%s%s", list->length > 0 ? "," : "", text);
}

/* What the name means here; on Debian often 127.0.1.1, which is enough for this host. */
static void add_resolved(struct strbuf *list, const char *name)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;

    if (getaddrinfo(name, NULL, &hints, &found) != 0)
        return;
    for (struct addrinfo *a = found; a != NULL; a = a->ai_next)
        add_item(list, a->ai_addr, a->ai_addrlen);
    freeaddrinfo(found);
}

/* What it means to other hosts: an address of this one, whatever /etc/hosts says. */
static void add_own_addresses(struct strbuf *list)
{
    struct ifaddrs *all = NULL;

    if (getifaddrs(&all) != 0)
        return;
    for (struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr == NULL || !(i->ifa_flags & IFF_UP) ||
            (i->ifa_flags & IFF_LOOPBACK))
            continue;
        if (i->ifa_addr->sa_family == AF_INET)
            add_item(list, i->ifa_addr, sizeof(struct sockaddr_in));
        else if (i->ifa_addr->sa_family == AF_INET6)
            add_item(list, i->ifa_addr, sizeof(struct sockaddr_in6));
    }
    freeifaddrs(all);
}

static enum hvd_status resolve_own(struct config *conf, struct hvd_error *err)
{
    enum hvd_status status = HVD_OK;
    struct strbuf list;

    if (is_numeric(conf->rendezvous_addr) || strchr(conf->rendezvous_addr, ',') != NULL)
        return HVD_OK;
    strbuf_init(&list);
    add_resolved(&list, conf->rendezvous_addr);
    if (conf->local_size != conf->size)
        add_own_addresses(&list);
    if (list.length > 0)
        status = set(conf, "GLOO_RENDEZVOUS_ADDR", list.text, err);
    strbuf_release(&list);
    return status;
}

/* ---- the job's name --------------------------------------------------------------- */

static const char *or_empty(const char *text)
{
    return text != NULL ? text : "";
}

/* Rule 5.  The port is the same on all ranks, and made of the job's number where the
 * launcher gives one. */
static enum hvd_status complete_name(struct config *conf, enum source source,
                                     struct hvd_error *err)
{
    char name[65];

    if (!is_default(conf, "JOB_ID"))
        return HVD_OK;
    if (source == SLURM)
        snprintf(name, sizeof name, "slurm %.24s.%.12s", or_empty(variable("SLURM_JOB_ID")),
                 or_empty(variable("SLURM_STEP_ID")));
    else if (source == TORCHRUN)
        snprintf(name, sizeof name, "torchrun %.32s %d",
                 or_empty(variable("TORCHELASTIC_RUN_ID")), (int)conf->rendezvous_port);
    else
        snprintf(name, sizeof name, "mpi %.32s %d", or_empty(mpi_job()),
                 (int)conf->rendezvous_port);
    return set(conf, "JOB_ID", name, err);
}

static bool is_one_host(const struct config *conf, enum source source)
{
    const char *nodes = source == SLURM ? variable("SLURM_STEP_NUM_NODES") : NULL;

    return conf->local_size == conf->size || (nodes != NULL && strcmp(nodes, "1") == 0);
}

/* ---- rank and size ---------------------------------------------------------------- */

static enum hvd_status find_source(enum source *source_p, struct hvd_error *err)
{
    for (int i = 0; i < SOURCE_COUNT; i++) {
        const char *rank = variable(sources[i].rank), *size = variable(sources[i].size);

        if ((rank == NULL && size == NULL) ||
            (sources[i].needed != NULL && variable(sources[i].needed) == NULL))
            continue;
        if (rank == NULL || size == NULL)
            return error_set(err, HVD_INVALID, -1, "%s and %s must be set together (%s)",
                             sources[i].rank, sources[i].size, sources[i].launcher);
        *source_p = (enum source)i;
        return HVD_OK;
    }
    return HVD_AGAIN;
}

static enum hvd_status check_place(const struct config *conf, enum source source,
                                   struct hvd_error *err)
{
    if (conf->rendezvous_addr[0] != '\0' && conf->rendezvous_port >= 0)
        return HVD_OK;
    return error_set(err, HVD_INVALID, -1,
                     "%s does not say where %lld ranks on several hosts can meet: start "
                     "them by horovodrun --mpi -np %lld -H HOST:SLOTS,..., or set "
                     "HOROVOD_GLOO_RENDEZVOUS_ADDR to the host of rank 0 and "
                     "HOROVOD_GLOO_RENDEZVOUS_PORT to a free port there, for all ranks "
                     "(mpirun -x of Open MPI, -genv of MPICH)", sources[source].launcher,
                     (long long)conf->size, (long long)conf->size);
}

enum hvd_status identity_complete(struct config *conf, struct identity *found,
                                  struct hvd_error *err)
{
    enum source source = TORCHRUN;
    enum hvd_status status;

    *found = (struct identity){0};
    if (!is_default(conf, "RANK") || !is_default(conf, "SIZE"))
        return HVD_OK;
    status = find_source(&source, err);
    if (status != HVD_OK)
        return status == HVD_AGAIN ? HVD_OK : status;
    TRY(take(conf, "RANK", sources[source].rank, err));
    TRY(take(conf, "SIZE", sources[source].size, err));
    TRY(take(conf, "LOCAL_RANK", sources[source].local_rank, err));
    TRY(take(conf, "LOCAL_SIZE", sources[source].local_size, err));
    /* One without the other cannot be checked: both are found out at init. */
    if (conf->local_size < 0)
        TRY(set(conf, "LOCAL_RANK", "-1", err));
    if (conf->size == 1)
        return HVD_OK;
    TRY(complete_place(conf, source, err));
    TRY(check_place(conf, source, err));
    TRY(complete_name(conf, source, err));
    found->launcher = sources[source].launcher;
    found->one_host = is_one_host(conf, source);
    return conf->rank == 0 && conf->rendezvous_serve ? resolve_own(conf, err) : HVD_OK;
}
