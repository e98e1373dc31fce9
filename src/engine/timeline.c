/*
 * timeline.c: the events of the timeline; timeline_file.c writes them.
 *
 * Per tensor ("process" of the trace), the only order there is:
 *
 *   IDLE -> NEGOTIATING -> IDLE | RUNNING -> ACTIVE (one activity) -> RUNNING ... -> IDLE
 */
#include "engine/timeline.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/strbuf.h"
#include "engine/timeline_file.h"
#include "wire/message.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum track_state { TRACK_IDLE, TRACK_NEGOTIATING, TRACK_RUNNING, TRACK_ACTIVE };

struct track {
    enum track_state state;
    int pid;
    int *early;                         /* members that are ready for the next turn */
    int early_count;
    bool *come;                         /* by member: timeline_come has shown it this turn */
    int come_count;                     /* flags there are */
    size_t key_bytes;
    char key[];                         /* set id, then name */
};

struct timeline {
    struct timeline_file *file;
    bool mark_cycles;
    uint64_t start_us, next_cycle_us;
    atomic_uint_fast64_t events;
    struct hash tracks;
    int pids;
    struct strbuf line;                 /* of the producer */
};

/* ---- Opening and closing --------------------------------------------------------------- */

static void release(struct timeline *t)
{
    for (size_t i = 0; i < t->tracks.capacity; i++) {
        struct track *track = t->tracks.slots[i].value;

        if (track != NULL) {
            free(track->early);
            free(track->come);
        }
        free(track);
    }
    hash_release(&t->tracks);
    strbuf_release(&t->line);
    free(t);
}

static void put_header(struct timeline *t);

enum hvd_status timeline_open(const char *path, bool mark_cycles,
                              struct timeline **timeline_p, struct hvd_error *err)
{
    struct timeline *t = calloc(1, sizeof *t);
    enum hvd_status status;

    if (t == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the timeline");
    t->mark_cycles = mark_cycles;
    t->start_us = clock_us();
    strbuf_init(&t->line);
    status = timeline_file_open(path, &t->file, err);
    if (status != HVD_OK) {
        release(t);
        return status;
    }
    put_header(t);
    *timeline_p = t;
    return HVD_OK;
}

static void end_track(struct timeline *t, struct track *track, const char *args);

void timeline_close(struct timeline *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; i < t->tracks.capacity; i++)
        if (t->tracks.slots[i].value != NULL)
            end_track(t, t->tracks.slots[i].value, NULL);
    timeline_file_close(t->file);
    release(t);
}

const char *timeline_path(const struct timeline *t)
{
    return timeline_file_path(t->file);
}

uint64_t timeline_event_count(const struct timeline *t)
{
    return atomic_load_explicit(&t->events, memory_order_relaxed);
}

/* ---- Events ---------------------------------------------------------------------------- */

/* Hands t->line, one event, to the writer. */
static void put_line(struct timeline *t)
{
    strbuf_add(&t->line, "\n", 1);
    if (!t->line.failed)
        timeline_file_put(t->file, t->line.text, t->line.length);
    strbuf_clear(&t->line);
    atomic_fetch_add_explicit(&t->events, 1, memory_order_relaxed);
}

static void put_header(struct timeline *t)
{
    strbuf_addf(&t->line,
                "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 0, \"args\": "
                "{\"start_time_since_epoch_in_micros\": %llu}}",
                (unsigned long long)clock_wall_us());
    put_line(t);
    strbuf_addf(&t->line, "{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": 0, "
                          "\"args\": {\"sort_index\": 0}}");
    put_line(t);
}

static uint64_t now_us(const struct timeline *t)
{
    return clock_us() - t->start_us;
}

static void put_begin(struct timeline *t, const struct track *track, const char *prefix,
                      const char *name)
{
    strbuf_addf(&t->line, "{\"ph\": \"B\", \"name\": \"%s%s\", \"ts\": %llu, \"pid\": %d}",
                prefix, name, (unsigned long long)now_us(t), track->pid);
    put_line(t);
}

static void put_end(struct timeline *t, const struct track *track, const char *args)
{
    strbuf_addf(&t->line, "{\"ph\": \"E\", \"ts\": %llu, \"pid\": %d%s%s}",
                (unsigned long long)now_us(t), track->pid,
                args != NULL ? ", \"args\": " : "", args != NULL ? args : "");
    put_line(t);
}

static void put_tick(struct timeline *t, const struct track *track, int member)
{
    strbuf_addf(&t->line, "{\"ph\": \"X\", \"name\": \"%d\", \"ts\": %llu, \"pid\": %d, "
                          "\"dur\": 0}", member, (unsigned long long)now_us(t), track->pid);
    put_line(t);
}

static void introduce(struct timeline *t, const struct track *track, const char *name)
{
    strbuf_addf(&t->line, "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, "
                          "\"args\": {\"name\": ", track->pid);
    strbuf_add_json(&t->line, name);
    strbuf_addf(&t->line, "}}");
    put_line(t);
    strbuf_addf(&t->line, "{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": %d, "
                          "\"args\": {\"sort_index\": %d}}", track->pid, track->pid);
    put_line(t);
}

/* ---- Tracks ---------------------------------------------------------------------------- */

