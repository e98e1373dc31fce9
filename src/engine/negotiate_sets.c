/*
 * negotiate_sets.c: process sets, decided by the coordinator of the global set.  Ids freed
 * by removal are used again, the oldest first.  Each set gets a new epoch, so that a late
 * message of a removed set is not taken for one of its successor.  Slots of shared memory
 * go round, so that a member that is late to forget a set does not meet its successor.
 */
#include "engine/negotiate_int.h"

#include <stdlib.h>

static bool has_ranks(const struct negotiator *n, int i, const struct wire_request *r)
{
    if (n->sets[i].count != (int)r->split_count)
        return false;
    for (uint32_t k = 0; k < r->split_count; k++)
        if (n->sets[i].ranks[k] != get_split(r->splits, k))
            return false;
    return true;
}

static int find_same(const struct negotiator *n, const struct wire_request *r)
{
    if ((int)r->split_count == n->opt.member_count)
        return 0;
    for (int i = 0; i < n->set_count; i++)
        if (has_ranks(n, i, r))
            return n->sets[i].id;
    return -1;
}

static enum hvd_status check_ranks(const struct negotiator *n,
                                   const struct wire_request *r, struct hvd_error *err)
{
    if (r->split_count == 0)
        return error_set(err, HVD_INVALID, -1, "a process set needs at least one rank");
    for (uint32_t i = 0; i < r->split_count; i++) {
        int64_t rank = get_split(r->splits, i);

        if (rank < 0 || rank >= n->opt.member_count)
            return error_set(err, HVD_INVALID, -1,
                             "process set with rank %lld, but ranks are 0..%d",
                             (long long)rank, n->opt.member_count - 1);
        if (i > 0 && get_split(r->splits, i - 1) >= rank)
            return error_set(err, HVD_INVALID, -1, "process set with rank %lld twice",
                             (long long)rank);
    }
    if (n->set_count >= NEG_SETS_MAX)
        return error_set(err, HVD_INVALID, -1,
                         "too many process sets; at most %d can exist beside the global "
                         "one", NEG_SETS_MAX);
    if (find_same(n, r) >= 0)
        return error_set(err, HVD_INVALID, -1,
                         "a process set with the same ranks exists already: id %d",
                         find_same(n, r));
    return HVD_OK;
}

static int take_id(struct negotiator *n)
{
    int id = n->next_id;

    if (n->free_id_count == 0)
        return n->next_id++;
    id = n->free_ids[0];
    n->free_id_count--;
    memmove(n->free_ids, n->free_ids + 1, (size_t)n->free_id_count * sizeof *n->free_ids);
    return id;
}

static bool is_slot_used(const struct negotiator *n, int slot)
{
    for (int i = 0; i < n->set_count; i++)
        if (n->sets[i].slot == slot)
            return true;
    return false;
}

static int take_slot(struct negotiator *n)
{
    do
        n->last_slot = n->last_slot % NEG_SETS_MAX + 1;
    while (is_slot_used(n, n->last_slot));
    return n->last_slot;
}

int neg_know_set(struct negotiator *n, int id, const int *ranks, int count)
{
    void *sets = realloc(n->sets, (size_t)(n->set_count + 1) * sizeof *n->sets);
    int *copy = malloc((size_t)count * sizeof *copy);
    void *ids = realloc(n->free_ids, (size_t)(n->set_count + n->free_id_count + 1) *
                                         sizeof *n->free_ids);

    if (sets != NULL)
        n->sets = sets;
    if (ids != NULL)
        n->free_ids = ids;
    if (sets == NULL || ids == NULL || copy == NULL) {
        free(copy);
        return -1;
    }
    memcpy(copy, ranks, (size_t)count * sizeof *copy);
    n->sets[n->set_count].id = id;
    n->sets[n->set_count].slot = take_slot(n);
    n->sets[n->set_count].ranks = copy;
    n->sets[n->set_count].count = count;
    n->set_count++;
    n->set_epoch++;
    if (id >= n->next_id)
        n->next_id = id + 1;
    return n->last_slot;
}

static void say_added(struct negotiator *n, const struct neg_tensor *t, int id, int slot,
                      const int *ranks, uint32_t count)
{
    struct wire_set_added added = {.id = (uint32_t)id, .slot = (uint32_t)slot,
                                   .epoch = n->set_epoch + 1,   /* 1: the global set's */
                                   .name = t->name, .name_bytes = t->name_bytes,
                                   .rank_count = count};
    struct strbuf list;

    strbuf_init(&list);
    for (uint32_t i = 0; i < count; i++)
        put_member(&list, ranks[i]);
    added.ranks = (const uint8_t *)list.text;
    n->out.failed |= list.failed;
    neg_begin_response(n, RESPONSE_SET_ADDED);
    if (!n->out.failed)
        put_set_added(&n->out, &added);
    strbuf_release(&list);
}

void neg_add_set(struct negotiator *n, struct neg_tensor *t)
{
    const struct wire_request *r = &neg_any_request(n, t)->r;
    struct hvd_error why;
    int *ranks, id;

    if (check_ranks(n, r, &why) != HVD_OK) {
        neg_fail(n, t, &why);
        return;
    }
    ranks = malloc(r->split_count * sizeof *ranks);
    if (ranks == NULL) {
        error_set(&why, HVD_NOMEM, -1, "no memory for a process set");
        neg_fail(n, t, &why);
        return;
    }
    for (uint32_t i = 0; i < r->split_count; i++)
        ranks[i] = (int)get_split(r->splits, i);
    id = take_id(n);
    say_added(n, t, id, neg_know_set(n, id, ranks, (int)r->split_count), ranks,
              r->split_count);
    free(ranks);
    neg_tensor_free(n, t);
}

void neg_remove_set(struct negotiator *n, struct neg_tensor *t)
{
    int id = neg_any_request(n, t)->r.form.root, i = 0;
    struct wire_set_removed removed;
    struct hvd_error why;

    while (i < n->set_count && n->sets[i].id != id)
        i++;
    if (i == n->set_count) {
        error_set(&why, HVD_INVALID, -1, "process set %d does not exist", id);
        neg_fail(n, t, &why);
        return;
    }
    free(n->sets[i].ranks);
    n->sets[i] = n->sets[--n->set_count];
    n->free_ids[n->free_id_count++] = id;
    removed = (struct wire_set_removed){.id = (uint32_t)id, .name = t->name,
                                        .name_bytes = t->name_bytes};
    neg_begin_response(n, RESPONSE_SET_REMOVED);
    put_set_removed(&n->out, &removed);
    neg_tensor_free(n, t);
}

void neg_sets_release(struct negotiator *n)
{
    for (int i = 0; i < n->set_count; i++)
        free(n->sets[i].ranks);
    free(n->sets);
    free(n->free_ids);
}
