/* key_file.h: a key as text: 64 hexadecimal digits, in a variable or a file. */
#ifndef HVD_RENDEZVOUS_KEY_FILE_H
#define HVD_RENDEZVOUS_KEY_FILE_H

#include "base/error.h"

#define KEY_HEX 64

/* `from` names the source in errors; the text itself is in none.  Errors: HVD_INVALID. */
enum hvd_status key_parse(const char *text, size_t n, const char *from, uint8_t key[32],
                          struct hvd_error *err);

/* The file `name` of the directory, shown as `shown`.  Blocks: 5 s at most.
 * Errors: HVD_INVALID (no key, not a file, of another user, open to others), HVD_SYS with
 * errno as open left it (ELOOP: a symbolic link, which is not followed). */
enum hvd_status key_file_read(int dir, const char *name, const char *shown,
                              uint8_t key[32], struct hvd_error *err);

#endif