static struct track *track_new(struct timeline *t, const char *key, size_t key_bytes)
{
    struct track *track = calloc(1, sizeof *track + key_bytes + 1);

    if (track == NULL)
        return NULL;
    memcpy(track->key, key, key_bytes);
    track->key_bytes = key_bytes;
    if (hash_put(&t->tracks, track->key, key_bytes, track) != 0) {
        free(track);
        return NULL;
    }
    track->pid = ++t->pids;
    introduce(t, track, track->key + sizeof(int));
    return track;
}

/* NULL: not known (make false) or no memory, and the tensor is not shown. */
static struct track *track_of(struct timeline *t, const struct timeline_key *key, bool make)
{
    char text[sizeof(int) + NAME_LIMIT];
    size_t name_bytes = key->name_bytes < NAME_LIMIT ? key->name_bytes : NAME_LIMIT;
    size_t n = sizeof key->set + name_bytes;
    struct track *track;

    memcpy(text, &key->set, sizeof key->set);
    memcpy(text + sizeof key->set, key->name, name_bytes);
    track = hash_get(&t->tracks, text, n);
    return track != NULL || !make ? track : track_new(t, text, n);
}

static void end_track(struct timeline *t, struct track *track, const char *args)
{
    if (track->state == TRACK_ACTIVE) {
        put_end(t, track, NULL);
        track->state = TRACK_RUNNING;
    }
    if (track->state != TRACK_IDLE)
        put_end(t, track, track->state == TRACK_RUNNING ? args : NULL);
    track->state = TRACK_IDLE;
}

static void keep_early(struct track *track, int member)
{
    int *grown = realloc(track->early, (size_t)(track->early_count + 1) * sizeof *grown);

    if (grown == NULL)
        return;
    track->early = grown;
    track->early[track->early_count++] = member;
}

static void negotiate(struct timeline *t, struct track *track, const char *kind)
{
    if (track->state != TRACK_IDLE)
        return;
    put_begin(t, track, "NEGOTIATE_", kind);
    track->state = TRACK_NEGOTIATING;
    if (track->come_count > 0)
        memset(track->come, 0, (size_t)track->come_count * sizeof *track->come);
    for (int i = 0; i < track->early_count; i++)
        put_tick(t, track, track->early[i]);
    track->early_count = 0;
}

void timeline_negotiate(struct timeline *t, const struct timeline_key *key,
                        const char *kind)
{
    struct track *track = track_of(t, key, true);

    if (track != NULL)
        negotiate(t, track, kind);
}

void timeline_ready(struct timeline *t, const struct timeline_key *key, const char *kind,
                    int member)
{
    struct track *track = track_of(t, key, true);

    if (track == NULL)
        return;
    if (track->state >= TRACK_RUNNING) {
        keep_early(track, member);
        return;
    }
    negotiate(t, track, kind);
    put_tick(t, track, member);
}

static bool has_flag(struct track *track, int member)
{
    bool *grown;

    if (member < track->come_count)
        return true;
    grown = realloc(track->come, (size_t)(member + 1) * sizeof *grown);
    if (grown == NULL)
        return false;
    memset(grown + track->come_count, 0,
           (size_t)(member + 1 - track->come_count) * sizeof *grown);
    track->come = grown;
    track->come_count = member + 1;
    return true;
}

void timeline_come(struct timeline *t, const struct timeline_key *key, int member)
{
    struct track *track = track_of(t, key, false);

    if (track == NULL || track->state != TRACK_NEGOTIATING || !has_flag(track, member) ||
        track->come[member])
        return;
    track->come[member] = true;
    put_tick(t, track, member);
}

void timeline_negotiated(struct timeline *t, const struct timeline_key *key)
{
    struct track *track = track_of(t, key, false);

    if (track != NULL && track->state == TRACK_NEGOTIATING)
        end_track(t, track, NULL);
}

bool timeline_begin(struct timeline *t, const struct timeline_key *key, const char *kind)
{
    struct track *track = track_of(t, key, true);

    if (track == NULL || track->state >= TRACK_RUNNING)
        return false;
    end_track(t, track, NULL);
    put_begin(t, track, "", kind);
    track->state = TRACK_RUNNING;
    return true;
}

void timeline_activity(struct timeline *t, const struct timeline_key *key,
                       const char *activity)
{
    struct track *track = track_of(t, key, false);

    if (track == NULL || track->state < TRACK_RUNNING)
        return;
    if (track->state == TRACK_ACTIVE)
        put_end(t, track, NULL);
    track->state = activity != NULL ? TRACK_ACTIVE : TRACK_RUNNING;
    if (activity != NULL)
        put_begin(t, track, "", activity);
}

void timeline_end(struct timeline *t, const struct timeline_key *key, const char *args)
{
    struct track *track = track_of(t, key, false);

    if (track != NULL)
        end_track(t, track, args);
}

void timeline_cycle(struct timeline *t, uint64_t period_us)
{
    uint64_t at = t->mark_cycles ? now_us(t) : 0;

    if (!t->mark_cycles || at < t->next_cycle_us)
        return;
    t->next_cycle_us = at + period_us;
    strbuf_addf(&t->line, "{\"ph\": \"i\", \"name\": \"CYCLE_START\", \"ts\": %llu, "
                          "\"s\": \"g\"}", (unsigned long long)at);
    put_line(t);
}
