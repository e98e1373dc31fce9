/*
 * team.c: an ordered set of ranks, and what its layout on hosts allows: direct access to
 * each other's memory when all members share one host, sub-teams for hierarchical
 * algorithms when several members of a team over hosts share one.
 */
#include "collective/board_int.h"

#include <stdlib.h>
#include <string.h>

int team_hier_allreduce = -1, team_hier_allgather = -1;

void coll_set_hierarchical(int allreduce, int allgather)
{
    team_hier_allreduce = allreduce;
    team_hier_allgather = allgather;
}

static void free_arrays(struct coll_team *team)
{
    free(team->ranks);
    layout_release(&team->layout);
    free(team->local_ranks);
    free(team->local_teamrank);
    free(team->boards);
    free(team->src);
    free(team->dst);
}

void coll_team_free(struct coll_team *team)
{
    if (team == NULL)
        return;
    coll_team_free(team->local);
    coll_team_free(team->cross);
    while (team->free_tasks != NULL) {
        struct coll_task *task = team->free_tasks;

        team->free_tasks = task->next;
        free(task);
    }
    free_arrays(team);
    if (team->owns_scratch)
        scratch_free(team->scratch);
    free(team);
}

bool coll_team_is_local(const struct coll_team *team)
{
    return team->direct || team->count == 1;
}

const struct layout *coll_team_layout(const struct coll_team *team)
{
    return &team->layout;
}

static enum hvd_status take_arrays(struct coll_team *team, const int *ranks,
                                   struct hvd_error *err)
{
    size_t n = (size_t)team->count;

    team->ranks = calloc(n, sizeof(int));
    team->local_ranks = calloc(n, sizeof(int));
    team->src = calloc(2 * n, sizeof(void *));
    team->dst = calloc(2 * n, sizeof(void *));
    if (team->ranks == NULL || team->local_ranks == NULL || team->src == NULL ||
        team->dst == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a team of %zu", n);
    memcpy(team->ranks, ranks, n * sizeof(int));
    return HVD_OK;
}

static enum hvd_status find_me(struct coll_team *team, struct hvd_error *err)
{
    const struct mesh_topology *top = mesh_topology(team->mesh);

    team->me = -1;
    for (int i = 0; i < team->count; i++) {
        int rank = team->ranks[i];

        if (rank < 0 || rank >= top->size)
            return error_set(err, HVD_INVALID, -1, "team has rank %d of %d", rank,
                             top->size);
        if (rank == top->rank)
            team->me = i;
    }
    if (team->me < 0)
        return error_set(err, HVD_INVALID, -1, "rank %d is no member of the team",
                         top->rank);
    return HVD_OK;
}

static enum hvd_status group_by_host(struct coll_team *team, struct hvd_error *err)
{
    const struct mesh_topology *top = mesh_topology(team->mesh);
    int *hosts = team->local_ranks;     /* find_memory fills it later */

    for (int i = 0; i < team->count; i++)
        hosts[i] = top->host_of[team->ranks[i]];
    return layout_make(&team->layout, hosts, top->size, team->count, team->me, err);
}

/* Direct when every member is among the ranks that share memory with us. */
static enum hvd_status find_memory(struct coll_team *team, struct hvd_error *err)
{
    const struct mesh_topology *top = mesh_topology(team->mesh);

    if (team->count == 1 || team->layout.host_count > 1)
        return HVD_OK;
    for (int i = 0; i < team->count; i++) {
        int local = 0;

        while (local < top->local_size && top->local_ranks[local] != team->ranks[i])
            local++;
        if (local == top->local_size)
            return HVD_OK;
        team->local_ranks[i] = local;
    }
    if (!board_attach(team))
        return HVD_OK;
    team->boards = calloc(TEAM_BOARDS, sizeof *team->boards);
    if (team->boards == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for the boards of a team");
    team->direct = true;
    return HVD_OK;
}

static enum hvd_status init_team(struct coll_team *team, const int *ranks,
                                 struct hvd_error *err)
{
    team->cache_bytes = red_cache_bytes();
    TRY(take_arrays(team, ranks, err));
    TRY(find_me(team, err));
    TRY(group_by_host(team, err));
    return find_memory(team, err);
}

static enum hvd_status team_new_sub(struct coll_team *parent, const int *ranks,
                                    int count, struct coll_team **team_p,
                                    struct hvd_error *err)
{
    struct coll_team *team = calloc(1, sizeof *team);
    enum hvd_status status;

    if (team == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a team");
    team->mesh = parent->mesh;
    team->slot = parent->slot;
    team->epoch = parent->epoch;
    team->scratch = parent->scratch;
    team->count = count;
    TRY_OUT(init_team(team, ranks, err));
    TRY_OUT(select_apply(team, err));
    *team_p = team;
    return HVD_OK;
out:
    coll_team_free(team);
    return status;
}

static int smallest_host(const struct coll_team *team)
{
    int least = team->count;

    for (int h = 0; h < team->layout.host_count; h++)
        least = layout_size(&team->layout, h) < least ? layout_size(&team->layout, h) : least;
    return least;
}

static enum hvd_status add_subteams(struct coll_team *team, struct hvd_error *err)
{
    const struct layout *l = &team->layout;
    int n = l->mate_count;
    int *ranks;
    enum hvd_status status;

    team->carriers = smallest_host(team);
    team->local_teamrank = calloc((size_t)n, sizeof(int));
    ranks = calloc((size_t)team->count, sizeof(int));
    if (ranks == NULL || team->local_teamrank == NULL) {
        free(ranks);
        return error_set(err, HVD_NOMEM, -1, "no memory for a team");
    }
    for (int i = 0; i < n; i++) {
        team->local_teamrank[i] = l->mates[i];
        ranks[i] = team->ranks[l->mates[i]];
    }
    TRY_OUT(team_new_sub(team, ranks, n, &team->local, err));
    for (int h = 0; h < l->host_count && l->place < team->carriers; h++)
        ranks[h] = team->ranks[l->by_host[l->begin[h] + l->place]];
    if (l->place < team->carriers)
        TRY_OUT(team_new_sub(team, ranks, l->host_count, &team->cross, err));
    status = HVD_OK;
out:
    free(ranks);
    return status;
}

static enum hvd_status fill_team(struct coll_team *team, const int *ranks,
                                 struct hvd_error *err)
{
    team->scratch = scratch_new();
    team->owns_scratch = true;
    if (team->scratch == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a team");
    TRY(init_team(team, ranks, err));
    if (!layout_is_flat(&team->layout))
        TRY(add_subteams(team, err));
    return select_apply(team, err);
}

enum hvd_status coll_team_new(struct mesh *mesh, const int *ranks, int count, int slot,
                              uint32_t epoch, struct coll_team **team_p,
                              struct hvd_error *err)
{
    struct coll_team *team;
    enum hvd_status status;

    if (count < 1 || count > MEMBER_MAX || slot < 0 || slot >= TEAM_SLOTS)
        return error_set(err, HVD_INVALID, -1, "team of %d members at slot %d", count,
                         slot);
    team = calloc(1, sizeof *team);
    if (team == NULL)
        return error_set(err, HVD_NOMEM, -1, "no memory for a team");
    team->mesh = mesh;
    team->slot = slot;
    team->epoch = epoch;
    team->count = count;
    status = fill_team(team, ranks, err);
    if (status != HVD_OK) {
        coll_team_free(team);
        return status;
    }
    *team_p = team;
    return HVD_OK;
}
