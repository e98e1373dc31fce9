/*
 * negotiate_check.c: do the members mean the same operation?  The checks of one tensor in
 * their fixed order; the first that fails is the error, with both values and ranks.
 *
 * Those who have announced it agree with each other, or it would have failed: so a new
 * announcement is compared with one of them, the lowest, whatever their number.
 */
#include "engine/negotiate_int.h"

#include <stdio.h>

/* As the original says them. */
static const char *const op_names[] = {
#define OP_NAME(name, text) #name,
    HVD_OP_MAP(OP_NAME)
#undef OP_NAME
    "ADD_SET", "REMOVE_SET",
};
static const char *const reduce_names[] = {"Average", "Sum", "Adasum", "Min", "Max",
                                           "Product"};

static const char *kind_name(const struct wire_request *r)
{
    if (r->form.op == HVD_ALLREDUCE && r->form.reduce == HVD_ADASUM)
        return "ADASUM";
    return op_names[r->form.op];
}

static const char *shape_text(const struct wire_request *r, char *buffer, size_t capacity)
{
    size_t used = (size_t)snprintf(buffer, capacity, "[");

    for (int i = 0; i < r->form.ndim && used < capacity; i++)
        used += (size_t)snprintf(buffer + used, capacity - used, "%s%lld",
                                 i > 0 ? ", " : "", (long long)r->form.shape[i]);
    if (used < capacity)
        snprintf(buffer + used, capacity - used, "]");
    return buffer;
}

struct pair {
    const struct wire_request *a, *b;
    int rank_a, rank_b;
};

static enum hvd_status differ(const struct pair *p, struct hvd_error *err,
                              const char *what, const char *va, const char *vb)
{
    return error_set(err, HVD_MISMATCH, p->rank_b,
                     "mismatched %s: rank %d has %s, but rank %d has %s", what, p->rank_a,
                     va, p->rank_b, vb);
}

static bool is_reduction(const struct wire_request *r)
{
    return r->form.op == HVD_ALLREDUCE || r->form.op == HVD_REDUCESCATTER;
}

static enum hvd_status check_shape(const struct pair *p, struct hvd_error *err)
{
    char sa[512], sb[512];

    if (form_has_shape(&p->a->form, p->b->form.ndim, p->b->form.shape))
        return HVD_OK;
    return differ(p, err, "shapes", shape_text(p->a, sa, sizeof sa),
                  shape_text(p->b, sb, sizeof sb));
}

/* Also for values that are no numbers. */
static bool same_factor(double a, double b)
{
    return a == b || (a != a && b != b);
}

static enum hvd_status check_factors(const struct pair *p, struct hvd_error *err)
{
    char va[96], vb[96];

    if (same_factor(p->a->form.prescale, p->b->form.prescale) &&
        same_factor(p->a->form.postscale, p->b->form.postscale))
        return HVD_OK;
    snprintf(va, sizeof va, "prescale %.17g postscale %.17g", p->a->form.prescale,
             p->a->form.postscale);
    snprintf(vb, sizeof vb, "prescale %.17g postscale %.17g", p->b->form.prescale,
             p->b->form.postscale);
    return differ(p, err, "factors", va, vb);
}

/* allgather, alltoall: at least one dimension, equal but for the first */
static enum hvd_status check_rest_of_shape(const struct pair *p, struct hvd_error *err)
{
    char what[64], va[32], vb[32];

    snprintf(va, sizeof va, "%d dimensions", p->a->form.ndim);
    snprintf(vb, sizeof vb, "%d dimensions", p->b->form.ndim);
    if (p->a->form.ndim != p->b->form.ndim)
        return differ(p, err, "tensor ranks", va, vb);
    for (int i = 1; i < p->a->form.ndim; i++) {
        if (p->a->form.shape[i] == p->b->form.shape[i])
            continue;
        snprintf(what, sizeof what, "sizes of dimension %d", i);
        snprintf(va, sizeof va, "%lld", (long long)p->a->form.shape[i]);
        snprintf(vb, sizeof vb, "%lld", (long long)p->b->form.shape[i]);
        return differ(p, err, what, va, vb);
    }
    return HVD_OK;
}

static enum hvd_status check_set_ranks(const struct pair *p, struct hvd_error *err)
{
    if (p->a->split_count != p->b->split_count ||
        (p->a->split_count > 0 &&
         memcmp(p->a->splits, p->b->splits, 8 * (size_t)p->a->split_count) != 0))
        return error_set(err, HVD_MISMATCH, p->rank_b,
                         "ranks %d and %d name different members of the process set",
                         p->rank_a, p->rank_b);
    return HVD_OK;
}

