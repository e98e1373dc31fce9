/*
 * recorder.c: each record carries its sequence number before and after its content; the
 * writer clears the first, fills, and sets both, so that a reader can tell a whole one.
 */
#include "base/recorder.h"

#include "base/clock.h"
#include "horovod/horovod.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct record {
    _Atomic uint64_t number;            /* 0 while it is being written */
    uint64_t time_ns;
    uint64_t bytes;
    uint16_t event, op;
    int16_t set, status;
    char name[RECORDER_NAME];
};

struct recorder {
    uint64_t next;                      /* number of the next record, from 1 */
    struct record slots[RECORDER_SLOTS];
};

static const char *const event_names[] = {"submit", "start", "done", "fail", "note"};
static const char *const op_names[] = {"allreduce", "allgather", "broadcast", "alltoall",
                                       "reducescatter", "barrier", "join", "-"};

struct recorder *recorder_new(void)
{
    struct recorder *r = calloc(1, sizeof *r);

    if (r != NULL)
        r->next = 1;
    return r;
}

void recorder_free(struct recorder *r)
{
    free(r);
}

void recorder_add(struct recorder *r, enum recorder_event event, int op, int set,
                  uint64_t bytes, int status, const char *name)
{
    uint64_t number = r->next++;
    struct record *at = &r->slots[number % RECORDER_SLOTS];

    atomic_store_explicit(&at->number, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    at->time_ns = clock_ns();
    at->bytes = bytes;
    at->event = (uint16_t)event;
    at->op = (uint16_t)(op >= 0 && op < HVD_OP_COUNT ? op : HVD_OP_COUNT);
    at->set = (int16_t)set;
    at->status = (int16_t)status;
    if (name != NULL) {
        strncpy(at->name, name, RECORDER_NAME - 1);
        at->name[RECORDER_NAME - 1] = '\0';
    } else {
        at->name[0] = '\0';
    }
    atomic_store_explicit(&at->number, number, memory_order_release);
}

static int write_record(const struct record *slot, uint64_t number, uint64_t now_ns,
                        int fd)
{
    struct record copy;
    char line[256];
    int length;

    if (atomic_load_explicit(&slot->number, memory_order_acquire) != number)
        return 0;
    memcpy((char *)&copy, (const char *)slot, sizeof copy);
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&slot->number, memory_order_relaxed) != number)
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
    uint64_t end = r->next, now_ns = clock_ns();
    int written = 0;

    for (uint64_t n = end > RECORDER_SLOTS ? end - RECORDER_SLOTS : 1; n < end; n++) {
        int result = write_record(&r->slots[n % RECORDER_SLOTS], n, now_ns, fd);

        if (result < 0)
            return -1;
        written += result;
    }
    return written;
}
