/*
 * config.h: the configuration of a job, from config.def.  The environment is read by
 * config_read and nowhere else, when a job starts and never at load time.
 */
#ifndef HVD_BASE_CONFIG_H
#define HVD_BASE_CONFIG_H

#include "base/error.h"

enum config_flags {
    CONFIG_TUNABLE = 1, CONFIG_IDENTITY = 2, CONFIG_SECRET = 4, CONFIG_HIDDEN = 8,
    CONFIG_IGNORED = 16, CONFIG_MB = 32,
};

enum config_type { CONFIG_BOOLEAN, CONFIG_INTEGER, CONFIG_NUMBER, CONFIG_BYTES,
                   CONFIG_TEXT };

enum config_source { CONFIG_DEFAULT, CONFIG_ENVIRONMENT, CONFIG_AUTOTUNE,
                     CONFIG_FILE, CONFIG_OPTION };

typedef bool config_boolean;
typedef int64_t config_integer;
typedef double config_number;
typedef uint64_t config_bytes;
typedef char *config_text;              /* never NULL; owned by struct config */

struct config {
#define CONFIG(type, field, ...) config_##type field;
#include "base/config.def"
#undef CONFIG
    unsigned char *source;              /* enum config_source per row */
};

struct config_row {
    enum config_type type;
    size_t offset;                      /* in struct config */
    const char *name;                   /* without HOROVOD_ */
    const char *initial;
    double low, high;                   /* numbers; text: lengths */
    unsigned flags;
    const char *option, *key, *text;
};

extern const struct config_row config_rows[];
extern const int config_row_count;

/* All rows from their defaults and then the environment (secure_getenv).
 * Owns: the caller, config_release, also after a failure.
 * Errors: HVD_INVALID names the variable, the value and what is allowed.
 * Warns of HOROVOD_* names that nobody knows, with the nearest one. */
enum hvd_status config_read(struct config *conf, struct hvd_error *err);
void config_release(struct config *conf);

/* Checks and stores one value.  Errors: HVD_INVALID. */
enum hvd_status config_set(struct config *conf, int row, const char *value,
                           enum config_source source, struct hvd_error *err);

/* The row called `name` (without HOROVOD_), -1 if there is none. */
int config_find(const char *name);

/* Whether HOROVOD_... says who a process is (IDENTITY), so that no other may inherit it. */
bool config_is_identity(const char *variable);

/* How many letters two names differ by (Levenshtein), for "did you mean". */
int config_distance(const char *a, const char *b);

/* The value as the user would write it; SECRET rows give "(hidden)". */
void config_format(const struct config *conf, int row, char *buffer, size_t capacity);

/* A variable that is not ours (such as OMPI_COMM_WORLD_RANK); NULL if unset. */
const char *config_foreign(const char *variable);

/* The whole environment, for the launcher, which hands it on; NULL-terminated. */
char **config_environment(void);

/* Takes a secret out of the environment: the value is overwritten, then unset. */
void config_wipe_environment(const char *variable);

#endif
