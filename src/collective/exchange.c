/*
 * exchange.c: reduce-scatter by pairwise exchange.  Every member gets its slice from all
 * the others and reduces it in the one order; for an allreduce it then sends the result
 * to all.  Slices travel in segments, WINDOW of them at a time, so that sending, reducing
 * and the way back overlap.
 *
 *  1. Segment s of a slice is elements [s * segment, (s + 1) * segment) of it.
 *  2. A segment is opened by asking for it from all members and sending everybody theirs.
 *  3. When all have sent it, it is reduced and the result sent to all (stage 1).
 *  4. In place, the result of a member's slice is asked for only when our input for it is
 *     gone: both have the same place.
 *  5. It is closed when nothing of it is under way.  Nobody can be further ahead than
 *     WINDOW segments, because closing needs everybody's part.
 * Transfers of window place w are [4 * w * n, 4 * (w + 1) * n): input out and in, result
 * out and in, by member.
 */
#include "collective/msg_int.h"

#include <string.h>

#define WINDOW 3
#define SEGMENT_LEAST ((size_t)256 << 10)
#define SEGMENT_MOST ((size_t)1 << 20)
#define ROOM_MOST ((size_t)24 << 20)    /* of all that is received in one window */

enum { INPUT_OUT, INPUT_IN, RESULT_OUT, RESULT_IN };

static struct mesh_xfer *xfers(const struct coll_task *t, const struct exchange *e,
                               unsigned segment, int kind)
{
    return e->pack.x + ((segment % WINDOW) * 4 + (unsigned)kind) * (unsigned)t->team->count;
}

static size_t segment_elements(const struct exchange *e, int member, unsigned segment)
{
    size_t first = segment * e->segment;

    if (first >= e->length[member])
        return 0;
    return e->length[member] - first < e->segment ? e->length[member] - first
                                                  : e->segment;
}

/* Where the part of `member` in this segment was received. */
static char *room_of(const struct coll_task *t, const struct exchange *e,
                     unsigned segment, int member)
{
    size_t bytes = e->segment * task_type_bytes(t->call.dtype);

    return e->room +
           ((segment % WINDOW) * (size_t)t->team->count + (size_t)member) * bytes;
}

static size_t choose_segment(const struct coll_task *t, size_t longest)
{
    size_t unit = task_type_bytes(t->call.dtype), bytes = longest * unit / 4;
    size_t most = ROOM_MOST / WINDOW / (size_t)t->team->count;

    bytes = bytes < SEGMENT_LEAST ? SEGMENT_LEAST : bytes;
    bytes = bytes > SEGMENT_MOST ? SEGMENT_MOST : bytes;
    bytes = bytes > most ? most : bytes;
    if (bytes < longest * unit / ((1u << 18) - 1))
        bytes = longest * unit / ((1u << 18) - 1);
    if (bytes / unit > longest)
        return longest > 0 ? longest : 1;
    return (bytes + 4095) / 4096 * 4096 / unit;
}

static size_t fill_slices(const struct coll_task *t, struct exchange *e,
                          const uint64_t *counts, size_t total)
{
    size_t at = 0, longest = 0;

    for (int i = 0; i < t->team->count; i++) {
        if (counts == NULL) {
            e->length[i] = pattern_slice(total, t->team->count, i, &e->begin[i]);
        } else {
            e->begin[i] = at;
            e->length[i] = counts[i];
            at += counts[i];
        }
        longest = e->length[i] > longest ? e->length[i] : longest;
    }
    return longest;
}

static enum hvd_status take_memory(struct coll_task *t, struct exchange *e,
                                   struct hvd_error *err)
{
    size_t n = (size_t)t->team->count;

    e->block = scratch_get(t->team->scratch, n * (2 * sizeof(size_t) + WINDOW) + WINDOW);
    if (e->block == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a task");
    e->begin = e->block;
    e->length = e->begin + n;
    e->asked = (unsigned char *)(e->length + n);
    e->reduced = (bool *)(e->asked + n * WINDOW);
    return HVD_OK;
}

enum hvd_status exchange_start(struct coll_task *t, struct exchange *e,
                               const uint64_t *counts, size_t total, bool way_back,
                               struct hvd_error *err)
{
    int n = t->team->count;
    size_t longest;

