/* layout.c: groups members by host, in time that grows with their number. */
#include "collective/layout.h"

#include <stdlib.h>

void layout_release(struct layout *l)
{
    free(l->host_of);
    free(l->by_host);
    free(l->begin);
    free(l->leaders);
    *l = (struct layout){0};
}

/* first: by key, the host with that key or -1.  begin[h + 1] becomes the size of h. */
static void number_hosts(struct layout *l, const int *key, int *first)
{
    for (int m = 0; m < l->count; m++) {
        int *host = &first[key != NULL ? key[m] : m];

        if (*host < 0) {
            *host = l->host_count++;
            l->leaders[*host] = m;
        }
        l->host_of[m] = *host;
        l->begin[*host + 1]++;
    }
}

/* at: by host, the next free position in by_host */
static void group(struct layout *l, int *at)
{
    for (int h = 0; h < l->host_count; h++) {
        l->begin[h + 1] += l->begin[h];
        at[h] = l->begin[h];
    }
    for (int m = 0; m < l->count; m++)
        l->by_host[at[l->host_of[m]]++] = m;
}

static void find_self(struct layout *l, int self)
{
    l->host = l->host_of[self];
    l->mates = l->by_host + l->begin[l->host];
    l->mate_count = layout_size(l, l->host);
    while (l->mates[l->place] != self)
        l->place++;
}

enum hvd_status layout_make(struct layout *l, const int *key, int keys, int count, int self,
                            struct hvd_error *err)
{
    int range = key != NULL && keys > count ? keys : count;
    int *scratch = malloc((size_t)range * sizeof *scratch);

    *l = (struct layout){.count = count};
    l->host_of = calloc((size_t)count, sizeof *l->host_of);
    l->by_host = calloc((size_t)count, sizeof *l->by_host);
    l->begin = calloc((size_t)count + 1, sizeof *l->begin);
    l->leaders = calloc((size_t)count, sizeof *l->leaders);
    if (scratch == NULL || l->host_of == NULL || l->by_host == NULL || l->begin == NULL ||
        l->leaders == NULL) {
        free(scratch);
        layout_release(l);
        return error_set(err, HVD_NOMEM, -1, "no memory for the layout of %d ranks", count);
    }
    for (int i = 0; i < range; i++)
        scratch[i] = -1;
    number_hosts(l, key, scratch);
    group(l, scratch);
    find_self(l, self);
    free(scratch);
    return HVD_OK;
}
