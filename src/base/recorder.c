/*
 * recorder.c: each slot carries the number of its record; the writer clears it, fills the
 * slot and sets it again, so that a reader who finds the same number before and after its
 * copy knows that the copy is whole.  The content travels in relaxed atomic words: a
 * reader may meet a write under way, and that must be defined.
 */
#include "base/recorder.h"

#include "base/clock.h"
#include "horovod/horovod.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct record {
    uint64_t time_ns;
    uint64_t bytes;
    uint16_t event, op;
    int16_t set, status;
    char name[RECORDER_NAME];
};

#define WORDS (sizeof(struct record) / sizeof(uint64_t))
_Static_assert(sizeof(struct record) % sizeof(uint64_t) == 0, "whole words");

struct slot {
    _Atomic uint64_t number;            /* of its record; 0 while it is being written */
    _Atomic uint64_t words[WORDS];      /* a struct record */
};

struct recorder {
    _Atomic uint64_t next;              /* number of the next record, from 1 */
    struct slot slots[RECORDER_SLOTS];
};

static const char *const event_names[] = {"submit", "start", "done", "fail", "note"};
static const char *const op_names[] = {"allreduce", "allgather", "broadcast", "alltoall",
                                       "reducescatter", "barrier", "join", "-"};

struct recorder *recorder_new(void)
{
    struct recorder *r = calloc(1, sizeof *r);

    if (r != NULL)
        atomic_init(&r->next, 1);
    return r;
}

void recorder_free(struct recorder *r)
{
    free(r);
}

static void fill(struct slot *slot, uint64_t number, const struct record *content)
{
    uint64_t words[WORDS];

    memcpy(words, content, sizeof words);
    atomic_store_explicit(&slot->number, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (size_t i = 0; i < WORDS; i++)
        atomic_store_explicit(&slot->words[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&slot->number, number, memory_order_release);
}

/* False: the slot holds another record by now. */
static bool copy_out(const struct slot *slot, uint64_t number, struct record *content)
{
    uint64_t words[WORDS];

    if (atomic_load_explicit(&slot->number, memory_order_acquire) != number)
        return false;
    for (size_t i = 0; i < WORDS; i++)
        words[i] = atomic_load_explicit(&slot->words[i], memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    memcpy(content, words, sizeof words);
    return atomic_load_explicit(&slot->number, memory_order_relaxed) == number;
}

void recorder_add(struct recorder *r, enum recorder_event event, int op, int set,
                  uint64_t bytes, int status, const char *name)
{
    uint64_t number = atomic_load_explicit(&r->next, memory_order_relaxed);
    struct record content = {
        .time_ns = clock_ns(), .bytes = bytes, .event = (uint16_t)event,
        .op = (uint16_t)(op >= 0 && op < HVD_OP_COUNT ? op : HVD_OP_COUNT),
        .set = (int16_t)set, .status = (int16_t)status,
    };

    if (name != NULL)
        memcpy(content.name, name, strnlen(name, RECORDER_NAME - 1));
    fill(&r->slots[number % RECORDER_SLOTS], number, &content);
    atomic_store_explicit(&r->next, number + 1, memory_order_release);
}

static int write_record(const struct slot *slot, uint64_t number, uint64_t now_ns, int fd)
{
    struct record copy;
    char line[256];
    int length;

    if (!copy_out(slot, number, &copy))
        return 0;
    for (char *p = copy.name; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    length = snprintf(line, sizeof line, "%llu -%.6fs %s %s set %d %llu bytes %s %s\n",
                      (unsigned long long)number,
                      (double)(now_ns - copy.time_ns) / 1e9, event_names[copy.event],
                      op_names[copy.op], copy.set, (unsigned long long)copy.bytes,
                      hvd_status_name((enum hvd_status)copy.status), copy.name);
    return write(fd, line, (size_t)length) == length ? 1 : -1;
}

int recorder_write(const struct recorder *r, int fd)
{
    uint64_t end = atomic_load_explicit(&r->next, memory_order_acquire);
    uint64_t now_ns = clock_ns();
    int written = 0;

    for (uint64_t n = end > RECORDER_SLOTS ? end - RECORDER_SLOTS : 1; n < end; n++) {
        int result = write_record(&r->slots[n % RECORDER_SLOTS], n, now_ns, fd);

        if (result < 0)
            return -1;
        written += result;
    }
    return written;
}
