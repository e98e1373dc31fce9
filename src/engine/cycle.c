/*
 * cycle.c: who drives the engine, and one turn of it.
 *
 * The baton has one holder at a time.  The engine's thread sleeps in mesh_sleep without it;
 * a thread that waits for a handle takes it when it is free, drives while it spins, and
 * gives it back (mesh armed again) before it sleeps on its handle.  So the thread is always
 * the one that sleeps for the mesh, and a short wait needs no switch of threads.
 *
 * While operations follow each other closely the mesh is not armed after each: the engine
 * dozes.  Nothing of ours is open then, so nobody waits for what comes over sockets.  The
 * thread looks DOZE_US later, and arms when no operation has come since.
 *
 * Whoever arms for the sockets alone, because nobody waits, gives the baton and then looks
 * whether somebody waits now: a thread that came meanwhile is counted (`waiting`) before it
 * tries the baton, did not get it, and sleeps on its handle.  Both are sequentially
 * consistent, so one of the two sees the other.
 */
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/thread.h"
#include "engine/engine_int.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define LOG_COMPONENT "engine"
/* How long what is committed may take to finish once a rank has left. */
#define LINGER_US 2000000
/* A doze: much longer than an operation between hosts, much shorter than what a user notices
 * when a peer asks for something else.  So many operations make it worth a wake-up. */
#define DOZE_US 1000
#define DOZE_AFTER 8
/* And yet the thread looks at everything that often, however long they go on. */
#define DOZE_LOOK_US 100000

/* ---- The baton --------------------------------------------------------------------- */

#ifdef NDEBUG
#define note_owner(e) ((void)(e))
#else
static void note_owner(struct engine *e)
{
    e->owner = pthread_self();
}

bool baton_is_ours(struct engine *e)
{
    return atomic_load_explicit(&e->baton, memory_order_relaxed) != 0 &&
           pthread_equal(e->owner, pthread_self());
}
#endif

bool baton_try(struct engine *e)
{
    unsigned free_baton = 0;

    if (!atomic_compare_exchange_strong(&e->baton, &free_baton, 1))
        return false;
    note_owner(e);
    return true;
}

static void baton_await(struct engine *e)
{
    while (!baton_try(e)) {
        /* Marked, so that the holder wakes us; and left so when we have it, since there may
         * be others. */
        unsigned seen = atomic_exchange_explicit(&e->baton, 2, memory_order_acquire);

        if (seen == 0) {
            note_owner(e);
            return;
        }
        thread_wait(&e->baton, 2, -1);
    }
}

void baton_take(struct engine *e)
{
    if (baton_try(e))
        return;
    atomic_fetch_add(&e->wanting, 1);
    baton_await(e);
    atomic_fetch_sub(&e->wanting, 1);
}

/* Whoever gives it calls those who asked to be told of what became done meanwhile. */
void baton_give(struct engine *e)
{
    bool completions = atomic_load_explicit(&e->has_completions, memory_order_relaxed);

    if (atomic_exchange(&e->baton, 0) == 2)
        thread_wake_all(&e->baton);
    if (completions)
        completions_run(e);
}

/* Between two pieces of work: lets a thread that wants to submit something come in, and
 * those be told who asked for it. */
static void baton_offer(struct engine *e)
{
    bool wanted = atomic_load_explicit(&e->wanting, memory_order_relaxed) > 0;

    if (!wanted && !atomic_load_explicit(&e->has_completions, memory_order_relaxed))
        return;
    baton_give(e);
    if (wanted)
        sched_yield();
    baton_take(e);
}

/* ---- One turn ---------------------------------------------------------------------- */

static bool coordinate(struct engine *e, struct pset *s)
{
    struct hvd_error err;
    struct strbuf out;
    uint32_t count = 0;
    uint64_t now_us;

    if (!neg_has_work(s->neg) || s->ended || e->said_goodbye)
        return false;
    now_us = clock_us();
    strbuf_init(&out);
    pset_put_head(s, MESSAGE_RESPONSES, &out);
    if (neg_emit(s->neg, now_us, &out, &count, &err) != HVD_OK || out.failed) {
        error_set(&err, HVD_NOMEM, e->topo->rank, "no memory for responses");
        mesh_fail(e->mesh, &err);
    } else if (count > 0) {
        patch_message_count(&out, count);
        pset_hand_on(e, s, out.text, out.length);
        engine_on_message(e, e->topo->rank, (const uint8_t *)out.text, out.length);
    }
    strbuf_release(&out);
    return count > 0;
}

