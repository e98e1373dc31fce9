/*
 * fork.c: what a forked child must not keep: copies of our sockets would keep a dead
 * parent's connections open, and its peers would see no end of them.
 *
 * 1. Every descriptor of the transport is in the list from its birth to its end.
 * 2. The child closes them all before anything else runs in it, and counts the fork, by
 *    which meshes of the parent know that they are of no use here.
 */
#include "transport_int.h"

#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    /* guards fds, count, room */
static int *fds;
static size_t count, room;
static atomic_uint forks;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
    count = 0;
    atomic_fetch_add(&forks, 1);
    pthread_mutex_unlock(&lock);
}

static void setup(void)
{
    pthread_atfork(before, in_parent, in_child);
}

void fork_setup(void)
{
    pthread_once(&once, setup);
}

unsigned fork_count(void)
{
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

/* Without memory for the list the descriptor is not followed: a child keeps it. */
void fork_add(int fd)
{
    pthread_mutex_lock(&lock);
    if (count == room) {
        size_t more = room > 0 ? 2 * room : 64;
        int *larger = realloc(fds, more * sizeof *larger);

        if (larger != NULL) {
            fds = larger;
            room = more;
        }
    }
    if (count < room)
        fds[count++] = fd;
    pthread_mutex_unlock(&lock);
}

/* Under the lock, so that no fork comes between the removal and the close. */
void fork_close(int fd)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        if (fds[i] == fd) {
            fds[i] = fds[--count];
            break;
        }
    }
    close(fd);
    pthread_mutex_unlock(&lock);
}
