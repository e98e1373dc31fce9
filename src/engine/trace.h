/*
 * trace.h: entries in the timeline; a branch while nothing is recorded.
 * Thread: owner of the baton; starting and stopping take timeline_lock first.
 */
#ifndef HVD_ENGINE_TRACE_H
#define HVD_ENGINE_TRACE_H

#include "engine/procset.h"

struct engine;

#define TRACED(e) __builtin_expect((e)->timeline != NULL, 0)
#define trace_submit(e, t) (TRACED(e) ? trace_submit_slow(e, t) : (void)0)
#define trace_ready(e, s, m, r) (TRACED(e) ? trace_ready_slow(e, s, m, r) : (void)0)
#define trace_hit(e, s, m, number) (TRACED(e) ? trace_hit_slow(e, s, m, number) : (void)0)
#define trace_item(e, s, m, c) (TRACED(e) ? trace_item_slow(e, s, m, c) : (void)0)
#define trace_come(e, t, all) (TRACED(e) ? trace_come_slow(e, t, all) : (void)0)
#define trace_waits(e) (TRACED(e) && trace_waits_slow(e))
#define trace_pass(e, s, name, n) (TRACED(e) ? trace_pass_slow(e, s, name, n) : (void)0)
#define trace_begin(e, t) (TRACED(e) ? trace_begin_slow(e, t) : (void)0)
#define trace_local(e, t) (TRACED(e) ? trace_local_slow(e, t) : (void)0)
#define trace_activity(e, t, a) (TRACED(e) ? trace_activity_slow(e, t, a) : (void)0)
#define trace_batch(e, b, a) (TRACED(e) ? trace_batch_slow(e, b, a) : (void)0)
#define trace_end(e, t, status) (TRACED(e) ? trace_end_slow(e, t, status) : (void)0)
void trace_submit_slow(struct engine *e, const struct entry *t);
void trace_ready_slow(struct engine *e, const struct pset *s, int member,
                      const struct wire_request *r);
/* A member has come to a cached name: by number, by data. */
void trace_hit_slow(struct engine *e, const struct pset *s, int member, uint32_t number);
void trace_item_slow(struct engine *e, const struct pset *s, int member,
                     const struct cached *c);
/* Who has come to a cached operation of one host, as the board says; all: everybody has. */
void trace_come_slow(struct engine *e, const struct entry *t, bool all);
/* Somebody may still come: changes of the boards matter, although nobody waits here. */
bool trace_waits_slow(const struct engine *e);
/* The negotiation of a name has ended without an entry here. */
void trace_pass_slow(struct engine *e, const struct pset *s, const char *name,
                     uint16_t name_bytes);
void trace_begin_slow(struct engine *e, const struct entry *t);
/* A cached operation of one host is committed; may be repeated. */
void trace_local_slow(struct engine *e, const struct entry *t);
/* NULL: none (entry), the transfer (batch) */
void trace_activity_slow(struct engine *e, const struct entry *t, const char *activity);
void trace_batch_slow(struct engine *e, const struct batch *b, const char *activity);
void trace_end_slow(struct engine *e, const struct entry *t, enum hvd_status status);
void trace_start_configured(struct engine *e);
void trace_stop(struct engine *e);

#endif
