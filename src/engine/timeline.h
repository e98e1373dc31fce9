/*
 * timeline.h: what happens to every tensor, as a Chrome trace.
 *
 * The producer (owner of the baton) appends events to a buffer; a thread of the timeline
 * writes them, so that a slow disk delays nobody.  Events of one tensor follow a state
 * machine, which keeps them balanced whatever the caller does.
 */
#ifndef HVD_ENGINE_TIMELINE_H
#define HVD_ENGINE_TIMELINE_H

#include "base/error.h"

struct timeline;

/* Opens and truncates the file; it is a valid JSON array from here on.
 * Errors: HVD_SYS (the file), HVD_NOMEM. */
enum hvd_status timeline_open(const char *path, bool mark_cycles,
                              struct timeline **timeline_p, struct hvd_error *err);
/* Ends open events, writes all that is left and closes the file.  Blocks: on the disk. */
void timeline_close(struct timeline *t);

const char *timeline_path(const struct timeline *t);
uint64_t timeline_event_count(const struct timeline *t);

/* One tensor: name and process set tell it apart.  kind: "ALLREDUCE". */
struct timeline_key {
    const char *name;
    uint16_t name_bytes;
    int set;
};

/* NEGOTIATE_<kind> begins, unless it has begun already. */
void timeline_negotiate(struct timeline *t, const struct timeline_key *key,
                        const char *kind);
/* A tick: set rank `member` is ready.  Begins the negotiation if need be; one that comes
 * while the tensor's last operation is still under way is shown with the next. */
void timeline_ready(struct timeline *t, const struct timeline_key *key, const char *kind,
                    int member);
/* The same for those who look who has come: shown once a negotiation, and only while it lasts. */
void timeline_come(struct timeline *t, const struct timeline_key *key, int member);
/* The negotiation ends without an operation here. */
void timeline_negotiated(struct timeline *t, const struct timeline_key *key);
/* <kind> begins; ends the negotiation.  False: it has begun already. */
bool timeline_begin(struct timeline *t, const struct timeline_key *key, const char *kind);
/* The next activity of an operation that has begun; NULL: none. */
void timeline_activity(struct timeline *t, const struct timeline_key *key,
                       const char *activity);
/* All that is open ends; args (JSON or NULL) go with the end of <kind>. */
void timeline_end(struct timeline *t, const struct timeline_key *key, const char *args);

/* At most one CYCLE_START per `period_us`, if cycles are marked. */
void timeline_cycle(struct timeline *t, uint64_t period_us);

#endif
