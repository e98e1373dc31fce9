/* warnings.c: see warnings.h. */
#include "base/warnings.h"

#include "base/clock.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    /* guards ring, count */
static struct warning ring[WARNINGS_KEPT];
static unsigned count;

void warnings_note(int level, const char *text)
{
    struct warning *w;

    if (pthread_mutex_trylock(&lock) != 0)
        return;
    w = &ring[count++ % WARNINGS_KEPT];
    w->wall_us = clock_wall_us();
    w->level = level;
    strncpy(w->text, text, WARNING_TEXT - 1);
    w->text[WARNING_TEXT - 1] = '\0';
    for (char *c = w->text; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20)
            *c = ' ';
    pthread_mutex_unlock(&lock);
}

int warnings_read(struct warning out[WARNINGS_KEPT])
{
    unsigned n;

    pthread_mutex_lock(&lock);
    n = count < WARNINGS_KEPT ? count : WARNINGS_KEPT;
    for (unsigned i = 0; i < n; i++)
        out[i] = ring[(count - n + i) % WARNINGS_KEPT];
    pthread_mutex_unlock(&lock);
    return (int)n;
}
