/*
 * worker_env.c: the environment of workers.  Lowest to highest:
 *
 * 1. the launcher's environment, less secrets; for another host also less what belongs to
 *    a host, unless --env names it;
 * 2. variables behind options and config file;
 * 3. NAME=VALUE words of the command and of --env;
 * 4. what the launcher itself decides: rank, size, rendezvous.
 */
#include "launch/worker_env.h"

#include "base/config.h"

#include <string.h>

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool is_name(const char *assignment, const char *name)
{
    size_t bytes = strlen(name);

    return strncmp(assignment, name, bytes) == 0 && assignment[bytes] == '=';
}

bool worker_env_is_private(const char *assignment)
{
    static const char *const of_run[] = {"HOROVOD_RUN_FUNC_FD", "HOROVOD_RUN_RESULT_FD"};
    char name[64];
    size_t bytes = strcspn(assignment, "=");

    for (size_t i = 0; i < sizeof of_run / sizeof of_run[0]; i++)
        if (is_name(assignment, of_run[i]))
            return true;
    if (bytes < sizeof name) {
        memcpy(name, assignment, bytes);
        name[bytes] = 0;
        if (config_is_identity(name))
            return true;
    }
    return starts_with(assignment, "_HOROVOD_SECRET_KEY");
}

bool worker_env_may_travel(const char *assignment)
{
    static const char *const names[] = {"HOME", "HOSTNAME", "PWD", "DISPLAY", "TMPDIR",
                                        "XDG_RUNTIME_DIR", "SHLVL", "_"};
    static const char *const prefixes[] = {"BASH_FUNC_", "OLDPWD", "_HOROVOD_SECRET_KEY",
                                           "SSH_"};
    size_t name_bytes = strcspn(assignment, "=");

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (is_name(assignment, names[i]))
            return false;
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (starts_with(assignment, prefixes[i]))
            return false;
    return memmem(assignment, name_bytes, "CUDA_VISIBLE_DEVICES", 20) == NULL;
}

static bool is_asked_for(const struct settings *s, const char *assignment)
{
    for (int i = 0; i < s->forward_count; i++)
        if (is_name(assignment, s->forward[i]))
            return true;
    return false;
}

static void add_all(struct env *env, const struct env *from)
{
    for (int i = 0; i < from->count; i++)
        env_put(env, from->items[i]);
}

static void add_network(const char *nics, struct env *env)
{
    if (nics[0] == '\0')
        return;
    env_set(env, "HOROVOD_GLOO_IFACE", "%s", nics);
    if (env_get(env, "NCCL_SOCKET_IFNAME") == NULL)
        env_set(env, "NCCL_SOCKET_IFNAME", "%s", nics);
}

void worker_env_common(const struct settings *s, bool is_local, const char *nics,
                       int threads, struct env *env)
{
    env_init(env);
    for (int i = 0; i < s->base.count; i++)
        if (is_local || worker_env_may_travel(s->base.items[i]) ||
            is_asked_for(s, s->base.items[i]))
            env_put(env, s->base.items[i]);
    add_all(env, &s->knobs);
    add_all(env, &s->assigned);
    add_network(nics, env);
    env_set(env, "HOROVOD_CONTROLLER", "gloo");
    env_set(env, "HOROVOD_CPU_OPERATIONS", "gloo");
    env_set(env, "PYTHONUNBUFFERED", "1");
    if (threads > 0)
        env_set(env, "OMP_NUM_THREADS", "%d", threads);
}

void worker_env_identity(const struct slot *slot, const char *host, const char *addr,
                         int port, const char *job_id, uint32_t generation,
                         struct env *env)
{
    env_init(env);
    env_set(env, "HOROVOD_HOSTNAME", "%s", host);
    env_set(env, "HOROVOD_RANK", "%d", slot->rank);
    env_set(env, "HOROVOD_SIZE", "%d", slot->size);
    env_set(env, "HOROVOD_LOCAL_RANK", "%d", slot->local_rank);
    env_set(env, "HOROVOD_LOCAL_SIZE", "%d", slot->local_size);
    env_set(env, "HOROVOD_CROSS_RANK", "%d", slot->cross_rank);
    env_set(env, "HOROVOD_CROSS_SIZE", "%d", slot->cross_size);
    env_set(env, "HOROVOD_GLOO_RENDEZVOUS_ADDR", "%s", addr);
    env_set(env, "HOROVOD_GLOO_RENDEZVOUS_PORT", "%d", port);
    env_set(env, "HOROVOD_JOB_ID", "%s", job_id);
    env_set(env, "HOROVOD_GENERATION", "%u", generation);
}