/* Announcements are not held back any longer. */
void engine_press(struct engine *e)
{
    e->flush_due_us = 0;
    atomic_store_explicit(&e->held, false, memory_order_relaxed);
}

/* Announcements wait for more of them, although something else has made us look. */
static bool holds_back(struct engine *e)
{
    return e->flush_due_us > 0 && atomic_load(&e->waiting) == 0 &&
           clock_us() < e->flush_due_us;
}

/* Negotiates over every set; true if something moved. */
static bool negotiate_all(struct engine *e)
{
    bool moved = false, held = holds_back(e);

    if (!held)
        engine_press(e);
    for (int i = 0; i < TEAM_SLOTS; i++) {
        struct pset *s = e->sets[i];

        if (s == NULL || s->self < 0)
            continue;
        if (!held && (s->request_count > 0 || s->join_held)) {
            moved |= s->request_count > 0;
            member_flush(e, s);
        }
        moved |= ways_flush(e, s, held);
        moved |= upward_flush(e, s);
        if (s->neg != NULL)
            moved |= coordinate(e, s);
        if (!list_is_empty(&s->responses)) {
            uint32_t before = s->seq;

            member_process(e, s);
            s = e->sets[i];             /* a response may have removed it */
            moved |= s != NULL && s->seq != before;
        }
    }
    return moved;
}

/* Nothing new starts from here on. */
static void engine_enter(struct engine *e, enum engine_state state,
                         const struct hvd_error *why)
{
    e->failure = *why;
    atomic_store(&e->state, state);
    e->linger_until_us = clock_us() + LINGER_US;
}

/* Once, and the first cause: when a rank has left, others may die of it before they are needed
 * here. */
void engine_tell_failure(struct engine *e)
{
    enum engine_state state = atomic_load(&e->state);
    bool by_farewell = e->farewell.status != HVD_OK && e->farewell.rank != e->topo->rank;

    if (e->failing == NULL || e->has_told || state == ENGINE_STOPPED ||
        (state == ENGINE_LEFT && !by_farewell))
        return;
    e->has_told = true;
    e->failing(e->context, by_farewell ? &e->farewell : &e->failure);
}

/* A rank has left in order.  What everybody had announced still completes: a set is ended
 * when its coordinator, who says what completes, has said its last and all of it is done. */
static void end_sets(struct engine *e)
{
    for (int i = 0; i < TEAM_SLOTS; i++) {
        struct pset *s = e->sets[i];

        if (s == NULL || s->self < 0)
            continue;
        ways_leave(e, s, e->failure.status, &e->failure);
        if (pset_has_ended(e, s) && list_is_empty(&s->responses))
            pset_fail(e, s, e->failure.status, &e->failure, false);
    }
}

static void check_verdict(struct engine *e)
{
    const struct hvd_error *verdict = mesh_verdict(e->mesh);

    if (e->farewell.status != HVD_OK && atomic_load(&e->state) < ENGINE_LEFT) {
        engine_enter(e, ENGINE_LEFT, &e->farewell);
        if (e->open_entries > 0)
            engine_tell_failure(e);
        engine_say_goodbye(e, e->farewell.rank);
    }
    if (verdict != NULL && atomic_load(&e->state) != ENGINE_FAILED)
        engine_fail(e, ENGINE_FAILED, verdict);
    if (atomic_load(&e->state) != ENGINE_LEFT)
        return;
    end_sets(e);
    if (e->open_entries > 0 && clock_us() > e->linger_until_us)
        for (int i = 0; i < TEAM_SLOTS; i++)
            if (e->sets[i] != NULL)
                pset_fail(e, e->sets[i], HVD_SHUTDOWN, &e->failure, true);
}

/* For the timeline: the engine has done something. */
void engine_mark_cycle(struct engine *e)
{
    if (TRACED(e))
        timeline_cycle(e->timeline, (uint64_t)(e->conf->cycle_time_ms * 1000));
}

