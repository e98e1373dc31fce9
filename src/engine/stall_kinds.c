/*
 * stall_kinds.c: one name for two kinds of operation: allreduce(name="x") on one rank and
 * allgather(name="x") on another wait for each other for ever.
 *
 * Two kinds under one name may well be under way at once, in another order on each rank, and
 * one that waits can be joined by another thread at any time.  So this is a suspicion, of waits
 * that are old enough, and only if every rank that is missing has come to another kind of that
 * name; stall_stuck.c proves it.
 */
#include "engine/stall.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* What the user calls it: "x" of "allreduce.x".  NULL: the name does not say its kind. */
static const char *user_name(const struct stall_wait *w)
{
    const char *kind = hvd_op_name((enum hvd_op)w->op);
    size_t n = strlen(kind);

    return strncmp(w->name, kind, n) == 0 && w->name[n] == '.' ? w->name + n + 1 : NULL;
}

bool stall_is_other_kind(const struct stall_wait *a, const struct stall_wait *b)
{
    return a->op != b->op && a->set == b->set && user_name(b) != NULL &&
           strcmp(user_name(a), user_name(b)) == 0;
}

static bool is_elsewhere(const struct stall_wait *a, int rank,
                         const struct stall_wait *waits, int wait_count)
{
    for (int i = 0; i < wait_count; i++)
        if (stall_is_other_kind(a, &waits[i]) && !waits[i].missing[rank])
            return true;
    return false;
}

/* Whether ranks are missing, and all of them are elsewhere. */
static bool waits_for_kinds(const struct stall_wait *a, const struct stall_wait *waits,
                            int wait_count, int rank_count)
{
    bool any = false;

    for (int r = 0; r < rank_count; r++) {
        if (!a->missing[r])
            continue;
        if (!is_elsewhere(a, r, waits, wait_count))
            return false;
        any = true;
    }
    return any;
}

const struct stall_wait *stall_find_kinds(const struct stall_wait *waits, int wait_count,
                                          int rank_count, uint64_t age_us, uint64_t now_us)
{
    for (int i = 0; i < wait_count; i++) {
        const struct stall_wait *a = &waits[i];

        if (user_name(a) != NULL && now_us >= a->since_us + age_us &&
            waits_for_kinds(a, waits, wait_count, rank_count))
            return a;
    }
    return NULL;
}

/* " allgather by ranks 1": those who are missing at one of the kinds, but not at this. */
static void add_kind(struct strbuf *out, const struct stall_wait *w, const bool *concerned,
                     int rank_count, bool *users)
{
    for (int r = 0; r < rank_count; r++)
        users[r] = concerned[r] && !w->missing[r];
    strbuf_addf(out, " %s by ranks ", hvd_op_name((enum hvd_op)w->op));
    strbuf_add_ranks(out, users, rank_count);
}

void stall_kinds_concern(const struct stall_wait *a, const struct stall_wait *waits,
                         int wait_count, int rank_count, bool *concerned)
{
    for (int i = 0; i < wait_count; i++)
        for (int r = 0; r < rank_count; r++)
            concerned[r] |= waits[i].missing[r] &&
                            (&waits[i] == a || stall_is_other_kind(a, &waits[i]));
}

void stall_describe_kinds(struct strbuf *out, const struct stall_wait *a,
                          const struct stall_wait *waits, int wait_count, int rank_count)
{
    bool *concerned = calloc(2 * (size_t)rank_count, sizeof *concerned);
    bool *users = concerned + rank_count;

    strbuf_addf(out, "the name %.200s is used for different kinds of operation:",
                user_name(a));
    if (concerned != NULL)
        stall_kinds_concern(a, waits, wait_count, rank_count, concerned);
    if (concerned != NULL)
        add_kind(out, a, concerned, rank_count, users);
    for (int i = 0; concerned != NULL && i < wait_count; i++)
        if (stall_is_other_kind(a, &waits[i])) {
            strbuf_addf(out, ";");
            add_kind(out, &waits[i], concerned, rank_count, users);
        }
    free(concerned);
}
