/* env.h: environments as data: lists of NAME=VALUE, later settings replace earlier ones. */
#ifndef HVD_LAUNCH_ENV_H
#define HVD_LAUNCH_ENV_H

#include "base/error.h"
#include "base/hash.h"

struct env {
    char **items;                       /* NAME=VALUE, owned; NULL-terminated */
    int count, capacity;
    struct hash places;                 /* name -> index + 1 */
    bool failed;                        /* out of memory */
};

void env_init(struct env *env);
void env_release(struct env *env);      /* values are overwritten */
void env_copy(struct env *to, const struct env *from);

/* assignment is NAME=VALUE; without '=' it is ignored. */
void env_put(struct env *env, const char *assignment);
void env_set(struct env *env, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
const char *env_get(const struct env *env, const char *name);

/* This process's environment. */
void env_add_own(struct env *env);

#endif
