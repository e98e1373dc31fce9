/*
 * test_simulate.c: whole engines over simulated streams, driven by one thread and a seed.
 *
 * A seed gives a job (ranks, hosts, delays, cache capacity, fusion) and a program that all
 * ranks run in the same order but at their own pace: operations with names that repeat and
 * change shape, allgathers and alltoalls whose sizes change from step to step, on the global
 * set and on others, disagreements, ranks that cannot take part,
 * epochs in which ranks join early, sets that come and go (in some seeds while operations of
 * theirs are under way), and in some seeds a crash or a rank that leaves.  Hosts have any
 * number of ranks, and in some seeds no common memory; the tree of hosts is a chain, or flat.
 *
 * Safety, at every completion: the right values, or the right error on the right ranks; when
 * a rank leaves or a set is removed, an operation completes on all (others) that have
 * submitted it, or on none.
 * Liveness: once nothing more is disturbed, every operation ends within a bound of turns.
 *
 *   HVD_SEEDS=n        how many seeds (default 2600, split over the tests)
 *   HVD_SEED=s         only this one, with a line per event
 */
#include "base/clock.h"
#include "check.h"
#include "collective/collective.h"
#include "engine/engine.h"
#include "support/sim_transport.h"

#include <stdlib.h>

#define RANKS_MAX 8
#define STEPS_MAX 96
#define COUNT_MAX 3000
#define FLIGHT_MAX 6

enum kind { SUM, GATHER, TRADE, SCATTER, CAST, MEET, GROUP, WRONG_SHAPE, WRONG_TYPE, PROBLEM,
            ADD, REMOVE, JOIN, KIND_COUNT };

/* One line of the program. */
struct step {
    enum kind kind;
    char name[16];
    int count;                          /* elements of each rank */
    int set;                            /* index in world.sets, 0: global */
    int odd;                            /* the rank that disagrees, or the root */
    int until[RANKS_MAX];               /* JOIN epochs: ranks take part if index < until */
    int index;                          /* position in its epoch */
    bool join_epoch;
};

struct flight {
    hvd_handle handle;                  /* 0: free */
    int step;
    int64_t *in, *out, *in2, *out2;
};

struct rank {
    struct engine *engine;
    struct mesh *mesh;
    struct config conf;
    int next;                           /* step to be submitted */
    struct flight flights[FLIGHT_MAX];
    int open;
    bool barred;                        /* waits for a collective change (ADD, REMOVE, JOIN) */
    bool dead;
    bool closed;                        /* its mesh has gone, too */
    int turns_left;                     /* until then, after it has left */
    int set_ids[8];
};

struct world {
    uint64_t random;
    int size;
    struct rank ranks[RANKS_MAX];
    struct step steps[STEPS_MAX];
    int step_count;
    int set_members[8];                 /* bit mask of ranks; [0] is all */
    int set_count;
    int crash_step, victim;             /* -1: none */
    bool crashed;
    int leave_turn, leaver;             /* -1: nobody leaves */
    bool left;                          /* somebody has */
    bool hasty;                         /* sets are removed while they are in use */
    struct { int done, failed; } outcome[STEPS_MAX];    /* by step, on those who stay */
    int join_last;
    bool verbose;
};

static uint64_t now_ns;

static uint64_t draw(struct world *w)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random;
}

static int below(struct world *w, int n)
{
    return (int)(draw(w) % (uint64_t)n);
}

/* ---- The program ---------------------------------------------------------------------- */

static bool is_member(const struct world *w, int set, int rank)
{
    return w->set_members[set] >> rank & 1;
}

static struct step *add_step(struct world *w, enum kind kind)
{
    struct step *s = &w->steps[w->step_count++];

    *s = (struct step){.kind = kind, .odd = below(w, w->size), .count = 1 + below(w, 40)};
    snprintf(s->name, sizeof s->name, "t%d", below(w, 7));
    if (below(w, 5) == 0)
        s->count = below(w, COUNT_MAX);
    return s;
}

