/*
 * stall_watch.c: looks for operations that wait for ranks, asks those ranks where they are,
 * and reports.  The engine's thread sleeps until the next look (stall_due_us); while nothing
 * waits there is no timer.
 *
 * Who sees what: a rank sees its own cached operations within the host (the boards tell who
 * has come), and its own batches that do not get on; the coordinator of a set sees the
 * negotiated ones, a leader small ones between hosts (eager.c), and both send their report to
 * all members.  One rank prints it, at the level that users see: the coordinator, the leader, or
 * the first of those who wait.  A question (ASK) is answered by the engine of the asked rank,
 * whatever its own threads do.
 */
#include "engine/stall_int.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdatomic.h>
#include <stdlib.h>

#define LOG_COMPONENT "engine"

static _Atomic(hvd_where_fn) where_fn;

static pthread_mutex_t where_lock = PTHREAD_MUTEX_INITIALIZER;  /* one question at a time */

void engine_set_where(hvd_where_fn where)
{
    atomic_store(&where_fn, where);
}

/* While another thread asks there is no answer. */
size_t engine_where(char *buffer, size_t capacity)
{
    hvd_where_fn fn = atomic_load(&where_fn);
    size_t n;

    if (fn == NULL || pthread_mutex_trylock(&where_lock) != 0)
        return 0;
    n = fn(buffer, capacity);
    pthread_mutex_unlock(&where_lock);
    return n < capacity ? n : capacity - 1;
}

struct stall *stall_new(const struct engine *e)
{
    const struct config *conf = e->conf;
    struct stall *s;

    if (conf->stall_check_disable || conf->stall_check_s <= 0)
        return NULL;
    if (conf->stall_shutdown_s > 0 && conf->stall_shutdown_s < conf->stall_check_s)
        log_warn("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS (%g) is less than "
                 "HOROVOD_STALL_CHECK_TIME_SECONDS (%g) and is ignored",
                 conf->stall_shutdown_s, conf->stall_check_s);
    s = calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    stall_set_times(&s->times, conf->stall_check_s, conf->stall_shutdown_s);
    s->where = calloc((size_t)e->topo->size, sizeof *s->where);
    s->asleep = calloc((size_t)e->topo->size, sizeof *s->asleep);
    if (s->where == NULL || s->asleep == NULL) {
        free(s->where);
        free(s->asleep);
        free(s);
        return NULL;
    }
    return s;
}

static void forget_answers(struct engine *e)
{
    for (int r = 0; r < e->topo->size; r++) {
        free(e->stall->where[r]);
        e->stall->where[r] = NULL;
    }
}

void stall_free(struct engine *e)
{
    if (e->stall == NULL)
        return;
    forget_answers(e);
    free(e->stall->where);
    free(e->stall->asleep);
    free(e->stall);
    e->stall = NULL;
}

uint64_t stall_report_count(const struct engine *e)
{
    return e->stall != NULL ? e->stall->reports : 0;
}

/* ---- Questions and answers ------------------------------------------------------------- */

static void put_text(struct strbuf *out, const struct message_head *head, int level,
                     const char *text)
{
    size_t n = text != NULL ? strlen(text) : 0;
    struct wire_text t = {.level = (uint8_t)level, .text = text,
                          .bytes = (uint16_t)(n < TEXT_LIMIT ? n : TEXT_LIMIT)};

    strbuf_init(out);
    put_message_head(out, head);
    if (text != NULL)
        put_wire_text(out, &t);
}

static void post_text(struct engine *e, int rank, enum message_kind kind, int level,
                      const char *text)
{
    struct strbuf out;

    put_text(&out, &(struct message_head){.kind = kind}, level, text);
    if (!out.failed && !mesh_has_left(e->mesh, rank))
        mesh_post(e->mesh, rank, out.text, out.length, NULL);
    strbuf_release(&out);
}