/* Checks 1 to 5 of contract 4.2. */
static enum hvd_status check_meaning(const struct pair *p, struct hvd_error *err)
{
    if (p->a->form.dtype != p->b->form.dtype)
        return differ(p, err, "data types", hvd_dtype_name(p->a->form.dtype),
                      hvd_dtype_name(p->b->form.dtype));
    if (strcmp(kind_name(p->a), kind_name(p->b)) != 0)
        return differ(p, err, "operations", kind_name(p->a), kind_name(p->b));
    if (is_reduction(p->a) || p->a->form.op == HVD_BROADCAST)
        TRY(check_shape(p, err));
    if (is_reduction(p->a))
        TRY(check_factors(p, err));
    if (is_reduction(p->a) && p->a->form.reduce != p->b->form.reduce)
        return differ(p, err, "reduction ops", reduce_names[p->a->form.reduce],
                      reduce_names[p->b->form.reduce]);
    return HVD_OK;
}

/* The root as the user gave it: a global rank. */
static int global_root(const struct negotiator *n, const struct wire_request *r)
{
    int root = r->form.root;

    return r->form.op == HVD_BROADCAST && root >= 0 ? n->ranks[root] : root;
}

/* Checks 7 to 10, and those of groups and process sets. */
static enum hvd_status check_form(const struct negotiator *n, const struct pair *p,
                                  struct hvd_error *err)
{
    char va[32], vb[32];

    if (p->a->form.op == HVD_ALLGATHER || p->a->form.op == HVD_ALLTOALL)
        TRY(check_rest_of_shape(p, err));
    snprintf(va, sizeof va, "%d", global_root(n, p->a));
    snprintf(vb, sizeof vb, "%d", global_root(n, p->b));
    if (p->a->form.root != p->b->form.root)
        return differ(p, err, "root ranks", va, vb);
    if (p->a->form.device != p->b->form.device)
        return differ(p, err, "devices", p->a->form.device ? "GPU" : "CPU",
                      p->b->form.device ? "GPU" : "CPU");
    if (p->a->group_count != p->b->group_count)
        return error_set(err, HVD_MISMATCH, p->rank_b,
                         "mismatched groups: rank %d has %u tensors, but rank %d has %u",
                         p->rank_a, p->a->group_count, p->rank_b, p->b->group_count);
    return p->a->form.op == OP_SET_ADD ? check_set_ranks(p, err) : HVD_OK;
}

static bool allows_joined(const struct wire_request *r)
{
    return r->form.op == HVD_ALLREDUCE || r->form.op == HVD_BARRIER || r->form.op == HVD_JOIN ||
           r->form.op >= OP_SET_ADD;
}

/* A rank that announced the tensor before it joined takes part in it. */
static enum hvd_status check_joined(const struct negotiator *n, const struct neg_tensor *t,
                                    const struct wire_request *r, struct hvd_error *err)
{
    int m = 0;

    if (n->joined_count == 0 || allows_joined(r))
        return HVD_OK;
    while (m < n->opt.member_count && (!n->joined[m] || t->by_member[m] != NULL))
        m++;
    if (m == n->opt.member_count)
        return HVD_OK;
    return error_set(err, HVD_UNSUPPORTED, n->ranks[m],
                     "%s is not supported while ranks have joined (rank %d has)%s",
                     op_names[r->form.op], n->ranks[m],
                     r->form.op == HVD_ALLGATHER
                         ? "; if it comes from sparse gradients, use sparse_as_dense"
                         : "");
}

static enum hvd_status check_problem(const struct negotiator *n,
                                     const struct wire_request *r, int member,
                                     struct hvd_error *err)
{
    if (r->problem_bytes == 0)
        return HVD_OK;
    return error_set(err, HVD_REMOTE, n->ranks[member], "rank %d could not take part: %.*s",
                     n->ranks[member], r->problem_bytes, r->problem);
}

static enum hvd_status check_scalar(const struct negotiator *n,
                                    const struct wire_request *r, int member,
                                    struct hvd_error *err)
{
    if (r->form.ndim > 0 || (r->form.op != HVD_ALLGATHER && r->form.op != HVD_ALLTOALL &&
                        r->form.op != HVD_REDUCESCATTER))
        return HVD_OK;
    return error_set(err, HVD_MISMATCH, n->ranks[member],
                     "%s of a rank-zero tensor (a scalar) is not possible",
                     op_names[r->form.op]);
}

enum hvd_status neg_check(const struct negotiator *n, const struct neg_tensor *t, int member,
                          struct hvd_error *err)
{
    int a = t->lowest < member ? t->lowest : member, b = t->lowest < member ? member : t->lowest;
    struct pair p = {.a = &t->by_member[a]->r, .b = &t->by_member[b]->r,
                     .rank_a = n->ranks[a], .rank_b = n->ranks[b]};
    const struct wire_request *r = &t->by_member[member]->r;

    TRY(check_problem(n, r, member, err));
    TRY(check_meaning(&p, err));
    TRY(check_joined(n, t, p.a, err));
    TRY(check_scalar(n, r, member, err));
    return check_form(n, &p, err);
}
