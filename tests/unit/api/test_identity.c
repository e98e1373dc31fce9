/* test_identity.c: rank, size and rendezvous from the variables of other launchers. */
#include "api/identity.h"

#include "check.h"

#include <stdlib.h>

static struct hvd_error err;
static struct config conf;
static struct identity who;

static void clear(void)
{
    static const char *const names[] = {
        "HOROVOD_RANK", "HOROVOD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK",
        "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_NODELIST", "SLURM_JOB_ID",
        "SLURM_STEP_ID", "SLURM_STEP_NUM_NODES", "TORCHELASTIC_RUN_ID",
        "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "HOROVOD_JOB_ID",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT",
        "HOROVOD_RENDEZVOUS_SERVE", "HOME"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
}

/* "NAME=VALUE" until NULL */
static enum hvd_status complete(const char *const *assignments)
{
    clear();
    for (; *assignments != NULL; assignments++) {
        char text[256], *value;

        snprintf(text, sizeof text, "%s", *assignments);
        value = strchr(text, '=');
        *value++ = '\0';
        setenv(text, value, 1);
    }
    config_release(&conf);
    CHECK_OK(config_read(&conf, &err), err);
    return identity_complete(&conf, &who, &err);
}

#define COMPLETE(...) complete((const char *[]){__VA_ARGS__, NULL})

TEST(nothing_is_a_job_of_one)
{
    CHECK_OK(COMPLETE("HOME=/nowhere"), err);
    CHECK_EQ((int)conf.rank, 0);
    CHECK_EQ((int)conf.size, 1);
    CHECK_STR(conf.rendezvous_addr, "");
}

TEST(our_own_variables_win)
{
    CHECK_OK(COMPLETE("HOROVOD_RANK=1", "HOROVOD_SIZE=2", "OMPI_COMM_WORLD_RANK=5",
                      "OMPI_COMM_WORLD_SIZE=8"), err);
    CHECK_EQ((int)conf.rank, 1);
    CHECK_EQ((int)conf.size, 2);
}

TEST(open_mpi_on_one_host)
{
    int port;

    CHECK_OK(COMPLETE("OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4",
                      "OMPI_COMM_WORLD_LOCAL_RANK=3", "OMPI_COMM_WORLD_LOCAL_SIZE=4",
                      "OMPI_MCA_ess_base_jobid=123"), err);
    CHECK_EQ((int)conf.rank, 3);
    CHECK_EQ((int)conf.local_size, 4);
    CHECK_STR(conf.rendezvous_addr, "127.0.0.1");
    port = (int)conf.rendezvous_port;
    CHECK(port >= 20000 && port < 30000);
    CHECK_OK(COMPLETE("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=4",
                      "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=4",
                      "OMPI_MCA_ess_base_jobid=123"), err);
    CHECK_EQ((int)conf.rendezvous_port, port);
    CHECK_EQ((int)conf.rendezvous_serve, 1);
}

TEST(open_mpi_on_several_hosts_needs_an_address)
{
    CHECK_EQ((int)COMPLETE("OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4",
                           "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=2"),
             (int)HVD_INVALID);
    CHECK_HAS(err.text, "horovodrun --mpi -np 4");
    CHECK_HAS(err.text, "HOROVOD_GLOO_RENDEZVOUS_ADDR");
    CHECK_OK(COMPLETE("OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4",
                      "HOROVOD_GLOO_RENDEZVOUS_ADDR=10.0.0.1",
                      "HOROVOD_GLOO_RENDEZVOUS_PORT=99", "HOROVOD_RENDEZVOUS_SERVE=0"), err);
    CHECK_STR(conf.rendezvous_addr, "10.0.0.1");
    CHECK_EQ((int)conf.rendezvous_port, 99);
    CHECK_EQ((int)conf.rendezvous_serve, 0);
}

TEST(pmi)
{
    CHECK_OK(COMPLETE("PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1",
                      "MPI_LOCALNRANKS=2"), err);
    CHECK_EQ((int)conf.rank, 1);
    CHECK_EQ((int)conf.local_rank, 1);
}

TEST(torchrun_is_nearer_than_slurm)
{
    CHECK_OK(COMPLETE("RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2",
                      "MASTER_ADDR=node1", "MASTER_PORT=29500", "SLURM_PROCID=1",
                      "SLURM_STEP_NUM_TASKS=2"), err);
    CHECK_EQ((int)conf.rank, 3);
    CHECK_STR(conf.rendezvous_addr, "node1");
    CHECK_EQ((int)conf.rendezvous_port, 29501);
}

TEST(rank_zero_listens_at_addresses)
{
    CHECK_OK(COMPLETE("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2",
                      "MASTER_ADDR=localhost"), err);
    CHECK_HAS(conf.rendezvous_addr, "127.0.0.1");
    CHECK(strstr(conf.rendezvous_addr, "localhost") == NULL);
}

TEST(a_variable_called_rank_alone_means_nothing)
{
    CHECK_OK(COMPLETE("RANK=3"), err);
    CHECK_EQ((int)conf.size, 1);
}

TEST(slurm)
{
    CHECK_OK(COMPLETE("SLURM_PROCID=2", "SLURM_STEP_NUM_TASKS=4", "SLURM_LOCALID=0",
                      "SLURM_STEP_NODELIST=gpu[07-09,12]", "SLURM_JOB_ID=42"), err);
    CHECK_EQ((int)conf.rank, 2);
    CHECK_EQ((int)conf.size, 4);
    CHECK_EQ((int)conf.local_rank, -1);
    CHECK_STR(conf.rendezvous_addr, "gpu07");
    CHECK(conf.rendezvous_port >= 20000);
}

/* All ranks must call it the same, and no two jobs. */
TEST(a_job_has_the_name_its_launcher_gives_it)
{
    char first[65];

    CHECK_OK(COMPLETE("SLURM_PROCID=2", "SLURM_STEP_NUM_TASKS=4", "SLURM_JOB_ID=42",
                      "SLURM_STEP_ID=7", "SLURM_STEP_NODELIST=a", "SLURM_STEP_NUM_NODES=1"),
             err);
    CHECK_STR(conf.job_id, "slurm 42.7");
    CHECK_STR(who.launcher, "Slurm");
    CHECK(who.one_host);
    CHECK_OK(COMPLETE("RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2",
                      "MASTER_ADDR=node1", "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=r1"),
             err);
    CHECK_STR(conf.job_id, "torchrun r1 29501");
    CHECK(!who.one_host);
    CHECK_OK(COMPLETE("PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"),
             err);
    snprintf(first, sizeof first, "%s", conf.job_id);
    CHECK_OK(COMPLETE("PMI_RANK=0", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=2"),
             err);
    CHECK_STR(conf.job_id, first);
    CHECK(who.one_host);
    CHECK_OK(COMPLETE("PMI_RANK=0", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=2",
                      "HOROVOD_JOB_ID=mine"), err);
    CHECK_STR(conf.job_id, "mine");
    CHECK_OK(COMPLETE("HOROVOD_RANK=1", "HOROVOD_SIZE=2"), err);
    CHECK(who.launcher == NULL);
}

TEST(a_batch_script_of_slurm_is_alone)
{
    CHECK_OK(COMPLETE("SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_JOB_ID=42"), err);
    CHECK_EQ((int)conf.size, 1);
}

TEST(half_a_pair_and_no_number_are_errors)
{
    CHECK_EQ((int)COMPLETE("PMI_RANK=1"), (int)HVD_INVALID);
    CHECK_HAS(err.text, "PMI_SIZE");
    CHECK_EQ((int)COMPLETE("PMI_RANK=x", "PMI_SIZE=2"), (int)HVD_INVALID);
    CHECK_HAS(err.text, "PMI_RANK");
}

TEST(node_lists)
{
    static const char *const lists[][2] = {{"a", "a"}, {"a,b", "a"}, {"n[1-3]", "n1"},
                                           {"n[01,03-05],m", "n01"}, {"", ""}};
    char name[64];

    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        identity_first_node(lists[i][0], name, sizeof name);
        CHECK_STR(name, lists[i][1]);
    }
}