static int member_of_set(struct world *w, int set)
{
    int rank = below(w, w->size);

    while (!is_member(w, set, rank))
        rank = (rank + 1) % w->size;
    return rank;
}

/* The same shape often: cached.  Between hosts small ones are eager, large ones are not. */
static int usual_count(const struct step *s)
{
    return s->name[1] % 2 == 0 ? 8 : 300;
}

static void add_plain(struct world *w, int set)
{
    static const enum kind kinds[] = {SUM, SUM, SUM, SUM, SUM, GATHER, GATHER, TRADE, TRADE,
                                      SCATTER, SCATTER, CAST, MEET, GROUP,
                                      WRONG_SHAPE, WRONG_TYPE, PROBLEM};
    struct step *s = add_step(w, kinds[below(w, sizeof kinds / sizeof kinds[0])]);

    s->set = set;
    s->odd = member_of_set(w, set);
    if ((w->leaver >= 0 || (w->hasty && set > 0)) && below(w, 3) > 0) {
        s->kind = SUM;                  /* while cached operations are under way */
        s->name[1] = (char)('0' + below(w, 3));
    }
    if ((s->kind == GATHER || s->kind == TRADE) && below(w, 3) > 0) {
        s->name[0] = s->kind == GATHER ? 'g' : 'a';     /* the same operation: cached */
        s->name[1] = (char)('0' + below(w, 2));
    }
    if ((s->kind == SUM || s->kind == SCATTER || s->kind == CAST || s->kind == GATHER) &&
        below(w, w->leaver >= 0 || w->hasty ? 8 : 2))
        s->count = usual_count(s);
    if ((s->kind == WRONG_SHAPE || s->kind == WRONG_TYPE) &&
        __builtin_popcount((unsigned)w->set_members[set]) < 2)
        s->kind = SUM;
}

static void add_join_epoch(struct world *w)
{
    int until[RANKS_MAX], ops = 1 + below(w, 6);

    for (int r = 0; r < w->size; r++)
        until[r] = below(w, ops + 1);
    for (int i = 0; i <= ops; i++) {
        struct step *s = add_step(w, i < ops ? SUM : JOIN);

        s->join_epoch = true;
        s->index = i;
        memcpy(s->until, until, sizeof until);
        if (below(w, 2))
            s->count = usual_count(s);
    }
}

static void make_program(struct world *w)
{
    int length = 10 + below(w, 40);
    bool had_set = false;

    w->hasty = below(w, 2);
    w->set_count = 2;
    w->set_members[0] = (1 << w->size) - 1;
    while (w->step_count < length) {
        int choice = below(w, 12);

        if (choice == 0 && !had_set && w->size > 2) {
            int ops = 4 + (w->hasty ? below(w, 16) : 0);
            struct step *s = add_step(w, ADD);

            /* Never all and never nobody. */
            w->set_members[1] = 1 + below(w, (1 << w->size) - 2);
            s->set = 1;
            had_set = true;             /* one membership per program */
            for (int i = 0; i < ops; i++)
                add_plain(w, below(w, 2 + w->hasty) > 0);
            add_step(w, REMOVE)->set = 1;
            continue;
        }
        /* A rank that leaves must be idle, and after a join batches may still run. */
        if (choice == 1 && w->leaver < 0)
            add_join_epoch(w);
        else
            add_plain(w, 0);
    }
}

/* ---- Values --------------------------------------------------------------------------- */

static int64_t value(int rank, int step, int i)
{
    return (int64_t)(rank + 1) * 1000003 + step * 101 + i % 17;
}

static bool takes_part(const struct world *w, const struct step *s, int rank)
{
    if (s->join_epoch && s->kind != JOIN)
        return s->index < s->until[rank];
    return is_member(w, s->kind == ADD || s->kind == REMOVE ? 0 : s->set, rank);
}

static int64_t expected_sum(const struct world *w, const struct step *s, int step, int i)
{
    int64_t sum = 0;

    for (int r = 0; r < w->size; r++)
        if (takes_part(w, s, r))
            sum += value(r, step, i);
    return sum;
}

