/* hier.c: what algorithms on sub-teams have in common. */
#include "collective/hier_int.h"

int hier_host(const struct coll_team *team)
{
    return team->layout.host_of[team->me];
}

int hier_place(const struct coll_team *team)
{
    return team->local->me;
}

bool hier_can(const struct coll_team *team)
{
    return team->local != NULL;
}

uint32_t hier_part(const struct coll_task *t, uint32_t k)
{
    return t->part == 0 ? k : 256 + 4 * t->part + k;
}

enum hvd_status hier_drive(struct coll_task *t, struct hvd_error *err)
{
    struct hier *h = (struct hier *)t->state;

    return h->child != NULL ? task_drive(&h->child, err) : HVD_OK;
}

void hier_drop(struct coll_task *t)
{
    struct hier *h = (struct hier *)t->state;

    if (h->child != NULL)
        coll_cancel(h->child);
    h->child = NULL;
}

bool hier_needs_us(const struct coll_task *t)
{
    (void)t;
    return true;
}

/* In a later phase every member of this host has come. */
bool hier_has_come(const struct coll_task *t, int member)
{
    const struct hier *h = (const struct hier *)t->state;
    const struct coll_team *team = t->team;

    if (team->layout.host_of[member] != hier_host(team))
        return false;
    if (h->child == NULL || h->child->team != team->local)
        return true;
    for (int i = 0; i < team->local->count; i++)
        if (team->local_teamrank[i] == member)
            return coll_has_come(h->child, i);
    return false;
}

struct coll_call hier_call(const struct coll_task *t, enum coll_op op)
{
    struct coll_call call = t->call;

    call.op = op;
    call.prescale = call.postscale = 1.0;
    call.divisor = 0;
    call.counts = call.recv_counts = NULL;
    call.segments = NULL;
    call.segment_count = 0;
    call.agreed = true;
    call.root = 0;
    return call;
}
