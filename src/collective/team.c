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
    free(team->host_of);
    free(team->by_host);
    free(team->host_begin);
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

static enum hvd_status take_arrays(struct coll_team *team, const int *ranks,
                                   struct hvd_error *err)
{
    size_t n = (size_t)team->count;

    team->ranks = calloc(n, sizeof(int));
    team->host_of = calloc(n, sizeof(int));
    team->by_host = calloc(n, sizeof(int));
    team->host_begin = calloc(n + 1, sizeof(int));
    team->local_ranks = calloc(n, sizeof(int));
    team->src = calloc(2 * n, sizeof(void *));
    team->dst = calloc(2 * n, sizeof(void *));
    if (team->ranks == NULL || team->host_of == NULL || team->by_host == NULL ||
        team->host_begin == NULL || team->local_ranks == NULL || team->src == NULL ||
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

/* Numbers the hosts in the order of their first member and groups the members by them. */
static void group_by_host(struct coll_team *team)
{
    const struct mesh_topology *top = mesh_topology(team->mesh);
    int at = 0, lonely = 0;

    for (int i = 0; i < team->count; i++)
        team->host_of[i] = -1;
    for (int i = 0; i < team->count; i++) {
        int first = at;

        if (team->host_of[i] >= 0)
            continue;
        for (int j = i; j < team->count; j++)
            if (top->host_of[team->ranks[j]] == top->host_of[team->ranks[i]]) {
                team->host_of[j] = team->host_count;
                team->by_host[at++] = j;
            }
        lonely += at - first == 1;
        team->host_begin[team->host_count++] = first;
    }
    team->host_begin[team->host_count] = at;
    team->flat_order = team->host_count == 1 || lonely == team->host_count;
}

/* Direct when every member is among the ranks that share memory with us. */
static enum hvd_status find_memory(struct coll_team *team, struct hvd_error *err)
{
    const struct mesh_topology *top = mesh_topology(team->mesh);

    if (team->count == 1 || team->host_count > 1)
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
    group_by_host(team);
    return find_memory(team, err);
}

enum hvd_status team_new_sub(struct coll_team *parent, const int *ranks, int count,
                             struct coll_team **team_p, struct hvd_error *err)
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

    for (int h = 0; h < team->host_count; h++) {
        int n = team->host_begin[h + 1] - team->host_begin[h];

        least = n < least ? n : least;
    }
    return least;
}

/* Position of this rank among the members of its host. */
static int place_on_host(const struct coll_team *team)
{
    int begin = team->host_begin[team->host_of[team->me]], at = 0;

    while (team->by_host[begin + at] != team->me)
        at++;
    return at;
}

static enum hvd_status add_subteams(struct coll_team *team, struct hvd_error *err)
{
    int host = team->host_of[team->me], begin = team->host_begin[host];
    int n = team->host_begin[host + 1] - begin, place = place_on_host(team);
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
        team->local_teamrank[i] = team->by_host[begin + i];
        ranks[i] = team->ranks[team->by_host[begin + i]];
    }
    TRY_OUT(team_new_sub(team, ranks, n, &team->local, err));
    for (int h = 0; h < team->host_count && place < team->carriers; h++)
        ranks[h] = team->ranks[team->by_host[team->host_begin[h] + place]];
    if (place < team->carriers)
        TRY_OUT(team_new_sub(team, ranks, team->host_count, &team->cross, err));
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
    if (!team->flat_order)
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