    *e = (struct exchange){.way_back = way_back};
    TRY(take_memory(t, e, err));
    longest = fill_slices(t, e, counts, total);
    e->segment = choose_segment(t, longest);
    e->segments = (unsigned)((longest + e->segment - 1) / e->segment);
    e->room = scratch_get(t->team->scratch, WINDOW * (size_t)n * e->segment *
                                                task_type_bytes(t->call.dtype));
    if (e->room == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory to receive slices");
    return msg_take(t, 4 * n * WINDOW, &e->pack, err);
}

void exchange_release(struct coll_task *t, struct exchange *e)
{
    msg_drop(t, &e->pack);
    scratch_put(t->team->scratch, e->room);
    scratch_put(t->team->scratch, e->block);
    *e = (struct exchange){0};
}

/* Sends spread over the members: everybody begins with its right neighbour. */
static void open_segment(struct coll_task *t, struct exchange *e, unsigned segment)
{
    int n = t->team->count, me = t->team->me;
    size_t unit = task_type_bytes(t->call.dtype);
    size_t mine = segment_elements(e, me, segment) * unit;

    e->reduced[segment % WINDOW] = false;
    memset(e->asked + (segment % WINDOW) * (unsigned)n, 0, (size_t)n);
    for (int i = 1; i < n; i++) {
        int from = (me - i + n) % n;

        msg_recv(t, from, 0, segment, room_of(t, e, segment, from), mine,
                 &xfers(t, e, segment, INPUT_IN)[from]);
    }
    for (int i = 1; i < n; i++) {
        int to = (me + i) % n;
        size_t at = (e->begin[to] + segment * e->segment) * unit;

        msg_send(t, to, 0, segment, (const char *)t->call.in + at,
                 segment_elements(e, to, segment) * unit,
                 &xfers(t, e, segment, INPUT_OUT)[to]);
    }
}

/* Our result of the segment: in an allreduce at its place among the others. */
static char *result_place(const struct coll_task *t, const struct exchange *e,
                          unsigned segment, int member)
{
    size_t at = segment * e->segment + (e->way_back ? e->begin[member] : 0);

    return (char *)t->call.out + at * task_type_bytes(t->out_type);
}

static enum hvd_status reduce_segment(struct coll_task *t, struct exchange *e,
                                      unsigned segment, struct hvd_error *err)
{
    int n = t->team->count, me = t->team->me;
    size_t count = segment_elements(e, me, segment);
    size_t at = (e->begin[me] + segment * e->segment) * task_type_bytes(t->call.dtype);
    void *to = result_place(t, e, segment, me);

    TRY(msg_check(t, xfers(t, e, segment, INPUT_IN), n, err));
    for (int i = 0; i < n; i++)
        t->team->src[i] = room_of(t, e, segment, i);
    t->team->src[me] = (const char *)t->call.in + at;
    TRY(order_reduce(t, t->team->src, &to, 1, count, false, err));
    for (int i = 1; i < n && e->way_back; i++)
        msg_send(t, (me + i) % n, 1, segment, to, count * task_type_bytes(t->out_type),
                 &xfers(t, e, segment, RESULT_OUT)[(me + i) % n]);
    e->reduced[segment % WINDOW] = true;
    return HVD_OK;
}

/* Rule 4.  True: all results are asked for. */
static bool ask_results(struct coll_task *t, struct exchange *e, unsigned segment)
{
    int n = t->team->count, me = t->team->me, missing = 0;
    unsigned char *asked = e->asked + (segment % WINDOW) * (unsigned)n;
    bool in_place = t->call.in == t->call.out;

    for (int i = 1; i < n; i++) {
        int from = (me - i + n) % n;

        if (asked[from])
            continue;
        if (in_place && xfers(t, e, segment, INPUT_OUT)[from].status == HVD_AGAIN) {
            missing++;
            continue;
        }
        msg_recv(t, from, 1, segment, result_place(t, e, segment, from),
                 segment_elements(e, from, segment) * task_type_bytes(t->out_type),
                 &xfers(t, e, segment, RESULT_IN)[from]);
        asked[from] = 1;
    }
    return missing == 0;
}

static enum hvd_status step_segment(struct coll_task *t, struct exchange *e,
                                    unsigned segment, struct hvd_error *err)
{
    bool asked = !e->way_back || ask_results(t, e, segment);

    if (!e->reduced[segment % WINDOW])
        TRY(reduce_segment(t, e, segment, err));
    if (!asked)
        return HVD_AGAIN;
    return msg_check(t, xfers(t, e, segment, INPUT_OUT), 4 * t->team->count, err);
}

/* Steps all that is under way; a later segment may be ready before an earlier one. */
static enum hvd_status step_window(struct coll_task *t, struct exchange *e,
                                   struct hvd_error *err)
{
    for (unsigned s = e->low; s < e->next; s++) {
        enum hvd_status status = step_segment(t, e, s, err);

        if (status != HVD_OK && status != HVD_AGAIN)
            return status;
        if (status == HVD_OK && s == e->low)
            e->low++;
    }
    return HVD_OK;
}

enum hvd_status exchange_step(struct coll_task *t, struct exchange *e,
                              struct hvd_error *err)
{
    unsigned before;

    do {
        before = e->low;
        while (e->next < e->segments && e->next < e->low + WINDOW)
            open_segment(t, e, e->next++);
        TRY(step_window(t, e, err));
    } while (e->low > before && e->low < e->segments);
    return e->low < e->segments ? HVD_AGAIN : HVD_OK;
}