const struct entry *stall_oldest_entry(const struct engine *e, int *count_p)
{
    const struct entry *oldest = NULL;

    *count_p = 0;
    for (int i = 0; i < TEAM_SLOTS; i++)
        for (size_t k = 0; e->sets[i] != NULL && k < e->sets[i]->inflight.capacity; k++) {
            const struct entry *t = e->sets[i]->inflight.slots[k].value;

            if (t == NULL)
                continue;
            ++*count_p;
            if (oldest == NULL || t->submit_us < oldest->submit_us)
                oldest = t;
        }
    return oldest;
}

/* "is in allreduce x since 3.2 s ...; its main thread: train.py:88"; owned by the caller,
 * NULL: no memory. */
static char *describe_self(struct engine *e)
{
    int count;
    const struct entry *t = stall_oldest_entry(e, &count);
    char line[512];
    struct strbuf out;
    char *text;
    size_t n;

    strbuf_init(&out);
    strbuf_addf(&out, "on %s ", e->topo->hosts[e->topo->rank]);
    if (t != NULL)
        strbuf_addf(&out, "waits in %s %.200s since %.1f s (%d under way)",
                    engine_op_text(t->form.op), t->name,
                    (double)(clock_us() - t->submit_us) / 1e6, count);
    else
        strbuf_addf(&out, "is in no operation");
    n = engine_where(line, sizeof line);
    if (n > 0)
        strbuf_addf(&out, "; main thread: %.*s", (int)n, line);
    text = out.failed ? NULL : strdup(out.text);
    strbuf_release(&out);
    return text;
}

void stall_ask(struct engine *e, int rank)
{
    post_text(e, rank, MESSAGE_ASK, 0, NULL);
}

static void ask(struct engine *e, const struct waits *w, uint64_t now_us)
{
    bool *missing = calloc((size_t)e->topo->size, sizeof *missing);
    uint64_t age_us = e->stall->times.warn_us - e->stall->times.lead_us;
    int asked = 0;

    forget_answers(e);
    if (missing == NULL)
        return;
    stall_missing(w->list, w->count, e->topo->size, age_us, now_us, missing);
    for (int r = 0; r < e->topo->size && asked < STALL_ASK_MOST; r++)
        if (missing[r] && r != e->topo->rank) {
            stall_ask(e, r);
            asked++;
        } else if (missing[r])
            e->stall->where[r] = describe_self(e);
    free(missing);
}

void stall_on_ask(struct engine *e, int peer)
{
    char *text = describe_self(e);

    if (text != NULL)
        post_text(e, peer, MESSAGE_WHERE, stuck_is_asleep(e), text);
    free(text);
}

void stall_on_where(struct engine *e, int peer, const struct wire_text *t)
{
    if (e->stall == NULL)
        return;
    e->stall->asleep[peer] = t->level != 0;
    free(e->stall->where[peer]);
    e->stall->where[peer] = strndup(t->text, t->bytes);
}

/* ---- The report ------------------------------------------------------------------------ */

static void print(int level, const char *text)
{
    if (level >= LOG_ERROR)
        log_error("%s", text);
    else if (level == LOG_WARN)
        log_warn("%s", text);
    else
        log_info("%s", text);
}

/* Whether another rank prints all of it. */
static bool is_told_by_others(const struct engine *e, const struct waits *w, uint64_t now_us)
{
    for (int i = 0; i < w->count; i++)
        if (!w->list[i].left_to_other &&
            now_us - w->list[i].since_us >= e->stall->times.warn_us)
            return false;
    return true;
}

void stall_on_report(struct engine *e, int peer, const struct wire_text *t)
{
    struct strbuf out;

    if (e->stall == NULL)
        return;
    strbuf_init(&out);
    strbuf_addf(&out, "report of rank %d: ", peer);
    strbuf_add(&out, t->text, t->bytes);
    for (size_t i = 0; i < out.length; i++)
        if ((unsigned char)out.text[i] < 0x20 && out.text[i] != '\n')
            out.text[i] = '?';
    print(LOG_INFO, out.text);
    strbuf_release(&out);
    e->stall->reports++;
}

