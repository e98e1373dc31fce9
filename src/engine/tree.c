/* tree.c: see tree.h. */
#include "engine/tree.h"

int tree_child(const struct tree_node *n, int i)
{
    int rest = n->high - n->low - 1, each, more;

    if (n->children == 0)
        return n->high;
    each = rest / n->children;
    more = rest % n->children;
    return n->low + 1 + i * each + (i < more ? i : more);
}

int tree_child_of(const struct tree_node *n, int host)
{
    int low = 0, high = n->children;

    if (host <= n->low || host >= n->high)
        return -1;
    while (high - low > 1) {
        int middle = (low + high) / 2;

        if (tree_child(n, middle) <= host)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int count_children(int low, int high, int fanout)
{
    int rest = high - low - 1;

    return rest < fanout ? rest : fanout;
}

struct tree_node tree_above(int hosts, int fanout, int host, int depth)
{
    struct tree_node n = {.low = 0, .high = hosts, .parent = -1,
                          .children = count_children(0, hosts, fanout)};

    while (n.low != host && n.depth < depth) {
        int i = tree_child_of(&n, host);
        struct tree_node child = {.low = tree_child(&n, i), .high = tree_child(&n, i + 1),
                                  .depth = n.depth + 1, .parent = n.low};

        child.children = count_children(child.low, child.high, fanout);
        n = child;
    }
    return n;
}

struct tree_node tree_find(int hosts, int fanout, int host)
{
    return tree_above(hosts, fanout, host, hosts);
}
