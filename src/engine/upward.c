/*
 * upward.c: announcements in full on their way up the tree of hosts.  A leader takes what its
 * mates and the leaders below it say, and hands it on in one message: FORWARD, whose items are
 * messages as their members have written them.  Only where the tree is deep; with few hosts
 * everybody sends to the coordinator itself.
 */
#include "engine/engine_int.h"

/* A bundle goes when it has this much; far below what a message may have. */
#define BUNDLE_MOST (1u << 20)

/* Where announcements of this member go. */
int upward_to(const struct pset *s)
{
    return s->deep ? pset_source(s) : 0;
}

bool upward_flush(struct engine *e, struct pset *s)
{
    uint32_t count = s->upward_count;

    s->upward_count = 0;
    if (count > 0)
        member_send(e, s, pset_source(s), &s->upward, count);
    return count > 0;
}

static void add(struct engine *e, struct pset *s, const struct wire_forward *f)
{
    if (s->upward_count == 0)
        pset_put_head(s, MESSAGE_FORWARD, &s->upward);
    put_forward(&s->upward, f);
    s->upward_count++;
    if (s->upward.length >= BUNDLE_MOST)
        upward_flush(e, s);
}

/* True if `below` is one whose announcements come through us: a mate, or a leader. */
static bool is_below(const struct pset *s, int below)
{
    const struct layout *l = s->layout;
    int child = tree_child_of(&s->tree, l->host_of[below]);

    return layout_leads(l) && (l->host_of[below] == l->host ||
                               (child >= 0 && l->leaders[tree_child(&s->tree, child)] == below));
}

/* The announcement of a mate or of a child that is alone on its host. */
enum hvd_status upward_take(struct engine *e, struct pset *s, int member, const uint8_t *bytes,
                            size_t n, struct hvd_error *err)
{
    if (!is_below(s, member))
        return error_set(err, HVD_PROTO, -1, "an announcement for another leader");
    add(e, s, &(struct wire_forward){.member = member, .data = bytes, .bytes = (uint32_t)n});
    return HVD_OK;
}

/* A bundle of a child: handed on, or at the coordinator taken apart.  Its members are those
 * of the child's hosts. */
enum hvd_status upward_on_forward(struct engine *e, struct pset *s, int sender,
                                  struct wire_in *in, uint32_t count, upward_fn take,
                                  struct hvd_error *err)
{
    const struct layout *l = s->layout;
    int child = is_below(s, sender) ? tree_child_of(&s->tree, l->host_of[sender]) : -1;
    struct wire_forward f;

    if (child < 0)
        return error_set(err, HVD_PROTO, -1, "announcements for another leader");
    for (uint32_t i = 0; i < count; i++) {
        TRY(get_forward(in, &f, err));
        if (f.member >= s->count ||
            tree_child_of(&s->tree, l->host_of[f.member]) != child)
            return error_set(err, HVD_PROTO, -1, "an announcement of member %d", f.member);
        if (s->neg == NULL)
            add(e, s, &f);
        else
            TRY(take(e, s, f.member, f.data, f.bytes, err));
    }
    return HVD_OK;
}