static void describe(struct engine *e, const struct waits *w, bool shuts_down,
                     uint64_t now_us, struct strbuf *out)
{
    stall_describe(out, &e->stall->times, w->list, w->count, e->topo->size,
                   (const char *const *)e->stall->where, now_us);
    if (shuts_down && e->stall->kinds)
        strbuf_addf(out, "\nThe job is shut down, because waiting cannot help "
                         "(HOROVOD_STALL_SHUTDOWN_TIME_SECONDS is set).");
    else if (shuts_down)
        strbuf_addf(out, "\nThe job is shut down, because an operation waited longer than "
                         "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS (%g s).",
                    (double)e->stall->times.shutdown_us / 1e6);
}

/* To all members; of many hosts, down the tree: inbox.c hands it on. */
static void tell(struct engine *e, struct pset *s, int level, const char *text)
{
    struct message_head head = {.kind = MESSAGE_STALL, .set = (uint32_t)s->id,
                                .epoch = s->epoch, .acked = (uint32_t)e->topo->rank + 1};
    struct strbuf out;

    if (s->neg != NULL && s->deep) {
        put_text(&out, &head, level, text);
        if (!out.failed)
            pset_hand_on(e, s, out.text, out.length);
        strbuf_release(&out);
        return;
    }
    for (int m = 0; m < s->count; m++)
        if (m != s->self)
            post_text(e, s->ranks[m], MESSAGE_STALL, level, text);
}

/* The members of a set see only what its coordinator, or a leader, tells them. */
static void tell_members(struct engine *e, struct pset *s, bool shuts_down,
                         uint64_t now_us)
{
    bool *missing = calloc((size_t)e->topo->size, sizeof *missing);
    struct strbuf out;
    struct waits w;

    waits_init(&w, e);
    w.set = s;
    strbuf_init(&out);
    if (s->neg != NULL)
        neg_each_stalled(s->neg, now_us, waits_add, &w);
    if (missing != NULL && ways_have_report(s))
        ways_each_waiting(s, now_us, missing, waits_add, &w);
    if (missing != NULL && stall_missing(w.list, w.count, e->topo->size,
                                         e->stall->times.warn_us, now_us, missing)) {
        describe(e, &w, shuts_down, now_us, &out);
        if (!out.failed)
            tell(e, s, shuts_down ? LOG_ERROR : LOG_WARN, out.text);
    }
    strbuf_release(&out);
    waits_release(&w);
    free(missing);
}

static void report(struct engine *e, const struct waits *w, bool shuts_down,
                   uint64_t now_us)
{
    struct strbuf out;

    strbuf_init(&out);
    describe(e, w, shuts_down, now_us, &out);
    print(is_told_by_others(e, w, now_us) ? LOG_INFO : shuts_down ? LOG_ERROR : LOG_WARN,
          out.text);
    strbuf_release(&out);
    for (int i = 0; i < TEAM_SLOTS; i++)
        if (e->sets[i] != NULL &&
            (e->sets[i]->neg != NULL || ways_have_report(e->sets[i])))
            tell_members(e, e->sets[i], shuts_down, now_us);
    e->stall->reports++;
    recorder_add(e->recorder, RECORDER_NOTE, -1, 0, 0, HVD_STALLED, "stall report");
    if (e->dumps_enabled && !e->stall->dumped)
        dump_write(e->dump, "stall");
    e->stall->dumped = true;
}

/* The verdict is that of the oldest wait: those who are missing elsewhere may wait for others
 * themselves. */
static void shut_down(struct engine *e, const struct waits *w)
{
    const struct stall_wait *oldest = w->list;
    struct strbuf ranks;
    struct hvd_error why;
    int first = 0;

    for (int i = 1; i < w->count; i++)
        if (w->list[i].since_us < oldest->since_us)
            oldest = &w->list[i];
    while (first + 1 < e->topo->size && !oldest->missing[first])
        first++;
    strbuf_init(&ranks);
    strbuf_add_ranks(&ranks, oldest->missing, e->topo->size);
    error_set(&why, HVD_STALLED, first,
              "ranks %.200s did not come to %.200s within %g seconds "
              "(HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)", ranks.text, oldest->name,
              (double)e->stall->times.shutdown_us / 1e6);
    strbuf_release(&ranks);
    mesh_fail(e->mesh, &why);
}

