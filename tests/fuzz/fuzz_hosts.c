/* fuzz_hosts.c: host strings and hostfiles.  What is accepted can be handed to ssh. */
#include "launch/hosts.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(struct host_list *list)
{
    for (int i = 0; i < list->count; i++) {
        const struct host *h = &list->items[i];

        BUG_ON(!host_name_is_valid(h->name, strlen(h->name)));
        BUG_ON(h->slots < 1 || h->slots > HOST_SLOTS_MAX);
    }
    hosts_release(list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    struct host_list list;
    struct hvd_error err;

    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    hosts_parse(text, &list, &err);
    check(&list);
    free(text);
    hosts_parse_lines((const char *)data, size, "fuzz", &list, &err);
    check(&list);
    return 0;
}
