/*
 * tree.h: the tree over the hosts of a process set, along which announcements go up to its
 * coordinator and responses come down: pure arithmetic on the numbers of hosts.
 *
 * A node is a host with all hosts below it, which are a range: [low, high), with `low` the host
 * itself.  The rest of the range is dealt out to at most `fanout` children, nearly equal.  Host 0,
 * where the coordinator is, is the root.  With no more hosts than the fan-out and one, every
 * host is a child of the root.
 */
#ifndef HVD_ENGINE_TREE_H
#define HVD_ENGINE_TREE_H

struct tree_node {
    int low, high;                      /* hosts */
    int depth;                          /* 0: the root */
    int parent;                         /* host; -1: the root has none */
    int children;
};

/* The node of `host` among `hosts`. */
struct tree_node tree_find(int hosts, int fanout, int host);
/* The node at `depth` on the way from the root to `host`; of `host` itself if it is higher. */
struct tree_node tree_above(int hosts, int fanout, int host, int depth);
/* The first host of child i, 0 <= i <= children; child i ends where i + 1 begins. */
int tree_child(const struct tree_node *n, int i);
/* The child that has `host` below it; -1: none. */
int tree_child_of(const struct tree_node *n, int host);

#endif
