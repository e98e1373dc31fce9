/*
 * completion.c: calls those who asked to be told when their operation is done.
 *
 * 1. An operation becomes done deep inside the engine, with the baton held and lists being
 *    walked.  So entry_complete only puts its completion into e->completions; whoever
 *    gives the baton calls it, without any lock: it may submit, release or poll.
 * 2. One thread calls at a time, oldest first.  Who finds another one (or itself, further up
 *    the stack) doing so leaves the rest to it: calls never nest, however often they submit.
 * 3. The last giver of the baton is engine_stop, after everything has failed; so nothing is
 *    left.  A thread that calls has come through src/api and counts as a user of the job, or is
 *    the engine's: both are waited for before the engine is freed.
 */
#include "engine/engine_int.h"

#include <stdlib.h>

static _Thread_local bool in_callback;

bool engine_is_in_callback(void)
{
    return in_callback;
}

/* What is to be called when h is done, NULL if nobody asked; owner of the baton. */
struct completion *completion_take(struct engine *e, struct handle *h)
{
    struct completion *c = h->then;

    if (c == NULL)
        return NULL;
    h->then = NULL;
    e->completions_open--;
    c->handle = h->id;
    if (h->err.status != HVD_OK)
        c->err = h->err;
    else
        c->err.status = HVD_OK;
    return c;
}

/* Its handle says that it is done by now: another thread may call at once. */
void completion_put(struct engine *e, struct completion *c)
{
    pthread_mutex_lock(&e->completions_lock);
    list_append(&e->completions, &c->node);
    pthread_mutex_unlock(&e->completions_lock);
    atomic_store_explicit(&e->has_completions, true, memory_order_relaxed);
}

static struct completion *next(struct engine *e)
{
    struct completion *c = NULL;
    struct list *node;

    pthread_mutex_lock(&e->completions_lock);
    node = list_pop(&e->completions);
    if (node != NULL)
        c = list_entry(node, struct completion, node);
    else
        e->completing = false;
    pthread_mutex_unlock(&e->completions_lock);
    return c;
}

/* True: this thread is the one that calls. */
static bool begin(struct engine *e)
{
    bool others;

    pthread_mutex_lock(&e->completions_lock);
    others = e->completing;
    e->completing = true;
    atomic_store_explicit(&e->has_completions, false, memory_order_relaxed);
    pthread_mutex_unlock(&e->completions_lock);
    return !others;
}

void completions_run(struct engine *e)
{
    struct completion *c;

    if (!begin(e))
        return;
    in_callback = true;
    while ((c = next(e)) != NULL) {
        enum hvd_status status = c->err.status;

        c->call(c->context, c->handle, status, status != HVD_OK ? &c->err : NULL);
        free(c);
    }
    in_callback = false;
}