static const struct stall_wait *find_kinds(const struct engine *e, const struct waits *w,
                                           uint64_t now_us)
{
    return stall_find_kinds(w->list, w->count, e->topo->size, e->stall->times.warn_us,
                            now_us);
}

static void shut_down_for_kinds(struct engine *e, const struct waits *w, uint64_t now_us)
{
    const struct stall_wait *a = find_kinds(e, w, now_us);
    struct strbuf text;
    struct hvd_error why;
    int first = 0;

    while (first + 1 < e->topo->size && !a->missing[first])
        first++;
    strbuf_init(&text);
    stall_describe_kinds(&text, a, w->list, w->count, e->topo->size);
    error_set(&why, HVD_STALLED, first, "%.700s; give each its own name, or call the same on "
              "all ranks", text.failed ? a->name : text.text);
    strbuf_release(&text);
    mesh_fail(e->mesh, &why);
}

/* ---- When ------------------------------------------------------------------------------ */

static bool somebody_waits(const struct engine *e)
{
    if (e->open_entries > 0)
        return true;
    for (int i = 0; i < TEAM_SLOTS; i++)
        if (e->sets[i] != NULL &&
            ((e->sets[i]->neg != NULL && neg_is_waiting(e->sets[i]->neg)) ||
             ways_have_report(e->sets[i])))
            return true;
    return false;
}

/*
 * When the engine's thread must look; UINT64_MAX: never.  A timer that is set stays when
 * nothing waits any more, and is not set again after it has run out: so an idle job wakes
 * once, and a busy one need not wake the thread for every operation to set it.
 */
uint64_t stall_due_us(struct engine *e)
{
    struct stall *s = e->stall;
    uint64_t stuck_us;

    if (s == NULL || atomic_load(&e->state) != ENGINE_RUNNING)
        return UINT64_MAX;
    if (s->next_us == 0 && !somebody_waits(e))
        return UINT64_MAX;
    if (s->next_us == 0)
        s->next_us = clock_us() + s->times.warn_us - s->times.lead_us;
    stuck_us = stuck_due_us(e);
    return stuck_us < s->next_us ? stuck_us : s->next_us;
}

static void act(struct engine *e, const struct waits *w, uint64_t now_us)
{
    struct stall *s = e->stall;
    enum stall_action action = stall_decide(&s->times, w->oldest_us, now_us, &s->next_us);

    s->kinds = action == STALL_REPORT && s->times.shutdown_us > 0 &&
               find_kinds(e, w, now_us) != NULL;
    if (action == STALL_ASK) {
        ask(e, w, now_us);
        s->times.asked = true;
        s->times.asked_us = now_us;
    } else if (action != STALL_NOTHING) {
        report(e, w, action == STALL_SHUTDOWN || s->kinds, now_us);
        s->times.reported_us = now_us;
        s->times.asked = false;
    }
    if (action == STALL_SHUTDOWN)
        shut_down(e, w);
    else if (s->kinds)
        shut_down_for_kinds(e, w, now_us);
}

static void rest(struct stall *s)
{
    s->next_us = s->stuck.next_us = 0;
    s->times.reported_us = 0;
    s->times.asked = s->stuck.asked = s->dumped = false;
}

/* Owner of the baton, the engine's thread.  True: operations were ended. */
bool stall_look(struct engine *e)
{
    struct stall *s = e->stall;
    bool ended = false;
    uint64_t now_us;
    struct waits w;

    if (s == NULL || s->next_us == 0 || atomic_load(&e->state) != ENGINE_RUNNING)
        return false;
    now_us = clock_us();
    if (now_us < s->next_us && now_us < s->stuck.next_us)
        return false;
    waits_init(&w, e);
    waits_collect(&w, now_us);
    if (w.count == 0)
        rest(s);
    if (w.count > 0 && now_us >= s->stuck.next_us)
        ended = stuck_look(e, &w, now_us);
    if (w.count > 0 && !ended && now_us >= s->next_us)
        act(e, &w, now_us);
    waits_release(&w);
    return ended;
}
