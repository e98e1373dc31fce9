/*
 * recorder.h: the flight recorder, a ring of the last operations of this process.
 * Written by the engine's owner (one at a time), read by anybody at any time: a torn
 * record is recognised by its number and left out.
 */
#ifndef HVD_BASE_RECORDER_H
#define HVD_BASE_RECORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORDER_SLOTS 1024             /* power of two */
#define RECORDER_NAME 56
#define RECORDER_WORDS (3 + RECORDER_NAME / 8)   /* of a record */

enum recorder_event { RECORDER_SUBMIT, RECORDER_DONE, RECORDER_FAIL, RECORDER_NOTE };

struct recorder;

struct recorder *recorder_new(void);    /* NULL: out of memory */
void recorder_free(struct recorder *r);

/* name may be NULL; it is cut at RECORDER_NAME - 1 bytes.  No system call, no lock. */
void recorder_add(struct recorder *r, enum recorder_event event, int op, int set,
                  uint64_t bytes, int status, const char *name);

/* A record that is made once and added often: the name is already where it belongs. */
struct recorder_form {
    uint64_t words[RECORDER_WORDS];
    uint32_t count;                     /* of the words in use */
};

void recorder_prepare(struct recorder_form *f, enum recorder_event event, int op, int set,
                      uint64_t bytes, int status, const char *name);
/* As recorder_add, but with the time of the last record that looked, or of recorder_look: a
 * look at the clock costs more than all the rest. */
void recorder_repeat(struct recorder *r, const struct recorder_form *f);
void recorder_look(struct recorder *r);

/* Records since the recorder was made.  Thread: any. */
uint64_t recorder_count(const struct recorder *r);

/* The ring as text, oldest first, one line per record. Async-signal-safe.
 * Returns the records written, -1 when writing failed. */
int recorder_write(const struct recorder *r, int fd);

/* A record as others see it; time of clock_us. */
struct recorder_view {
    uint64_t us, bytes;
    enum recorder_event event;
    int op, set, status;                /* op HVD_OP_COUNT: none */
    char name[RECORDER_NAME];
};

/* The newest records that are not older than oldest_us, oldest first; returns how many.
 * Thread: any. */
int recorder_read(const struct recorder *r, uint64_t oldest_us, struct recorder_view *out,
                  int capacity);

/* The line that goes before the ring in a file: who wrote it, when and why ("stall");
 * times of the records count back from it.  Async-signal-safe.
 *   # rank 0 of 4 pid 4711 at 1763246883.123456 host node1 why stall */
bool recorder_write_head(int fd, int rank, int size, const char *host, const char *why);

#endif
