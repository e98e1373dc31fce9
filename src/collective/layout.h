/*
 * layout.h: how the members of a team lie on hosts.  Computed once, when the team is made;
 * never changes, so every thread may read it.
 */
#ifndef HVD_COLLECTIVE_LAYOUT_H
#define HVD_COLLECTIVE_LAYOUT_H

#include "base/error.h"

/* Hosts are numbered in the order of their first member, who leads it. */
struct layout {
    int count;                          /* members */
    int host_count;
    int *host_of;                       /* by member */
    int *by_host;                       /* members, those of a host together, ascending */
    int *begin;                         /* host_count + 1 positions in by_host */
    int *leaders;                       /* by host */
    int host;                           /* ours */
    const int *mates;                   /* members of our host: part of by_host */
    int mate_count;
    int place;                          /* ours among the mates; 0: we lead */
};

/* key: by member, equal where members share a host and below `keys`; NULL: every member is a
 * host of its own. */
enum hvd_status layout_make(struct layout *l, const int *key, int keys, int count, int self,
                            struct hvd_error *err);
void layout_release(struct layout *l);

static inline int layout_size(const struct layout *l, int host)
{
    return l->begin[host + 1] - l->begin[host];
}

static inline int layout_leader_of(const struct layout *l, int member)
{
    return l->leaders[l->host_of[member]];
}

static inline bool layout_leads(const struct layout *l)
{
    return l->place == 0;
}

/* True if no host has several members, or all are on one: then the order of members is the
 * order in which sums are made. */
static inline bool layout_is_flat(const struct layout *l)
{
    return l->host_count == 1 || l->host_count == l->count;
}

#endif
