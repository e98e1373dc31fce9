/* config_file.h: the YAML file of --config-file. */
#ifndef HVD_LAUNCH_CONFIG_FILE_H
#define HVD_LAUNCH_CONFIG_FILE_H

#include "launch/settings.h"

/* Called for each key.  `key` is "section.key" or a key at the top. */
typedef enum hvd_status (*config_file_fn)(void *owner, const char *key,
                                          const char *value, struct hvd_error *err);

/* Reads a mapping of scalars and of mappings of scalars.
 * Errors: HVD_INVALID names `origin` and the line. */
enum hvd_status config_file_parse(const char *text, size_t bytes, const char *origin,
                                  config_file_fn take, void *owner,
                                  struct hvd_error *err);

/* Fills what the command line has left open. */
enum hvd_status config_file_merge(struct settings *s, struct hvd_error *err);
void config_file_release(struct settings *s);

#endif
