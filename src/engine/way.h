/*
 * way.h: the ways of a cached tensor.  A process set has a short list of them, asked in their
 * order; the first that fits a name, when the name gets its number, has it until the number is
 * taken back.  All members choose alike: what they choose by is what they have agreed on.
 *
 *   local   on the CPU, all members share this host: the task on the board of the number is
 *           announcement and operation at once
 *   eager   small, between hosts: it travels with its announcement
 *   relay   announced by number, through the leader of this host; run by a response
 *   full    announced by number to the coordinator (or to the leader); run by a response
 *
 * Cycle, stop, fail, join, stalls and statistics know ways only by this table; fast.c has short
 * cuts for the first two.  Names without a number are announced in full (announce.c).
 *
 * Thread: all of it owner of the baton only.
 *
 * Lifetime: `start` and everything that delivers to a way may end an entry, and with it, if
 * its number was taken back meanwhile (dying), its struct cached: whoever calls them does not
 * use either afterwards.  A way goes after the last name and the last entry of its set.
 *
 * Tensors on a GPU go by a response, also within a host: their operations must have one order on
 * all members (device.h).
 */
#ifndef HVD_ENGINE_WAY_H
#define HVD_ENGINE_WAY_H

#include "engine/negotiate.h"
#include "wire/response.h"

struct cached;
struct engine;
struct entry;
struct pset;
struct way;

/* NULL where a way has nothing to do, unless it says "all have it". */
struct way_ops {
    const char *name;
    bool by_response;                   /* entries wait for a CACHED response */
    bool carries_data;                  /* what it sends is the operation itself: it goes out
                                         * at once when somebody waits, or this rank stops */
    bool keeps_turns;                   /* a JOIN must say which turns this rank has come to */

    /* Life.  open (all have it): *way_p stays NULL where it is of no use to the set. */
    enum hvd_status (*open)(struct engine *e, struct pset *s, struct way **way_p,
                            struct hvd_error *err);
    void (*close)(struct way *w);       /* all have it */

    /* A name.  fits, start: all have them. */
    bool (*fits)(const struct way *w, const struct cached *c);
    void (*start)(struct way *w, struct engine *e, struct entry *t, struct cached *c);
    void (*forget)(struct way *w, struct cached *c);    /* its number is gone */

    /* An entry that this way has started. */
    bool (*step)(struct engine *e, struct entry *t);    /* of e->running; true: it has ended */
    bool (*needs_us)(const struct entry *t);    /* of e->running; others wait for our steps */
    bool (*is_committed)(const struct entry *t);        /* it ends without us; NULL: no */
    bool (*waits)(const struct entry *t);       /* others may not have come; NULL: not known */
    bool (*has_come)(const struct entry *t, int member);
    /* Its number is taken back; `turn`: the last that the promising member has come to.  True:
     * all have come to it, so it stays and ends by itself, as an orphan. */
    bool (*take_back)(struct entry *t, uint32_t turn);
    void (*withdraw)(struct entry *t);  /* all have it: it starts over or fails */

    /* What is to be sent. */
    uint32_t (*pending)(const struct way *w);
    bool (*is_full)(const struct way *w);       /* carries data: enough for a message */
    /* held: announcements wait for more of them.  True: something was sent. */
    bool (*flush)(struct way *w, struct engine *e, bool held);
    void (*drop)(struct way *w);        /* it is not sent */
    uint64_t (*due_us)(const struct way *w);    /* when to flush; UINT64_MAX: never */

    /* What comes. */
    bool (*takes)(const struct way *w, enum message_kind kind);
    enum hvd_status (*on_message)(struct way *w, struct engine *e, int member,
                                  const struct message_head *head, struct wire_in *in,
                                  struct hvd_error *err);
    void (*on_response)(struct way *w, struct engine *e);       /* one has been done */

    /* The whole way. */
    bool (*is_open)(const struct way *w, const struct engine *e);       /* this rank may have
                                         * to announce again what it has started */
    bool (*is_running)(const struct way *w);    /* something may end yet, see engine_stop */
    bool (*end)(struct way *w, struct engine *e);       /* one step towards the end; true:
                                         * what all have come to is done, NULL: it always is */
    /* A rank has left: one step as well, and then what is open fails. */
    void (*leave)(struct way *w, struct engine *e, enum hvd_status status,
                  const struct hvd_error *why);

    /* Who has not come, for the stall report.  missing: room for a flag per member. */
    bool (*has_report)(const struct way *w);    /* for all members */
    void (*each_waiting)(const struct way *w, uint64_t since_us, bool *missing,
                         neg_stall_fn each, void *context);
};

/* Every way of a set begins with this. */
struct way {
    const struct way_ops *ops;
    struct pset *set;
};

#define WAYS_MAX 4

extern const struct way_ops way_local, way_eager, way_relay, way_full;

enum hvd_status ways_open(struct engine *e, struct pset *s, struct hvd_error *err);
void ways_close(struct pset *s);
/* NULL: no memory. */
struct way *ways_choose(struct pset *s, const struct cached *c);
void ways_forget(struct pset *s, struct cached *c);

uint32_t ways_pending(const struct pset *s);
bool ways_flush(struct engine *e, struct pset *s, bool held);
void ways_flush_data(struct engine *e, struct pset *s); /* only what carries data */
bool ways_have_full(const struct pset *s);      /* one has enough for a message */
void ways_drop(struct pset *s);
uint64_t ways_due_us(const struct pset *s);

struct way *ways_for(const struct pset *s, enum message_kind kind);     /* or NULL */
void ways_on_response(struct engine *e, struct pset *s);

bool ways_keep_turns(const struct pset *s);
bool ways_are_open(const struct engine *e, const struct pset *s);
bool ways_are_running(const struct pset *s);
bool ways_end(struct engine *e, struct pset *s);
void ways_leave(struct engine *e, struct pset *s, enum hvd_status status,
                const struct hvd_error *why);
bool ways_have_report(const struct pset *s);
void ways_each_waiting(const struct pset *s, uint64_t since_us, bool *missing,
                       neg_stall_fn each, void *context);

/* Entries in e->running. */
bool running_step_all(struct engine *e);        /* true: something ended */
bool running_needs_us(const struct engine *e);
bool running_has(const struct engine *e, const struct pset *s, bool committed);

/* The number of c is taken back: its entry ends by itself, or starts over. */
void cached_take_back(struct engine *e, struct cached *c, uint32_t turn);

#endif