/* Everything that can be done now; true if something moved.  Owner of the baton. */
bool engine_progress(struct engine *e)
{
    bool moved;

    ASSERT_OWNER(e);
    moved = mesh_progress(e->mesh) > 0;
    moved |= negotiate_all(e);
    moved |= running_step_all(e);
    moved |= execute_step_all(e);
    check_verdict(e);
    if (moved)
        engine_mark_cycle(e);
    return moved;
}

/* Of an abort somebody has said why; that members of an elastic job go is daily life, which
 * the driver tells in a line, and the ring of the next generation goes on from here. */
static bool is_worth_a_dump(const struct engine *e, enum hvd_status status)
{
    bool is_elastic = e->conf->elastic && e->conf->worker > 0;

    return status != HVD_ABORTED && !(is_elastic && status == HVD_PEER_LOST);
}

/* As engine_enter, and what is not committed fails now.  A verdict of the mesh ends the
 * rest as well; when this rank leaves in order, the rest may finish. */
void engine_fail(struct engine *e, enum engine_state state, const struct hvd_error *why)
{
    if (atomic_load(&e->state) >= state)
        return;
    engine_enter(e, state, why);
    engine_tell_failure(e);
    if (state == ENGINE_FAILED && e->open_entries > 0)
        log_debug("%s: %s", hvd_status_text(why->status), why->text);
    if (state == ENGINE_FAILED) {
        recorder_add(e->recorder, RECORDER_NOTE, -1, 0, 0, why->status, why->text);
        if (e->dumps_enabled && is_worth_a_dump(e, why->status))
            dump_write(e->dump, "failure");
    }
    for (int i = 0; i < TEAM_SLOTS; i++)
        if (e->sets[i] != NULL)
            pset_fail(e, e->sets[i], why->status, why, state == ENGINE_FAILED);
}

bool engine_crank(struct engine *e)
{
    bool moved;

    baton_take(e);
    moved = engine_progress(e);
    baton_give(e);
    return moved;
}

/* ---- Sleeping ---------------------------------------------------------------------- */

static bool tasks_need_us(const struct engine *e)
{
    return !list_is_empty(&e->batches) || running_needs_us(e);
}

/* When the thread must look again although nothing has come. */
static uint64_t next_due_us(struct engine *e)
{
    uint64_t due = stall_due_us(e);

    e->heard = false;
    if (e->flush_due_us > 0 && e->flush_due_us < due)
        due = e->flush_due_us;
    for (int i = 0; i < TEAM_SLOTS; i++)
        if (e->sets[i] != NULL) {
            const struct pset *s = e->sets[i];
            uint64_t us = s->neg != NULL ? neg_due_us(s->neg) : UINT64_MAX;

            due = us < due ? us : due;
            us = ways_due_us(s);
            due = us < due ? us : due;
        }
    if (atomic_load(&e->state) == ENGINE_LEFT && e->open_entries > 0 &&
        e->linger_until_us < due)
        due = e->linger_until_us;
    return due;
}

/* Says "nobody polls" unless there is something to do; then the holder goes on.  `look`:
 * asks all tasks whether they need us, instead of adding to what was known. */
static bool settle(struct engine *e, bool look)
{
    if (look)
        e->boards = tasks_need_us(e);
    e->boards |= atomic_load(&e->waiting) > 0 || e->completions_open > 0 || trace_waits(e);
    if (!mesh_arm(e->mesh, e->boards))
        return false;
    if (e->boards) {
        bool moved = running_step_all(e);

        moved |= execute_step_all(e);
        if (moved) {
            mesh_disarm(e->mesh);
            return false;
        }
    }
    return true;
}

/* The mesh needs no arming now: operations follow each other closely. */
static bool doze(struct engine *e)
{
    uint64_t now_us, last_us = e->left_us;

    if (e->open_entries > 0 || e->flush_due_us > 0 || !engine_has_thread(e) ||
        !e->has_sockets || atomic_load(&e->state) != ENGINE_RUNNING)
        return false;
    now_us = e->left_us = clock_us();
    if (now_us - last_us >= DOZE_US)
        e->close_count = 0;
    else if (e->close_count < DOZE_AFTER)
        e->close_count++;
    if (e->close_count < DOZE_AFTER || !mesh_doze(e->mesh))
        return false;
    atomic_store(&e->doze_until_us, now_us + DOZE_US);
    if (now_us + DOZE_US < atomic_load(&e->sleep_until_us))
        mesh_kick(e->mesh);
    return true;
}

