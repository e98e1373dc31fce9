/* program.h: other programs: where they are, what they print. */
#ifndef HVD_LAUNCH_PROGRAM_H
#define HVD_LAUNCH_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>

/* The first program of that name on PATH. */
bool program_find(const char *name, char *path, size_t capacity);
/* Runs it without a shell and keeps the first bytes of its stdout.  True: it ended with
 * code 0.  Blocks: until it ends. */
bool program_ask(const char *const *args, char *answer, size_t capacity);

#endif