/* Rows that a rank brings to an allgather: sometimes the same as in the step before. */
static int rows_of(const struct step *s, int step, int rank)
{
    return s->count + (rank + step / 4) % 3;
}

/* Rows that rank `from` sends to rank `to` in an alltoall. */
static int traded(const struct step *s, int step, int from, int to)
{
    return s->count % 2 == 0 ? 2 : (s->count + 3 * from + 5 * to + step / 4) % 6;
}

/* ---- Submitting ----------------------------------------------------------------------- */

static bool name_in_flight(const struct world *w, const struct rank *r, int step)
{
    for (int i = 0; i < FLIGHT_MAX; i++) {
        const struct flight *f = &r->flights[i];

        if (f->handle != 0 && w->steps[f->step].set == w->steps[step].set &&
            (strcmp(w->steps[f->step].name, w->steps[step].name) == 0 ||
             w->steps[f->step].kind == MEET || w->steps[f->step].kind == GROUP ||
             w->steps[step].kind == GROUP))
            return true;
    }
    return false;
}

static enum hvd_status submit_op(struct world *w, int rank, struct flight *f, int step,
                                 struct hvd_error *err)
{
    const struct step *s = &w->steps[step];
    struct rank *r = &w->ranks[rank];
    struct hvd_request req[2];
    int64_t splits[RANKS_MAX];

    memset(req, 0, sizeof req);
    req[0] = (struct hvd_request){.size = sizeof req[0], .op = HVD_ALLREDUCE,
                                  .dtype = HVD_I64, .reduce = HVD_SUM, .device = -1,
                                  .name = s->name, .ndim = 1, .shape = {s->count},
                                  .input = f->in, .output = f->out,
                                  .process_set = s->set ? r->set_ids[s->set] : 0};
    if (s->kind == GATHER)
        req[0].op = HVD_ALLGATHER, req[0].output = NULL,
        req[0].shape[0] = rows_of(s, step, rank);
    if (s->kind == TRADE) {
        req[0].op = HVD_ALLTOALL, req[0].output = NULL, req[0].shape[0] = 0;
        for (int k = 0, n = 0; k < w->size; k++)
            if (is_member(w, s->set, k))
                req[0].shape[0] += splits[n++] = traded(s, step, rank, k);
        req[0].splits = s->count % 2 == 0 ? NULL : splits;
    }
    if (s->kind == SCATTER)
        req[0].op = HVD_REDUCESCATTER, req[0].output = NULL;
    if (s->kind == CAST)
        req[0].op = HVD_BROADCAST, req[0].root = s->odd;
    if (s->kind == MEET)
        req[0].op = HVD_BARRIER, req[0].ndim = 0;
    if (s->kind == WRONG_SHAPE && rank == s->odd)
        req[0].shape[0] = s->count + 1;
    if (s->kind == WRONG_TYPE && rank == s->odd)
        req[0].dtype = HVD_F64;
    if (s->kind == PROBLEM && rank == s->odd)
        req[0].problem = "made up";
    if (s->kind == JOIN)
        req[0] = (struct hvd_request){.size = sizeof req[0], .op = HVD_JOIN, .device = -1};
    req[1] = req[0];
    req[1].name = "second";
    req[1].input = f->in2;
    req[1].output = f->out2;
    return engine_submit(r->engine, req, s->kind == GROUP ? 2 : 1, &f->handle, err);
}

static enum hvd_status submit_set(struct world *w, int rank, struct flight *f, int step,
                                  struct hvd_error *err)
{
    const struct step *s = &w->steps[step];
    struct rank *r = &w->ranks[rank];
    int ranks[RANKS_MAX], n = 0;

    for (int i = 0; i < w->size; i++)
        if (is_member(w, s->set, i))
            ranks[n++] = i;
    return s->kind == ADD
               ? engine_submit_add_set(r->engine, ranks, n, &f->handle, err)
               : engine_submit_remove_set(r->engine, r->set_ids[s->set], &f->handle, err);
}

