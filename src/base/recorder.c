/*
 * recorder.c: each slot carries the number of its record; the writer clears it, fills the
 * slot and sets it again, so that a reader who finds the same number before and after its
 * copy knows that the copy is whole.  The content travels in relaxed atomic words: a
 * reader may meet a write under way, and that must be defined.
 *
 * A record carries ticks: of the processor's counter where it runs at one pace (x86-64
 * with an invariant TSC), else nanoseconds.  They become time when the ring is written,
 * by what the clock says of the ticks since the recorder was made.
 */
#include "base/recorder.h"

#include "base/clock.h"
#include "horovod/horovod.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

struct record {
    uint64_t ticks;
    uint64_t bytes;
    uint16_t event, op;
    int16_t set;
    uint8_t status, name_bytes;
    char name[RECORDER_NAME];           /* bytes beyond name_bytes are left over */
};

#define HEAD_WORDS (offsetof(struct record, name) / sizeof(uint64_t))
#define WORDS RECORDER_WORDS
_Static_assert(sizeof(struct record) == WORDS * sizeof(uint64_t), "whole words");
_Static_assert(offsetof(struct record, name) % sizeof(uint64_t) == 0, "whole words");

struct recorder_slot {
    _Atomic uint64_t number;            /* of its record; 0 while it is being written */
    _Atomic uint64_t words[WORDS];      /* a struct record */
};

struct recorder {
    _Atomic uint64_t next;              /* number of the next record, from 1 */
    bool has_counter;
    uint64_t first_ticks, first_ns;     /* the same moment */
    uint64_t last_ticks;                /* when the writer last looked */
    struct recorder_slot slots[RECORDER_SLOTS];
};

static const char *const event_names[] = {"submit", "done", "fail", "note"};

/* CPUID 80000007h EDX bit 8: the counter runs at one pace in all power states. */
static bool has_steady_counter(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;

    return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d >> 8 & 1) != 0;
#else
    return false;
#endif
}

static inline uint64_t ticks_now(const struct recorder *r)
{
#if defined(__x86_64__)
    if (__builtin_expect(r->has_counter, 1))
        return __builtin_ia32_rdtsc();
#endif
    (void)r;
    return clock_ns();
}

struct recorder *recorder_new(void)
{
    struct recorder *r = calloc(1, sizeof *r);

    if (r == NULL)
        return NULL;
    atomic_init(&r->next, 1);
    r->has_counter = has_steady_counter();
    r->first_ns = clock_ns();
    r->first_ticks = r->last_ticks = ticks_now(r);
    return r;
}

void recorder_free(struct recorder *r)
{
    free(r);
}

