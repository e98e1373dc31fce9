/* test_mpi.c: the command lines of mpirun and jsrun, by their text. */
#include "launch/mpi.h"

#include "check.h"

#include <stdlib.h>

static struct hvd_error err;
static struct settings s;
static struct mpi_words words;
static char text[4096];

#define READ(...)                                                                      \
    read_settings((char *[]){"horovodrun", __VA_ARGS__, NULL})

/* The words outlive the macro's array: the settings point to them. */
static void read_settings(char **argv)
{
    static char *words_of[24];
    bool is_usage;
    int argc = 0;

    for (; argv[argc] != NULL; argc++)
        words_of[argc] = argv[argc];
    words_of[argc] = NULL;
    CHECK_OK(settings_read(argc, words_of, &s, &is_usage, &err), err);
}

static const char *joined(void)
{
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < words.count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i > 0 ? " " : "",
                                 words.words[i]);
    mpi_words_release(&words);
    return text;
}

static struct env two_variables(void)
{
    struct env env;

    env_init(&env);
    env_put(&env, "B=2");
    env_put(&env, "A=1");
    env_put(&env, "OLDPWD=/");
    return env;
}

TEST(versions)
{
    CHECK_EQ((int)mpi_kind_of("mpirun (Open MPI) 4.1.4"), (int)MPI_OPEN);
    CHECK_EQ((int)mpi_kind_of("OpenRTE"), (int)MPI_OPEN);
    CHECK_EQ((int)mpi_kind_of("mpirun (IBM Spectrum MPI) 10.3, Open MPI"),
             (int)MPI_SPECTRUM);
    CHECK_EQ((int)mpi_kind_of("HYDRA build details"), (int)MPI_MPICH);
    CHECK_EQ((int)mpi_kind_of("Intel(R) MPI Library"), (int)MPI_INTEL);
    CHECK_EQ((int)mpi_kind_of("something"), (int)MPI_NONE);
}

TEST(open_mpi)
{
    struct env env = two_variables();

    READ("-np", "3", "-H", "a:2,b:2", "-p", "22", "-i", "/k", "--network-interfaces",
         "eth0,eth1", "--output-filename", "/o", "--mpi-args", "-v -x Z", "--mpi", "cmd",
         "x y");
    CHECK_OK(mpi_command(&s, MPI_OPEN, &env, &words, &err), err);
    CHECK_STR(joined(),
              "mpirun --allow-run-as-root --tag-output -np 3 -H a:2,b:2 -bind-to none "
              "-map-by slot -mca pml ob1 -mca btl ^openib -mca plm_rsh_args -p 22 -i /k "
              "-mca btl_tcp_if_include eth0,eth1 -x NCCL_SOCKET_IFNAME=eth0,eth1 "
              "--output-filename /o -x A -x B -v -x Z cmd x y");
    env_release(&env);
    settings_release(&s);
}

TEST(spectrum_and_binding)
{
    struct env env = two_variables();

    READ("-np", "1", "--tcp", "--mpi", "cmd");
    CHECK_OK(mpi_command(&s, MPI_SPECTRUM, &env, &words, &err), err);
    CHECK_STR(joined(), "mpirun --allow-run-as-root --tag-output -np 1 -H localhost:1 "
                        "-bind-to socket -map-by socket -rank-by core -tcp -x A -x B cmd");
    settings_release(&s);
    READ("-np", "1", "--binding-args=-bind-to core", "--mpi", "cmd");
    CHECK_OK(mpi_command(&s, MPI_OPEN, &env, &words, &err), err);
    CHECK_HAS(joined(), "-H localhost:1 -bind-to core -mca pml");
    settings_release(&s);
    env_release(&env);
}

TEST(mpich)
{
    struct env env = two_variables();

    READ("-np", "4", "-H", "a:2,b:2", "--network-interface", "eth0", "--mpi", "cmd");
    CHECK_OK(mpi_command(&s, MPI_MPICH, &env, &words, &err), err);
    CHECK_STR(joined(), "mpirun -l -np 4 -ppn 2 -hosts a,b -bind-to none -iface eth0 -genv "
                        "NCCL_SOCKET_IFNAME=eth0 cmd");
    settings_release(&s);
    READ("-np", "3", "-H", "a:2,b:1", "--mpi", "cmd");
    CHECK_EQ((int)mpi_command(&s, MPI_MPICH, &env, &words, &err), (int)HVD_INVALID);
    mpi_words_release(&words);
    settings_release(&s);
    env_release(&env);
}

TEST(many_hosts_start_from_one)
{
    struct env env = two_variables();
    struct strbuf hosts;

    strbuf_init(&hosts);
    for (int i = 0; i < 64; i++)
        strbuf_addf(&hosts, "%sh%d:1", i > 0 ? "," : "", i);
    READ("-np", "64", "-H", hosts.text, "--mpi", "cmd");
    CHECK_OK(mpi_command(&s, MPI_OPEN, &env, &words, &err), err);
    CHECK_HAS(joined(), "-mca plm_rsh_no_tree_spawn true -mca plm_rsh_num_concurrent 64");
    strbuf_release(&hosts);
    env_release(&env);
    settings_release(&s);
}

TEST(jsrun)
{
    struct strbuf file;

    READ("-np", "3", "-H", "a:2,b:2", "--jsrun", "--mpi-args=-x", "--output-filename=/o",
         "cmd");
    mpi_jsrun_command(&s, "/r", &words);
    CHECK_STR(joined(), "jsrun --erf_input /r --stdio_stderr /o --stdio_stdout /o "
                        "--smpiargs -x cmd");
    strbuf_init(&file);
    CHECK_OK(mpi_rankfile(&s, 16, 4, &file, &err), err);
    CHECK_STR(file.text, "overlapping_rs: allow\ncpu_index_using: logical\n\n"
                         "rank: 0: { hostname: a; cpu: {0-3} ; gpu: * ; mem: * }\n"
                         "rank: 1: { hostname: a; cpu: {4-7} ; gpu: * ; mem: * }\n\n"
                         "rank: 2: { hostname: b; cpu: {0-3} ; gpu: * ; mem: * }\n");
    CHECK_EQ((int)mpi_rankfile(&s, 16, 1, &file, &err), (int)HVD_INVALID);
    strbuf_release(&file);
    settings_release(&s);
}
