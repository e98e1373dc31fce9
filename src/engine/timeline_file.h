/* timeline_file.h: lines of JSON, written by a thread of their own into a file that is valid
 * at every moment. */
#ifndef HVD_ENGINE_TIMELINE_FILE_H
#define HVD_ENGINE_TIMELINE_FILE_H

#include "base/error.h"

#include <stddef.h>

struct timeline_file;

/* Errors: HVD_SYS (not to be opened, no plain file), HVD_NOMEM. */
enum hvd_status timeline_file_open(const char *path, struct timeline_file **file_p,
                                   struct hvd_error *err);
/* Blocks: until all lines are written. */
void timeline_file_close(struct timeline_file *f);
const char *timeline_file_path(const struct timeline_file *f);

/* One event with its newline; copied.  Blocks: never for the disk. */
void timeline_file_put(struct timeline_file *f, const char *line, size_t n);

#endif
