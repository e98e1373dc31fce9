/* env.c: see env.h. */
#include "launch/env.h"

#include "base/config.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *no_items[1];

void env_init(struct env *env)
{
    *env = (struct env){.items = no_items};
}

static void wipe(char *item)
{
    explicit_bzero(item, strlen(item));
    free(item);
}

void env_release(struct env *env)
{
    for (int i = 0; i < env->count; i++)
        wipe(env->items[i]);
    if (env->capacity > 0)
        free(env->items);
    hash_release(&env->places);
    env_init(env);
}

static bool grow(struct env *env)
{
    int capacity = env->capacity == 0 ? 64 : env->capacity * 2;
    char **items = realloc(env->capacity > 0 ? env->items : NULL,
                           ((size_t)capacity + 1) * sizeof *items);

    if (items == NULL)
        return false;
    env->items = items;
    env->capacity = capacity;
    return true;
}

/* Takes over item. */
static void put_owned(struct env *env, char *item)
{
    size_t bytes = strcspn(item, "=");
    uintptr_t place = (uintptr_t)hash_get(&env->places, item, bytes);

    if (place != 0) {
        char *old = env->items[place - 1];

        /* The key of the table lies in the old item. */
        hash_remove(&env->places, old, bytes);
        wipe(old);
        env->items[place - 1] = item;
        env->failed |= hash_put(&env->places, item, bytes, (void *)place) != 0;
        return;
    }
    if ((env->count == env->capacity && !grow(env)) ||
        hash_put(&env->places, item, bytes, (void *)(uintptr_t)(env->count + 1)) != 0) {
        env->failed = true;
        wipe(item);
        return;
    }
    env->items[env->count++] = item;
    env->items[env->count] = NULL;
}

void env_put(struct env *env, const char *assignment)
{
    const char *equals = strchr(assignment, '=');
    char *item;

    if (equals == NULL || equals == assignment)
        return;
    item = strdup(assignment);
    if (item == NULL)
        env->failed = true;
    else
        put_owned(env, item);
}

void env_set(struct env *env, const char *name, const char *format, ...)
{
    char *value = NULL, *item = NULL;
    va_list args;

    va_start(args, format);
    if (vasprintf(&value, format, args) < 0)
        value = NULL;
    va_end(args);
    if (value == NULL || asprintf(&item, "%s=%s", name, value) < 0)
        env->failed = true;
    else
        put_owned(env, item);
    free(value);
}

const char *env_get(const struct env *env, const char *name)
{
    uintptr_t place = (uintptr_t)hash_get(&env->places, name, strlen(name));

    return place == 0 ? NULL : env->items[place - 1] + strlen(name) + 1;
}

void env_copy(struct env *to, const struct env *from)
{
    env_init(to);
    for (int i = 0; i < from->count; i++)
        env_put(to, from->items[i]);
    to->failed |= from->failed;
}

void env_add_own(struct env *env)
{
    for (char **e = config_environment(); *e != NULL; e++)
        env_put(env, *e);
}
