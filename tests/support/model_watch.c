/* model_watch.c: see model_watch.h. */
#include "support/model_watch.h"

#include <stdlib.h>
#include <string.h>

#define HANDSHAKE 3                     /* messages: HELLO, REPLY, CONFIRM */
#define VICTIMS 8                       /* deaths that are tried, spread over the ranks */

/* src/transport/overlay.c */
bool overlay_neighbours(const struct mesh_topology *t, const bool *gone, bool *out);

struct overlay {
    int *first, *peers;                 /* neighbours of rank r: peers[first[r]..first[r + 1]) */
};

static struct overlay overlay_make(const struct model_options *opt)
{
    size_t size = (size_t)opt->size, room = 0;
    struct overlay o = {.first = calloc(size + 1, sizeof *o.first)};
    bool *near = calloc(size, sizeof *near);
    int *hosts = calloc(size, sizeof *hosts);
    struct mesh_topology t = {.size = opt->size, .host_of = hosts,
                              .host_count = (opt->size + opt->per_host - 1) / opt->per_host};

    BUG_ON(o.first == NULL || near == NULL || hosts == NULL);
    for (int r = 0; r < opt->size; r++)
        hosts[r] = r / opt->per_host;
    for (int r = 0; r < opt->size; r++) {
        int n = o.first[r];

        t.rank = r;
        memset(near, 0, size * sizeof *near);
        BUG_ON(!overlay_neighbours(&t, NULL, near));
        for (int i = 0; i < opt->size; i++) {
            if (!near[i] || i == r)
                continue;
            if ((size_t)n == room) {
                room = room > 0 ? 2 * room : 1024;
                o.peers = realloc(o.peers, room * sizeof *o.peers);
                BUG_ON(o.peers == NULL);
            }
            o.peers[n++] = i;
        }
        o.first[r + 1] = n;
    }
    free(near);
    free(hosts);
    return o;
}

static void overlay_release(struct overlay *o)
{
    free(o->first);
    free(o->peers);
}

void model_init_cost(const struct model_options *opt, struct model_cost *cost)
{
    struct overlay o = overlay_make(opt);

    *cost = (struct model_cost){0};
    for (int r = 0; r < opt->size; r++) {
        int peers = o.first[r + 1] - o.first[r];
        uint64_t messages = (uint64_t)(HANDSHAKE * (peers + 1) + 2);

        cost->messages += messages;
        cost->peers = peers > cost->peers ? peers : cost->peers;
        if (messages > cost->busiest_messages) {
            cost->busiest_messages = messages;
            cost->busiest = r;
        }
    }
    overlay_release(&o);
}

/* ---- A death --------------------------------------------------------------------------- */

/* Who hears when, the next one first. */
struct flood {
    const struct model_options *opt;
    const struct overlay *o;
    struct news { uint64_t at_ns; int rank; } *heap;
    size_t count, room;
    bool *knows;
};

static void push(struct flood *f, uint64_t at_ns, int rank)
{
    size_t i = f->count++;

    if (f->count > f->room) {
        f->room = 2 * f->count + 1024;
        f->heap = realloc(f->heap, f->room * sizeof *f->heap);
        BUG_ON(f->heap == NULL);
    }
    for (; i > 0 && at_ns < f->heap[(i - 1) / 2].at_ns; i = (i - 1) / 2)
        f->heap[i] = f->heap[(i - 1) / 2];
    f->heap[i] = (struct news){at_ns, rank};
}

static struct news pop(struct flood *f)
{
    struct news first = f->heap[0], last = f->heap[--f->count];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < f->count) {
        if (child + 1 < f->count && f->heap[child + 1].at_ns < f->heap[child].at_ns)
            child++;
        if (f->heap[child].at_ns >= last.at_ns)
            break;
        f->heap[i] = f->heap[child];
        i = child;
    }
    f->heap[i] = last;
    return first;
}

/* cpu_ns: of each message at its sender; 0: the kernel of a dead rank sends for it. */
static void tell(struct flood *f, uint64_t at_ns, int rank, uint64_t cpu_ns)
{
    const struct model_kind *kind = f->opt->kind;
    int first = rank / f->opt->per_host * f->opt->per_host;

    for (int i = first; i < first + f->opt->per_host && i < f->opt->size; i++)
        if (!f->knows[i])
            push(f, at_ns + MODEL_NOTIFY_NS, i);
    for (int i = f->o->first[rank]; i < f->o->first[rank + 1]; i++) {
        at_ns += cpu_ns;
        push(f, at_ns + kind->latency_ns + kind->message_ns, f->o->peers[i]);
    }
}

static uint64_t die(const struct model_options *opt, const struct overlay *o, int victim)
{
    struct flood f = {.opt = opt, .o = o, .knows = calloc((size_t)opt->size, sizeof *f.knows)};
    int left = opt->size - 1;
    uint64_t last_ns = 0;

    BUG_ON(f.knows == NULL);
    f.knows[victim] = true;
    tell(&f, 0, victim, 0);
    while (f.count > 0) {
        struct news n = pop(&f);

        if (f.knows[n.rank])
            continue;
        f.knows[n.rank] = true;
        left--;
        last_ns = n.at_ns;
        tell(&f, n.at_ns, n.rank, opt->kind->message_ns);
    }
    BUG_ON(left > 0);
    free(f.knows);
    free(f.heap);
    return last_ns;
}

void model_death_cost(const struct model_options *opt, struct model_cost *cost)
{
    struct overlay o = overlay_make(opt);

    *cost = (struct model_cost){0};
    for (int i = 0; i < VICTIMS; i++) {
        int victim = (int)((int64_t)i * (opt->size - 1) / (VICTIMS - 1));
        uint64_t ns = die(opt, &o, victim);

        if (ns > cost->time_ns) {
            cost->time_ns = ns;
            cost->busiest = victim;
        }
    }
    for (int r = 0; r < opt->size; r++) {
        int peers = o.first[r + 1] - o.first[r];

        cost->messages += (uint64_t)peers;
        cost->peers = peers > cost->peers ? peers : cost->peers;
    }
    cost->busiest_messages = 2 * (uint64_t)cost->peers;
    overlay_release(&o);
}