/* The same for the thread, which is no operation; false: the doze is over. */
static bool doze_on(struct engine *e)
{
    uint64_t until_us = atomic_load(&e->doze_until_us);

    if (until_us > 0 && e->open_entries == 0 && clock_us() < until_us &&
        mesh_doze(e->mesh))
        return true;
    atomic_store(&e->doze_until_us, 0);
    return false;
}

/* Who wants the baton arms when he leaves.  True: armed, but not for the boards. */
static bool give_armed(struct engine *e, bool look)
{
    bool wanted = atomic_load_explicit(&e->wanting, memory_order_relaxed) > 0, deaf;
    bool has_thread = engine_has_thread(e);
    uint64_t due;

    if (doze(e)) {
        baton_give(e);
        return false;
    }
    if (atomic_load_explicit(&e->doze_until_us, memory_order_relaxed) > 0)
        atomic_store(&e->doze_until_us, 0);
    while (has_thread && !wanted && !settle(e, look))
        engine_progress(e);
    due = has_thread && (e->open_entries > 0 || e->heard) ? next_due_us(e) : UINT64_MAX;
    if (due < atomic_load(&e->sleep_until_us))
        mesh_kick(e->mesh);
    deaf = has_thread && !wanted && !e->boards;
    baton_give(e);
    return deaf;
}

static void leave(struct engine *e, bool look)
{
    while (give_armed(e, look) && atomic_load(&e->waiting) > 0 && baton_try(e))
        ;
}

/* The holder of the baton leaves: the thread takes over what is left, if it must. */
void engine_leave(struct engine *e)
{
    leave(e, true);
}

/* The same after a submission, which says whether it has brought a task that needs us: with
 * a thousand tasks in flight nobody asks all of them a thousand times. */
void engine_leave_submit(struct engine *e, bool needs_us)
{
    e->boards |= needs_us;
    leave(e, false);
}

/* Sleeps until something happens or is due, and takes the baton.  When a doze is over, the
 * mesh is to be armed; while somebody has the baton, that is his affair.
 * A doze is ended (0) before sleep_until_us is read, and read after that is stored: so either
 * the thread sees that it has ended, or the other sees how long it would sleep. */
static void sleep_and_take(struct engine *e, uint64_t due_us)
{
    for (;;) {
        uint64_t until_us = atomic_load(&e->doze_until_us), now_us = clock_us();
        bool dozes = until_us > 0;

        if (dozes && until_us <= now_us) {
            if (baton_try(e))
                return;
            until_us = now_us + DOZE_US;
        }
        if (!dozes || due_us < until_us)
            until_us = due_us;
        atomic_store(&e->sleep_until_us, until_us);
        if ((dozes && atomic_load(&e->doze_until_us) == 0) ||
            mesh_sleep(e->mesh, until_us == UINT64_MAX ? -1
                                : until_us > now_us    ? (int64_t)(until_us - now_us)
                                                       : 0) ||
            until_us == due_us)
            break;
    }
    baton_take(e);
}

static void *engine_main(void *context)
{
    struct engine *e = context;

    baton_take(e);
    while (!atomic_load(&e->stop)) {
        uint64_t due, look_us;
        bool dozes, deaf;

        mesh_disarm(e->mesh);
        while (engine_progress(e))
            baton_offer(e);
        if (stall_look(e))
            continue;
        dozes = doze_on(e);
        if (!dozes && !settle(e, true))
            continue;
        stats_note_sleep(e);
        due = next_due_us(e);
        look_us = dozes ? clock_us() + DOZE_LOOK_US : UINT64_MAX;
        due = due < look_us ? due : look_us;
        atomic_store(&e->sleep_until_us, due);
        deaf = !dozes && !e->boards;
        (void)FAULT("engine.rest");     /* tests come in between here */
        baton_give(e);
        if (deaf && atomic_load(&e->waiting) > 0)
            baton_take(e);
        else
            sleep_and_take(e, due);
        atomic_store(&e->sleep_until_us, 0);
    }
    baton_give(e);
    return NULL;
}