static void fill(const struct world *w, struct flight *f, int rank, int step)
{
    int n = w->steps[step].count + 6 * RANKS_MAX;

    f->in = malloc((size_t)n * 8);
    f->out = calloc((size_t)n, 8);
    f->in2 = malloc((size_t)n * 8);
    f->out2 = calloc((size_t)n, 8);
    CHECK(f->in != NULL && f->out != NULL && f->in2 != NULL && f->out2 != NULL);
    for (int i = 0; i < n; i++) {
        f->in[i] = value(rank, step, i);
        f->in2[i] = value(rank, step + 1000, i);
    }
}

static void drop(struct rank *r, struct flight *f)
{
    engine_release(r->engine, f->handle);
    free(f->in);
    free(f->out);
    free(f->in2);
    free(f->out2);
    *f = (struct flight){0};
    r->open--;
}

static bool is_bar(enum kind kind)
{
    return kind == ADD || kind == REMOVE || kind == JOIN;
}

static void try_submit(struct world *w, int rank)
{
    struct rank *r = &w->ranks[rank];
    struct hvd_error err;
    enum hvd_status status;
    struct flight *f = NULL;
    int step = r->next;

    while (step < w->step_count && !takes_part(w, &w->steps[step], rank))
        step = ++r->next;
    if (step == w->step_count || r->barred || name_in_flight(w, r, step))
        return;
    if ((w->steps[step].kind == ADD || (w->steps[step].kind == REMOVE && !w->hasty)) &&
        r->open > 0)
        return;                         /* sets change only when this rank is idle */
    for (int i = 0; i < FLIGHT_MAX && f == NULL; i++)
        if (r->flights[i].handle == 0)
            f = &r->flights[i];
    if (f == NULL)
        return;
    fill(w, f, rank, step);
    f->step = step;
    status = is_bar(w->steps[step].kind) && w->steps[step].kind != JOIN
                 ? submit_set(w, rank, f, step, &err)
                 : submit_op(w, rank, f, step, &err);
    if (status != HVD_OK) {
        if (!w->crashed && !w->left)
            check_fail(__FILE__, __LINE__, "rank %d step %d: %s", rank, step, err.text);
        f->handle = 0;
        free(f->in), free(f->out), free(f->in2), free(f->out2);
        *f = (struct flight){0};
        r->next = w->step_count;
        return;
    }
    if (w->verbose)
        fprintf(stderr, "rank %d submits step %d kind %d %s[%d] set %d\n", rank, step,
                w->steps[step].kind, w->steps[step].name, w->steps[step].count,
                w->steps[step].set);
    r->open++;
    r->next++;
    r->barred = is_bar(w->steps[step].kind);
}

/* ---- Completing ----------------------------------------------------------------------- */

static void check_gather(struct world *w, struct rank *r, const struct flight *f,
                         const struct step *s)
{
    struct hvd_output out = {.size = sizeof out};
    struct hvd_error err;
    const int64_t *at;

    CHECK_OK(engine_output(r->engine, f->handle, 0, false, &out, &err), err);
    at = out.data;
    for (int k = 0; k < w->size; k++) {
        int n = rows_of(s, f->step, k);

        if (!is_member(w, s->set, k))
            continue;
        for (int i = 0; i < n; i++)
            CHECK_EQ(*at++, value(k, f->step, i));
    }
    CHECK_EQ(out.shape[0], (int64_t)(at - (const int64_t *)out.data));
}

static void check_trade(struct world *w, int rank, const struct flight *f,
                        const struct step *s)
{
    struct hvd_output out = {.size = sizeof out};
    struct hvd_error err;
    const int64_t *at;
    int n = 0;

    CHECK_OK(engine_output(w->ranks[rank].engine, f->handle, 0, false, &out, &err), err);
    at = out.data;
    for (int k = 0; k < w->size; k++) {
        int begin = 0;

        if (!is_member(w, s->set, k))
            continue;
        for (int to = 0; to < rank; to++)
            begin += is_member(w, s->set, to) ? traded(s, f->step, k, to) : 0;
        for (int i = 0; i < traded(s, f->step, k, rank); i++)
            CHECK_EQ(*at++, value(k, f->step, begin + i));
        CHECK_EQ(out.splits[n++], (int64_t)traded(s, f->step, k, rank));
    }
    CHECK_EQ(out.shape[0], (int64_t)(at - (const int64_t *)out.data));
}

