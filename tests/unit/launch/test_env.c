/* test_env.c: environments as data, and which variable reaches which worker. */
#include "launch/worker_env.h"

#include "check.h"

#include <stdlib.h>

static struct env env;

TEST(later_settings_replace_earlier_ones)
{
    env_init(&env);
    env_put(&env, "A=1");
    env_put(&env, "B.C=x=y");
    env_put(&env, "A=\xff\n");
    env_set(&env, "D", "%d", 5);
    env_put(&env, "no assignment");
    env_put(&env, "=x");
    CHECK_EQ(env.count, 3);
    CHECK_STR(env_get(&env, "A"), "\xff\n");
    CHECK_STR(env_get(&env, "B.C"), "x=y");
    CHECK(env_get(&env, "X") == NULL);
    CHECK_STR(env_get(&env, "D"), "5");
    CHECK(env.items[env.count] == NULL);
    env_release(&env);
}

TEST(many_variables)
{
    char name[32];

    env_init(&env);
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "N%d", i % 2500);
        env_set(&env, name, "%d", i);
    }
    CHECK_EQ(env.count, 2500);
    CHECK_STR(env_get(&env, "N2499"), "4999");
    CHECK(!env.failed);
    env_release(&env);
}

TEST(what_belongs_to_a_host_stays_there)
{
    static const char *const stay[] = {"HOME=/x", "PWD=/", "SSH_AUTH_SOCK=x", "TMPDIR=/t",
                                       "BASH_FUNC_x%%=()", "OLDPWD=/",
                                       "CUDA_VISIBLE_DEVICES=0",
                                       "NVIDIA_CUDA_VISIBLE_DEVICES_X=0", "DISPLAY=:0",
                                       "XDG_RUNTIME_DIR=/r", "HOSTNAME=h",
                                       "_HOROVOD_SECRET_KEY_1=x"};
    static const char *const go[] = {"PATH=/bin", "HOMES=1", "AWS_SECRET=x", "LANG=C",
                                     "X=CUDA_VISIBLE_DEVICES"};

    for (size_t i = 0; i < sizeof stay / sizeof stay[0]; i++)
        CHECK(!worker_env_may_travel(stay[i]));
    for (size_t i = 0; i < sizeof go / sizeof go[0]; i++)
        CHECK(worker_env_may_travel(go[i]));
}

static void read_settings(struct settings *s, const char *option, const char *word)
{
    /* Static: the settings point to the words. */
    static const char *argv[7] = {"horovodrun", "-np", "1"};
    struct hvd_error err;
    bool is_usage;

    argv[3] = option;
    argv[4] = word;
    argv[5] = "true";
    CHECK_OK(settings_read(6, (char **)argv, s, &is_usage, &err), err);
}

TEST(the_launchers_values_win)
{
    struct slot slot = {.rank = 1, .size = 2, .local_rank = 1, .local_size = 2,
                        .cross_size = 1};
    struct settings s;
    struct env own;

    setenv("HOROVOD_RANK", "7", 1);
    setenv("HOROVOD_KEY", "secret", 1);
    setenv("HOROVOD_CYCLE_TIME", "5", 1);
    setenv("NCCL_SOCKET_IFNAME", "mine", 1);
    read_settings(&s, "--cache-capacity=9", "HOROVOD_CACHE_CAPACITY=8");
    worker_env_common(&s, true, "lo", 3, &env);
    worker_env_identity(&slot, "h", "127.0.0.1", 99, "id", 0, &own);
    CHECK(env_get(&env, "HOROVOD_RANK") == NULL);
    CHECK(env_get(&env, "HOROVOD_KEY") == NULL);
    CHECK_STR(env_get(&own, "HOROVOD_RANK"), "1");
    CHECK_STR(env_get(&env, "HOROVOD_CYCLE_TIME"), "5");
    CHECK_STR(env_get(&env, "HOROVOD_CACHE_CAPACITY"), "8");
    CHECK_STR(env_get(&env, "NCCL_SOCKET_IFNAME"), "mine");
    CHECK_STR(env_get(&env, "HOROVOD_GLOO_IFACE"), "lo");
    CHECK_STR(env_get(&env, "OMP_NUM_THREADS"), "3");
    CHECK_STR(env_get(&env, "HOROVOD_CONTROLLER"), "gloo");
    CHECK_STR(env_get(&own, "HOROVOD_GLOO_RENDEZVOUS_PORT"), "99");
    env_release(&env);
    env_release(&own);
    settings_release(&s);
}

TEST(a_variable_of_this_host_travels_when_asked)
{
    struct settings s;

    setenv("HOME", "/mine", 1);
    setenv("PWD", "/here", 1);
    read_settings(&s, "--env=HOME", "true");
    worker_env_common(&s, false, "", 0, &env);
    CHECK_STR(env_get(&env, "HOME"), "/mine");
    CHECK(env_get(&env, "PWD") == NULL);
    env_release(&env);
    settings_release(&s);
}
