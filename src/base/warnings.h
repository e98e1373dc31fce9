/* warnings.h: the last warnings and errors that this process has logged, for a viewer that
 * comes after they were printed. */
#ifndef HVD_BASE_WARNINGS_H
#define HVD_BASE_WARNINGS_H

#include <stdint.h>

#define WARNINGS_KEPT 8
#define WARNING_TEXT 512

struct warning {
    uint64_t wall_us;
    int level;                          /* enum log_level */
    char text[WARNING_TEXT];            /* as far as it fits, in one line */
};

/* Thread: any, for both.  Blocks: never; while another thread is here it is not kept. */
void warnings_note(int level, const char *text);
/* Oldest first.  Returns how many. */
int warnings_read(struct warning out[WARNINGS_KEPT]);

#endif