/* The first ranks of the set get one element more. */
static void check_scatter(struct world *w, int rank, const struct flight *f,
                          const struct step *s)
{
    int members = __builtin_popcount((unsigned)w->set_members[s->set]);
    int self = __builtin_popcount((unsigned)w->set_members[s->set] & ((1u << rank) - 1));
    int share = s->count / members, more = s->count % members;
    int first = self * share + (self < more ? self : more);
    struct hvd_output out = {.size = sizeof out};
    struct hvd_error err;

    CHECK_OK(engine_output(w->ranks[rank].engine, f->handle, 0, false, &out, &err), err);
    CHECK_EQ(out.shape[0], (int64_t)(share + (self < more)));
    for (int i = 0; i < out.shape[0]; i++)
        CHECK_EQ(((int64_t *)out.data)[i], expected_sum(w, s, f->step, first + i));
}

static void check_values(struct world *w, int rank, const struct flight *f)
{
    const struct step *s = &w->steps[f->step];
    struct hvd_output out = {.size = sizeof out};
    struct hvd_error err;

    if (s->kind == GATHER)
        check_gather(w, &w->ranks[rank], f, s);
    if (s->kind == TRADE)
        check_trade(w, rank, f, s);
    if (s->kind == SCATTER)
        check_scatter(w, rank, f, s);
    for (int i = 0; i < s->count && (s->kind == SUM || s->kind == GROUP); i++)
        CHECK_EQ(f->out[i], expected_sum(w, s, f->step, i));
    for (int i = 0; i < s->count && s->kind == GROUP; i++)
        CHECK_EQ(f->out2[i], expected_sum(w, s, f->step + 1000, i));
    for (int i = 0; i < s->count && s->kind == CAST; i++)
        CHECK_EQ(f->out[i], value(s->odd, f->step, i));
    if (s->kind != ADD && s->kind != JOIN)
        return;
    CHECK_OK(engine_output(w->ranks[rank].engine, f->handle, 0, false, &out, &err), err);
    if (s->kind == ADD)
        w->ranks[rank].set_ids[s->set] = (int)out.value;
    else if (w->join_last < 0)
        w->join_last = (int)out.value;
    else
        CHECK_EQ(w->join_last, (int)out.value);
}

static enum hvd_status expected_status(const struct step *s)
{
    switch (s->kind) {
    case WRONG_SHAPE:
    case WRONG_TYPE:
        return HVD_MISMATCH;
    case PROBLEM:
        return HVD_REMOTE;
    default:
        return HVD_OK;
    }
}

static void complete(struct world *w, int rank, struct flight *f, enum hvd_status status,
                     const struct hvd_error *err)
{
    struct rank *r = &w->ranks[rank];
    const struct step *s = &w->steps[f->step];

    if (w->verbose)
        fprintf(stderr, "rank %d ends step %d: %s %s\n", rank, f->step,
                hvd_status_name(status), status != HVD_OK ? err->text : "");
    if (rank != w->leaver) {
        w->outcome[f->step].done += status == HVD_OK;
        w->outcome[f->step].failed += status != HVD_OK;
    }
    if (status != expected_status(s) && !w->crashed &&
        !(w->left && status == HVD_SHUTDOWN) &&
        !(w->hasty && s->set == 1 && status == HVD_REMOVED))
        check_fail(__FILE__, __LINE__, "rank %d step %d kind %d: %s: %s", rank, f->step,
                   s->kind, hvd_status_name(status), err->text);
    if (status == HVD_OK)
        check_values(w, rank, f);
    if (s->kind == JOIN && status == HVD_OK) {
        bool last = true;

        for (int k = 0; k < w->size; k++)
            for (int i = 0; i < FLIGHT_MAX; i++)
                last &= k == rank || w->ranks[k].flights[i].handle == 0 ||
                        w->steps[w->ranks[k].flights[i].step].kind != JOIN ||
                        w->ranks[k].flights[i].step != f->step;
        if (last)
            w->join_last = -1;
    }
    if (is_bar(s->kind))
        r->barred = false;
    drop(r, f);
}