/* HOROVOD_THREAD_AFFINITY: a CPU for each local rank. */
static void pin_thread(struct engine *e)
{
    const char *at = e->conf->thread_affinity;

    for (int i = 0; at != NULL && i < e->topo->local_rank; i++) {
        at = strchr(at, ',');
        at = at != NULL ? at + 1 : NULL;
    }
    if (at == NULL || *at == '\0')
        return;
    if (!thread_pin(e->thread, atoi(at)))
        log_warn("HOROVOD_THREAD_AFFINITY: the engine's thread of local rank %d cannot run on "
                 "CPU %d", e->topo->local_rank, atoi(at));
}

enum hvd_status engine_start_thread(struct engine *e, struct hvd_error *err)
{
    int code = thread_start(&e->thread, engine_main, e);

    if (code != 0)
        return error_set(err, HVD_SYS, -1, "no thread for the engine: error %d", code);
    atomic_store(&e->has_thread, true);
    pin_thread(e);
    return HVD_OK;
}

void engine_join_thread(struct engine *e)
{
    if (!engine_has_thread(e))
        return;
    atomic_store(&e->stop, true);
    mesh_kick(e->mesh);
    pthread_join(e->thread, NULL);
    atomic_store(&e->has_thread, false);
}

/* ---- Waiting for a handle ----------------------------------------------------------- */

bool engine_yield(int count, uint64_t *start_ns_p)
{
    uint64_t now_ns = clock_ns();

    if (*start_ns_p == 0)
        *start_ns_p = now_ns;
    if (count > ENGINE_YIELDS || now_ns - *start_ns_p > ENGINE_YIELD_NS)
        return false;
    sched_yield();
    return true;
}

/* Drives while it is worth it; true if the handle is done. */
bool engine_drive(struct engine *e, struct handle *h)
{
    uint64_t start_ns = 0;
    int idle = 0;

    mesh_disarm(e->mesh);
    for (;;) {
        if (atomic_load_explicit(&h->done, memory_order_acquire))
            return true;
        engine_press(e);
        if (engine_progress(e)) {
            idle = 0;
            start_ns = 0;
            baton_offer(e);
            continue;
        }
        if (e->spin_us <= 0) {
            if (!engine_yield(++idle, &start_ns))
                return false;
            continue;
        }
        thread_pause();
        if (++idle % 32 != 0)
            continue;
        if (start_ns == 0)
            start_ns = clock_ns();
        else if ((double)(clock_ns() - start_ns) > e->spin_us * 1000)
            return false;
    }
}

/* What is held back for more of its kind goes now, because somebody waits or polls: also when
 * h is done, since others may wait for what this rank has brought to it. */
void engine_send_held(struct engine *e)
{
    if (!atomic_load_explicit(&e->held, memory_order_relaxed) || !baton_try(e))
        return;
    mesh_disarm(e->mesh);
    engine_press(e);
    engine_progress(e);
    engine_leave(e);
}

enum hvd_status engine_wait_handle(struct engine *e, struct handle *h, int64_t timeout_us)
{
    uint64_t deadline_us = timeout_us < 0 ? UINT64_MAX : clock_us() + (uint64_t)timeout_us;

    if (atomic_load_explicit(&h->done, memory_order_acquire))
        engine_send_held(e);
    while (!atomic_load_explicit(&h->done, memory_order_acquire)) {
        uint64_t now_us;

        atomic_fetch_add(&e->waiting, 1);
        if (baton_try(e)) {
            if (!engine_drive(e, h))
                stats_note_wait(e, h);
            engine_leave(e);
        } else if (!engine_has_thread(e)) {
            sched_yield();              /* the simulator's other threads drive */
        }
        now_us = clock_us();
        if (!atomic_load(&h->done) && now_us < deadline_us && engine_has_thread(e))
            thread_wait(&h->done, 0, deadline_us == UINT64_MAX
                                         ? -1 : (int64_t)(deadline_us - now_us));
        atomic_fetch_sub(&e->waiting, 1);
        if (timeout_us >= 0 && now_us >= deadline_us)
            break;
    }
    return atomic_load(&h->done) ? HVD_OK : HVD_AGAIN;
}