/* False: the slot holds another record by now. */
static bool copy_out(const struct recorder_slot *slot, uint64_t number, struct record *content)
{
    uint64_t words[WORDS];

    if (atomic_load_explicit(&slot->number, memory_order_acquire) != number)
        return false;
    for (size_t i = 0; i < WORDS; i++)
        words[i] = atomic_load_explicit(&slot->words[i], memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    memcpy(content, words, sizeof words);
    if (content->name_bytes >= RECORDER_NAME)
        return false;
    content->name[content->name_bytes] = '\0';
    return atomic_load_explicit(&slot->number, memory_order_relaxed) == number;
}

void recorder_prepare(struct recorder_form *f, enum recorder_event event, int op, int set,
                      uint64_t bytes, int status, const char *name)
{
    size_t name_bytes = name != NULL ? strnlen(name, RECORDER_NAME - 1) : 0;
    struct record record = {
        .bytes = bytes, .event = (uint16_t)event,
        .op = (uint16_t)(op >= 0 && op < HVD_OP_COUNT ? op : HVD_OP_COUNT),
        .set = (int16_t)set, .status = (uint8_t)status, .name_bytes = (uint8_t)name_bytes,
    };

    if (name_bytes > 0)
        memcpy(record.name, name, name_bytes);
    memcpy(f->words, &record, sizeof record);
    f->count = (uint32_t)(HEAD_WORDS + (name_bytes + 7) / 8);
}

void recorder_look(struct recorder *r)
{
    r->last_ticks = ticks_now(r);
}

void recorder_repeat(struct recorder *r, const struct recorder_form *f)
{
    uint64_t number = atomic_load_explicit(&r->next, memory_order_relaxed);
    struct recorder_slot *slot = &r->slots[number % RECORDER_SLOTS];

    atomic_store_explicit(&slot->number, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&slot->words[0], r->last_ticks, memory_order_relaxed);
    for (size_t i = 1; i < f->count; i++)
        atomic_store_explicit(&slot->words[i], f->words[i], memory_order_relaxed);
    atomic_store_explicit(&slot->number, number, memory_order_release);
    atomic_store_explicit(&r->next, number + 1, memory_order_release);
}

void recorder_add(struct recorder *r, enum recorder_event event, int op, int set,
                  uint64_t bytes, int status, const char *name)
{
    struct recorder_form f;

    recorder_prepare(&f, event, op, set, bytes, status, name);
    recorder_look(r);
    recorder_repeat(r, &f);
}

uint64_t recorder_count(const struct recorder *r)
{
    return atomic_load_explicit(&r->next, memory_order_relaxed) - 1;
}

/* Microseconds per tick, from what has passed since the recorder was made. */
static double tick_us(const struct recorder *r, uint64_t now_ticks, uint64_t now_ns)
{
    uint64_t passed = now_ticks - r->first_ticks;

    return (double)(now_ns - r->first_ns) / 1000 / (double)(passed > 0 ? passed : 1);
}

static void show(const struct record *copy, uint64_t us, struct recorder_view *v)
{
    *v = (struct recorder_view){.us = us, .bytes = copy->bytes,
                                .event = (enum recorder_event)copy->event, .op = copy->op,
                                .set = copy->set, .status = copy->status};
    memcpy(v->name, copy->name, copy->name_bytes + 1u);
}

int recorder_read(const struct recorder *r, uint64_t oldest_us, struct recorder_view *out,
                  int capacity)
{
    uint64_t end = atomic_load_explicit(&r->next, memory_order_acquire);
    uint64_t now_ticks = ticks_now(r), now_ns = clock_ns();
    double us_per_tick = tick_us(r, now_ticks, now_ns);
    uint64_t first = end > (uint64_t)capacity ? end - (uint64_t)capacity : 1;
    int count = 0;

    if (end > RECORDER_SLOTS && first < end - RECORDER_SLOTS)
        first = end - RECORDER_SLOTS;
    for (uint64_t n = first; n < end; n++) {
        struct record copy;
        uint64_t age, age_us;

        if (!copy_out(&r->slots[n % RECORDER_SLOTS], n, &copy))
            continue;
        age = now_ticks > copy.ticks ? now_ticks - copy.ticks : 0;
        age_us = (uint64_t)((double)age * us_per_tick);
        if (age_us <= now_ns / 1000 && now_ns / 1000 - age_us >= oldest_us)
            show(&copy, now_ns / 1000 - age_us, &out[count++]);
    }
    return count;
}

/* ---- Text, without stdio: a signal handler may write it -------------------------- */

struct line {
    char text[256];
    size_t length;
};

static void add_text(struct line *l, const char *text)
{
    size_t n = strnlen(text, sizeof l->text - 1 - l->length);

    memcpy(l->text + l->length, text, n);
    l->length += n;
}

/* At least `digits` digits, with zeros in front. */
static void add_number(struct line *l, uint64_t value, int digits)
{
    char reversed[24], text[24];
    int n = 0;

    while (value > 0 || n < digits) {
        reversed[n++] = (char)('0' + value % 10);
        value /= 10;
    }
    for (int i = 0; i < n; i++)
        text[i] = reversed[n - 1 - i];
    text[n] = '\0';
    add_text(l, text);
}

static void add_seconds(struct line *l, uint64_t us)
{
    add_number(l, us / 1000000, 1);
    add_text(l, ".");
    add_number(l, us % 1000000, 6);
}

static void add_name(struct line *l, const char *name)
{
    char shown[RECORDER_NAME];
    size_t n = strnlen(name, sizeof shown - 1);

    for (size_t i = 0; i < n; i++)
        shown[i] = (unsigned char)name[i] < 0x20 || name[i] == 0x7f ? '?' : name[i];
    shown[n] = '\0';
    add_text(l, shown);
}

static bool write_line(struct line *l, int fd)
{
    l->text[l->length++] = '\n';
    return write(fd, l->text, l->length) == (ssize_t)l->length;
}

static int write_record(const struct recorder_slot *slot, uint64_t number, uint64_t now_ticks,
                        double us_per_tick, int fd)
{
    struct record copy;
    struct line l = {.length = 0};
    uint64_t age;

    if (!copy_out(slot, number, &copy))
        return 0;
    age = now_ticks > copy.ticks ? now_ticks - copy.ticks : 0;
    add_number(&l, number, 1);
    add_text(&l, " -");
    add_seconds(&l, (uint64_t)((double)age * us_per_tick));
    add_text(&l, "s ");
    add_text(&l, event_names[copy.event]);
    add_text(&l, " ");
    add_text(&l, hvd_op_name((enum hvd_op)copy.op));
    add_text(&l, copy.set < 0 ? " set -" : " set ");
    add_number(&l, (uint64_t)(copy.set < 0 ? -copy.set : copy.set), 1);
    add_text(&l, " ");
    add_number(&l, copy.bytes, 1);
    add_text(&l, " bytes ");
    add_text(&l, hvd_status_name((enum hvd_status)copy.status));
    add_text(&l, " ");
    add_name(&l, copy.name);
    return write_line(&l, fd) ? 1 : -1;
}

int recorder_write(const struct recorder *r, int fd)
{
    uint64_t end = atomic_load_explicit(&r->next, memory_order_acquire);
    uint64_t now_ticks = ticks_now(r);
    double us_per_tick = tick_us(r, now_ticks, clock_ns());
    int written = 0;

    for (uint64_t n = end > RECORDER_SLOTS ? end - RECORDER_SLOTS : 1; n < end; n++) {
        int result = write_record(&r->slots[n % RECORDER_SLOTS], n, now_ticks,
                                  us_per_tick, fd);

        if (result < 0)
            return -1;
        written += result;
    }
    return written;
}

bool recorder_write_head(int fd, int rank, int size, const char *host, const char *why)
{
    struct line l = {.length = 0};

    add_text(&l, "# rank ");
    add_number(&l, (uint64_t)rank, 1);
    add_text(&l, " of ");
    add_number(&l, (uint64_t)size, 1);
    add_text(&l, " pid ");
    add_number(&l, (uint64_t)getpid(), 1);
    add_text(&l, " at ");
    add_seconds(&l, clock_wall_us());
    add_text(&l, " host ");
    add_name(&l, host);
    add_text(&l, " why ");
    add_name(&l, why);
    return write_line(&l, fd);
}