static void collect(struct world *w, int rank)
{
    struct rank *r = &w->ranks[rank];

    for (int i = 0; i < FLIGHT_MAX; i++) {
        struct flight *f = &r->flights[i];
        struct hvd_error err = {0};
        enum hvd_status status;

        if (f->handle == 0)
            continue;
        status = engine_poll(r->engine, f->handle, &err);
        if (status != HVD_AGAIN)
            complete(w, rank, f, status, &err);
    }
}

/* ---- Running -------------------------------------------------------------------------- */

static void make_engines(struct world *w, struct sim *sim)
{
    int capacity = below(w, 3) == 0 ? below(w, 3) : 64;
    double window_ms = below(w, 2);
    bool fusion = below(w, 4) != 0;
    int fanout = (int[]){1, 1, 2, 16}[below(w, 4)];     /* 1: a chain of hosts */

    for (int i = 0; i < w->size; i++) {
        struct rank *r = &w->ranks[i];
        struct engine_options opt = {.conf = &r->conf, .dynamic_sets = true};
        struct hvd_error err;

        CHECK_OK(config_read(&r->conf, &err), err);
        r->conf.cache_capacity = capacity;
        r->conf.cycle_time_ms = window_ms;
        r->conf.tree_fanout = fanout;
        if (!fusion)
            r->conf.fusion_threshold = 0;
        opt.mesh = r->mesh = sim_mesh(sim, i);
        CHECK_OK(engine_new(&opt, &r->engine, &err), err);
    }
}

static bool is_over(const struct world *w)
{
    for (int i = 0; i < w->size; i++)
        if (!w->ranks[i].dead &&
            (w->ranks[i].next < w->step_count || w->ranks[i].open > 0))
            return false;
    return true;
}

static void maybe_crash(struct world *w, int turn)
{
    struct rank *r = &w->ranks[w->victim];
    struct hvd_error why;

    if (w->crash_step < 0 || w->crashed || turn < w->crash_step)
        return;
    w->crashed = true;
    error_set(&why, HVD_PEER_LOST, w->victim, "rank %d has crashed", w->victim);
    mesh_fail(r->mesh, &why);
}

/* A rank whose program has ended early leaves in order, and closes its mesh a while later,
 * as a process does that ends. */
static void maybe_leave(struct world *w, int turn)
{
    struct rank *r = w->ranks + (w->leaver >= 0 ? w->leaver : 0);

    if (w->leave_turn < 0 || w->left || turn < w->leave_turn || r->open > 0)
        return;
    w->left = r->dead = true;
    r->next = w->step_count;
    r->turns_left = 200;
    engine_stop(r->engine);
}

static void close_slowly(struct rank *r)
{
    mesh_progress(r->mesh);
    if (--r->turns_left > 0)
        return;
    clock_simulated_ns = NULL;
    engine_free(r->engine);
    mesh_close(r->mesh, true);
    clock_simulated_ns = &now_ns;
    r->closed = true;
}

static void check_outcomes(const struct world *w)
{
    for (int i = 0; i < w->step_count; i++)
        if (w->outcome[i].done > 0 && w->outcome[i].failed > 0)
            check_fail(__FILE__, __LINE__, "step %d of kind %d: %d ranks done, %d failed", i,
                       w->steps[i].kind, w->outcome[i].done, w->outcome[i].failed);
}

static void end_world(struct world *w)
{
    for (int i = 0; i < w->size; i++)
        for (int k = 0; k < FLIGHT_MAX; k++)
            CHECK(w->ranks[i].flights[k].handle == 0);
    for (int i = 0; i < w->size; i++)
        if (!w->ranks[i].closed)
            engine_stop(w->ranks[i].engine);
    for (int i = 0; i < w->size; i++) {
        if (!w->ranks[i].closed) {
            engine_free(w->ranks[i].engine);
            mesh_close(w->ranks[i].mesh, true);
        }
        config_release(&w->ranks[i].conf);
    }
}

