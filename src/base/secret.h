/*
 * secret.h: memory for keys, which neither a core dump, nor the swap, nor a forked child
 * gets to see.  A page or more each: for the few secrets of a process.  Thread: any.
 */
#ifndef HVD_BASE_SECRET_H
#define HVD_BASE_SECRET_H

#include <stddef.h>

/* Zeroed.  NULL: no memory.  In a forked child it reads as zeros. */
void *secret_new(size_t bytes);
/* Wipes it; NULL is allowed. */
void secret_free(void *secret, size_t bytes);

#endif