enum disturbance { NOTHING, CRASH, LEAVE };

/* One host in half of the seeds; else up to four, of any size. */
static void draw_hosts(struct world *w, struct sim_options *opt, int host_of[RANKS_MAX])
{
    int most = w->size < 4 ? w->size : 4;

    opt->hosts = w->leaver < 0 && below(w, 2) == 0 ? 1 : 1 + below(w, most);
    opt->no_memory = below(w, 10) == 0;
    for (int i = 0; i < w->size; i++)
        host_of[i] = i < opt->hosts ? i : below(w, opt->hosts);
    for (int i = w->size - 1; i > 0; i--) {
        int k = below(w, i + 1), host = host_of[i];

        host_of[i] = host_of[k];
        host_of[k] = host;
    }
    opt->host_of = host_of;
}

static void run_seed(uint64_t seed, enum disturbance what, bool verbose)
{
    int host_of[RANKS_MAX];
    uint64_t tick_ns;                   /* long: leaders tell what is late */
    struct world *w = calloc(1, sizeof *w);
    struct sim_options opt = {.seed = seed, .board_bytes = coll_board_bytes()};
    struct sim *sim;

    CHECK(w != NULL);
    now_ns = 1000000000;
    clock_simulated_ns = &now_ns;
    w->random = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 8; i++)
        draw(w);
    w->verbose = verbose;
    w->join_last = -1;
    w->size = opt.size = 2 + below(w, RANKS_MAX - 1);
    opt.delay = below(w, what == LEAVE ? 40 : 8);
    tick_ns = what != LEAVE && below(w, 4) == 0 ? 5000000 : 20000;
    w->leaver = what == LEAVE ? below(w, w->size) : -1;
    w->leave_turn = what == LEAVE ? below(w, 3000) : -1;
    draw_hosts(w, &opt, host_of);
    make_program(w);
    w->victim = below(w, w->size);
    w->crash_step = what == CRASH ? below(w, 400) : -1;
    sim = sim_new(&opt);
    CHECK(sim != NULL);
    make_engines(w, sim);
    for (int turn = 0; !is_over(w); turn++) {
        int rank = below(w, w->size);

        now_ns += tick_ns;
        if (turn > 400000)
            check_fail(__FILE__, __LINE__, "seed %llu: no end", (unsigned long long)seed);
        maybe_crash(w, turn);
        maybe_leave(w, turn);
        if (w->ranks[rank].dead) {
            if (!w->ranks[rank].closed)
                close_slowly(&w->ranks[rank]);
            continue;
        }
        if (below(w, 3) == 0)
            try_submit(w, rank);
        else if (below(w, 4) == 0)
            collect(w, rank);
        else
            engine_crank(w->ranks[rank].engine);
    }
    if (what != CRASH)
        check_outcomes(w);
    clock_simulated_ns = NULL;
    end_world(w);
    sim_free(sim);
    free(w);
}

static void run_seeds(uint64_t first, int count, enum disturbance what)
{
    const char *one = getenv("HVD_SEED"), *many = getenv("HVD_SEEDS");

    if (one != NULL) {
        run_seed(strtoull(one, NULL, 0), what, true);
        return;
    }
    if (many != NULL)
        count = (int)strtol(many, NULL, 0) * count / 2600;
    for (int i = 0; i < count; i++) {
        fprintf(stderr, "\rseed %llu ", (unsigned long long)(first + (uint64_t)i));
        run_seed(first + (uint64_t)i, what, false);
    }
}

TEST(random_programs, .limit_s = 300)
{
    run_seeds(1, 1400, NOTHING);
}

TEST(random_programs_with_a_crash, .limit_s = 300)
{
    run_seeds(100001, 600, CRASH);
}

TEST(random_programs_with_a_rank_that_leaves, .limit_s = 300)
{
    run_seeds(200001, 600, LEAVE);
}
